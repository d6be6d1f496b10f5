"""The URL of a PostgreSQL store: what the driver is told, and what only we know of."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import psycopg

from packhorse.errors import StoreURLError
from packhorse.stores import postgres_history
from packhorse.stores.postgres_places import POOL
from packhorse.stores.postgres_session import Schema
from packhorse.stores.sql_names import checked_prefix

SCHEMA = "packhorse"
PREFIX = "packhorse_"  # where everybody else's tables are, too
# What the driver is told unless the URL says otherwise: a line that was cut without a word is noticed by the kernel.
DRIVER = {
    "application_name": "packhorse",
    "connect_timeout": "5",
    "tcp_user_timeout": "10000",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
}
LOCAL_HOSTS = ("", "localhost", "127.0.0.1", "::1", "[::1]")
POOLERS = {"": None, "transaction": True, "session": False}
YES_NO = {"true": True, "false": False}
LARGEST_POOL = 1_000


class Parsed(NamedTuple):
    """`period` is of the partitions of history, where there are any; `pool` bounds the connections of a process."""

    conninfo: str
    schema: Schema
    pooled: bool | None
    skip_locked: bool
    period: int | None
    pool: int


def parse(url: str) -> Parsed:
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    schema = options.pop("schema", SCHEMA)
    if not schema or "\0" in schema or len(schema.encode()) > 63:
        raise StoreURLError(url, "the schema's name must have 1 to 63 bytes")
    prefix = checked_prefix(url, options.pop("prefix", PREFIX if schema == "public" else ""))
    if (pooler := options.pop("pooler", "")) not in POOLERS:
        raise StoreURLError(url, "pooler must be transaction or session")
    if (skip_locked := options.pop("skip_locked", "true").lower()) not in YES_NO:
        raise StoreURLError(url, "skip_locked must be true or false")
    if (history := options.pop("history", "")) not in ("", *postgres_history.PERIODS):
        raise StoreURLError(url, f"history must be one of {', '.join(postgres_history.PERIODS)}")
    pool = options.pop("pool", str(POOL))
    if not pool.isascii() or not pool.isdigit() or not 1 <= int(pool) <= LARGEST_POOL:
        raise StoreURLError(url, f"pool must be a number from 1 to {LARGEST_POOL}")
    hosts = options.get("host", unquote(parts.hostname or "")).split(",")
    near = all(host in LOCAL_HOSTS or host.startswith(("/", "@")) for host in hosts)
    if not near and "sslmode" not in options:
        options["sslmode"] = "require"
    for name, value in DRIVER.items():
        options.setdefault(name, value)
    text = f"postgresql://{parts.netloc}{parts.path}?{urlencode(options, quote_via=quote)}"
    try:
        psycopg.conninfo.conninfo_to_dict(text)
    except psycopg.ProgrammingError as error:
        raise StoreURLError(url, str(error).strip()) from None
    return Parsed(
        text,
        Schema(schema, prefix),
        POOLERS[pooler],
        YES_NO[skip_locked],
        postgres_history.PERIODS.get(history),
        int(pool),
    )
