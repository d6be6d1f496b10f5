"""Strokes beside a transaction that is not ours and holds what others need: it is open for as long as somebody likes.

What does not need it goes on: plain outcomes and claims go into a stroke of their own that waits for nobody. The rest
is tried without waiting, one kind after the other, and put off where it does not go. See docs/decisions/0028.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from packhorse.errors import HeldUp
from packhorse.failpoints import failpoint
from packhorse.job import Claim, Token
from packhorse.outcome import Outcome
from packhorse.queues import Selected
from packhorse.stores import postgres_exchange, sql_exchange
from packhorse.stores.contract import ADMIT_AT_ONCE, Exchanged, Promoted
from packhorse.stores.postgres_session import Missing, Session
from packhorse.stores.sql import Subject
from packhorse.stores.sql_admission import ARRIVED
from packhorse.stores.sql_due import DUE, LED
from packhorse.stores.sql_store import Bell

if TYPE_CHECKING:
    from packhorse.stores.postgres import PostgresStore

T = TypeVar("T")

LASTS = 2.0  # seconds after the last sign of such a transaction
LOOK_EVERY = 1.0  # seconds between looks whether it is still there
_TOKENS = "({rows:bigint bytea bigint bytea bigint}) as ended (place, process, nonce, id, epoch)"
_HELD = """
    select limited, id from job
    where state = 4 and process = ended.process and nonce = ended.nonce and id = ended.id and epoch = ended.epoch
    limit 1
"""
# Of those whose row is free and ours from now on: what else their end concerns.
SORT = f"""
    select ended.place, held.limited > 0, exists (select 1 from edge where parent = held.id),
           exists (select 1 from unique_key where unique_key.id = held.id)
    from {_TOKENS}, lateral ({_HELD} for update of job skip locked) as held
"""
STILL_HELD = f"select ended.place from {_TOKENS}, lateral ({_HELD}) as held"
PROMOTE = f"""
    update job set {DUE}, order_key = order_key - {LED} where n in (
        select n from job where state = 1 and (order_key, id) <= (?, ?) for update skip locked
    )
"""


class Kind(NamedTuple):
    """What the end of a job needs besides its own row."""

    gates: bool
    admission: bool
    others: bool


PLAIN = Kind(False, False, False)


class Asked(NamedTuple):
    """An exchange."""

    process: bytes
    nonce: int
    outcomes: Sequence[Outcome]
    queues: Selected
    limit: int
    starting: int
    started: Sequence[Token]


class Sorted(NamedTuple):
    kinds: dict[Kind, list[Outcome]]
    started: list[Token]
    blocked: list[Token]


class Careful:
    def __init__(self, store: PostgresStore) -> None:
        self._store = store
        self._until = 0.0
        self._look_at = 0.0

    @property
    def is_on(self) -> bool:
        return time.monotonic() < self._until

    def begin(self) -> None:
        self._until = time.monotonic() + LASTS

    def _is_held_up(self) -> None:
        """Something did not go: as long as it is somebody else's transaction, be careful; else wait again as ever."""
        self.begin()
        if time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + LOOK_EVERY
            if self._store._strokes.holders.look() is None:
                self._until = 0.0

    def exchange(self, it: Asked, bell: Bell) -> Exchanged:
        """Plain outcomes and claims first; then the other outcomes, kind by kind, and whoever came to the door."""
        failpoint("exchange.before_write")
        answer, sorted, arrived = self._store._stroke("exchange", lambda c: self._go_on(c, it), bell, passing=True)
        put_off, refused = list(sorted.blocked), list(answer.refused)
        for kind, outcomes in sorted.kinds.items():
            if kind == PLAIN:
                continue
            try:
                refused += self._try(partial(self._write, outcomes), bell)
            except HeldUp:
                put_off += [outcome.token for outcome in outcomes]
        if put_off or (arrived and not self._admitted()):
            self._is_held_up()
        return answer._replace(refused=refused, put_off=put_off)

    def promote(self, limit: int) -> Promoted:
        """What is due goes on; permits and pauses, where that can be had."""
        store, now = self._store, self._store.clock.now()

        def due(c: Session) -> Promoted:
            last = c.execute(store.NTH_DUE, (limit - 1,)).fetchone()
            bound = last if last and last[0] <= now else (now + 1, b"")
            return Promoted(c.execute(PROMOTE, bound).rowcount, None)

        promoted: Promoted = store._stroke("promote", due, Bell.READY | Bell.ENDED, passing=True)
        if not self._admitted(store._end_pauses):
            self._is_held_up()
        return promoted

    def _admitted(self, before: Callable[[Session, int], None] = lambda c, now: None) -> bool:
        """Whether who is at the door could be judged."""
        store = self._store

        def judge(c: Session) -> None:
            now = store.clock.now()
            c.hold(Subject.ADMISSION)
            before(c, now)
            store._admission.admit(c, now, ADMIT_AT_ONCE)

        try:
            self._try(judge, Bell.READY | Bell.ENDED)
        except HeldUp:
            return False
        return True

    def _try(self, work: Callable[[Session], T], bell: Bell) -> T:
        return self._store._stroke("exchange", work, bell, passing=True)

    def _write(self, outcomes: Sequence[Outcome], c: Session) -> list[Token]:
        now = self._store.clock.now()
        ended = postgres_exchange.write(c, outcomes, now)
        in_use = postgres_exchange.in_use(postgres_exchange.look(c))
        refused, freed = postgres_exchange.finish(c, ended, now, in_use)
        if freed:
            self._store._admission.admit(c, now, ADMIT_AT_ONCE, freed)
        return refused

    def _go_on(self, c: Session, it: Asked) -> tuple[Exchanged, Sorted, bool]:
        """What an exchange does, as far as it needs nothing that others may have."""
        clock, process = self._store.clock, it.process
        now, boot = clock.now(), clock.boot()
        alive = c.execute(sql_exchange.ALIVE, (process, boot, clock.ticks())).fetchone() is not None
        sorted = sort(c, it)
        ended = postgres_exchange.write(c, sorted.kinds.get(PLAIN, ()), now)
        for token in sorted.started:
            c.execute(sql_exchange.STARTED, (now, *token))
        in_use = postgres_exchange.in_use(postgres_exchange.look(c))
        refused, _ = postgres_exchange.finish(c, ended, now, in_use)
        failpoint("exchange.between")
        arrived = self._store._admission.has_arrived(c.execute(ARRIVED, (now,)).fetchall()[0])
        ticks = clock.ticks()
        renewed = c.execute(postgres_exchange.RENEW, (ticks, ticks, process, boot, ticks))
        claims: list[Claim] = []
        cut = False
        if alive and it.limit:
            names_of = postgres_exchange.look_for_names(c, it.queues)
            # Tickets and parked jobs need the admission; without it those that need none are taken.
            aloof = (in_use.tickets or in_use.pauses) and not c.may_hold(Subject.ADMISSION)
            taken = (process, it.nonce, it.queues, names_of, it.limit, it.starting, 1, now, in_use.pauses)
            claims, cut = postgres_exchange.take(c, *taken, aloof=aloof)
        if alive and renewed.rowcount == 0:
            raise Missing(frozenset())  # the lease has just run out: again, as one who has none
        return Exchanged(claims, refused, alive, now, cut), sorted, arrived


def sort(c: Session, it: Asked) -> Sorted:
    """What can be written at once, and what for; rows that somebody else has are neither waited for nor judged."""
    tokens = [*(outcome.token for outcome in it.outcomes), *it.started]
    rows = [(place, *token) for place, token in enumerate(tokens)]
    free = {place: Kind(gated, limited, unique) for place, limited, gated, unique in c.batched(SORT, rows) or ()}
    others = [row for row in rows if row[0] not in free]
    held = {place for (place,) in c.batched(STILL_HELD, others) or ()}
    kinds: dict[Kind, list[Outcome]] = {}
    for place, outcome in enumerate(it.outcomes):
        if place not in held:
            kinds.setdefault(_kind(outcome, free.get(place, PLAIN)), []).append(outcome)
    started = [token for place, token in enumerate(it.started, len(it.outcomes)) if place not in held]
    return Sorted(kinds, started, [tokens[place] for place in sorted(held)])


def _kind(outcome: Outcome, kind: Kind) -> Kind:
    if not outcome.state.finished:  # only its end concerns those who come after it
        kind = kind._replace(gates=bool(outcome.after), others=outcome.awaits is not None)
    return kind
