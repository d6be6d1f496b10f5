"""The exchange as it mostly is: nothing but successes to write, and plain jobs to take. It travels in one go.

What else may follow from an outcome or a claim (permits, followers, unique keys, pauses, somebody at the door) is
looked for after the rows are locked, by the last statement. Where there is any of it, that statement refuses, so
nothing was written, and the exchange is made again step by step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

from packhorse.job import JobState, Token
from packhorse.outcome import Outcome
from packhorse.queues import LOCAL, Selected
from packhorse.stores.contract import CLAIM_BYTES, FAIR, Exchanged
from packhorse.stores.postgres_arrays import columns, ids_array
from packhorse.stores.postgres_exchange import CLAIMED, ID, LATER, TAKE
from packhorse.stores.postgres_session import Found, Row, Session
from packhorse.stores.sql_exchange import (
    ALIVE,
    INSERT_ENDING,
    STARTED,
    SUCCESS,
    as_claim,
    ending_row,
    has_ending,
    in_order,
)

KNOWN, CONCERNED = "PH001", "PH002"  # why the server refuses
REFUSALS = frozenset({KNOWN, CONCERNED})
MOST_ENTRIES, MOST_NUMBERS = 8, 100_000
NUMBER = 14  # column of what is claimed
# Some payloads are too large to come along: what is to stay is seen to step by step.
BEYOND = f"else decode(cast(refuse('{CONCERNED}') as text), 'escape')"
LOCK_WAIT = "500ms"  # after which somebody looks who holds up an exchange
# The nonce is kept with the process, so that whoever never heard the answer can ask for it.
RENEW = f"""
    update process set
        exchanged = case when exchanged is distinct from ? then cast(? as bigint) else refuse('{KNOWN}') end,
        lease_until = case when boot = ? and lease_until > ? then {LATER} else lease_until end
    where id = ? returning boot = ? and lease_until > ?, set_config('lock_timeout', '{LOCK_WAIT}', true)
"""
# All of them or none: where another has one of these jobs by now, the exchange is made step by step.
SUCCEED = f"""
    with done as (
        update job set {SUCCESS} from (
            select id, nonce, epoch, duration, coalesce(n, (
                select job.n from job
                where state = 4 and job.process = ? and job.nonce = ended.nonce and job.id = ended.id limit 1
            )) as n from unnest(?::bigint[], ?::bytea[], ?::bigint[], ?::bigint[], ?::bigint[])
                    as ended (n, id, nonce, epoch, duration)
        ) as ended
        where job.n = any(array[ended.n]) and job.state + 0 = 4 and job.id = ended.id
          and job.process = ? and job.nonce = ended.nonce and job.epoch = ended.epoch
        returning 1
    )
    select case when count(*) < ? then refuse('{CONCERNED}') end from done
"""
NEXT_OF = """
    picked_{number} as materialized (
        select ctid as row, rank, order_key, id, {number} as entry from job
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
    select case when
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
        then refuse('{CONCERNED}') end,
        case when ?::text is not null then ring(?::text, ?::regclass, ?::bigint, ?::bigint) end
"""


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
    before = ", ".join([living, *parts]) + ","
    return TAKE.format(picked=union, before=before, order="entry, rank, order_key, id", number=", job.n", beyond=BEYOND)


class Numbers:
    """Where the rows of claimed jobs are, so that nobody has to look for them when they end. Some may be missing."""

    def __init__(self) -> None:
        self._of: dict[bytes, int] = {}

    def learn(self, rows: Iterable[Row]) -> None:
        if len(self._of) > MOST_NUMBERS:  # of jobs that were taken away, mostly
            self._of = {}
        self._of.update((row[ID], row[NUMBER]) for row in rows)

    def of(self, outcomes: Iterable[Outcome]) -> list[int | None]:
        """They are not asked for again."""
        return [self._of.pop(outcome.token.id, None) for outcome in outcomes]


class Direct(NamedTuple):
    """What an exchange in one go says, and from which queues it takes."""

    process: bytes
    nonce: int
    outcomes: Sequence[Outcome]
    numbers: Sequence[int | None]  # of their jobs' rows, where they are known
    started: Sequence[Token]
    queues: list[str]
    wildcard: str | None  # all queues that begin so are served too, and must be among them
    limit: int
    starting: int


class Sent(NamedTuple):
    """Answers on their way."""

    now: int
    renewed: Found
    taken: Found | None


def direct(
    process: bytes,
    nonce: int,
    outcomes: Sequence[Outcome],
    selected: Selected,
    limit: int,
    starting: int,
    started: Sequence[Token],
    numbers: Numbers,
    guess: str | None,
) -> Direct | None:
    """None where it takes more. A wildcard stands for the one queue where jobs are guessed to be, if it is the last."""
    if len(selected) > MOST_ENTRIES or not all(_is_plain(outcome, process) for outcome in outcomes):
        return None
    # In the order of their ids, as others lock them too.
    ended = sorted(outcomes, key=lambda outcome: outcome.token.id)
    if any(one.token.id == next.token.id for one, next in pairwise(ended)):
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
    return Direct(process, nonce, ended, numbers.of(ended), started, queues, wildcard, limit, starting)


def _is_plain(outcome: Outcome, process: bytes) -> bool:
    return (
        outcome.state is JobState.SUCCEEDED
        and outcome.keep is None
        and outcome.failure is None
        and outcome.token.process == process
    )


def send(c: Session, it: Direct, now: int, ticks: int, boot: str, ring: Sequence[Any]) -> Sent:
    """`ring` tells whoever waits for the end of a job; it travels along with the last statement."""
    alive = (boot, ticks)
    renewed = c.execute(RENEW, (it.nonce, it.nonce, *alive, ticks, ticks, it.process, *alive))
    taken = None
    if it.outcomes:
        rows = [
            (n, outcome.token.id, outcome.token.nonce, outcome.token.epoch, outcome.duration)
            for n, outcome in zip(it.numbers, it.outcomes, strict=True)
        ]
        arrays = columns(("bigint", "bytea", "bigint", "bigint", "bigint"), rows)
        c.execute(SUCCEED, (now, now, it.process, *arrays, it.process, len(rows)))
        c.batched(INSERT_ENDING, [ending_row(outcome, now) for outcome in it.outcomes if has_ending(outcome)])
    for token in it.started:
        c.execute(STARTED, (now, *token))
    if it.queues:
        picks = [value for queue in it.queues for value in (queue, it.limit)]
        claim = (it.process, it.nonce, now, it.starting, now, 1, CLAIM_BYTES)
        taken = c.execute(take_of(len(it.queues)), (it.process, *alive, *picks, *claim))
    ids = ids_array([outcome.token.id for outcome in it.outcomes])
    call = (ring[0], *ring) if it.outcomes else [None] * 5
    c.execute(REFUSE, (it.wildcard, it.wildcard, now, ids, ids, it.process, it.nonce, it.queues, it.wildcard, *call))
    return Sent(now, renewed, taken)


def read(sent: Sent, numbers: Numbers) -> Exchanged:
    found = sent.renewed.fetchone()
    rows = sent.taken.fetchall() if sent.taken is not None else []
    numbers.learn(rows)
    return Exchanged([as_claim(row[:NUMBER]) for row in rows], [], bool(found and found[0]), sent.now)


def read_again(c: Session, it: Direct, now: int, ticks: int, boot: str) -> Exchanged:
    """The answer that was lost, as the store can still tell it; its process may have lost its lease since then."""
    # Both travel together. Of the outcomes nothing has to be asked: they were written, all of them.
    claimed = c.execute(CLAIMED, (it.process, it.nonce))
    living = c.execute(ALIVE, (it.process, boot, ticks))
    claims = in_order([as_claim(row) for row in claimed], [[queue] for queue in it.queues], {})
    return Exchanged(claims, [], living.fetchone() is not None, now)
