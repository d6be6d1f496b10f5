"""Unique keys. Functions of an open transaction."""

from __future__ import annotations

from collections.abc import Sequence

from packhorse.limits import Claimed
from packhorse.stores.sql import Session

TAKE = """
    insert into unique_key (key, id, until_start, lapses_at) values (?, ?, ?, ?)
    on conflict (key) do update
    set id = excluded.id, until_start = excluded.until_start, lapses_at = excluded.lapses_at
"""


def holder(c: Session, unique: Claimed, now: int) -> bytes | None:
    """Who has the key."""
    row = c.execute("select id, lapses_at from unique_key where key = ?", (unique.key,)).fetchone()
    return None if row is None or (row[1] is not None and row[1] <= now) else row[0]


def take(c: Session, unique: Claimed, id: bytes, now: int) -> None:
    lapses_at = None if unique.lasting is None else now + unique.lasting
    c.execute(TAKE, (unique.key, id, unique.until_start, lapses_at))


def free(c: Session, ids: Sequence[bytes]) -> None:
    free_them = "delete from unique_key where id in ({rows:bytea}) and lapses_at is null"
    c.batched(free_them, [(id,) for id in ids])


def free_started(c: Session, process: bytes, nonce: int) -> None:
    """The keys that were held until the start of what was just claimed."""
    if c.execute("select 1 from unique_key where until_start = 1 limit 1").fetchone() is not None:
        c.execute(
            "delete from unique_key where until_start = 1 and lapses_at is null and id in "
            "(select id from job indexed by job_held where state = 4 and process = ? and nonce = ?)",
            (process, nonce),
        )
