"""The hot stroke on SQLite: write new jobs, write what ended, take what is next. Functions of an open transaction.

Statements move whole batches, because each one lets go of the interpreter lock and may wait to get it back while the
write lock is held.
"""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

from packhorse.ids import to_text
from packhorse.job import Claim, JobState, NewJob, Token
from packhorse.outcome import Outcome, heed
from packhorse.queues import Selected
from packhorse.stores import sqlite_admission as admission
from packhorse.stores import sqlite_due, sqlite_gates, sqlite_signals, sqlite_unique
from packhorse.stores.contract import FAIR, GATE, fair_line
from packhorse.stores.sqlite_admission import Freed, Runs
from packhorse.stores.sqlite_batches import batched, prepared

log = logging.getLogger("packhorse.store")

STATES = list(JobState)
CODE = {state: number for number, state in enumerate(STATES, 1)}
SCHEDULED, WAITING, READY, RUNNING, SUCCEEDED, FAILED, CANCELLED = range(1, 8)
LAST_KEY = (1_000, 0, b"")  # behind every job of a queue
WIDE_TABLES = ("payload", "ending", "attempt", "tag", "entry", "hold", "member")
UNION_TERMS = 400  # SQLite takes at most 500 in one statement

BY_ID = "n = (select n from payload where payload.id = ?)"
INSERT_PAYLOAD = "insert into payload (n, id, task, body, created_at, tags) values {values} on conflict (id) do nothing"
INSERT_JOB = """
    insert into job (n, id, state, queue, rank, order_key, run_at, expires_at, share, limited, waits_on) values {values}
"""
AGED = """
    update job set priority = -rank, rank = 0, ageing = ?,
                   order_key = order_key + case when state > 1 then rank * ? else 0 end
    where n = ?
"""
# Most jobs end well, and their statement carries five values a row where the other needs thirteen.
# Both texts must begin with their verb: for `with … update` Python's sqlite3 counts no rows.
# `+ 0` makes a number of whatever somebody put there, so that no constraint stops the jobs of the same batch.
SUCCEED = """
    update job indexed by job_held set
        state       = 5,
        attempts    = attempts + 1,
        claimed_at  = null,
        started_at  = ? - ended.duration,
        finished_at = ?,
        asked       = null,
        asked_seal  = null
    from (
        select column1 as process, column2 as nonce, column3 as id, column4 as epoch, column5 as duration
        from (values {values})
    ) as ended
    where job.id = ended.id and job.state = 4
      and job.process = ended.process and job.nonce = ended.nonce and job.epoch = ended.epoch
"""
FINISH = """
    update job indexed by job_held set
        state       = case when {due} then case when limited or share is not null then 2 else 3 end
                           when ended.state = 3 and limited and {lost} then 2 else ended.state end,
        waits_on    = case when {due} and share is not null then '{fair}' || queue || '/' || share else '' end,
        attempts    = attempts + ended.spent,
        losses      = losses + ended.lost,
        order_key   = coalesce(ended.order_key - case when {due} then {led} else 0 end, job.order_key + 0),
        run_at      = coalesce(ended.run_at, job.run_at + 0),
        claimed_at  = null,
        started_at  = ? - ended.duration,
        finished_at = case when ended.state > 4 then ? end,
        process     = coalesce(ended.owner, job.process),
        strays      = strays + ended.strayed,
        prune_at    = ended.prune_at,
        asked       = null,
        asked_seal  = null
    from (
        select column1 as process, column2 as nonce, column3 as id, column4 as epoch, column5 as state,
               column6 as spent, column7 as lost, column8 as order_key, column9 as run_at, column10 as duration,
               column11 as owner, column12 as strayed, column13 as prune_at
        from (values {values})
    ) as ended
    where job.id = ended.id and job.state = 4
      and job.process = ended.process and job.nonce = ended.nonce and job.epoch = ended.epoch
"""
FINISH = FINISH.format(
    due="(ended.state = 3 and ended.order_key is not null)",
    fair=FAIR,
    led=sqlite_due.LED,
    lost=admission.WITHOUT_PERMIT,
    values="{values}",
)
IN_USE = """
    select exists (select 1 from permit), exists (select 1 from unique_key), exists (select 1 from ticket),
           exists (select 1 from pause), exists (select 1 from edge)
"""
STILL_OURS = """
    with token (process, nonce, id, epoch) as (values {values})
    select job.process, job.nonce, job.id, job.epoch from token join job indexed by job_held on job.id = token.id
    where job.state = 4 and job.process = token.process and job.nonce = token.nonce and job.epoch = token.epoch
"""
INSERT_ENDING = """
    insert into ending (id, result, result_until, result_error, failure, reason, spent) values {values}
"""
INSERT_ATTEMPT = f"""
    insert into attempt (id, epoch, number, process, started_at, ended_at, failure, spent)
    select id, epoch, attempts + 1 - ?, process, ?, ?, ?, ? from job where {BY_ID}
"""
STARTED = """
    update job set started_at = ?
    where state = 4 and process = ? and nonce = ? and id = ? and epoch = ? and started_at is null
"""
ASKED = """
    select asked, asked_seal, process, nonce, id, epoch from job indexed by job_held
    where state = 4 and process = ? and asked is not null order by nonce, id
"""
NEXT_QUEUE = """
    select queue, cast(queue as blob) from job indexed by job_to_claim
    where state = 3 and queue >= cast(? as text) order by queue limit 1
"""
READY_OF_QUEUE = """
    select rank, order_key, id from job indexed by job_to_claim where state = 3 and queue = ?
"""
CLAIM = """
    update job indexed by job_to_claim set
        state = 4, epoch = epoch + 1, process = ?, nonce = ?, claimed_at = ?,
        started_at = case when (rank, order_key, id) <= (?, ?, ?) then ? end
    where state = 3 and queue = ? and (rank, order_key, id) <= (?, ?, ?)
"""
BEGIN = """
    update job set started_at = ? where n in (
        select n from job indexed by job_held where state = 4 and process = ? and nonce = ? and started_at is null
        order by rank, order_key, id limit ?
    )
"""
CLAIM_COLUMNS = """
    job.process, job.nonce, job.id, job.epoch, task, body, queue, coalesce(-priority, rank), attempts, losses,
    created_at, expires_at, strays
    from job {index} left join payload on payload.id = job.id
"""
CLAIMED = (
    "select"
    + CLAIM_COLUMNS.format(index="indexed by job_held")
    + ("where state = 4 and process = ? and nonce = ? order by rank, order_key, job.id")
)


def insert(c: sqlite3.Connection, jobs: Sequence[NewJob], now: int) -> list[bytes]:
    """The ids that stand for them."""
    if not any(job.terms.unique for job in jobs):
        sqlite_gates.write_edges(c, _insert(c, jobs, now), now, at_once=True)
        return [job.id for job in jobs]
    ids: list[bytes] = []
    inserted: list[NewJob] = []
    pending: dict[bytes, NewJob] = {}
    for job in jobs:
        stands = job.id
        if (unique := job.terms.unique) is not None and not _known(c, job.id) and job.id not in pending:
            holder = sqlite_unique.holder(c, unique, now)
            if holder in pending:
                inserted += _insert(c, list(pending.values()), now)
                pending = {}
            run_at = now + job.delay if job.delay is not None else job.run_at
            if holder is None or admission.give_way(c, holder, job, run_at, now):
                sqlite_unique.take(c, unique, job.id, now)
            else:
                stands = holder
        if stands == job.id:
            pending.setdefault(job.id, job)
        ids.append(stands)
    inserted += _insert(c, list(pending.values()), now)
    sqlite_gates.write_edges(c, inserted, now, at_once=False)
    return ids


def _known(c: sqlite3.Connection, id: bytes) -> bool:
    return c.execute("select 1 from payload where id = ?", (id,)).fetchone() is not None


def _insert(c: sqlite3.Connection, jobs: Sequence[NewJob], now: int) -> list[NewJob]:
    """Those that are new: an insert may be repeated, in part too, and what is there already stays as it is."""
    (first,) = c.execute("select coalesce(max(n), 0) + 1 from job").fetchone()
    numbered = list(enumerate(jobs, first))
    if batched(c, INSERT_PAYLOAD, [_wide_row(n, job, now) for n, job in numbered]) < len(jobs):
        ours = "select 1 from payload where id = ? and n = ?"
        numbered = [(n, job) for n, job in numbered if c.execute(ours, (job.id, n)).fetchone()]
    batched(c, INSERT_JOB, [_narrow_row(n, job, now) for n, job in numbered])
    if tags := [(name, job.id) for _, job in numbered for name in job.tags]:
        c.executemany("insert into tag (name, id) values (?, ?) on conflict do nothing", tags)
    admission.write_holds(c, (job for _, job in numbered))
    if members := [(*job.member, job.id) for _, job in numbered if job.member is not None]:
        batched(c, "insert into member (flow, place, id) values {values}", members)
    if aged := [(job.ageing, job.ageing, n) for n, job in numbered if job.ageing and job.share is None]:
        c.executemany(AGED, aged)
    return [job for _, job in numbered]


class InUse(NamedTuple):
    """What anybody uses at all, asked once: most stores know no limits, unique keys or pauses."""

    permits: bool
    unique_keys: bool
    tickets: bool
    pauses: bool
    edges: bool

    @classmethod
    def of(cls, c: sqlite3.Connection) -> InUse:
        return cls(*map(bool, c.execute(IN_USE).fetchone()))


def finish(
    c: sqlite3.Connection, outcomes: Sequence[Outcome], now: int, in_use: InUse
) -> tuple[list[Token], Freed | None]:
    """Write the outcomes whose token stands; the tokens of the others, and the permits that are free now."""
    outcomes = _heeded(c, outcomes)
    refused: list[Token] = []
    if len(outcomes) == 1:
        if not _write(c, outcomes, now):
            return [outcomes[0].token], None
    else:
        c.execute("savepoint finishing")
        if _write(c, outcomes, now) < len(outcomes):
            # Some token is old, or came twice. Find out which ones stand, and write those alone.
            c.execute("rollback to finishing")
            outcomes, refused = _fenced(c, outcomes)
            _write(c, outcomes, now)
        c.execute("release finishing")
    freed = None
    if in_use.permits:
        freed = admission.free_claimed(
            c,
            [outcome.token for outcome in outcomes if outcome.state is not JobState.READY],
            [outcome.token for outcome in outcomes if outcome.state is JobState.READY],
        )
    if in_use.unique_keys:
        sqlite_unique.free(c, [outcome.token.id for outcome in outcomes if outcome.state.finished])
    if in_use.edges:
        well = [outcome.token.id for outcome in outcomes if outcome.state is JobState.SUCCEEDED]
        badly = [outcome.token.id for outcome in outcomes if outcome.state in (JobState.FAILED, JobState.CANCELLED)]
        sqlite_gates.settle(c, well, badly, now)
    if dropped := [outcome.token.id for outcome in outcomes if outcome.keep == 0 and outcome.state.finished]:
        delete(c, dropped)
        outcomes = [outcome for outcome in outcomes if outcome.keep != 0 or not outcome.state.finished]
    batched(c, INSERT_ENDING, [_ending_row(outcome, now) for outcome in outcomes if _has_ending(outcome)])
    for outcome in outcomes:
        if outcome.after and outcome.state is JobState.SCHEDULED:
            sqlite_gates.stand_behind(c, outcome.token.id, outcome.after, now)
        if outcome.awaits is not None and outcome.state is JobState.SCHEDULED and outcome.delay > 0:
            sqlite_signals.wait(c, outcome.token.id, outcome.awaits, now)
        if outcome.failure is not None and not outcome.state.finished:
            began = None if outcome.duration is None else now - outcome.duration
            row = (outcome.spent, began, now, outcome.failure, outcome.spent, outcome.token.id)
            c.execute(INSERT_ATTEMPT, row)
    return refused, freed


def _heeded(c: sqlite3.Connection, outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
    """A job whose end an operator asked for does not come back, whatever its owner made of it."""
    owners = {outcome.token.process for outcome in outcomes if not outcome.state.finished}
    asked = {Token(*token): reason for owner in owners for reason, _, *token in c.execute(ASKED, (owner,))}
    if not asked:
        return outcomes
    asked = {token: reason if isinstance(reason, str) else "cancelled" for token, reason in asked.items()}
    return [
        heed(outcome, asked[outcome.token]) if outcome.token in asked and not outcome.state.finished else outcome
        for outcome in outcomes
    ]


def _write(c: sqlite3.Connection, outcomes: Sequence[Outcome], now: int) -> int:
    well, others = [], []
    for outcome in outcomes:
        if outcome.state is JobState.SUCCEEDED and outcome.keep is None:
            well.append((*outcome.token, outcome.duration))
        else:
            others.append(_finish_row(outcome, now))
    return batched(c, SUCCEED, well, now, now) + batched(c, FINISH, others, now, now)


def delete(c: sqlite3.Connection, ids: Sequence[bytes]) -> None:
    rows = [(id,) for id in ids]
    batched(c, "delete from job where n in (select n from payload where id in (values {values}))", rows)
    for table in WIDE_TABLES:
        batched(c, f"delete from {table} where id in (values {{values}})", rows)
    batched(c, "delete from edge where child in (values {values})", rows)


def take(
    c: sqlite3.Connection,
    process: bytes,
    nonce: int,
    queues: Selected,
    limit: int,
    starting: int,
    run: int,
    now: int,
    in_use: InUse,
) -> tuple[list[list[str]], Runs]:
    """Claim the first `limit` ready jobs; the queues that served, one list for each entry, and who is of which run."""
    served: list[list[str]] = []
    runs: Runs = {}
    paused = _paused(c, "task", now) if in_use.pauses else []
    closed = paused_queues(c, now) if in_use.pauses else []
    for names in open_queues(c, queues, closed):
        if paused:
            taken = _take_unpaused(c, process, nonce, names, limit, now, paused)
            c.execute(BEGIN, (now, process, nonce, starting))
            served.append(names)
            limit -= taken
            starting = max(0, starting - taken)
            if limit <= 0:
                break
            continue
        starting = min(starting, limit)
        begins = _nth_ready(c, names, starting) if starting else (-1_000, 0, b"")
        last = begins if begins == LAST_KEY or starting == limit else _nth_ready(c, names, limit)
        taken = sum(c.execute(CLAIM, (process, nonce, now, *begins, now, queue, *last)).rowcount for queue in names)
        served.append(names)
        limit -= taken
        starting = max(0, starting - taken)
        if limit <= 0:
            break
    if served and run > 1 and in_use.permits and not in_use.pauses:
        runs = admission.extend_runs(c, process, nonce, queues, run, limit, now)
    if served and in_use.unique_keys:
        sqlite_unique.free_started(c, process, nonce)
    if served and in_use.tickets:
        admission.free_started(c, process, nonce)
    return served, runs


def _take_unpaused(
    c: sqlite3.Connection,
    process: bytes,
    nonce: int,
    names: list[str],
    limit: int,
    now: int,
    paused: Sequence[str],
) -> int:
    """Claim, send jobs of paused tasks away to wait, claim as many more; how many stay."""
    begins = (-1_000, 0, b"")  # which of them begin shows only when all are there
    taken = 0
    while taken < limit:
        last = _nth_ready(c, names, limit - taken)
        taken += sum(c.execute(CLAIM, (process, nonce, now, *begins, now, queue, *last)).rowcount for queue in names)
        taken -= admission.park(c, process, nonce, paused)
        if last == LAST_KEY:
            break
    return taken


def paused_queues(c: sqlite3.Connection, now: int) -> list[str]:
    return _paused(c, "queue", now)


def _paused(c: sqlite3.Connection, kind: str, now: int) -> list[str]:
    rows = c.execute("select name from pause where kind = ? and (until is null or until > ?)", (kind, now))
    return [name for (name,) in rows]


def open_queues(c: sqlite3.Connection, queues: Selected, paused: Collection[str]) -> Iterator[list[str]]:
    """For each entry, the queues that have ready jobs, are not paused and not served by an earlier entry."""
    seen: set[str] = set()
    for entry in queues:
        names = []
        start = entry.text.encode()
        # Bytes lead on, because text that is not UTF-8 reads as another one, which may lie before it. No such text and
        # no blob is the name of a queue; blobs come last.
        while (row := c.execute(NEXT_QUEUE, (start,)).fetchone()) and entry.matches(row[0]):
            name, raw = row
            if name not in seen and name.encode() == raw:
                seen.add(name)
                if name not in paused:
                    names.append(name)
            start = raw + b"\0"  # the smallest text behind it
        if names:
            yield names


def claimed(c: sqlite3.Connection, process: bytes, nonce: int, entries: list[list[str]], runs: Runs) -> list[Claim]:
    """What `take` claimed, in its order, and then what came with it in a run."""
    claims = [as_claim(row) for row in c.execute(CLAIMED, (process, nonce))]
    if len(entries) > 1:
        place = {queue: number for number, names in enumerate(entries) for queue in names}
        claims.sort(key=lambda claim: place.get(claim.queue, 0))
    if runs:
        behind = {id for id, (place, _) in runs.items() if place}
        claims = [claim._replace(run=runs[claim.token.id][1]) if claim.token.id in runs else claim for claim in claims]
        claims.sort(key=lambda claim: claim.token.id in behind)
    return claims


def _narrow_row(n: int, job: NewJob, now: int) -> tuple[Any, ...]:
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


def _wide_row(n: int, job: NewJob, now: int) -> tuple[Any, ...]:
    return (n, job.id, job.task, job.payload, now, json.dumps(job.tags) if job.tags else None)


def _finish_row(outcome: Outcome, now: int) -> tuple[Any, ...]:
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
    return (*ended, outcome.owner, outcome.strayed, prune_at)


def _fenced(c: sqlite3.Connection, outcomes: Sequence[Outcome]) -> tuple[list[Outcome], list[Token]]:
    ours = still_ours(c, [outcome.token for outcome in outcomes])
    accepted, refused = [], []
    for outcome in outcomes:
        if outcome.token in ours:
            ours.remove(outcome.token)
            accepted.append(outcome)
        else:
            refused.append(outcome.token)
    return accepted, refused


def still_ours(c: sqlite3.Connection, tokens: Sequence[Token]) -> set[Token]:
    """The tokens under which their job still runs."""
    found: set[Token] = set()
    for start in range(0, len(tokens), 256):
        part = tokens[start : start + 256]
        text = prepared(STILL_OURS, len(part), 4)
        found |= {Token(*row) for row in c.execute(text, [value for token in part for value in token])}
    return found


def _has_ending(outcome: Outcome) -> bool:
    return outcome.state.finished and (
        outcome.result is not None
        or outcome.failure is not None
        or outcome.reason is not None
        or outcome.result_error is not None
    )


def _ending_row(outcome: Outcome, now: int) -> tuple[Any, ...]:
    until = None if outcome.result_ttl is None or outcome.result is None else now + outcome.result_ttl
    row = (outcome.token.id, outcome.result, until, outcome.result_error, outcome.failure, outcome.reason)
    return (*row, outcome.spent)


def _nth_ready(c: sqlite3.Connection, names: Sequence[str], n: int) -> tuple[int, int, bytes]:
    """The key of the n-th ready job of these queues taken together, or one behind them all."""
    if len(names) <= UNION_TERMS:
        merged = " union all ".join([READY_OF_QUEUE] * len(names))
        row = c.execute(f"{merged} order by 1, 2, 3 limit 1 offset ?", (*names, n - 1)).fetchone()
        return row or LAST_KEY
    first: list[tuple[int, int, bytes]] = []
    for start in range(0, len(names), UNION_TERMS):
        part = names[start : start + UNION_TERMS]
        merged = " union all ".join([READY_OF_QUEUE] * len(part))
        first += c.execute(f"{merged} order by 1, 2, 3 limit ?", (*part, n))
    sound = sorted(key for key in first if [type(value) for value in key] == [int, int, bytes])
    return sound[n - 1] if n <= len(sound) else LAST_KEY


_NUMBERS = frozenset({int})


def as_claim(row: Sequence[Any]) -> Claim:
    """A row that makes no sense becomes a claim without a payload, which fails as undecodable."""
    process, nonce, id, epoch, task, body, queue, rank, attempts, losses, created_at, expires_at, strays = row
    token = Token(process, nonce, id, epoch)
    numbers = (rank, attempts, losses, created_at, strays, epoch)
    sensible = type(task) is str and type(body) is bytes and type(queue) is str
    if sensible and _NUMBERS.issuperset(map(type, numbers)) and (expires_at is None or type(expires_at) is int):
        return Claim(token, task, body, queue, -rank, attempts, losses, created_at, expires_at, strays)
    log.error("the row of job %s makes no sense: somebody else changed it, and it is not performed", _shown(id))
    return Claim(token, task if type(task) is str else "unknown", b"", str(queue), 0, 0, 0, 0, None)


def _shown(id: object) -> str:
    return to_text(id) if type(id) is bytes else "without an id"


def comparable(row: Sequence[Any]) -> tuple[Any, ...]:
    """A key to sort rows by that may hold anything."""
    return tuple((type(value).__name__, value) for value in row)
