"""The exchange as it mostly is: nothing but successes to write, and plain jobs to take. It travels in one go.

What else may follow from an outcome or a claim (permits, followers, unique keys, pauses, somebody at the door) is
looked for after the rows are locked, by the last statement. Where there is any of it, that statement refuses, so
nothing was written, and the exchange is made again step by step.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from packhorse.job import JobState, Token
from packhorse.outcome import Outcome
from packhorse.queues import LOCAL, Selected
from packhorse.stores.contract import FAIR, Exchanged
from packhorse.stores.postgres_arrays import ids_array
from packhorse.stores.postgres_exchange import CLAIMED, TAKE, TOKEN, held
from packhorse.stores.postgres_session import Found, Session
from packhorse.stores.sql_exchange import STARTED, SUCCESS, as_claim, ending_row, has_ending, in_order

KNOWN, CONCERNED = "PH001", "PH002"  # why the server refuses
REFUSALS = frozenset({KNOWN, CONCERNED})
MOST_ENTRIES = 8
# The nonce is kept with the process, so that whoever never heard the answer can ask for it.
RENEW = f"""
    update process set
        exchanged = case when exchanged is distinct from ? then cast(? as bigint) else refuse('{KNOWN}') end,
        lease_until = case when boot = ? and lease_until > ? then ? + lease else lease_until end
    where id = ? returning boot = ? and lease_until > ?
"""
_ENDED = held(
    "bigint bytea bigint bytea bigint bigint bytea bigint text text bigint bigint",
    "place, process, nonce, id, epoch, duration, result, result_until, result_error, reason, spent, has_ending",
)
SUCCEED = f"""
    with done as (
        update job set {SUCCESS} from ({_ENDED}) as ended where {TOKEN} returning ended.*
    ), kept as (
        insert into ending (id, result, result_until, result_error, reason, spent)
        select id, result, result_until, result_error, reason, spent from done where has_ending = 1
    )
    select count(*), array_agg(place) from done
"""
NEXT_OF = """
    picked_{number} as materialized (
        select n, rank, order_key, id, {number} as entry from job
        where state = 3 and queue = ? and (select alive from living)
        order by rank, order_key, id limit {left} for update skip locked
    )
"""
REFUSE = f"""
    with recursive name (queue) as (
        (select queue from job where state = 3 and queue >= ?::text order by queue limit 1)
        union all
        select (select job.queue from job where state = 3 and job.queue > name.queue order by job.queue limit 1)
        from name where starts_with(name.queue, ?::text)
    )
    select refuse('{CONCERNED}') where
        exists (select 1 from pause) or exists (select 1 from permit) or exists (select 1 from ticket)
        or exists (select 1 from rate where wake_at <= ?)
        or exists (
            select 1 from (select waits_on from job where state = 2 order by waits_on limit 1) as first
            where waits_on = '' or starts_with(waits_on, '{FAIR}')
        )
        or (exists (select 1 from edge) and exists (
            select 1 from unnest(?::bytea[]) as ended (id), lateral (
                select 1 from edge where parent = ended.id limit 1
            ) as follower
        ))
        or (exists (select 1 from unique_key) and (
            exists (
                select 1 from unnest(?::bytea[]) as ended (id), lateral (
                    select 1 from unique_key where unique_key.id = ended.id limit 1
                ) as held
            )
            or exists (
                select 1 from (select id from job where state = 4 and process = ? and nonce = ?) as claimed, lateral (
                    select 1 from unique_key where unique_key.id = claimed.id limit 1
                ) as held
            )
        ))
        or exists (
            select 1 from name
            where queue <> all(?::text[]) and starts_with(queue, ?::text) and not starts_with(queue, '{LOCAL}')
        )
"""
WRITTEN = """
    select ended.place
    from ({rows:bigint bytea bigint bytea bigint}) as ended (place, process, nonce, id, epoch), lateral (
        select job.* from payload join job on job.n = any(array[payload.n]) where payload.id = ended.id limit 1
    ) as job
    where job.state = 5 and job.process = ended.process and job.nonce = ended.nonce and job.epoch = ended.epoch
"""
ALIVE = "select 1 from process where id = ? and boot = ? and lease_until > ?"


@cache
def take_of(entries: int) -> str:
    """Claim from so many queues, each only for what those before it leave free."""
    parts, taken = [], "0"
    for number in range(entries):
        left = f"greatest(0, cast(? as bigint) - ({taken}))"
        parts.append(NEXT_OF.format(number=number, left=left))
        taken = " + ".join(f"(select count(*) from picked_{before})" for before in range(number + 1))
    union = " union all ".join(f"select * from picked_{number}" for number in range(entries))
    living = f"living as materialized (select exists ({ALIVE}) as alive)"
    return TAKE.format(picked=union, before=", ".join([living, *parts]) + ",", order="entry, rank, order_key, id")


class Direct(NamedTuple):
    """What an exchange in one go says, and from which queues it takes."""

    process: bytes
    nonce: int
    outcomes: Sequence[Outcome]
    started: Sequence[Token]
    queues: list[str]
    wildcard: str | None  # all queues that begin so are served too, and must be among them
    limit: int
    starting: int


class Sent(NamedTuple):
    """Answers on their way."""

    now: int
    renewed: Found
    written: Found | None
    taken: Found | None


def direct(
    process: bytes,
    nonce: int,
    outcomes: Sequence[Outcome],
    selected: Selected,
    limit: int,
    starting: int,
    started: Sequence[Token],
    guess: str | None,
) -> Direct | None:
    """None where it takes more. A wildcard stands for the one queue where jobs are guessed to be, if it is the last."""
    if not all(map(_is_plain, outcomes)) or len(selected) > MOST_ENTRIES:
        return None
    if len({outcome.token for outcome in outcomes}) < len(outcomes):
        return None
    queues: list[str] = []
    wildcard = None
    for entry in selected if limit else ():
        if wildcard is not None:
            return None
        name = entry.text
        if entry.wildcard:
            wildcard = entry.text
            if guess is None or not entry.matches(guess):
                return None
            name = guess
        if name not in queues:
            queues.append(name)
    return Direct(process, nonce, outcomes, started, queues, wildcard, limit, starting)


def _is_plain(outcome: Outcome) -> bool:
    return outcome.state is JobState.SUCCEEDED and outcome.keep is None and outcome.failure is None


def send(c: Session, it: Direct, now: int, ticks: int, boot: str) -> Sent:
    alive = (boot, ticks)
    renewed = c.execute(RENEW, (it.nonce, it.nonce, *alive, ticks, it.process, *alive))
    written = taken = None
    # In the order of their ids, as others lock them too.
    ended = sorted(it.outcomes, key=lambda outcome: outcome.token.id)
    if ended:
        rows = []
        for place, outcome in enumerate(ended):
            keeps = has_ending(outcome)
            _, result, until, error, _, reason, spent = ending_row(outcome, now)
            rows.append((place, *outcome.token, outcome.duration, result, until, error, reason, spent, keeps))
        written = c.batched(SUCCEED, rows, now, now)
    for token in it.started:
        c.execute(STARTED, (now, *token))
    if it.queues:
        picks = [value for queue in it.queues for value in (queue, it.limit)]
        claim = (it.process, it.nonce, now, it.starting, now)
        taken = c.execute(take_of(len(it.queues)), (it.process, *alive, *picks, *claim))
    ids = ids_array([outcome.token.id for outcome in ended])
    c.execute(REFUSE, (it.wildcard, it.wildcard, now, ids, ids, it.process, it.nonce, it.queues, it.wildcard))
    return Sent(now, renewed, written, taken)


def read(it: Direct, sent: Sent) -> Exchanged:
    found = sent.renewed.fetchone()
    claims = [as_claim(row) for row in sent.taken] if sent.taken is not None else []
    refused: list[Token] = []
    if sent.written is not None:
        [(accepted, places)] = sent.written.fetchall()
        if accepted < len(it.outcomes):
            refused = _refused(it, places or [])
    return Exchanged(claims, refused, bool(found and found[0]), sent.now)


def read_again(c: Session, it: Direct, now: int) -> Exchanged:
    """The answer that was lost, as the store can still tell it."""
    rows = [(place, *token) for place, token in enumerate(_tokens(it))]
    written = c.batched(WRITTEN, rows)
    refused = _refused(it, [place for (place,) in written or ()])
    claims = [as_claim(row) for row in c.execute(CLAIMED, (it.process, it.nonce))]
    return Exchanged(in_order(claims, [[queue] for queue in it.queues], {}), refused, True, now)


def _tokens(it: Direct) -> list[Token]:
    return sorted((outcome.token for outcome in it.outcomes), key=lambda token: token.id)


def _refused(it: Direct, accepted: Sequence[int]) -> list[Token]:
    places = set(accepted)
    return [token for place, token in enumerate(_tokens(it)) if place not in places]
