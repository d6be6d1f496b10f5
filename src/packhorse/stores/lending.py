"""From what a caller lends to the driver's connection: those of SQLAlchemy and Django lead to one.

They are known by what they can do, so that nobody has to import what they do not use.
"""

from __future__ import annotations

import inspect
from typing import Any


def is_async(lent: object) -> bool:
    return inspect.iscoroutinefunction(getattr(lent, "commit", None))


def driver_connection(lent: Any) -> Any:
    """In a transaction, as far as whoever stands between knows."""
    if hasattr(lent, "ensure_connection"):  # Django
        lent.ensure_connection()
        return lent.connection
    if hasattr(lent, "get_bind"):  # a session of SQLAlchemy
        lent = lent.connection()
    if hasattr(lent, "exec_driver_sql"):  # a connection of SQLAlchemy, which commits only what it knows to have begun
        if not lent.in_transaction():
            lent.begin()
        return lent.connection.driver_connection
    return lent


async def async_driver_connection(lent: Any) -> Any:
    if hasattr(lent, "get_bind"):
        lent = await lent.connection()
    if hasattr(lent, "get_raw_connection"):
        if not lent.in_transaction():
            await lent.begin()
        return (await lent.get_raw_connection()).driver_connection
    return lent


def named(connection: object) -> str:
    return f"{type(connection).__module__}.{type(connection).__qualname__}"
