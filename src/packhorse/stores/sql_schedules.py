"""Schedules. Functions of an open connection or transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from packhorse.job import NewJob
from packhorse.stores.contract import TICKS_KEPT, DueSchedules, StoredSchedule, Tick
from packhorse.stores.sql import Session, Subject

COLUMNS = (
    *("key", "task", "rule", "payload", "source", "zone", "start", "end", "repeats", "jitter", "misfire", "grace"),
    *("overlap", "queue", "priority", "paused", "handled", "next_at", "last_job", "error", "fingerprint", "revision"),
)
NAMES = ", ".join(f'"{name}"' for name in COLUMNS)
ANEW = ", ".join(f'"{name}" = excluded."{name}"' for name in COLUMNS[1:])
WRITE = f"""
    insert into schedule ({NAMES}) values ({", ".join("?" * len(COLUMNS))}) on conflict ("key") do update set {ANEW}
"""
READ = f"select {NAMES} from schedule"
DUE = f"{READ} indexed by schedule_due where next_at <= ? and not paused order by next_at, key limit ?"
NEXT = "select next_at from schedule indexed by schedule_due where next_at > ? and not paused order by next_at limit 1"
MOVE_ON = """
    update schedule set handled = ?, next_at = ?, repeats = ?, last_job = ?, error = ?, revision = revision + 1
    where key = ? and revision = ?
"""


def save(c: Session, source: str, schedules: Sequence[StoredSchedule]) -> list[str]:
    c.hold(Subject.SCHEDULES)
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


def differs(c: Session, source: str, schedules: Sequence[StoredSchedule]) -> bool:
    known = c.execute("select key, fingerprint from schedule where source = ?", (source,)).fetchall()
    return dict(known) != {schedule.key: schedule.fingerprint for schedule in schedules}


def put(c: Session, schedule: StoredSchedule) -> bool:
    c.hold(Subject.SCHEDULES)
    row = c.execute("select revision from schedule where key = ?", (schedule.key,)).fetchone()
    if (0 if row is None else row[0]) != schedule.revision:
        return False
    write(c, replace(schedule, revision=schedule.revision + 1))
    return True


def write(c: Session, schedule: StoredSchedule) -> None:
    c.execute(WRITE, [getattr(schedule, name) for name in COLUMNS])


def remove(c: Session, key: str) -> bool:
    c.hold(Subject.SCHEDULES)
    return c.execute("delete from schedule where key = ?", (key,)).rowcount == 1


def due(c: Session, limit: int, now: int) -> DueSchedules:
    found = [_schedule(row) for row in c.execute(DUE, (now, limit))]
    if len(found) == limit:
        return DueSchedules(found, 0, now)
    row = c.execute(NEXT, (now,)).fetchone()
    return DueSchedules(found, None if row is None else row[0] - now, now)


def tick(
    c: Session,
    schedule: StoredSchedule,
    jobs: Sequence[tuple[int, NewJob]],
    after: tuple[int | None, int | None, int | None],
    error: str,
    insert: Callable[[NewJob], bytes],
) -> list[Tick] | None:
    """`after` are what is handled then, the next moment and the repeats left."""
    c.hold(Subject.SCHEDULES)
    key, revision = schedule.key, schedule.revision
    is_as_given = "select last_job, overlap, handled from schedule where key = ? and revision = ?"
    row = c.execute(is_as_given, (key, revision)).fetchone()
    if row is None or row[2] != schedule.handled:
        return None
    last, overlap, _ = row
    ticked: list[Tick] = []
    for moment, new in jobs:
        if c.execute("select 1 from tick where schedule = ? and moment = ?", (key, moment)).fetchone():
            continue
        job: bytes | None = None
        if overlap != "skip" or not _unfinished(c, last):
            last = job = insert(new)
        c.execute("insert into tick (schedule, moment, job) values (?, ?, ?)", (key, moment, job))
        ticked.append(Tick(moment, job))
    c.execute(MOVE_ON, (*after, last, error, key, revision))
    return ticked


def _unfinished(c: Session, id: bytes | None) -> bool:
    find = "select 1 from payload join job on job.n = payload.n where payload.id = ? and state < 5"
    return id is not None and c.execute(find, (id,)).fetchone() is not None


def page(c: Session, after: str, limit: int) -> list[StoredSchedule]:
    return [_schedule(row) for row in c.execute(f"{READ} where key > ? order by key limit ?", (after, limit))]


def one(c: Session, key: str) -> StoredSchedule | None:
    row = c.execute(f"{READ} where key = ?", (key,)).fetchone()
    return None if row is None else _schedule(row)


def ticks(c: Session, key: str, limit: int) -> list[Tick]:
    newest = "select moment, job from tick where schedule = ? order by moment desc limit ?"
    return [Tick(*row) for row in c.execute(newest, (key, limit))]


def forget_ticks(c: Session, now: int) -> None:
    c.execute("delete from tick where moment < ?", (now - TICKS_KEPT,))


def _schedule(row: Sequence[object]) -> StoredSchedule:
    fields = dict(zip(COLUMNS, row, strict=True))
    fields["paused"] = bool(fields["paused"])
    return StoredSchedule(**fields)  # type: ignore[arg-type]
