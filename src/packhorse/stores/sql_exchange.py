"""What ends and what comes, as far as the SQL stores do it alike. Functions of an open transaction."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

from packhorse.ids import to_text
from packhorse.job import Claim, JobState, NewJob, Token
from packhorse.outcome import Outcome
from packhorse.stores import sql_admission as admission
from packhorse.stores import sql_gates, sql_signals, sql_unique
from packhorse.stores.contract import CLAIM_BYTES, FAIR, GATE, RELOAD, Order, OrderKind, fair_line
from packhorse.stores.sql import Session, Subject
from packhorse.stores.sql_admission import Freed, Runs
from packhorse.stores.sql_due import BY_ID, LED

log = logging.getLogger("packhorse.store")

STATES = list(JobState)
CODE = {state: number for number, state in enumerate(STATES, 1)}
SCHEDULED, WAITING, READY, RUNNING, SUCCEEDED, FAILED, CANCELLED = range(1, 8)
ALIVE = "select 1 from process where id = ? and boot = ? and lease_until > ?"
WIDE_TABLES = ("payload", "ending", "attempt", "tag", "entry", "hold", "member")
# How a job changes with an outcome; both begin with the moment twice.
SUCCESS = """
        state       = 5,
        attempts    = attempts + 1,
        claimed_at  = null,
        started_at  = ? - ended.duration,
        finished_at = ?,
        asked       = null,
        asked_kind  = null,
        asked_seal  = null
"""
_DUE = "(ended.state = 3 and ended.order_key is not null)"
# `+ 0` makes a number of whatever somebody put there, so that no constraint stops the jobs of the same batch.
ENDING = f"""
        state       = case when {_DUE} then case when limited > 0 or share is not null then 2 else 3 end
                           when ended.state = 3 and limited > 0 and {admission.WITHOUT_PERMIT} then 2
                           else ended.state end,
        waits_on    = case when {_DUE} and share is not null then '{FAIR}' || queue || '/' || share else '' end,
        attempts    = attempts + ended.spent,
        losses      = losses + ended.lost,
        order_key   = coalesce(ended.order_key - case when {_DUE} then {LED} else 0 end, job.order_key + 0),
        run_at      = coalesce(ended.run_at, job.run_at + 0),
        claimed_at  = null,
        started_at  = ? - ended.duration,
        finished_at = case when ended.state > 4 then ? end,
        process     = coalesce(ended.owner, job.process),
        strays      = strays + ended.strayed,
        suspect     = case when ended.suspect = 1 then 1 when ended.spent = 1 then 0 else job.suspect end,
        prune_at    = ended.prune_at,
        asked       = null,
        asked_kind  = null,
        asked_seal  = null
"""
INSERT_ENDING = """
    insert into ending (id, result, result_until, result_error, failure, reason, spent)
    {rows:bytea bytea bigint text bytea text bigint}
"""
STARTED = """
    update job set started_at = ?
    where state = 4 and process = ? and nonce = ? and id = ? and epoch = ? and started_at is null
"""
ASKED = """
    select asked_kind, process, nonce, id, epoch, asked, asked_seal from job indexed by job_held
    where state = 4 and process = ? and asked is not null order by nonce, id
"""
INSERT_ATTEMPT = f"""
    insert into attempt (id, epoch, number, process, started_at, ended_at, failure, spent)
    select id, epoch, attempts + 1 - ?, process, cast(? as bigint), ?, ?, ? from job where {BY_ID}
"""
RELOAD_BODY = f"""
    update payload set body = (select data from entry where entry.id = payload.id and kind = '{RELOAD}')
    where id = ? and exists (select 1 from entry where entry.id = payload.id and kind = '{RELOAD}')
"""
FORGET_RELOAD = f"delete from entry where id = ? and kind = '{RELOAD}'"
# What was just claimed goes back as if it never had been: nobody has seen it.
GIVE_BACK = """
    update job indexed by job_held set
        state = 3, epoch = epoch - 1, process = null, nonce = null, claimed_at = null, started_at = null
    where state = 4 and process = ? and nonce = ? and id in ({rows:bytea})
"""
SIZES = """
    select job.id, queue, length(body) from job indexed by job_held left join payload on payload.id = job.id
    where state = 4 and process = ? and nonce = ? order by rank, order_key, job.id
"""
IN_USE = """
    select exists (select 1 from permit), exists (select 1 from unique_key), exists (select 1 from ticket),
           exists (select 1 from pause), exists (select 1 from edge)
"""
CLAIM_COLUMNS = """
    job.process, job.nonce, job.id, job.epoch, task, body, queue, coalesce(-priority, rank), attempts, losses,
    created_at, expires_at, strays, suspect
    from job {index} left join payload on payload.id = job.id
"""


Insert = Callable[[Any, Sequence[NewJob], int], list[NewJob]]


def insert(c: Session, jobs: Sequence[NewJob], now: int, write: Insert) -> list[bytes]:
    """The ids that stand for them; `write` writes jobs and says which were new, with their callbacks."""
    keys = [job.terms.unique.key for job in jobs if job.terms.unique is not None]
    if not keys:
        sql_gates.write_edges(c, write(c, jobs, now), now, at_once=True)
        return [job.id for job in jobs]
    c.hold(Subject.UNIQUE_KEYS, *keys)
    ids: list[bytes] = []
    inserted: list[NewJob] = []
    pending: dict[bytes, NewJob] = {}
    for job in jobs:
        stands = job.id
        if (unique := job.terms.unique) is not None and not _known(c, job.id) and job.id not in pending:
            holder = sql_unique.holder(c, unique, now)
            if holder in pending:
                inserted += write(c, list(pending.values()), now)
                pending = {}
            run_at = now + job.delay if job.delay is not None else job.run_at
            if holder is None or admission.give_way(c, holder, job, run_at, now):
                sql_unique.take(c, unique, job.id, now)
            else:
                stands = holder
        if stands == job.id:
            pending.setdefault(job.id, job)
        ids.append(stands)
    inserted += write(c, list(pending.values()), now)
    sql_gates.write_edges(c, inserted, now, at_once=False)
    return ids


def _known(c: Session, id: bytes) -> bool:
    return c.execute("select 1 from payload where id = ?", (id,)).fetchone() is not None


class InUse(NamedTuple):
    """What anybody uses at all, asked once: most stores know no limits, unique keys or pauses."""

    permits: bool
    unique_keys: bool
    tickets: bool
    pauses: bool
    edges: bool

    @classmethod
    def of(cls, c: Session) -> InUse:
        return cls(*map(bool, c.execute(IN_USE).fetchone()))


def see_to(
    c: Session, outcomes: Sequence[Outcome], ordered: Collection[Token], now: int, in_use: InUse
) -> Freed | None:
    """All that follows from outcomes which were written; the permits that are free now. `ordered` were asked to end."""
    for outcome in outcomes:
        if ordered and outcome.token in ordered and outcome.state is not JobState.SUCCEEDED:
            reload(c, outcome)
    freed: Freed | None = None
    if in_use.permits:
        freed = admission.free_claimed(
            c,
            [outcome.token for outcome in outcomes if outcome.state is not JobState.READY],
            [outcome.token for outcome in outcomes if outcome.state is JobState.READY],
        )
    if in_use.unique_keys:
        sql_unique.free(c, [outcome.token.id for outcome in outcomes if outcome.state.finished])
    if in_use.edges:
        well = [outcome.token.id for outcome in outcomes if outcome.state is JobState.SUCCEEDED]
        badly = [outcome.token.id for outcome in outcomes if outcome.state in (JobState.FAILED, JobState.CANCELLED)]
        sql_gates.settle(c, well, badly, now)
    if dropped := [outcome.token.id for outcome in outcomes if outcome.keep == 0 and outcome.state.finished]:
        delete(c, dropped)
        outcomes = [outcome for outcome in outcomes if outcome.keep != 0 or not outcome.state.finished]
    c.batched(INSERT_ENDING, [ending_row(outcome, now) for outcome in outcomes if has_ending(outcome)])
    for outcome in outcomes:
        if outcome.after and outcome.state is JobState.SCHEDULED:
            sql_gates.stand_behind(c, outcome.token.id, outcome.after, now)
        if outcome.awaits is not None and outcome.state is JobState.SCHEDULED and outcome.delay > 0:
            sql_signals.wait(c, outcome.token.id, outcome.awaits, now)
        if outcome.failure is not None and not outcome.state.finished:
            began = None if outcome.duration is None else now - outcome.duration
            row = (outcome.spent, began, now, outcome.failure, outcome.spent, outcome.token.id)
            c.execute(INSERT_ATTEMPT, row)
    return freed


def heeded(c: Session, outcomes: Sequence[Outcome]) -> tuple[Sequence[Outcome], set[Token]]:
    """Of a job that did not succeed becomes what an operator asked for, whatever its owner made of it; and of whom."""
    owners = {outcome.token.process for outcome in outcomes if outcome.state is not JobState.SUCCEEDED}
    asked = {order.token: order for order in orders(c, owners)}
    if not asked:
        return outcomes, set()
    heeded = []
    for outcome in outcomes:
        if (order := asked.get(outcome.token)) is not None and outcome.state is not JobState.SUCCEEDED:
            reason = order.reason if isinstance(order.reason, str) else "cancelled"
            outcome = order._replace(reason=reason).heeded(outcome)
        heeded.append(outcome)
    return heeded, set(asked)


def orders(c: Session, owners: Collection[bytes]) -> list[Order]:
    return [_order(*row) for owner in owners for row in c.execute(ASKED, (owner,))]


def _order(kind: object, process: bytes, nonce: int, id: bytes, epoch: int, reason: Any, seal: Any) -> Order:
    """Whatever stands there; who obeys it looks at the seal first."""
    known = OrderKind.RESTART if kind == OrderKind.RESTART else OrderKind.CANCEL
    return Order(known, Token(process, nonce, id, epoch), reason, seal or b"")


def reload(c: Session, outcome: Outcome) -> None:
    """One that starts again may have been given another payload for it."""
    id = outcome.token.id
    if outcome.state is JobState.READY and c.execute(RELOAD_BODY, (id,)).rowcount:
        c.execute(f"update job set expires_at = null where {BY_ID}", (id,))
    c.execute(FORGET_RELOAD, (id,))


def delete(c: Session, ids: Sequence[bytes], tables: Sequence[str] = WIDE_TABLES) -> None:
    """Jobs, and what belongs to them in these tables."""
    rows = [(id,) for id in ids]
    c.batched("delete from job where n in (select n from payload where id in ({rows:bytea}))", rows)
    for table in tables:
        c.batched(f"delete from {table} where id in ({{rows:bytea}})", rows)
    c.batched("delete from edge where child in ({rows:bytea})", rows)


def narrow_row(n: int, job: NewJob, now: int) -> tuple[Any, ...]:
    run_at = now + job.delay if job.delay is not None else job.run_at
    expires_at = now + job.lifetime if job.lifetime is not None else job.expires_at
    terms = job.terms
    limited = len(terms.holds) + len(terms.paces)
    fixed = (run_at, expires_at, job.share, limited)
    if job.after:
        return (n, job.id, WAITING, job.queue, -job.priority, now, *fixed, GATE)
    if run_at is not None and run_at > now:
        return (n, job.id, SCHEDULED, job.queue, -job.priority, run_at, *fixed, "")
    if job.share is not None:
        return (n, job.id, WAITING, job.queue, -job.priority, now, *fixed, fair_line(job.queue, job.share))
    return (n, job.id, WAITING if limited else READY, job.queue, -job.priority, now, *fixed, "")


def wide_row(n: int, job: NewJob, now: int) -> tuple[Any, ...]:
    return (n, job.id, job.task, job.payload, now, json.dumps(job.tags) if job.tags else None)


def finish_row(outcome: Outcome, now: int) -> tuple[Any, ...]:
    order_key = run_at = duration = prune_at = None
    state = CODE[outcome.state]
    if state == SCHEDULED:
        order_key = run_at = now + outcome.delay
        if outcome.delay <= 0:
            state = READY
    elif state > RUNNING:
        duration = outcome.duration
        prune_at = None if outcome.keep is None else now + outcome.keep
    ended = (*outcome.token, state, outcome.spent, outcome.lost, order_key, run_at, duration)
    return (*ended, outcome.owner, outcome.strayed, prune_at, outcome.suspect)


def has_ending(outcome: Outcome) -> bool:
    return outcome.state.finished and (
        outcome.result is not None
        or outcome.failure is not None
        or outcome.reason is not None
        or outcome.result_error is not None
    )


def ending_row(outcome: Outcome, now: int) -> tuple[Any, ...]:
    until = None if outcome.result_ttl is None or outcome.result is None else now + outcome.result_ttl
    row = (outcome.token.id, outcome.result, until, outcome.result_error, outcome.failure, outcome.reason)
    return (*row, outcome.spent)


class Load:
    """The payloads that one exchange carries: a first one of any size, and what fits beside it."""

    def __init__(self) -> None:
        self.first = 1
        self.room = CLAIM_BYTES
        self.cut = False

    def take(self, sizes: Iterable[int]) -> int:
        """How many of them come along."""
        number = 0
        for size in sizes:
            if not self.first and size > self.room:
                self.cut = True
                break
            self.first = 0
            self.room = max(0, self.room - size)
            number += 1
        return number


def bound(c: Session, process: bytes, nonce: int, entries: Sequence[Sequence[str]], load: Load) -> None:
    """Give back what was claimed by this exchange and is too large to come along."""
    rows = c.execute(SIZES, (process, nonce)).fetchall()
    if len(entries) > 1:
        place = _places(entries)
        rows.sort(key=lambda row: place.get(row[1], 0))
    number = load.take(size or 0 for _, _, size in rows)
    c.batched(GIVE_BACK, [(id,) for id, _, _ in rows[number:]], process, nonce)


def _places(entries: Sequence[Sequence[str]]) -> dict[str, int]:
    return {queue: number for number, names in enumerate(entries) for queue in names}


def in_order(claims: list[Claim], entries: Sequence[Sequence[str]], runs: Runs) -> list[Claim]:
    """Of one exchange: by entry, in the order they were claimed, and then what came with them in a run."""
    if len(entries) > 1:
        place = _places(entries)
        claims.sort(key=lambda claim: place.get(claim.queue, 0))
    if runs:
        behind = {id for id, (place, _) in runs.items() if place}
        claims = [claim._replace(run=runs[claim.token.id][1]) if claim.token.id in runs else claim for claim in claims]
        claims.sort(key=lambda claim: claim.token.id in behind)
    return claims


_NUMBERS = frozenset({int})


def as_claim(row: Sequence[Any]) -> Claim:
    """A row that makes no sense becomes a claim without a payload, which fails as undecodable."""
    process, nonce, id, epoch, task, body, queue, rank, attempts, losses, created_at, expires_at, strays, suspect = row
    token = Token(process, nonce, id, epoch)
    numbers = (rank, attempts, losses, created_at, strays, suspect, epoch)
    sensible = type(task) is str and type(body) is bytes and type(queue) is str
    if sensible and _NUMBERS.issuperset(map(type, numbers)) and (expires_at is None or type(expires_at) is int):
        known = (token, task, body, queue, -rank, attempts, losses, created_at, expires_at, strays)
        return Claim(*known, None, suspect != 0)
    log.error("the row of job %s makes no sense: somebody else changed it, and it is not performed", _shown(id))
    return Claim(token, task if type(task) is str else "unknown", b"", str(queue), 0, 0, 0, 0, None)


def _shown(id: object) -> str:
    return to_text(id) if type(id) is bytes else "without an id"


def comparable(row: Sequence[Any]) -> tuple[Any, ...]:
    """A key to sort rows by that may hold anything."""
    return tuple((type(value).__name__, value) for value in row)
