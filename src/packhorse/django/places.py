"""Where the jobs are: the store that an alias of Django's databases, or a URL, leads to."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote, urlencode

from django.db import connections

from packhorse.clock import Clock
from packhorse.errors import ConfigError
from packhorse.stores import Store, open_store
from packhorse.stores.sql_store import SQLStore

# What Django tells itself or its driver in OPTIONS, and libpq does not know.
NOT_FOR_LIBPQ = {"assume_role", "client_encoding", "context", "cursor_factory", "isolation_level", "pool"}
NOT_FOR_LIBPQ |= {"prepare_threshold", "row_factory", "server_side_binding"}
# Django's tables are made in the first of these, so that ours are, too.
SEARCH_PATH = re.compile(r"\bsearch_path\s*=\s*\"?(\w+)")
PREFIX = "packhorse_"


def place_of(alias: str) -> tuple[Any, ...]:
    """What tells one place from another. Test runners move an alias to another database while the program runs."""
    told = connections[alias].settings_dict
    return told["ENGINE"], told["NAME"], told["HOST"], told["PORT"], told["USER"]


def open_alias(alias: str) -> Store:
    """The store in that database. Django makes its tables, and lends connections to it."""
    connection = connections[alias]
    match connection.vendor:
        case "sqlite" if connection.is_in_memory_db():
            store: Any = _in_memory()
        case "sqlite":
            store = open_store(_sqlite_url(connection.settings_dict))
        case "postgresql":
            store = open_store(_postgres_url(connection.settings_dict))
        case other:
            raise ConfigError(
                f"The database {alias!r} is of {other}, where Packhorse cannot keep jobs yet. Name one of SQLite or "
                "PostgreSQL with database, or a store of its own with store."
            )
    assert isinstance(store, SQLStore)
    store.host()
    return store


def guest_of(alias: str, clock: Clock) -> Store:
    """The store in that database, reached through Django's connection of this thread alone."""
    connection = connections[alias]
    if connection.vendor == "sqlite":
        from packhorse.stores.sqlite_guest import SQLiteGuest

        return SQLiteGuest(_sqlite_url(connection.settings_dict), clock, Line(connection))
    from packhorse.stores.postgres_guest import PostgresGuest

    return PostgresGuest(_postgres_url(connection.settings_dict), clock, Line(connection))


class Line:
    """A connection of Django's, also for event loops and other threads while its own thread waits for them."""

    def __init__(self, wrapper: Any) -> None:
        self._wrapper = wrapper

    def ensure_connection(self) -> None:
        if self._wrapper.connection is None:
            self._wrapper.ensure_connection()

    @property
    def connection(self) -> Any:
        return self._wrapper.connection


def _sqlite_url(told: dict[str, Any]) -> str:
    return f"sqlite:///{quote(str(told['NAME']))}?prefix={PREFIX}"


def _postgres_url(told: dict[str, Any]) -> str:
    given = {name: value for name, value in told.get("OPTIONS", {}).items() if name not in NOT_FOR_LIBPQ}
    options = {name: str(value) for name, value in given.items() if isinstance(value, str | int)}
    options.setdefault("sslmode", "prefer")  # as Django's own connections have it
    found = SEARCH_PATH.search(options.get("options", ""))
    options |= {"schema": found[1] if found else "public", "prefix": PREFIX}
    for name, value in (("host", told["HOST"]), ("port", told["PORT"]), ("user", told["USER"])):
        if value:
            options[name] = str(value)
    if told["PASSWORD"]:
        options["password"] = str(told["PASSWORD"])
    return f"postgresql:///{quote(str(told['NAME'] or ''), safe='')}?{urlencode(options, quote_via=quote)}"


def _in_memory() -> Store:
    """For tests, where Django keeps SQLite's database in memory: reached through its connection, or not at all."""
    from packhorse.stores.sqlite import SQLiteStore

    class InMemoryStore(SQLiteStore):
        shared = False

        def _unreachable(self, **_: object) -> Any:
            raise ConfigError(
                "The jobs are in a SQLite database in memory, which only Django's own connection reaches: they can be "
                "enqueued and looked at, and packhorse.django.testing.drain() performs them, but no worker can. Name a "
                "file as TEST['NAME'] of the database."
            )

        _cursor = _transaction = _unreachable

    return InMemoryStore(f"sqlite:///in-memory?prefix={PREFIX}")
