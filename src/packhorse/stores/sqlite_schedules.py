"""Schedules on SQLite. Functions of an open connection or transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import replace

from packhorse.job import NewJob
from packhorse.stores import sqlite_exchange
from packhorse.stores.contract import TICKS_KEPT, DueSchedules, StoredSchedule, Tick

COLUMNS = (
    *("key", "task", "rule", "payload", "source", "zone", "start", "end", "repeats", "jitter", "misfire", "grace"),
    *("overlap", "queue", "priority", "paused", "handled", "next_at", "last_job", "error", "fingerprint", "revision"),
)
NAMES = ", ".join(f'"{name}"' for name in COLUMNS)
WRITE = f"insert or replace into schedule ({NAMES}) values ({', '.join('?' * len(COLUMNS))})"
READ = f"select {NAMES} from schedule"
DUE = f"{READ} indexed by schedule_due where next_at <= ? and not paused order by next_at, key limit ?"
NEXT = "select next_at from schedule indexed by schedule_due where next_at > ? and not paused order by next_at limit 1"
MOVE_ON = """
    update schedule set handled = ?, next_at = ?, repeats = ?, last_job = ?, error = ?, revision = revision + 1
    where key = ? and revision = ? and handled is ?
"""


def save(c: sqlite3.Connection, source: str, schedules: Sequence[StoredSchedule]) -> list[str]:
    known = {it.key: it for it in map(_schedule, c.execute(READ))}
    wanted = {schedule.key for schedule in schedules}
    gone = [(key,) for key, it in known.items() if it.source == source and key not in wanted]
    c.executemany("delete from schedule where key = ?", gone)
    left_alone = []
    for new in schedules:
        old = known.get(new.key)
        if old is None:
            write(c, replace(new, source=source, revision=1))
        elif old.source != source:
            left_alone.append(new.key)
        elif old.fingerprint != new.fingerprint:
            changed = replace(new, source=source, paused=old.paused, last_job=old.last_job)
            write(c, replace(changed, revision=old.revision + 1))
    return left_alone


def differs(c: sqlite3.Connection, source: str, schedules: Sequence[StoredSchedule]) -> bool:
    known = c.execute("select key, fingerprint from schedule where source = ?", (source,)).fetchall()
    return dict(known) != {schedule.key: schedule.fingerprint for schedule in schedules}


def put(c: sqlite3.Connection, schedule: StoredSchedule) -> bool:
    row = c.execute("select revision from schedule where key = ?", (schedule.key,)).fetchone()
    if (0 if row is None else row[0]) != schedule.revision:
        return False
    write(c, replace(schedule, revision=schedule.revision + 1))
    return True


def write(c: sqlite3.Connection, schedule: StoredSchedule) -> None:
    c.execute(WRITE, [getattr(schedule, name) for name in COLUMNS])


def remove(c: sqlite3.Connection, key: str) -> bool:
    return c.execute("delete from schedule where key = ?", (key,)).rowcount == 1


def due(c: sqlite3.Connection, limit: int, now: int) -> DueSchedules:
    found = [_schedule(row) for row in c.execute(DUE, (now, limit))]
    if len(found) == limit:
        return DueSchedules(found, 0, now)
    row = c.execute(NEXT, (now,)).fetchone()
    return DueSchedules(found, None if row is None else row[0] - now, now)


def tick(
    c: sqlite3.Connection,
    schedule: StoredSchedule,
    jobs: Sequence[tuple[int, NewJob]],
    after: tuple[int | None, int | None, int | None],
    error: str,
    now: int,
) -> list[Tick] | None:
    """`after` are what is handled then, the next moment and the repeats left."""
    key, revision, handled = schedule.key, schedule.revision, schedule.handled
    is_as_given = "select last_job, overlap from schedule where key = ? and revision = ? and handled is ?"
    row = c.execute(is_as_given, (key, revision, handled)).fetchone()
    if row is None:
        return None
    last, overlap = row
    ticked: list[Tick] = []
    for moment, new in jobs:
        if c.execute("select 1 from tick where schedule = ? and moment = ?", (key, moment)).fetchone():
            continue
        job: bytes | None = None
        if overlap != "skip" or not _unfinished(c, last):
            [job] = sqlite_exchange.insert(c, [new], now)
            last = job
        c.execute("insert into tick (schedule, moment, job) values (?, ?, ?)", (key, moment, job))
        ticked.append(Tick(moment, job))
    c.execute(MOVE_ON, (*after, last, error, key, revision, handled))
    return ticked


def _unfinished(c: sqlite3.Connection, id: bytes | None) -> bool:
    find = "select 1 from payload join job on job.n = payload.n where payload.id = ? and state < 5"
    return id is not None and c.execute(find, (id,)).fetchone() is not None


def page(c: sqlite3.Connection, after: str, limit: int) -> list[StoredSchedule]:
    return [_schedule(row) for row in c.execute(f"{READ} where key > ? order by key limit ?", (after, limit))]


def one(c: sqlite3.Connection, key: str) -> StoredSchedule | None:
    row = c.execute(f"{READ} where key = ?", (key,)).fetchone()
    return None if row is None else _schedule(row)


def ticks(c: sqlite3.Connection, key: str, limit: int) -> list[Tick]:
    newest = "select moment, job from tick where schedule = ? order by moment desc limit ?"
    return [Tick(*row) for row in c.execute(newest, (key, limit))]


def forget_ticks(c: sqlite3.Connection, now: int) -> None:
    c.execute("delete from tick where moment < ?", (now - TICKS_KEPT,))


def _schedule(row: Sequence[object]) -> StoredSchedule:
    fields = dict(zip(COLUMNS, row, strict=True))
    fields["paused"] = bool(fields["paused"])
    return StoredSchedule(**fields)  # type: ignore[arg-type]
