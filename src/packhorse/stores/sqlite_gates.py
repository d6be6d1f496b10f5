"""What waits for what on SQLite: jobs that come after others. Functions of an open transaction.

An edge leads from a job to one that waits for it, and knows how the first has ended. Opening a gate twice changes
nothing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Sequence

from packhorse.errors import StoreDataError
from packhorse.ids import to_text
from packhorse.job import Need, NewJob
from packhorse.stores.contract import GATE, NOT_NEEDED
from packhorse.stores.sqlite_batches import batched, read
from packhorse.stores.sqlite_due import DUE, LED, end

NEEDS = list(Need)
SUCCESS, END, FAILURE = range(3)
BY_ID = "n = (select n from payload where payload.id = ?)"
WELL, BADLY = 1, 2  # how a parent has ended; 0: not yet
INSERT = "insert into edge (parent, child, need, ended) values {values} on conflict do nothing"
MARK = "update edge set ended = {how} where ended = 0 and parent in (values {{values}}) returning child"
# Of each child that stands at its gate: whether anything is still to come, what went wrong, and what it waits for.
GATES = f"""
    select job.n, job.id, run_at, exists (select 1 from edge where child = job.id and ended = 0),
           exists (select 1 from edge where child = job.id and ended = {BADLY} and need = {SUCCESS}),
           exists (select 1 from edge where child = job.id and ended = {BADLY} and need = {FAILURE}),
           exists (select 1 from edge where child = job.id and need = {FAILURE})
    from payload join job on job.n = payload.n
    where payload.id in (values {{values}}) and state = 2 and waits_on = '{GATE}'
"""
OPEN_LATER = "update job set state = 1, waits_on = '', order_key = run_at where n in (values {values})"
OPEN = f"""
    update job set {DUE}, order_key = ? - {LED}
    where state = 2 and waits_on = '{GATE}' and n in (values {{values}})
"""
KNOWN = "select payload.id, state from payload join job on job.n = payload.n where payload.id in (values {values})"
AT_ITS_GATE = f"""
    select 1 from payload join job on job.n = payload.n where payload.id = ? and state = 2 and waits_on = '{GATE}'
"""
# Whoever waits for one that goes round again, or may still go round with it, waits for its new end.
CLOSE = f"""
    update edge set ended = 0 where parent in (values {{values}}) and exists (
        select 1 from payload join job on job.n = payload.n
        where payload.id = edge.child and (state in (6, 7) or (state = 2 and waits_on = '{GATE}'))
    )
"""
# How the others ended is no longer held against one that goes round again.
FORGIVE = f"update edge set ended = {WELL} where child in (values {{values}}) and ended = {BADLY} and need = {SUCCESS}"


def write_edges(c: sqlite3.Connection, jobs: Sequence[NewJob], now: int, *, at_once: bool) -> None:
    """Of jobs that were just inserted, in any order; where not at once, some of them may have ended already."""
    if not any(job.after or job.before for job in jobs):
        return
    coming = {job.id for job in jobs} if at_once else set[bytes]()
    rows: list[tuple[bytes, bytes, int, int]] = []
    outside: set[bytes] = set()
    for job in jobs:
        rows += [(parent.id, job.id, NEEDS.index(parent.need), 0) for parent in job.after]
        outside |= {parent.id for parent in job.after} - coming
        for child in job.before:
            if c.execute(AT_ITS_GATE, (child.id,)).fetchone() is None:
                raise StoreDataError(f"Job {to_text(child.id)} does not wait any more: nothing can come before it.")
            rows.append((job.id, child.id, NEEDS.index(child.need), 0))
    batched(c, INSERT, rows)
    if outside:
        states = dict(read(c, KNOWN, list(outside)))
        if unknown := outside - states.keys():
            raise StoreDataError(f"There is no job {to_text(min(unknown))} to come after.")
        well = [id for id, state in states.items() if state == 5]
        settle(c, well, [id for id, state in states.items() if state > 5], now)


def stand_behind(c: sqlite3.Connection, id: bytes, parents: Sequence[bytes], now: int) -> None:
    """A job that has begun already waits for others, however they end; what it waited for before counts no more."""
    c.execute("delete from edge where child = ?", (id,))
    batched(c, INSERT, [(parent, id, END, 0) for parent in parents])
    c.execute(f"update job set state = 2, waits_on = '{GATE}' where {BY_ID}", (id,))
    states = dict(read(c, KNOWN, list(parents)))
    well = [parent for parent in parents if states.get(parent, 5) == 5]  # one that is gone has ended
    settle(c, well, [parent for parent in parents if states.get(parent, 5) > 5], now)


def settle(c: sqlite3.Connection, well: Collection[bytes], badly: Collection[bytes], now: int) -> None:
    """Jobs have ended: whoever waited for them goes on, or is cancelled with those behind it."""
    while well or badly:
        children = {child for (child,) in read(c, MARK.format(how=WELL), list(well))}
        children |= {child for (child,) in read(c, MARK.format(how=BADLY), list(badly))}
        open_now: list[tuple[int]] = []
        open_later: list[tuple[int]] = []
        doomed: list[tuple[bytes, int, str]] = []
        for n, id, run_at, waits, hurt, alarmed, watches in read(c, GATES, list(children)):
            if hurt:
                doomed.append((id, n, "a job before it did not succeed"))
            elif alarmed or not (waits or watches):
                (open_later if run_at is not None and run_at > now else open_now).append((n,))
            elif not waits:
                doomed.append((id, n, NOT_NEEDED))
        batched(c, OPEN_LATER, open_later)
        batched(c, OPEN, open_now, now)
        for id, n, reason in doomed:
            end(c, [(id, n)], reason, now)
        well, badly = (), [id for id, _, _ in doomed]


def close(c: sqlite3.Connection, ids: Sequence[bytes]) -> None:
    """They go round again."""
    batched(c, CLOSE, [(id,) for id in ids])
    batched(c, FORGIVE, [(id,) for id in ids])
