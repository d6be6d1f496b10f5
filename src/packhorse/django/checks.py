"""System checks; settings alone, never a database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.conf import settings
from django.core import checks
from django.db import connections

from packhorse.django import options
from packhorse.errors import ConfigError

if TYPE_CHECKING:
    from packhorse.django.backend import PackhorseBackend

VENDORS = ("sqlite", "postgresql")


def check_backend(backend: PackhorseBackend) -> list[Any]:
    try:
        found = options.read(backend.options)
    except ConfigError as error:
        insecure = "keys cannot be used" in str(error)
        return [
            checks.Error(
                f"TASKS[{backend.alias!r}]: {error}",
                hint="Set SECRET_KEY to a long random text of your own." if insecure else None,
                id="packhorse.E002" if insecure else "packhorse.E001",
            )
        ]
    messages: list[Any] = []
    if found.database is not None:
        messages += _check_database(backend.alias, found.database)
    return messages


def _check_database(alias: str, database: str) -> list[Any]:
    messages: list[Any] = []
    if not apps.is_installed("packhorse.django"):
        messages.append(
            checks.Error(
                f"TASKS[{alias!r}] keeps its jobs in the database {database!r}, and nothing makes the tables.",
                hint="Add 'packhorse.django' to INSTALLED_APPS and run migrate.",
                id="packhorse.E003",
            )
        )
    vendor = connections[database].vendor
    if vendor not in VENDORS:
        messages.append(
            checks.Error(
                f"TASKS[{alias!r}] keeps its jobs in the database {database!r}, which is of {vendor}.",
                hint="Packhorse keeps jobs in SQLite and PostgreSQL. Name such a database, or a store.",
                id="packhorse.E004",
            )
        )
    name = str(settings.DATABASES[database].get("NAME", ""))
    if vendor == "sqlite" and (":memory:" in name or "mode=memory" in name) and not options.testing():
        messages.append(
            checks.Error(
                f"TASKS[{alias!r}] keeps its jobs in a SQLite database in memory, which no worker can reach.",
                hint="Give the database a file.",
                id="packhorse.E005",
            )
        )
    return messages
