"""What waits for what: jobs that come after others. Functions of an open transaction.

An edge leads from a job to one that waits for it. A job at its gate watches one parent: the first, by id, that has not
ended. So most parents end without a word to their children, and the one that is watched hands the watch on to the
next, or opens the gate. Only bad ends are written on every edge. Opening a gate twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from packhorse.errors import StoreDataError
from packhorse.ids import to_text
from packhorse.job import Need, NewJob
from packhorse.stores.contract import GATE, HURT, NOT_NEEDED
from packhorse.stores.sql import Session, Subject
from packhorse.stores.sql_due import BY_ID, DUE, LED, end

NEEDS = list(Need)
SUCCESS, END, FAILURE = range(3)
FORGIVEN, BADLY = 1, 2
INSERT = "insert into edge (child, parent, need) {rows:bytea bytea bigint} on conflict do nothing"
MARK = f"update edge set ended = {BADLY} where ended = 0 and parent in ({{rows:bytea}}) returning child, need"
AT_ITS_GATE = f"state = 2 and waits_on = '{GATE}'"
# A parent that is gone had ended, and well, or its edge would say so.
UNENDED = """
    select parent from edge indexed by sqlite_autoindex_edge_1
         cross join payload as its on its.id = edge.parent cross join job as other on other.n = its.n
    where edge.child = {child} and edge.parent > {after} and ended = 0 and other.state < 5
    order by edge.parent limit 1
"""
# Of those who watched one that has ended: whom they have to watch now, or whether they wait for failures alone.
WATCHERS = f"""
    select n, id, run_at, heir, heir is null and exists (select 1 from edge where child = id and need = {FAILURE})
    from (
        select job.n, job.id, run_at, ({UNENDED.format(child="job.id", after="job.watched")}) as heir
        from edge indexed by edge_of_parent
             cross join payload on payload.id = edge.child cross join job on job.n = payload.n
        where edge.parent in ({{rows:bytea}}) and {AT_ITS_GATE} and watched = edge.parent
    ) as watcher
"""
WATCH = "update job set watched = ? where n = ?"
WATCH_TOO = f"update job set watched = case when watched < ? then watched else ? end where {BY_ID} and {AT_ITS_GATE}"
STAND = f"update job set state = 2, waits_on = '{GATE}', watched = ? where "
STANDING = f"""
    select job.n, job.id, run_at from payload join job on job.n = payload.n
    where payload.id in ({{rows:bytea}}) and {AT_ITS_GATE}
"""
OPEN_LATER = "update job not indexed set state = 1, waits_on = '', order_key = run_at where n in ({rows:bigint})"
OPEN = f"update job not indexed set {DUE}, order_key = ? - {LED} where n in ({{rows:bigint}})"
WAITED_FOR = "select 1 from edge where parent in ({rows:bytea}) limit 1"
KNOWN = "select payload.id, state from payload join job on job.n = payload.n where payload.id in ({rows:bytea})"
# Whoever waits for one that goes round again, or may still go round with it, waits for its new end.
CLOSE = f"""
    update edge set ended = 0 where parent in ({{rows:bytea}}) and exists (
        select 1 from payload join job on job.n = payload.n
        where payload.id = edge.child and (state in (6, 7) or ({AT_ITS_GATE}))
    ) returning parent, child
"""
# How the others ended is no longer held against one that goes round again.
FORGIVE = f"""
    update edge set ended = {FORGIVEN} where child in ({{rows:bytea}}) and ended = {BADLY} and need = {SUCCESS}
"""
GATED_AGAIN = f"""
    select job.n, ({UNENDED.format(child="job.id", after="x''")})
    from payload join job on job.n = payload.n
    where payload.id in ({{rows:bytea}})
      and not exists (select 1 from edge where child = job.id and ended = {BADLY} and need = {FAILURE})
"""


def write_edges(c: Session, jobs: Sequence[NewJob], now: int, *, at_once: bool) -> None:
    """Of jobs that were just inserted, in any order; where not at once, some of them may have ended already."""
    if not any(job.after or job.before for job in jobs):
        return
    coming = {job.id for job in jobs} if at_once else set[bytes]()
    rows = [(job.id, parent.id, NEEDS.index(parent.need)) for job in jobs for parent in job.after]
    outside = {parent.id for job in jobs for parent in job.after} - coming
    if outside or any(job.before for job in jobs):
        c.hold(Subject.GATES)
    for job in jobs:
        for child in job.before:
            if not c.execute(WATCH_TOO, (job.id, job.id, child.id)).rowcount:
                raise StoreDataError(f"Job {to_text(child.id)} does not wait any more: nothing can come before it.")
            rows.append((child.id, job.id, NEEDS.index(child.need)))
    c.batched(INSERT, rows)
    if outside:
        states = _states(c, list(outside))
        if unknown := outside - states.keys():
            raise StoreDataError(f"There is no job {to_text(min(unknown))} to come after.")
        well = [id for id, state in states.items() if state == 5]
        settle(c, well, [id for id, state in states.items() if state > 5], now)


def _states(c: Session, parents: Sequence[bytes]) -> dict[bytes, int]:
    """How far they are. Whoever is about to end one of them waits for this stroke, and then sees who came after it."""
    return dict(c.read(f"{KNOWN} order by payload.id {c.FOR_SHARE}", sorted(parents)))


def first_watched(job: NewJob) -> bytes:
    return min(parent.id for parent in job.after)


def stand_behind(c: Session, id: bytes, parents: Sequence[bytes], now: int) -> None:
    """A job that has begun already waits for others, however they end; what it waited for before counts no more."""
    c.hold(Subject.GATES)
    c.execute("delete from edge where child = ?", (id,))
    c.batched(INSERT, [(id, parent, END) for parent in parents])
    c.execute(STAND + BY_ID, (min(parents), id))
    states = _states(c, parents)
    well = [parent for parent in parents if states.get(parent, 5) == 5]  # one that is gone has ended
    settle(c, well, [parent for parent in parents if states.get(parent, 5) > 5], now)


def settle(c: Session, well: Collection[bytes], badly: Collection[bytes], now: int) -> set[int]:
    """Jobs have ended: whoever waited for them goes on, or is cancelled with those behind it; who is due now."""
    due: set[int] = set()
    if c.CONCURRENT:
        if not any(c.read(WAITED_FOR, [*well, *badly])):
            return due
        c.hold(Subject.GATES)
    while well or badly:
        open_now: list[tuple[int]] = []
        open_later: list[tuple[int]] = []
        doomed: list[tuple[bytes, int, str]] = []
        watch: list[tuple[bytes, int]] = []
        hurt, alarmed = _mark(c, badly) if badly else (set[bytes](), set[bytes]())
        for n, id, run_at in c.read(STANDING, list(hurt | alarmed)):
            if id in hurt:
                doomed.append((id, n, HURT))
            else:
                (open_later if run_at is not None and run_at > now else open_now).append((n,))
        for n, id, run_at, heir, spared in c.read(WATCHERS, [*well, *badly]):
            if id in hurt or id in alarmed:
                continue
            if heir is not None:
                watch.append((heir, n))
            elif spared:
                doomed.append((id, n, NOT_NEEDED))
            else:
                (open_later if run_at is not None and run_at > now else open_now).append((n,))
        c.executemany(WATCH, watch)
        c.batched(OPEN_LATER, open_later)
        c.batched(OPEN, open_now, now)
        for id, n, reason in doomed:
            end(c, [(id, n)], reason, now)
        well, badly = (), [id for id, _, _ in doomed]
        due.update(n for (n,) in open_now)
    return due


def _mark(c: Session, badly: Collection[bytes]) -> tuple[set[bytes], set[bytes]]:
    """Who needed that these succeed, and who waited for a failure."""
    marked = list(c.read(MARK, list(badly)))
    return {child for child, need in marked if need == SUCCESS}, {child for child, need in marked if need == FAILURE}


def close(c: Session, ids: Sequence[bytes]) -> None:
    """They go round again."""
    c.hold(Subject.GATES)
    c.executemany(WATCH_TOO, [(parent, parent, child) for parent, child in list(c.read(CLOSE, ids))])
    c.batched(FORGIVE, [(id,) for id in ids])


def stand_again(c: Session, ids: Sequence[bytes]) -> None:
    """Those that go round again and have to come after others that have not ended."""
    c.executemany(STAND + "n = ?", [(parent, n) for n, parent in list(c.read(GATED_AGAIN, ids)) if parent is not None])
