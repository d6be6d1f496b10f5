"""The hot stroke on PostgreSQL: write new jobs, write what ended, take what is next. Functions of an open transaction.

Others write at the same time. Whoever claims passes over what another is about to claim; whoever ends a job matches its
token in the row that is locked; and what is looked at to decide is looked at after the rows are locked.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from packhorse.job import Claim, JobState, NewJob, Token
from packhorse.outcome import Outcome
from packhorse.queues import Entry, Selected
from packhorse.stores import sql_admission as admission
from packhorse.stores import sql_exchange, sql_gates, sql_unique
from packhorse.stores.contract import Order, OrderKind
from packhorse.stores.postgres_arrays import columns
from packhorse.stores.postgres_session import Found, Session
from packhorse.stores.sql import Subject
from packhorse.stores.sql_admission import Freed, Runs
from packhorse.stores.sql_exchange import (
    ENDING,
    IN_USE,
    SUCCESS,
    InUse,
    Load,
    as_claim,
    finish_row,
    narrow_row,
    wide_row,
)

ID, TASK, BODY = 2, 4, 5  # columns of what is claimed
FIRST_KEY, LAST_KEY = (-1_000, 0, b""), (1_000, 0, b"")
INSERT_PAYLOAD = """
    insert into payload (n, id, task, body, created_at, tags)
    select nextval('job_n'), new.* from ({rows:bytea text bytea bigint text}) as new on conflict (id) do nothing
"""
# Payload and row of a job come and go together: one without a row was written by this very stroke.
INSERT_JOB = """
    insert into job (n, id, state, queue, rank, order_key, run_at, expires_at, share, limited, waits_on)
    select payload.n, new.*
    from ({rows:bytea bigint text bigint bigint bigint bigint text bigint text})
         as new (id, state, queue, rank, order_key, run_at, expires_at, share, limited, waits_on)
         join payload on payload.id = any(array[new.id])
    where (select n from job where job.n = payload.n limit 1) is null
    returning id, n
"""
# The same for a single job that brings nothing else, and the bell with it: one statement is a transaction by itself.
INSERT_ONE = """
    with wide as (
        insert into payload (n, id, task, body, created_at, tags) values (nextval('job_n'), ?, ?, ?, ?, ?::text)
        on conflict (id) do nothing returning n, id
    ), narrow as (
        insert into job (n, id, state, queue, rank, order_key, run_at, expires_at, share, limited, waits_on)
        select wide.*, ?::bigint, ?::text, ?::bigint, ?::bigint, ?::bigint, ?::bigint, ?::text, ?::bigint, ?::text
        from wide
    )
    select ring(?, ?::regclass, ?, ?)
"""
AGED = """
    update job set priority = -rank, rank = 0, ageing = ?,
                   order_key = order_key + case when state > 1 then rank * ? else 0 end
    where n = ?
"""
# A plan is made once, perhaps while there are three jobs, and serves when there are millions. So no statement leaves
# the planner a way to read a whole index: `limit` and `= any(array[…])` allow nothing but a look for each row of the
# batch, and `+ 0` hides that the index of running jobs would do.
HELD = """
    select ended.*, held.n from ({rows}) as ended ({columns}), lateral (
        select n from job
        where state = 4 and process = ended.process and nonce = ended.nonce and id = ended.id limit 1
    ) as held
"""
TOKEN = """
    job.n = any(array[ended.n]) and job.state + 0 = 4 and job.id = ended.id
    and job.process = ended.process and job.nonce = ended.nonce and job.epoch = ended.epoch
"""


def held(types: str, columns: str) -> str:
    return HELD.format(rows=f"{{rows:{types}}}", columns=columns)


SUCCEED = f"""
    update job set {SUCCESS}
    from ({held("bigint bytea bigint bytea bigint bigint", "place, process, nonce, id, epoch, duration")}) as ended
    where {TOKEN} returning ended.place
"""
_ENDED = held(
    "bigint bytea bigint bytea bigint bigint bigint bigint bigint bigint bigint bytea bigint bigint bigint",
    "place, process, nonce, id, epoch, state, spent, lost, order_key, run_at, duration, owner, strayed, prune_at, "
    "suspect",
)
FINISH = f"""
    update job set {ENDING} from ({_ENDED}) as ended where {TOKEN} returning ended.place
"""
# An operator may ask just now; after this, only when the stroke has ended.
LOCK = f"""
    select asked_kind, ended.process, ended.nonce, ended.id, ended.epoch, asked, asked_seal
    from ({held("bytea bigint bytea bigint", "process, nonce, id, epoch")}) as ended join job on {TOKEN}
    order by job.id for update of job
"""
# Who beats and who exchanges renew the same lease, each by the time when it asked. Whoever is overtaken takes nothing
# back; but a lease that was given while the server's clock was far ahead is put right.
LATER = "case when lease_until - ? - lease between 0 and lease then lease_until else ? + lease end"
RENEW = f"update process set lease_until = {LATER} where id = ? and boot = ? and lease_until > ?"
# Whose row another has just now is about to exchange, which renews its lease too; or it was stopped in the middle of
# that, and its siblings must not be kept waiting for it.
BEAT = f"""
    with free as (
        select id from process where id = any(?::bytea[]) and boot = ? and lease_until > ?
        order by id for update skip locked
    ), beaten as (
        update process set lease_until = {LATER} from free where process.id = any(array[free.id])
    )
    select id from process where id = any(?::bytea[]) and boot = ? and lease_until > ?
"""
# Shared: whoever comes after the job in a transaction that stays open shares it, too.
STILL_OURS = """
    select 1 from job where state = 4 and process = ? and nonce = ? and id = ? and epoch = ? for share of job
"""
# From name to name along the index, however many jobs each has.
NAMES = """
    with recursive name (queue) as (
        (select queue from job where state = 3 and queue >= ? order by queue limit 1)
        union all
        select (select job.queue from job where state = 3 and job.queue > name.queue order by job.queue limit 1)
        from name where starts_with(name.queue, ?)
    )
    select queue from name where queue is not null
"""
# All that an idle worker wants to know, in one statement.
LOOK = f"""
    with recursive name (queue) as (
        (select queue from job where state = 3 order by queue limit 1)
        union all
        select (select job.queue from job where state = 3 and job.queue > name.queue order by job.queue limit 1)
        from name where name.queue is not null
    )
    select exists (select 1 from process where id = ? and boot = ? and lease_until > ?),
           array(select queue from name where queue is not null),
           array(select name from pause where kind = 'queue' and (until is null or until > ?)), arrived.*
    from ({admission.ARRIVED}) as arrived
"""
CLAIMED_ROW = """
    job.process, job.nonce, job.id, job.epoch, task, body, job.queue, coalesce(-job.priority, job.rank), job.attempts,
    job.losses, created_at, job.expires_at, job.strays, job.suspect
"""
# The size of a large payload is known without fetching it. Where there is no row of it, there is nothing to carry.
FITTING = """
    case when place <= ? or coalesce(sum(octet_length(body)) over (order by place rows unbounded preceding), 0) <= ?
         then body {beyond} end
"""
# The row that was locked is found again by its place. One that moved before it was locked stays for the next claim.
TAKE = f"""
    with {{before}} picked as materialized (
        {{picked}}
    ), numbered as (
        select row, row_number() over (order by {{order}}) as place from picked
    ), taken as (
        update job set
            state = 4, epoch = epoch + 1, process = ?, nonce = ?, claimed_at = ?,
            started_at = case when place <= ? then cast(? as bigint) end
        from numbered where job.ctid = numbered.row
        returning process, nonce, id, epoch, queue, priority, rank, attempts, losses, expires_at, strays, suspect, n,
                  place
    )
    select {CLAIMED_ROW.replace("body", FITTING)}{{number}}
    from taken as job left join payload on payload.id = any(array[job.id]) order by place
"""
NEXT_OF_ONE = {
    "picked": """
        select ctid as row, rank, order_key, id from job where state = 3 and queue = ?
        order by rank, order_key, id limit ? for update skip locked
    """,
    "order": "rank, order_key, id",
}
TAKE_OF_ONE = TAKE.format(before="", **NEXT_OF_ONE, number="", beyond="")
TAKE_OF_MANY = TAKE.format(
    before="",
    picked="""
        select ready.* from unnest(?::text[]) as name (queue), lateral (
            select ctid as row, rank, order_key, id from job
            where state = 3 and job.queue = name.queue
              and (rank, order_key, id) > (?, ?, ?) and (rank, order_key, id) <= (?, ?, ?)
            order by rank, order_key, id limit ? for update skip locked
        ) as ready
    """,
    order="rank, order_key, id",
    number="",
    beyond="",
)
NTH_OF_MANY = """
    select ready.* from unnest(?::text[]) as name (queue), lateral (
        select rank, order_key, id from job
        where state = 3 and job.queue = name.queue and (rank, order_key, id) > (?, ?, ?)
        order by rank, order_key, id limit ?
    ) as ready
    order by rank, order_key, id offset ? limit 1
"""
UNLIMITED = ("where state = 3 and", "where state = 3 and limited + 0 = 0 and")
CLAIMED = f"""
    select {CLAIMED_ROW} from job left join payload on payload.id = any(array[job.id])
    where state = 4 and process = ? and nonce = ? order by job.rank, job.order_key, job.id
"""
BEGIN = """
    update job set started_at = ? where n in (
        select n from job where state = 4 and process = ? and nonce = ? and started_at is null
        order by rank, order_key, id limit ?
    )
"""
PAUSES = "select kind, name from pause where until is null or until > ?"


# Coming in.


def insert(c: Session, jobs: Sequence[NewJob], now: int) -> list[bytes]:
    """The ids that stand for them."""
    return sql_exchange.insert(c, jobs, now, _insert)


def _insert(c: Session, jobs: Sequence[NewJob], now: int) -> list[NewJob]:
    """Those that are new, with their callbacks; where that matters to nobody, none."""
    fresh = _insert_new(c, jobs, now)
    if callbacks := [callback for job in fresh for callback in job.callbacks]:
        fresh += _insert(c, callbacks, now)
    return fresh


def _insert_new(c: Session, jobs: Sequence[NewJob], now: int) -> list[NewJob]:
    new = {job.id: job for job in reversed(jobs)}
    if not new:
        return []
    c.batched(INSERT_PAYLOAD, [wide_row(0, job, now)[1:] for job in new.values()])
    written = c.batched(INSERT_JOB, [narrow_row(0, job, now)[1:] for job in new.values()])
    assert written is not None
    if not any(map(_brings_more, jobs)):
        return []
    numbers: dict[bytes, int] = dict(written.fetchall())
    fresh = [job for job in reversed(new.values()) if job.id in numbers]
    if gated := [(sql_gates.first_watched(job), numbers[job.id]) for job in fresh if job.after]:
        c.executemany(sql_gates.WATCH, gated)
    if tags := [(name, job.id) for job in fresh for name in dict.fromkeys(job.tags)]:
        c.batched("insert into tag (name, id) {rows:text bytea} on conflict do nothing", tags)
    admission.write_holds(c, fresh)
    if members := [(*job.member, job.id) for job in fresh if job.member is not None]:
        c.batched("insert into member (flow, place, id) {rows:bytea bigint bytea}", members)
    if aged := [(job.ageing, job.ageing, numbers[job.id]) for job in fresh if job.ageing and job.share is None]:
        c.executemany(AGED, aged)
    return fresh


def insert_one(c: Session, job: NewJob, now: int, ring: Sequence[Any]) -> list[bytes]:
    """A job of which is_plain is true, by one statement alone."""
    c.execute(INSERT_ONE, (*wide_row(0, job, now)[1:], *narrow_row(0, job, now)[2:], *ring)).fetchall()
    return [job.id]


def is_plain(job: NewJob) -> bool:
    return job.terms.unique is None and not _brings_more(job)


def _brings_more(job: NewJob) -> bool:
    return bool(job.after or job.before or job.tags or job.terms.limited or job.member or job.ageing or job.callbacks)


# Ending.


class Ended(NamedTuple):
    """Outcomes on their way, in a pipeline."""

    offered: Sequence[Outcome]
    outcomes: list[Outcome]  # each job's once, as they are written
    ordered: set[Token]
    written: list[Found]


def write(c: Session, outcomes: Sequence[Outcome], now: int) -> Ended:
    first = {outcome.token: outcome for outcome in reversed(outcomes)}
    ordered: set[Token] = set()
    if others := [token for token, outcome in first.items() if outcome.state is not JobState.SUCCEEDED]:
        found = c.batched(LOCK, others)
        for row in found or ():
            order = _order(row)
            if order.reason is not None:
                ordered.add(order.token)
                first[order.token] = order.heeded(first[order.token])
    # In the order of their ids, as others lock them too.
    rows = sorted(first.values(), key=lambda outcome: outcome.token.id)
    well: list[tuple[Any, ...]] = []
    rest: list[tuple[Any, ...]] = []
    for place, it in enumerate(rows):
        if it.state is JobState.SUCCEEDED and it.keep is None:
            well.append((place, *it.token, it.duration))
        else:
            rest.append((place, *finish_row(it, now)))
    written = [c.batched(SUCCEED, well, now, now), c.batched(FINISH, rest, now, now)]
    return Ended(outcomes, rows, ordered, [found for found in written if found is not None])


def _order(row: Sequence[Any]) -> Order:
    kind, process, nonce, id, epoch, reason, seal = row
    known = OrderKind.RESTART if kind == OrderKind.RESTART else OrderKind.CANCEL
    return Order(known, Token(process, nonce, id, epoch), reason, seal or b"")


def finish(c: Session, ended: Ended, now: int, in_use: InUse) -> tuple[list[Token], Freed | None]:
    """What follows from outcomes; the tokens of those that were refused, and the permits that are free now.

    `in_use` was looked at after they were written: whoever came to wait for one of the jobs before that is seen.
    """
    outcomes = ended.outcomes
    if sum(found.rowcount for found in ended.written) < len(outcomes):
        outcomes = [outcomes[place] for found in ended.written for (place,) in found]
    refused: list[Token] = []
    if len(outcomes) < len(ended.offered):
        accepted = {outcome.token for outcome in outcomes}
        for outcome in ended.offered:
            if outcome.token in accepted:
                accepted.remove(outcome.token)  # who comes twice is refused the second time
            else:
                refused.append(outcome.token)
    return refused, sql_exchange.see_to(c, outcomes, ended.ordered, now, in_use) if outcomes else None


def beat(c: Session, processes: Collection[bytes], boot: str, ticks: int) -> list[bytes]:
    """Renew leases by one statement alone; those whose lease was over.

    Who beats for one alone wants to know that it is renewed, and waits for its row.
    """
    ids = list(processes)
    if len(ids) == 1:
        return [] if c.execute(RENEW, (ticks, ticks, ids[0], boot, ticks)).rowcount else ids
    [them] = columns(("bytea",), [(id,) for id in ids])
    alive = {id for (id,) in c.execute(BEAT, (them, boot, ticks, ticks, ticks, them, boot, ticks))}
    return [id for id in ids if id not in alive]


def look(c: Session) -> Found:
    return c.execute(IN_USE)


def in_use(found: Found) -> InUse:
    return InUse(*map(bool, found.fetchone() or ()))


# Taking.


Names = dict[Entry, Found]


def look_for_names(c: Session, queues: Selected) -> Names:
    """Of the queues with ready jobs, for each entry with a star."""
    return {entry: c.execute(NAMES, (entry.text, entry.text)) for entry in queues if entry.wildcard}


def take(
    c: Session,
    process: bytes,
    nonce: int,
    queues: Selected,
    names_of: Names,
    limit: int,
    starting: int,
    run: int,
    now: int,
    paused: bool,
    *,
    aloof: bool = False,
) -> tuple[list[Claim], bool]:
    """Claim the first `limit` ready jobs, in the order of the contract; whether some were too large to come along.

    Who stays `aloof` does without the admission, and so without the jobs that have something to do with it.
    """
    tasks: list[str] = []
    closed: set[str] = set()
    if paused:
        tasks, closed = _pauses(c, now)
        if tasks:  # who ends a pause lets those go on who wait for it: nobody may come to wait for it behind its back
            if not aloof:
                c.hold(Subject.ADMISSION)
            tasks, closed = _pauses(c, now, " for share" if aloof else "")
    claims: list[Claim] = []
    entries: list[list[str]] = []
    left = limit
    looked: Found | None = None
    load = Load()
    for names in open_queues(queues, names_of, closed):
        entries.append(names)
        if tasks:
            taken = _take_unpaused(c, process, nonce, names, left, now, tasks, aloof)
            c.execute(BEGIN, (now, process, nonce, starting))
        else:
            rows = _take(c, process, nonce, names, left, starting, now, load, aloof)
            looked = look(c)  # what is claimed may come with tickets that were not there before
            more = [as_claim(row) for row in rows]
            claims += more
            taken = len(more)
        left -= taken
        starting = max(0, starting - taken)
        if left <= 0 or load.cut:
            break
    if left == limit:
        return [], False
    if tasks:
        sql_exchange.bound(c, process, nonce, entries, load)
    used = in_use(looked or look(c))
    runs: Runs = {}
    if run > 1 and used.permits and not used.pauses and not load.cut:
        runs = admission.extend_runs(c, process, nonce, queues, run, left, load.room, now)
    if used.unique_keys:
        sql_unique.free_started(c, process, nonce)
    if used.tickets and not aloof:
        admission.free_started(c, process, nonce)
    return _claimed(c, process, nonce, entries, runs) if tasks or runs else claims, load.cut


def _take(
    c: Session,
    process: bytes,
    nonce: int,
    names: list[str],
    limit: int,
    starting: int,
    now: int,
    load: Load | None,
    aloof: bool,
) -> list[tuple[Any, ...]]:
    """Without a load, no payload is fetched."""
    claim = (process, nonce, now)
    if len(names) == 1:
        text = TAKE_OF_ONE.replace(*UNLIMITED) if aloof else TAKE_OF_ONE
        rows = c.execute(text, (names[0], limit, *claim, starting, now, *_room(load))).fetchall()
        return rows if load is None else _carried(c, rows, load)
    many, nth = TAKE_OF_MANY, NTH_OF_MANY
    if aloof:
        many, nth = many.replace(*UNLIMITED), nth.replace(*UNLIMITED)
    taken: list[tuple[Any, ...]] = []
    after, last = FIRST_KEY, FIRST_KEY
    while len(taken) < limit and last != LAST_KEY and not (load and load.cut):
        more = limit - len(taken)
        row = c.execute(nth, (names, *after, more, more - 1)).fetchone()
        last = row if row is not None else LAST_KEY
        begin = max(0, starting - len(taken))
        # Fewer may come, where others are about to claim some of them; then those behind are next.
        rows = c.execute(many, (names, *after, *last, more, *claim, begin, now, *_room(load))).fetchall()
        taken += rows if load is None else _carried(c, rows, load)
        after = last
    return taken


def _room(load: Load | None) -> tuple[int, int]:
    return (0, -1) if load is None else (load.first, load.room)


def _carried(c: Session, rows: list[tuple[Any, ...]], load: Load) -> list[tuple[Any, ...]]:
    """Those whose payload came along; the others are given back."""
    left = (place for place, row in enumerate(rows) if row[BODY] is None and row[TASK] is not None)
    came = next(left, len(rows))
    load.take(len(row[BODY] or b"") for row in rows[:came])
    if came < len(rows):
        load.cut = True
        process, nonce = rows[0][:2]
        c.batched(sql_exchange.GIVE_BACK, [(row[ID],) for row in rows[came:]], process, nonce)
    return rows[:came]


def _take_unpaused(
    c: Session,
    process: bytes,
    nonce: int,
    names: list[str],
    limit: int,
    now: int,
    paused: Sequence[str],
    aloof: bool,
) -> int:
    """Claim, send jobs of paused tasks away to wait, claim as many more; how many stay."""
    taken = 0
    while taken < limit:
        # Which are to come along shows when all are there; none of their payloads is fetched before.
        came = len(_take(c, process, nonce, names, limit - taken, 0, now, None, aloof))
        taken += came - admission.park(c, process, nonce, paused, plain=aloof)
        if not came:
            break
    return taken


def _pauses(c: Session, now: int, locked: str = "") -> tuple[list[str], set[str]]:
    """Tasks and queues. Locked, no pause ends before the stroke does."""
    rows = c.execute(PAUSES + locked, (now,)).fetchall()
    return [name for kind, name in rows if kind == "task"], {name for kind, name in rows if kind == "queue"}


def open_queues(queues: Selected, names_of: Names, paused: Collection[str]) -> list[list[str]]:
    """For each entry, the queues that may have ready jobs, are not paused and not served by an earlier entry."""
    seen: set[str] = set()
    found: list[list[str]] = []
    for entry in queues:
        names = [entry.text]
        if entry.wildcard:
            names = [name for (name,) in names_of[entry] if entry.matches(name)]
        names = [name for name in names if name not in seen]
        seen.update(names)
        if names := [name for name in names if name not in paused]:
            found.append(names)
    return found


class Seen(NamedTuple):
    """By an idle worker."""

    alive: bool
    ready: bool  # a job in an open queue that it serves
    door: tuple[object, object]  # see admission.has_arrived


def look_around(c: Session, process: bytes, boot: str, ticks: int, queues: Selected, now: int) -> Seen:
    alive, names, paused, *door = c.execute(LOOK, (process, boot, ticks, now, now)).fetchall()[0]
    first, due = door
    ready = any(entry.matches(name) for name in set(names) - set(paused) for entry in queues)
    return Seen(bool(alive), ready, (first, due))


def _claimed(c: Session, process: bytes, nonce: int, entries: list[list[str]], runs: Runs) -> list[Claim]:
    claims = [as_claim(row) for row in c.execute(CLAIMED, (process, nonce))]
    return sql_exchange.in_order(claims, entries, runs)
