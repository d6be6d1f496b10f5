"""Unique keys on SQLite. Functions of an open transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from packhorse.limits import Claimed


def holder(c: sqlite3.Connection, unique: Claimed, now: int) -> bytes | None:
    """Who has the key."""
    row = c.execute("select id, lapses_at from unique_key where key = ?", (unique.key,)).fetchone()
    return None if row is None or (row[1] is not None and row[1] <= now) else row[0]


def take(c: sqlite3.Connection, unique: Claimed, id: bytes, now: int) -> None:
    lapses_at = None if unique.lasting is None else now + unique.lasting
    write = "insert or replace into unique_key (key, id, until_start, lapses_at) values (?, ?, ?, ?)"
    c.execute(write, (unique.key, id, unique.until_start, lapses_at))


def free(c: sqlite3.Connection, ids: Sequence[bytes]) -> None:
    c.executemany("delete from unique_key where id = ? and lapses_at is null", [(id,) for id in ids])


def free_started(c: sqlite3.Connection, process: bytes, nonce: int) -> None:
    """The keys that were held until the start of what was just claimed."""
    if c.execute("select 1 from unique_key where until_start limit 1").fetchone() is not None:
        c.execute(
            "delete from unique_key where until_start and lapses_at is null and id in "
            "(select id from job indexed by job_held where state = 4 and process = ? and nonce = ?)",
            (process, nonce),
        )
