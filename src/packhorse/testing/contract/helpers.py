"""Jobs and processes with names, so that a test reads as what happens to whom."""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from itertools import count
from time import sleep
from typing import Any

from packhorse.clock import SECOND, Clock, to_datetime
from packhorse.ids import from_text
from packhorse.job import Claim, JobState, NewJob, StoredJob, Token
from packhorse.limits import Claimed, Conflict, Hold, Pace, Terms, UniqueConflict
from packhorse.outcome import Outcome
from packhorse.queues import parse_queues
from packhorse.stores import Store
from packhorse.stores.contract import Act, Change, Exchanged, Moved, Order, ProcessInfo, Selection
from packhorse.testing.contract.behind import epochs, leftovers

LEASE = 30 * SECOND
# A store opens no envelope, so anything may be in it.
FAILURE = b"\x00\xff ValueError: no such bird"
OTHER_FAILURE = b"TimeoutError: took too long \xfe\x00"
LOST = b"ProcessPrunedError: stopped beating"

_nonces = count(1)


def new_nonce() -> int:
    return next(_nonces)


# Jobs.


def id_of(name: str) -> bytes:
    """Sixteen bytes that sort as the names do."""
    return name.encode().ljust(16, b"\0")


def name_of(id: bytes | str) -> str:
    return (from_text(id) if isinstance(id, str) else id).rstrip(b"\0").decode()


def names(found: Iterable[Claim | StoredJob | Token | bytes]) -> list[str]:
    return [name_of(_id(one)) for one in found]


def _id(one: Claim | StoredJob | Token | bytes) -> bytes | str:
    match one:
        case Claim():
            return one.token.id
        case Token() | StoredJob():
            return one.id
    return one


def job(name: str, **fields: Any) -> NewJob:
    return NewJob(id_of(name), **{"task": "birds.count", "payload": f"payload of {name}".encode()} | fields)


def limited(
    name: str, *keys: str, to: int = 1, conflict: Conflict = Conflict.BLOCK, paces: Sequence[Pace] = (), **fields: Any
) -> NewJob:
    """A job under a limit of each key; without any, of the key "k"."""
    holds = tuple(Hold(key, to, conflict) for key in keys or ("k",))
    return job(name, terms=Terms(holds, paces=tuple(paces)), **fields)


def rated(name: str, *paces: Pace, **fields: Any) -> NewJob:
    return job(name, terms=Terms(paces=paces), **fields)


def sole(
    name: str,
    key: str = "k",
    conflict: UniqueConflict = UniqueConflict.KEEP,
    *,
    until_start: bool = False,
    lasting: int | None = None,
    holds: Sequence[Hold] = (),
    **fields: Any,
) -> NewJob:
    """A job with a unique key."""
    return job(name, terms=Terms(tuple(holds), Claimed(key, until_start, lasting, conflict)), **fields)


def holders(store: Store, key: str = "k") -> int:
    """How many have a permit of the key."""
    return sum(view.holders for view in store.limits() if view.key == key)


def in_line(store: Store, key: str = "k") -> int:
    """How many wait for a permit of the key."""
    return sum(view.waiting for view in store.limits() if view.key == key)


def insert(store: Store, *jobs: NewJob | str) -> list[bytes]:
    return store.insert([job(one) if isinstance(one, str) else one for one in jobs])


def look(store: Store, name: str) -> StoredJob:
    found = store.job(id_of(name))
    assert found is not None, f"there is no job {name}"
    return found


def state(store: Store, name: str) -> JobState:
    return look(store, name).state


def states(store: Store) -> dict[str, JobState]:
    return {name_of(one.id): one.state for one in store.jobs(Selection(), limit=10_000)}


def now(clock: Clock, plus: float = 0) -> Any:
    """The store's time, as job views show it."""
    return to_datetime(clock.now() + round(plus * SECOND))


def move(store: Store, act: Act, *jobs: str, queue: str | None = None, priority: int | None = None) -> Moved:
    selection = Selection(ids=[id_of(name) for name in jobs])
    return store.move(selection, Change(act, queue, priority), "ann", "because")


# Processes.


class Worker:
    """An enrolled process that can claim, finish and beat."""

    def __init__(self, store: Store, name: str, lease: int = LEASE) -> None:
        self.store = store
        self.info = ProcessInfo(id_of(name), "worker", f"host of {name}", 4711, "*", id_of("supervisor"))
        self.id = self.info.id
        self.lease = lease
        self.enroll()

    def enroll(self) -> None:
        self.store.enroll(self.info, self.lease)

    def exchange(
        self,
        *outcomes: Outcome,
        limit: int = 0,
        queues: str = "*",
        nonce: int | None = None,
        starting: int = 0,
        started: Sequence[Token] = (),
    ) -> Exchanged:
        nonce = new_nonce() if nonce is None else nonce
        selected = parse_queues(queues)
        return self.store.exchange(self.id, nonce, outcomes, selected, limit, starting=starting, started=started)

    def claim(self, limit: int = 100, **how: Any) -> list[Claim]:
        return self.exchange(limit=limit, **how).claims

    def claim_one(self, **how: Any) -> Claim:
        [claim] = self.claim(1, **how)
        return claim

    def finish(self, *outcomes: Outcome) -> list[Token]:
        """Write outcomes; those that were refused. What somebody else holds up is offered again."""
        reply = self.exchange(*outcomes)
        refused = reply.refused
        while reply.put_off:
            sleep(0.05)
            reply = self.exchange(*(outcome for outcome in outcomes if outcome.token in reply.put_off))
            refused += reply.refused
        return refused

    def beat(self) -> list[bytes]:
        return self.store.beat([self.id])

    @property
    def orders(self) -> list[Order]:
        return self.store.orders([self.id])

    @property
    def alive(self) -> bool:
        return self.beat() == []

    @property
    def holds(self) -> list[str]:
        return names(self.store.held(self.id))

    @property
    def lease_left(self) -> float:
        """Seconds; 0 where the store does not know the process."""
        return max([view.lease_left for view in self.store.processes() if from_text(view.id) == self.id], default=0)


# How attempts end.


def rounds(at_least: int, others: Sequence[Future[None]]) -> Iterator[int]:
    """Numbers the rounds of a thread that works beside others: it goes on until they are through, and once more."""
    number, through = 0, False
    while number < at_least or not through:
        through = all(other.done() for other in others)
        yield number
        number += 1


def succeeded(claim: Claim | Token, result: bytes | None = None, duration: int | None = SECOND) -> Outcome:
    return Outcome(_token(claim), JobState.SUCCEEDED, duration=duration, result=result)


def failed(claim: Claim | Token, failure: bytes = FAILURE, spent: bool = True) -> Outcome:
    return Outcome(_token(claim), JobState.FAILED, spent, duration=2 * SECOND, failure=failure)


def retried(claim: Claim | Token, delay: int = 0, failure: bytes = FAILURE) -> Outcome:
    return Outcome(_token(claim), JobState.SCHEDULED, delay=delay, duration=2 * SECOND, failure=failure)


def snoozed(claim: Claim | Token, delay: int) -> Outcome:
    return Outcome(_token(claim), JobState.SCHEDULED, spent=False, delay=delay, duration=SECOND)


def strayed(claim: Claim | Token, delay: int = 0) -> Outcome:
    """It came to a worker that does not know its task."""
    return Outcome(_token(claim), JobState.SCHEDULED, spent=False, strayed=True, delay=delay)


def released(claim: Claim | Token) -> Outcome:
    return Outcome(_token(claim), JobState.READY, spent=False)


def perhaps_lost(claim: Claim | Token) -> Outcome:
    """It may have begun on a worker that was lost."""
    return released(claim)._replace(suspect=True)


def cancelled(claim: Claim | Token, reason: str | None = "enough") -> Outcome:
    return Outcome(_token(claim), JobState.CANCELLED, duration=SECOND, reason=reason)


def lost(claim: Claim | Token, state: JobState = JobState.READY) -> Outcome:
    return Outcome(_token(claim), state, spent=False, lost=True, failure=LOST)


def _token(claim: Claim | Token) -> Token:
    return claim.token if isinstance(claim, Claim) else claim


# The whole store.


def everything(store: Store) -> object:
    """All that can be seen of jobs and processes; equal before and after something that must change nothing."""
    found = store.jobs(Selection(), limit=10_000)
    ids = [from_text(one.id) for one in found]
    return (
        [store.job(id) for id in ids],
        [store.entries(id) for id in ids],
        [store.held(from_text(process.id)) for process in store.processes()],
        store.queues(),
        store.pauses(),
        store.limits(),
        store.rates(),
        store.weights(),
        store.processes(),
        store.audit(),
        store.signals("go"),
        store.waiters(),
        epochs(store),
        leftovers(store),
    )
