"""History in partitions: the wide rows of jobs that came in the same day, week or month stand together and go together.

An id begins with the time at which it was made, so the tables are divided by ranges of ids, and every look by id finds
its partition. The narrow row of a job stays where it is, and is deleted when retention is over: from then on the job is
gone for everybody, and its wide rows wait for the end of their partition.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import psycopg

from packhorse.stores import sql_exchange
from packhorse.stores.contract import Retention
from packhorse.stores.postgres_session import Session
from packhorse.stores.sql_exchange import WIDE_TABLES
from packhorse.stores.sql_names import prefixed

Connection = psycopg.Connection[Any]

DAY = 86_400_000  # ids count milliseconds
PERIODS = {"daily": DAY, "weekly": 7 * DAY, "monthly": 30 * DAY}
AHEAD = 3  # periods for which there are partitions before they begin
MOST = 10_000  # jobs that are still kept, and move, when their partition goes
PATIENCE = "200ms"  # for a lock that makes others wait, too
KEYS = {"ending": "id", "attempt": "id, epoch", "payload": "id"}  # in the order in which an exchange comes to them
IS_DIVIDED = "select exists (select 1 from pg_partitioned_table where partrelid = to_regclass('payload'))"
PARTS = """
    select relname::text, pg_get_expr(relpartbound, pg_class.oid)
    from pg_inherits join pg_class on pg_class.oid = inhrelid where inhparent = to_regclass('payload')
"""
BOUND = re.compile(r"\\x([0-9a-f]+)")
# The table there was becomes the first partition, whatever is in it; the last takes what belongs to no other.
DIVIDE = """
    alter table {table} rename to {table}_before;
    alter index {table}_pkey rename to {table}_before_pkey;
    create table {table} (like {table}_before including all excluding indexes) partition by range (id);
    alter table {table} add primary key ({key});
    create table {table}_rest partition of {table} default;
    with strays as (delete from {table}_before where id >= '{border}' returning *)
    insert into {table} select * from strays;
    alter table {table} attach partition {table}_before for values from (minvalue) to ('{border}')
"""
INDEX_OF_ENDINGS = """
    alter index {prefix}ending_result_until rename to {prefix}ending_before_result_until;
    create index {prefix}ending_result_until on {prefix}ending (result_until, id) where result_until is not null
"""
IS_TAKEN = "select exists (select 1 from {table}_rest where id >= '{first}' and id < '{border}')"
LOCK_REST = "lock table {prefix}ending_rest, {prefix}attempt_rest, {prefix}payload_rest in access exclusive mode"
LOCK_ALL = "lock table only {prefix}ending, only {prefix}attempt, only {prefix}payload in access exclusive mode"
# To attach one lets others write meanwhile; to create it as a part of the table would not.
ADD = """
    create table {table}_{name} (like {table} including all);
    alter table {table} attach partition {table}_{name} for values from ('{first}') to ('{border}')
"""
NUMBERS = "select min(n), max(n) from {prefix}payload_{name}"
STILL_THERE = "select id from {prefix}job where n between %s and %s and id >= %s and id < %s limit %s"
# Its range belongs to nobody then, so that what is still kept goes where everything else goes.
REMOVE = "alter table {table} detach partition {table}_{name}"
MOVE = "insert into {table} select * from {table}_{name} where id = any(%s)"
FORGET_TIMES = "update ending set result_until = null where id in ({rows:bytea}) and result_until is not null"


class Part(NamedTuple):
    """From one moment of ids up to another."""

    name: str
    first: bytes
    border: bytes


def is_divided(c: Session) -> bool:
    [(divided,)] = c.plain(IS_DIVIDED).fetchall()
    return bool(divided)


def divide(connection: Connection, prefix: str, period: int, now: int) -> None:
    """Once, in the transaction of a migration."""
    if connection.execute(prefixed(IS_DIVIDED, prefix).encode()).fetchall() != [(False,)]:
        return
    border = _shown(_bound(_start(now // 1_000, period) + period))
    for table, key in KEYS.items():
        connection.execute(DIVIDE.format(table=prefix + table, key=key, border=border).encode())
    connection.execute(INDEX_OF_ENDINGS.format(prefix=prefix).encode())
    make_ahead(connection, prefix, period, now)


def parts(connection: Connection, prefix: str) -> list[Part]:
    """In the order of time, without the one for all others."""
    found = []
    for name, text in connection.execute(prefixed(PARTS, prefix).encode()).fetchall():
        if bounds := [bytes.fromhex(digits) for digits in BOUND.findall(text)]:
            found.append(
                Part(name.removeprefix(f"{prefix}payload_"), bounds[0] if len(bounds) == 2 else b"", bounds[-1])
            )
    return sorted(found, key=lambda part: part.border)


def make_ahead(connection: Connection, prefix: str, period: int | None, now: int) -> list[str]:
    """The partitions that are missing for the time to come, as long as the last one if nothing else is said."""
    known = parts(connection, prefix)
    last = _moment(known[-1].border)
    length = period or (last - _moment(known[-1].first) if known[-1].first else PERIODS["weekly"])
    made = []
    first = max(last, _start(now // 1_000, length))
    until = now // 1_000 + AHEAD * length
    if first < until:
        connection.execute(LOCK_REST.format(prefix=prefix).encode())
    while first < until:
        name = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=first)).strftime("%Y%m%d")
        bounds = {"first": _shown(_bound(first)), "border": _shown(_bound(first + length))}
        # Nobody made it in time: its jobs are elsewhere, and stay there.
        looks = [IS_TAKEN.format(table=prefix + table, **bounds) for table in KEYS]
        taken = [connection.execute(look.encode()).fetchall() for look in looks]
        if [(True,)] not in taken:
            for table in KEYS:
                connection.execute(ADD.format(table=prefix + table, name=name, **bounds).encode())
            made.append(name)
        first += length
    return made


def remove_old(connection: Connection, prefix: str, retention: Retention, now: int) -> str | None:
    """The first partition of which hardly a job is kept, if there is one.

    Meanwhile nobody may write into it, which at its age nobody does; all others wait for the moment of its end alone.
    """
    kept = min(
        (time for time in (retention.succeeded, retention.failed, retention.cancelled) if time is not None), default=0
    )
    for part in parts(connection, prefix):
        if _moment(part.border) > (now - kept) // 1_000:
            break
        if _still_there(connection, prefix, part) is None:
            continue
        connection.execute(f"lock table {prefix}payload_{part.name} in share mode".encode())
        if (ids := _still_there(connection, prefix, part)) is None:
            continue
        connection.execute(LOCK_ALL.format(prefix=prefix).encode())
        for table in KEYS:
            connection.execute(REMOVE.format(table=prefix + table, name=part.name).encode())
            connection.execute(MOVE.format(table=prefix + table, name=part.name).encode(), [ids])
            connection.execute(f"drop table {prefix}{table}_{part.name}".encode())
        return part.name
    return None


def _still_there(connection: Connection, prefix: str, part: Part) -> list[bytes] | None:
    """The ids of those that are kept or unfinished; None where they are too many to move."""
    [numbers] = connection.execute(NUMBERS.format(prefix=prefix, name=part.name).encode()).fetchall()
    found = connection.execute(
        STILL_THERE.format(prefix=prefix).encode(), [*numbers, part.first, part.border, MOST + 1]
    ).fetchall()
    return [id for (id,) in found] if len(found) <= MOST else None


def forget(c: Session, ids: Sequence[bytes]) -> None:
    """Delete jobs, except for what goes with its partition."""
    tables = [f"{table}_rest" if table in KEYS else table for table in WIDE_TABLES]
    sql_exchange.delete(c, ids, tables)
    c.batched(FORGET_TIMES, [(id,) for id in ids])


def _start(moment: int, period: int) -> int:
    return moment // period * period


def _bound(moment: int) -> bytes:
    return moment.to_bytes(6, "big") + bytes(10)


def _moment(bound: bytes) -> int:
    return int.from_bytes(bound[:6], "big")


def _shown(bound: bytes) -> str:
    return f"\\x{bound.hex()}"
