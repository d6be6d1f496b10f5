"""The hot stroke on SQLite: write new jobs, write what ended, take what is next. Functions of an open transaction.

Statements move whole batches, because each one lets go of the interpreter lock and may wait to get it back while the
write lock is held.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from packhorse.job import Claim, JobState, NewJob, Token
from packhorse.outcome import Outcome
from packhorse.queues import Selected
from packhorse.stores import sql_admission as admission
from packhorse.stores import sql_exchange, sql_gates, sql_unique
from packhorse.stores.contract import EXCHANGE_JOBS, LARGE
from packhorse.stores.sql_admission import Freed, Runs
from packhorse.stores.sql_exchange import (
    CLAIM_COLUMNS,
    ENDING,
    SUCCESS,
    InUse,
    Load,
    as_claim,
    finish_row,
    heeded,
    narrow_row,
    wide_row,
)
from packhorse.stores.sqlite_batches import Session, batched, prepared

LAST_KEY = (1_000, 0, b"")  # behind every job of a queue
UNION_TERMS = 400  # SQLite takes at most 500 in one statement

INSERT_PAYLOAD = "insert into payload (n, id, task, body, created_at, tags) {rows} on conflict (id) do nothing"
INSERT_JOB = """
    insert into job (n, id, state, queue, rank, order_key, run_at, expires_at, share, limited, waits_on) {rows}
"""
AGED = """
    update job set priority = -rank, rank = 0, ageing = ?,
                   order_key = order_key + case when state > 1 then rank * ? else 0 end
    where n = ?
"""
# Most jobs end well, and their statement carries five values a row where the other needs fourteen.
# Both texts must begin with their verb: for `with … update` Python's sqlite3 counts no rows.
SUCCEED = f"""
    update job indexed by job_held set
{SUCCESS}    from (
        select column1 as process, column2 as nonce, column3 as id, column4 as epoch, column5 as duration
        from ({{rows}})
    ) as ended
    where job.id = ended.id and job.state = 4
      and job.process = ended.process and job.nonce = ended.nonce and job.epoch = ended.epoch
"""
FINISH = f"""
    update job indexed by job_held set
{ENDING}    from (
        select column1 as process, column2 as nonce, column3 as id, column4 as epoch, column5 as state,
               column6 as spent, column7 as lost, column8 as order_key, column9 as run_at, column10 as duration,
               column11 as owner, column12 as strayed, column13 as prune_at, column14 as suspect
        from ({{rows}})
    ) as ended
    where job.id = ended.id and job.state = 4
      and job.process = ended.process and job.nonce = ended.nonce and job.epoch = ended.epoch
"""
STILL_OURS = """
    with token (process, nonce, id, epoch) as ({rows})
    select job.process, job.nonce, job.id, job.epoch from token join job indexed by job_held on job.id = token.id
    where job.state = 4 and job.process = token.process and job.nonce = token.nonce and job.epoch = token.epoch
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
# Answered by its index, in which most stores have nothing.
ANY_LARGE = f"select 1 from payload indexed by payload_large where length(body) > {LARGE} limit 1"
CLAIMED = (
    "select"
    + CLAIM_COLUMNS.format(index="indexed by job_held")
    + ("where state = 4 and process = ? and nonce = ? order by rank, order_key, job.id")
)


def insert(c: Session, jobs: Sequence[NewJob], now: int) -> list[bytes]:
    """The ids that stand for them."""
    return sql_exchange.insert(c, jobs, now, _insert)


def _insert(c: Session, jobs: Sequence[NewJob], now: int) -> list[NewJob]:
    """Those that are new, with their callbacks."""
    fresh = _insert_new(c, jobs, now)
    if callbacks := [callback for job in fresh for callback in job.callbacks]:
        fresh += _insert(c, callbacks, now)
    return fresh


def _insert_new(c: Session, jobs: Sequence[NewJob], now: int) -> list[NewJob]:
    """Those that are new: an insert may be repeated, in part too, and what is there already stays as it is."""
    (first,) = c.execute("select coalesce(max(n), 0) + 1 from job").fetchone()
    numbered = list(enumerate(jobs, first))
    if batched(c, INSERT_PAYLOAD, [wide_row(n, job, now) for n, job in numbered]) < len(jobs):
        ours = "select 1 from payload where id = ? and n = ?"
        numbered = [(n, job) for n, job in numbered if c.execute(ours, (job.id, n)).fetchone()]
    batched(c, INSERT_JOB, [narrow_row(n, job, now) for n, job in numbered])
    if gated := [(sql_gates.first_watched(job), n) for n, job in numbered if job.after]:
        c.executemany(sql_gates.WATCH, gated)
    if tags := [(name, job.id) for _, job in numbered for name in job.tags]:
        c.executemany("insert into tag (name, id) values (?, ?) on conflict do nothing", tags)
    admission.write_holds(c, (job for _, job in numbered))
    if members := [(*job.member, job.id) for _, job in numbered if job.member is not None]:
        batched(c, "insert into member (flow, place, id) {rows}", members)
    if aged := [(job.ageing, job.ageing, n) for n, job in numbered if job.ageing and job.share is None]:
        c.executemany(AGED, aged)
    return [job for _, job in numbered]


def finish(c: Session, outcomes: Sequence[Outcome], now: int, in_use: InUse) -> tuple[list[Token], Freed | None]:
    """Write the outcomes whose token stands; the tokens of the others, and the permits that are free now."""
    outcomes, ordered = heeded(c, outcomes)
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
    return refused, sql_exchange.see_to(c, outcomes, ordered, now, in_use)


def _write(c: Session, outcomes: Sequence[Outcome], now: int) -> int:
    well, others = [], []
    for outcome in outcomes:
        if outcome.state is JobState.SUCCEEDED and outcome.keep is None:
            well.append((*outcome.token, outcome.duration))
        else:
            others.append(finish_row(outcome, now))
    return batched(c, SUCCEED, well, now, now) + batched(c, FINISH, others, now, now)


def take(
    c: Session,
    process: bytes,
    nonce: int,
    queues: Selected,
    limit: int,
    starting: int,
    run: int,
    now: int,
    in_use: InUse,
) -> tuple[list[list[str]], Runs, bool]:
    """Claim the first `limit` ready jobs.

    The queues that served, one list for each entry; who is of which run; and whether some were too large to come along.
    """
    asked = limit
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
    load = Load()
    if served and (asked > EXCHANGE_JOBS or c.execute(ANY_LARGE).fetchone() is not None):
        sql_exchange.bound(c, process, nonce, served, load)
    if served and run > 1 and in_use.permits and not in_use.pauses and not load.cut:
        runs = admission.extend_runs(c, process, nonce, queues, run, limit, load.room, now)
    if served and in_use.unique_keys:
        sql_unique.free_started(c, process, nonce)
    if served and in_use.tickets:
        admission.free_started(c, process, nonce)
    return served, runs, load.cut


def _take_unpaused(
    c: Session,
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


def paused_queues(c: Session, now: int) -> list[str]:
    return _paused(c, "queue", now)


def _paused(c: Session, kind: str, now: int) -> list[str]:
    rows = c.execute("select name from pause where kind = ? and (until is null or until > ?)", (kind, now))
    return [name for (name,) in rows]


def open_queues(c: Session, queues: Selected, paused: Collection[str]) -> Iterator[list[str]]:
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


def claimed(c: Session, process: bytes, nonce: int, entries: list[list[str]], runs: Runs) -> list[Claim]:
    """What `take` claimed."""
    claims = [as_claim(row) for row in c.execute(CLAIMED, (process, nonce))]
    return sql_exchange.in_order(claims, entries, runs)


def _fenced(c: Session, outcomes: Sequence[Outcome]) -> tuple[list[Outcome], list[Token]]:
    ours = still_ours(c, [outcome.token for outcome in outcomes])
    accepted, refused = [], []
    for outcome in outcomes:
        if outcome.token in ours:
            ours.remove(outcome.token)
            accepted.append(outcome)
        else:
            refused.append(outcome.token)
    return accepted, refused


def still_ours(c: Session, tokens: Sequence[Token]) -> set[Token]:
    """The tokens under which their job still runs."""
    found: set[Token] = set()
    for start in range(0, len(tokens), 256):
        part = tokens[start : start + 256]
        text = prepared(STILL_OURS, len(part), 4)
        found |= {Token(*row) for row in c.execute(text, [value for token in part for value in token])}
    return found


def _nth_ready(c: Session, names: Sequence[str], n: int) -> tuple[int, int, bytes]:
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
