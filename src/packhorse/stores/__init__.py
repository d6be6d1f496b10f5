"""Where jobs live. `open_store` picks by the URL; a driver is imported only when its store is opened."""

from __future__ import annotations

from urllib.parse import urlsplit

from packhorse.clock import Clock
from packhorse.errors import StoreURLError
from packhorse.stores.contract import Store

__all__ = ["Store", "open_store"]


def open_store(url: str, clock: Clock | None = None) -> Store:
    try:
        scheme = urlsplit(url).scheme
    except ValueError as error:
        raise StoreURLError(url, str(error)) from None
    match scheme:
        case "memory":
            from packhorse.stores.memory import MemoryStore

            return MemoryStore(clock, url)
        case "sqlite":
            from packhorse.stores.sqlite import SQLiteStore

            return SQLiteStore(url, clock)
        case "postgresql" | "postgres":
            try:
                import psycopg  # noqa: F401
            except ImportError as missing:
                why = f"its driver is missing ({missing}). Run: pip install 'packhorse[postgres]'"
                raise StoreURLError(url, why) from None
            from packhorse.stores.postgres import PostgresStore

            return PostgresStore(url, clock)
        case "":
            raise StoreURLError(url, "it has no scheme")
    raise StoreURLError(url, f"there is no store for {scheme!r}")
