"""Signals on SQLite, and who awaits them. Functions of an open transaction."""

from __future__ import annotations

import sqlite3

from packhorse.outcome import Awaits
from packhorse.stores import sqlite_due
from packhorse.stores.contract import SIGNAL, Signal, Waiter, signal_entry

BY_ID = "n = (select n from payload where payload.id = ?)"
OF_NAME = "select n, name, data from signal where name = ? and n > ? order by n limit ?"
DELIVER = "insert or replace into entry (id, kind, name, data) select id, ?, ?, ? from job where {which}"
WAKE = f"update job set {sqlite_due.DUE}, order_key = ? - {sqlite_due.LED} where {{which}}"
WAITERS = """
    select awaits, id from job indexed by job_awaiting
    where awaits is not null and (awaits, id) > (?, ?) order by awaits, id limit ?
"""
OLD = "select n from signal where until <= ? order by until, n limit ?"


def signal(c: sqlite3.Connection, name: str, data: bytes, keep: int, now: int) -> int:
    write = "insert into signal (name, data, until) values (?, ?, ?)"
    n = c.execute(write, (name, data, now + keep)).lastrowid or 0
    return _deliver(c, Signal(n, name, data), "awaits = ?", name, now)


def wait(c: sqlite3.Connection, id: bytes, awaits: Awaits, now: int) -> None:
    """The job is scheduled; a signal that is there already makes it due at once."""
    if found := signals(c, *awaits, 1):
        _deliver(c, found[0], BY_ID, id, now)
    else:
        c.execute(f"update job set awaits = ? where {BY_ID}", (awaits.signal, id))


def _deliver(c: sqlite3.Connection, signal: Signal, which: str, key: str | bytes, now: int) -> int:
    c.execute(DELIVER.format(which=which), (SIGNAL, signal_entry(signal.name, signal.n), signal.data, key))
    return c.execute(WAKE.format(which=which), (now, key)).rowcount


def signals(c: sqlite3.Connection, name: str, after: int, limit: int) -> list[Signal]:
    return [Signal(*row) for row in c.execute(OF_NAME, (name, after, limit))]


def waiters(c: sqlite3.Connection, after: Waiter, limit: int) -> list[Waiter]:
    return [Waiter(*row) for row in c.execute(WAITERS, (*after, limit))]


def has_old(c: sqlite3.Connection, now: int) -> bool:
    return c.execute(OLD, (now, 1)).fetchone() is not None


def forget_old(c: sqlite3.Connection, now: int, limit: int) -> int:
    return c.execute(f"delete from signal where n in ({OLD})", (now, limit)).rowcount
