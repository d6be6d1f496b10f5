"""Signals, and who awaits them. Functions of an open transaction.

Whoever sends a signal and whoever comes to await it have its name to themselves: else both could miss the other.
"""

from __future__ import annotations

from packhorse.outcome import Awaits
from packhorse.stores.contract import SIGNAL, Signal, Waiter, signal_entry
from packhorse.stores.sql import Session, Subject
from packhorse.stores.sql_due import BY_ID, DUE, LED

OF_NAME = "select n, name, data from signal where name = ? and n > ? and until > ? order by n limit ?"
WAKE = f"update job set {DUE}, order_key = ? - {LED} where {{which}} returning id"
DELIVER = """
    insert into entry (id, kind, name, data) {rows:bytea text text bytea}
    on conflict (id, kind, name) do update set data = excluded.data
"""
WAITERS = """
    select awaits, id from job indexed by job_awaiting
    where awaits is not null and (awaits, id) > (?, ?) order by awaits, id limit ?
"""
OLD = "select n from signal where until <= ? order by until, n limit ?"


def signal(c: Session, name: str, data: bytes, keep: int, now: int) -> int:
    c.hold(Subject.SIGNALS, name)
    write = "insert into signal (name, data, until) values (?, ?, ?) returning n"
    [(n,)] = c.execute(write, (name, data, now + keep)).fetchall()
    return _deliver(c, Signal(n, name, data), "awaits = ?", name, now)


def wait(c: Session, id: bytes, awaits: Awaits, now: int) -> None:
    """The job is scheduled; a signal that is there already makes it due at once."""
    c.hold(Subject.SIGNALS, awaits.signal)
    if found := signals(c, *awaits, 1, now):
        _deliver(c, found[0], BY_ID, id, now)
    else:
        c.execute(f"update job set awaits = ? where {BY_ID}", (awaits.signal, id))


def _deliver(c: Session, signal: Signal, which: str, key: str | bytes, now: int) -> int:
    woken = c.execute(WAKE.format(which=which), (now, key)).fetchall()
    entry = (SIGNAL, signal_entry(signal.name, signal.n), signal.data)
    c.batched(DELIVER, [(id, *entry) for (id,) in woken])
    return len(woken)


def signals(c: Session, name: str, after: int, limit: int, now: int) -> list[Signal]:
    return [Signal(*row) for row in c.execute(OF_NAME, (name, after, now, limit))]


def waiters(c: Session, after: Waiter, limit: int) -> list[Waiter]:
    return [Waiter(*row) for row in c.execute(WAITERS, (*after, limit))]


def has_old(c: Session, now: int) -> bool:
    return c.execute(OLD, (now, 1)).fetchone() is not None


def forget_old(c: Session, now: int, limit: int) -> int:
    return c.execute(f"delete from signal where n in ({OLD})", (now, limit)).rowcount
