"""What every store promises. `memory.py` says it in the plainest Python; `packhorse.testing.contract` is the proof."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from packhorse.errors import ConfigError
from packhorse.interrupting import guard_methods
from packhorse.job import Claim, JobState, NewJob, StoredJob, Token, stopped_reason
from packhorse.limits import Pace
from packhorse.outcome import Outcome, go_back, heed, release, stop
from packhorse.queues import Selected
from packhorse.stores.waiting_room import WaitingRoom

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

EXCHANGE_JOBS = 1_000
EXCHANGE_BYTES = 1 << 20
CLAIM_BYTES = 4 << 20  # of payloads, that an exchange or an adoption carries, or a page of a flow
LARGE = CLAIM_BYTES // EXCHANGE_JOBS  # bytes; as many payloads as an exchange carries can come whole up to this size
ADMIT_AT_ONCE = 1_000
TICKS_KEPT = 30 * 24 * 3_600 * 1_000_000  # microseconds
MERGED = "merged"  # the kind of entry that keeps the payload of a job that was merged into another
SIGNAL = "signal"  # the kind of entry that keeps a signal which a job got
RELOAD = "reload"  # the kind of entry that keeps the payload with which a running job is to start again
RESULT_PRUNED = "it was kept for its time, and the job longer"


# What a waiting job waits for, as the name of its line; the empty one is the door, where it will be judged.
FAIR, GATE, LIMIT, RATE, PARKED = "fair:", "gate:", "limit:", "rate:", "task:"
NOT_NEEDED = "nothing failed"  # why a job that waits for a failure is cancelled
HURT = "a job before it did not succeed"  # why one is that waits for a success


def fair_line(queue: str, share: str) -> str:
    return f"{FAIR}{queue}/{share}"


def fair_scope(queue: str, lines: Sequence[str]) -> str:
    """Those who take turns with each other: jobs of a queue that wait for the same things."""
    return " ".join([queue, *lines])


def limit_line(key: str) -> str:
    return f"{LIMIT}{key}"


def rate_line(key: str) -> str:
    return f"{RATE}{key}"


def parked_line(task: str) -> str:
    return f"{PARKED}{task}"


def signal_entry(name: str, n: int) -> str:
    """The name of the entry that keeps a signal; they sort as the signals came."""
    return f"{name} {n:016x}"


class ProcessInfo(NamedTuple):
    """Who a process says it is when it enrols. The id is made anew at every start; host and pid are labels."""

    id: bytes
    role: str
    host: str
    pid: int
    queues: str = ""
    supervisor: bytes | None = None


class Exchanged(NamedTuple):
    """`alive` is False where the process has no lease (any more): nothing was claimed, and it must enrol anew.

    `cut` tells that more jobs were ready and asked for, but their payloads too large to come along. `put_off` names the
    outcomes, and the jobs said to have begun, that a transaction of somebody else keeps from being written: neither
    taken nor refused, they are offered again later.
    """

    claims: list[Claim]
    refused: list[Token]
    alive: bool
    now: int
    cut: bool = False
    put_off: Sequence[Token] = ()


class OrderKind(StrEnum):
    """CANCEL to end the job for good, RESTART to end the attempt and put the job back."""

    CANCEL = "cancel"
    RESTART = "restart"


class Order(NamedTuple):
    """What an operator asks of the owner of a running job, sealed. Told until the attempt has ended; the last counts.

    A success stands. Else, whatever the owner makes of the job, and also if it dies: under CANCEL a job that would come
    back ends `cancelled`, and under RESTART the job goes back in place, unspent.
    """

    kind: OrderKind
    token: Token
    reason: str
    seal: bytes = b""

    def outcome(self, duration: int | None) -> Outcome:
        """Of a job that ended because it was asked to."""
        if self.kind is OrderKind.RESTART:
            return release(self.token)
        return stop(self.token, duration, self.reason)

    def heeded(self, outcome: Outcome) -> Outcome:
        """What becomes of an outcome that the job had meanwhile."""
        return go_back(outcome) if self.kind is OrderKind.RESTART else heed(outcome, self.reason)


class Orphan(NamedTuple):
    """A job of a dead process, now claimed by the adopter, who owes it a verdict.

    `ran` is how many microseconds ago its owner said that it begins, None where it never said so. `nonce` is that of
    the owner's claim, None where it had none.
    """

    claim: Claim
    owner: ProcessInfo
    ran: int | None
    nonce: int | None


class Entry(NamedTuple):
    """Something a running job wants kept: (kind, name) is written once and overwritten by the next of that name."""

    kind: str
    name: str
    data: bytes


class Promoted(NamedTuple):
    """How many jobs became ready, and in how many microseconds the next one is due."""

    jobs: int
    next_due: int | None


@dataclass(frozen=True, slots=True)
class Retention:
    """Microseconds that finished jobs are kept; None keeps them for good."""

    succeeded: int | None
    failed: int | None
    cancelled: int | None

    def of(self, state: JobState) -> int | None:
        return {
            JobState.SUCCEEDED: self.succeeded,
            JobState.FAILED: self.failed,
            JobState.CANCELLED: self.cancelled,
        }[state]


@dataclass(frozen=True, slots=True)
class Selection:
    """Which jobs an act or a page is about; every given field must match. Moments are microseconds."""

    ids: Collection[bytes] | None = None
    states: Collection[JobState] | None = None
    queues: Collection[str] | None = None
    tasks: Collection[str] | None = None
    tags: Collection[str] | None = None
    created_from: int | None = None
    created_before: int | None = None
    finished_from: int | None = None
    finished_before: int | None = None
    flow: bytes | None = None


class Act(StrEnum):
    """What an operator does to selected jobs.

    CANCEL   unfinished jobs end `cancelled`; the owner of a running one is asked to
    STOP     the same, with a reason that tells it was this
    RESTART  failed and cancelled jobs as by RETRY; the owner of a running one is asked to put it back
    RELOAD   the same with another payload, and no expiry; unfinished jobs that do not run get it where they stand
    RETRY    failed and cancelled jobs become ready again with fresh attempts; one that comes after others waits for
             those that have not ended, or go round with it, and bears with those that did not succeed. Callbacks of
             it that were cancelled because of how it ended go round with it, and are not counted
    RUN_NOW  scheduled jobs become ready
    DISCARD  jobs that do not run are deleted
    CHANGE   unfinished jobs that do not run get another queue or priority
    """

    CANCEL = "cancel"
    STOP = "stop"
    RESTART = "restart"
    RELOAD = "reload"
    RETRY = "retry"
    RUN_NOW = "run_now"
    DISCARD = "discard"
    CHANGE = "change"


@dataclass(frozen=True, slots=True)
class Change:
    """`seal` proves to the owners of running jobs who asked; `payload` is for a RELOAD of one job."""

    act: Act
    queue: str | None = None
    priority: int | None = None
    seal: bytes = b""
    payload: bytes = b""


ORDERS = {
    Act.CANCEL: OrderKind.CANCEL,
    Act.STOP: OrderKind.CANCEL,
    Act.RESTART: OrderKind.RESTART,
    Act.RELOAD: OrderKind.RESTART,
}


def kept_reason(act: Act, reason: str) -> str:
    """As it stands with the order, and with the job that is cancelled."""
    if act is Act.STOP:
        return stopped_reason(reason)
    return reason or ("cancelled" if act is Act.CANCEL else "restarted")


class Moved(NamedTuple):
    """How many jobs moved, of how many the owner was asked, and where to go on; None where all were seen."""

    jobs: int
    asked: int
    after: bytes | None = None


class Paused(StrEnum):
    """What a pause holds back."""

    QUEUE = "queue"
    TASK = "task"


@dataclass(frozen=True, slots=True)
class Pause:
    name: str
    until: datetime | None
    reason: str
    actor: str
    kind: Paused = Paused.QUEUE


@dataclass(frozen=True, slots=True)
class QueueCounts:
    queue: str
    counts: dict[JobState, int] = field(default_factory=dict)
    pause: Pause | None = None

    def of(self, state: JobState) -> int:
        return self.counts.get(state, 0)


@dataclass(frozen=True, slots=True)
class ProcessView:
    """A process as others see it."""

    id: str
    role: str
    host: str
    pid: int
    queues: str
    started_at: datetime
    lease_left: float
    running: int


OWN_KEY = "key"  # what the finding is about that tells of a key of the store's own


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class Finding(NamedTuple):
    """Something seen while looking for trouble: what it is about, in one sentence, and what to do."""

    level: Level
    about: str
    text: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class LimitView:
    """A limit key as others see it. `to` is the number set at run time, None where each job brings its own."""

    key: str
    to: int | None
    holders: int
    waiting: int


@dataclass(frozen=True, slots=True)
class RateView:
    """A rate's key as others see it: in how many microseconds its next token is there, and who waits for one."""

    key: str
    pace: Pace
    opens_in: int
    waiting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSchedule:
    """A schedule as a store keeps it. The store knows nothing of rules: who ticks says what comes next.

    `source` names the application whose code declares it; it is empty for one that was made at run time. What the code
    says is the same as long as the `fingerprint` is. `revision` is raised by every change and every tick, and `handled`
    by ticks: what is due up to that moment has been dealt with. `error` tells why the last tick went wrong.
    """

    key: str
    task: str
    rule: str
    payload: bytes
    source: str = ""
    zone: str = "UTC"
    start: int | None = None
    end: int | None = None
    repeats: int | None = None
    jitter: int = 0
    misfire: str = "once"
    grace: int | None = None
    overlap: str = "allow"
    queue: str | None = None
    priority: int | None = None
    paused: bool = False
    handled: int | None = None
    next_at: int | None = None
    last_job: bytes | None = None
    error: str = ""
    fingerprint: str = ""
    revision: int = 0


class DueSchedules(NamedTuple):
    """Schedules to tick now, the most overdue first, and in how many microseconds the next one is due."""

    schedules: list[StoredSchedule]
    next_due: int | None
    now: int


class Tick(NamedTuple):
    """A moment of a schedule that got its job, or, where `job` is None, got none because an earlier one still runs."""

    moment: int
    job: bytes | None


class Signal(NamedTuple):
    """Numbered in the order they came; no number is given twice."""

    n: int
    name: str
    data: bytes


class Waiter(NamedTuple):
    """A job that awaits a signal."""

    signal: str
    id: bytes


NOBODY = Waiter("", b"")  # comes before all others


class Audit(NamedTuple):
    at: int
    actor: str
    act: str
    reason: str
    jobs: int


def stranger(id: bytes) -> ProcessInfo:
    """Stands for an owner that the store knows nothing of."""
    return ProcessInfo(id, role="unknown", host="unknown", pid=0)


class Watch(ABC):
    """Sleeps until there may be something to claim, or jobs have ended. Used by one thread, but for `wake`."""

    misses_nothing = True  # False where who waits should look now and then anyway

    @abstractmethod
    def wait(self, timeout: float) -> bool:
        """True where something changed since the last call returned; a change in between is never missed."""

    def settle(self) -> None:  # noqa: B027 (most have nothing to do)
        """Who waited has gone to look, and does not sleep: there is time to do what was put off for it."""

    @abstractmethod
    def wake(self) -> None:
        """End the sleep early."""

    @abstractmethod
    def close(self) -> None: ...


class Lent(ABC):
    """A connection that a caller lends. Strokes join its transaction: they are there when it commits, and not before.

    All or nothing still, also where the caller's transaction goes on after an error. None is run again: errors are the
    caller's. Where the connection is in no transaction and opens none by itself, each stroke is one.
    """

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        guard_methods(Lent, cls)

    @abstractmethod
    def insert(self, jobs: Sequence[NewJob]) -> list[bytes]:
        """As `Store.insert`."""

    @abstractmethod
    def run_schedule(self, job: NewJob, actor: str, reason: str) -> bytes:
        """As `Store.run_schedule`."""

    @abstractmethod
    def complete(self, outcome: Outcome) -> bool:
        """Write how a job ended; False, and nothing written, where it runs no longer under that token."""

    @abstractmethod
    def job(self, id: bytes) -> StoredJob | None:
        """As `Store.job`, with what the transaction has written so far."""


class Store(ABC):
    """Promises are kept here; policies are unknown here. Every method may be called from any thread."""

    url: str
    shared = True  # False where each process has a store of its own
    batches_at_once = 1  # more where nobody has to wait while many jobs are inserted, and that is quicker

    def __init_subclass__(cls, **more: Any) -> None:
        """A task is interrupted before or after what a store does for it, and never in the midst of that."""
        super().__init_subclass__(**more)
        guard_methods(Store, cls)

    # Hot: each one batched round trip and at most one commit.

    @abstractmethod
    def insert(self, jobs: Sequence[NewJob]) -> list[bytes]:
        """Write all or none. An id that is already known is left as it is. Answers the ids that stand for them.

        A job whose unique key is taken comes to stand for the earlier one, or takes its place, as its terms say; or
        its payload becomes an entry of the earlier one. A key is free where its time is over, and where `job` no longer
        finds the job that has it: what stands for a job can be looked at. One with limits, rates or a share is
        `waiting` until `promote` or `exchange` admits it: the caller's transaction decides nothing.

        One that comes after others waits until they have ended, and goes on in the stroke that ends the last of them.
        If one of them does not end as it needs, it is cancelled in that stroke, and so are those that need it.
        StoreDataError where a job it comes after is not known, or one it comes before waits no longer. Its callbacks
        are inserted with it, if it is.
        """

    @abstractmethod
    def exchange(
        self,
        process: bytes,
        nonce: int,
        outcomes: Sequence[Outcome],
        queues: Selected,
        limit: int,
        *,
        starting: int = 0,
        started: Sequence[Token] = (),
        run: int = 1,
    ) -> Exchanged:
        """Write what ended and take what is next, in one stroke.

        An outcome is written only where the job still runs under its token; the others come back refused. Then up to
        `limit` ready jobs start running for `process` under the new `nonce`, in the order of the contract. The first
        `starting` of them begin at once, and so did the `started` ones claimed earlier. Where there was anything to
        write or to take, the process's lease is renewed. A finished job whose outcome says `keep=0` is deleted.

        The payloads of what is claimed take at most CLAIM_BYTES, or it is one job: where the next one in the order
        would go beyond that, it and those behind it stay as they were, ready, and `cut` says so.

        Where `run` is more than 1, a store may add to a job that has the only permit of a key up to so many that wait
        for it, as a run. They are claimed too, but their permit is one, and it is free when the last of them has ended
        or gone back.
        """

    @abstractmethod
    def take_token(self, pace: Pace, patience: int) -> int | None:
        """Take a token of a rate, and say after how many microseconds it counts.

        None, and nothing is taken, where that is longer than `patience`.
        """

    @abstractmethod
    def beat(self, processes: Collection[bytes]) -> list[bytes]:
        """They live: renew the leases that have not run out; those that had none left."""

    def is_held(self) -> bool:
        """Whether one transaction keeps all others from writing, so that no lease is over before they could renew it.

        Where that is never so, a lease ends whatever happens.
        """
        return False

    @abstractmethod
    def orders(self, processes: Collection[bytes]) -> list[Order]:
        """What is asked of these owners of running jobs. A cheap look, for it is taken again and again."""

    # Fenced by the claim token.

    @abstractmethod
    def record(self, token: Token, entries: Sequence[Entry]) -> bool:
        """Keep entries of a running job; False, and nothing kept, where the token is old."""

    @abstractmethod
    def finished(self, token: Token) -> bool:
        """Whether the job has finished under this claim, or is kept no longer."""

    @abstractmethod
    def now(self) -> int:
        """The store's time, by which all delays count."""

    @abstractmethod
    def held(self, process: bytes) -> list[Token]:
        """What the store thinks this process holds."""

    # Signals.

    @abstractmethod
    def signal(self, name: str, data: bytes, keep: int) -> int:
        """Every job that awaits the name gets the signal as an entry and is due now; how many.

        It is kept for so many microseconds, for those who come to await it: an outcome that awaits a signal
        which is there already makes the job due at once, with that entry.
        """

    @abstractmethod
    def signals(self, name: str, after: int = 0, limit: int = 100) -> list[Signal]:
        """Those of a name whose time is not over, in their order, behind the number `after`."""

    @abstractmethod
    def waiters(self, after: Waiter = NOBODY, limit: int = 100) -> list[Waiter]:
        """Who awaits what, in the order of names and ids, behind `after`."""

    # Membership.

    @abstractmethod
    def enroll(self, process: ProcessInfo, lease: int) -> None:
        """A process begins, with a lease of so many microseconds from now and from each beat."""

    @abstractmethod
    def leave(self, process: bytes) -> None:
        """A process signs off. What it still holds goes back in place, unspent."""

    # Housekeeping: safe anywhere, any number of times.

    @abstractmethod
    def promote(self, limit: int) -> Promoted:
        """Make due jobs ready, or let them wait; their order key is the moment they were due.

        It is earlier by their `ageing` for each point of priority, which then counts no more by itself. Jobs of a share
        stand one turn behind the last of their share, and a newcomer with the first. Then admit what waits and finds
        its permits and tokens, by priority and age.
        """

    @abstractmethod
    def adopt(self, adopter: bytes, nonce: int, limit: int, *, dead: Collection[bytes] = ()) -> list[Orphan]:
        """Take over running jobs whose process is unknown, has no lease left or is named `dead`.

        And ready ones of a local queue that only such a process would have served. In the order of their ids, up to
        `limit` and as many as CLAIM_BYTES of payloads allow, but at least one: there are none left when none come. An
        adopter that holds jobs may name itself, to be told of them again.
        """

    @abstractmethod
    def prune(self, retention: Retention, limit: int) -> int:
        """Delete up to `limit` finished jobs that are kept no longer, as many results, and as many signals; how many.

        Those due first go first; among equals the one that finished first, then the smaller id. The rules of retention
        say what is deleted here. What a job brought along itself (`keep`, `result_ttl`, how long a signal or a unique
        key counts) is over to whoever looks as soon as its time is, whether or not it was pruned.
        """

    # Schedules: rows with a moment, and one job for each moment, whoever ticks.

    @abstractmethod
    def save_schedules(self, source: str, schedules: Sequence[StoredSchedule]) -> list[str]:
        """What an application's code declares, and no more; the keys that were left alone, as others have them.

        One whose fingerprint is the same keeps all that happened to it. A changed one begins anew, but stays paused
        where it was, and remembers its last job, which may run still.
        """

    @abstractmethod
    def put_schedule(self, schedule: StoredSchedule, actor: str, reason: str) -> bool:
        """Write one: a new one where its revision is 0, else only over that revision; False where that is not so."""

    @abstractmethod
    def remove_schedule(self, key: str, actor: str, reason: str) -> bool: ...

    @abstractmethod
    def run_schedule(self, job: NewJob, actor: str, reason: str) -> bytes:
        """Insert a job of a schedule besides its moments, as somebody asked for; the id that stands for it."""

    @abstractmethod
    def due_schedules(self, limit: int) -> DueSchedules:
        """Those that are not paused and whose next moment has come."""

    @abstractmethod
    def tick(
        self,
        schedule: StoredSchedule,
        jobs: Sequence[tuple[int, NewJob]],
        *,
        handled: int | None,
        next_at: int | None,
        repeats: int | None,
        error: str = "",
    ) -> list[Tick] | None:
        """Insert the jobs of moments and move the schedule on, in one stroke; None where it is no more as it was given.

        A moment that had its job before gets no second one. Under the overlap "skip" one gets none while the job of the
        last tick is unfinished.
        """

    @abstractmethod
    def schedules(self, after: str = "", limit: int = 100) -> list[StoredSchedule]:
        """In the order of their keys, behind `after`."""

    @abstractmethod
    def schedule(self, key: str) -> StoredSchedule | None: ...

    @abstractmethod
    def ticks(self, key: str, limit: int = 100) -> list[Tick]:
        """The newest moments that were dealt with; kept for a while, whatever becomes of their jobs."""

    # Operating: audited in the same stroke, and the epoch is raised, so that no old claim survives it.

    @abstractmethod
    def move(
        self,
        selection: Selection,
        change: Change,
        actor: str,
        reason: str,
        *,
        after: bytes | None = None,
        limit: int = 1_000,
    ) -> Moved:
        """Act on up to `limit` selected jobs, in the order of their ids, beginning behind `after`."""

    @abstractmethod
    def reseal(self, id: bytes, payload: bytes, actor: str, reason: str) -> bool:
        """Another payload for a job that failed or was cancelled; False, and no act, where it is in no such state."""

    @abstractmethod
    def pause(
        self,
        name: str,
        until: int | None,
        actor: str,
        reason: str,
        *,
        length: int | None = None,
        kind: Paused = Paused.QUEUE,
    ) -> None:
        """Claim nothing of the queue or task until a moment, for a length from the store's now, or until resumed."""

    @abstractmethod
    def resume(self, name: str, actor: str, reason: str, *, kind: Paused = Paused.QUEUE) -> bool: ...

    @abstractmethod
    def set_limit(self, key: str, to: int | None, actor: str, reason: str) -> None:
        """From now on admit `to` jobs of the key, whatever they bring along; None takes that back."""

    @abstractmethod
    def set_weight(self, share: str, weight: int | None, actor: str, reason: str) -> None:
        """From now on the share gets so many turns where others get one; None takes that back."""

    # Looking.

    @abstractmethod
    def jobs(
        self, selection: Selection, after: bytes | None = None, limit: int = 100, *, newest_first: bool = False
    ) -> list[StoredJob]:
        """In the order of their ids, beginning behind `after`; without what is wide: payload, result, failures.

        Where `newest_first` is asked for, all of that is the other way round: what is behind `after` has smaller ids.
        Jobs that `job` finds no longer are among them until they are pruned, for whoever counts and for operators.
        """

    @abstractmethod
    def job(self, id: bytes) -> StoredJob | None:
        """One job with everything; None where the time for which its outcome kept it is over.

        A result whose time is over reads as RESULT_PRUNED.
        """

    @abstractmethod
    def entries(self, id: bytes) -> list[Entry]:
        """What `record` kept of a job, as long as `job` finds that."""

    @abstractmethod
    def members(self, flow: bytes, after: int = -1, limit: int = 100) -> list[tuple[int, StoredJob]]:
        """Those jobs of a flow that `job` finds, with payloads and results, by their places, behind `after`.

        As many as CLAIM_BYTES of these allow, but at least one: there are none left when none come.
        """

    @abstractmethod
    def flow_counts(self, flow: bytes) -> dict[JobState, int]:
        """How many of its jobs are in which state; those with a place below 0 are not counted."""

    @abstractmethod
    def queues(self) -> list[QueueCounts]: ...

    @abstractmethod
    def pauses(self) -> list[Pause]:
        """Those that have not ended, by kind and name."""

    @abstractmethod
    def limits(self, after: str = "", limit: int = 100) -> list[LimitView]:
        """The keys that have holders, waiting jobs or a number set at run time, in their order, behind `after`."""

    @abstractmethod
    def rates(self, after: str = "", limit: int = 100) -> list[RateView]:
        """The keys that were used of late or are waited for, in their order, behind `after`."""

    @abstractmethod
    def weights(self) -> dict[str, int]:
        """As they were set, by share."""

    @abstractmethod
    def processes(self) -> list[ProcessView]: ...

    @abstractmethod
    def audit(self, limit: int = 100) -> list[Audit]:
        """The newest acts first."""

    # Waiting.

    @abstractmethod
    def watch(self, queues: Selected) -> Watch:
        """See changes from now on."""

    @abstractmethod
    def watch_endings(self) -> Watch:
        """See from now on that some job has finished or was deleted; other changes may be told too."""

    @abstractmethod
    def ended(self, ids: Collection[bytes]) -> set[bytes]:
        """Return those of the jobs that have finished or are not known (any more). A cheap look at any number of ids.

        What ends later is told by every `watch_endings` that was there before the look.
        """

    def wait_jobs(self, ids: Collection[bytes], timeout: float) -> set[bytes]:
        """Sleep until at least one of them has finished; those that have, also the ones no longer known."""
        if (ended := self.ended(ids)) or timeout <= 0:
            return ended
        return self.room.wait(ids, timeout) or self.ended(ids)

    @property
    def room(self) -> WaitingRoom:
        """Where all who wait for jobs of this store in this process share one watch and one look."""
        room: WaitingRoom | None = self.__dict__.get("_room")
        return room or self.__dict__.setdefault("_room", self._new_room())

    def _new_room(self) -> WaitingRoom:
        return WaitingRoom(self)

    def close_room(self) -> None:
        """Let go of the connection that waits, unless somebody waits still. For `close`."""
        if (room := self.__dict__.get("_room")) is not None:
            room.close()

    # The store itself.

    def lent(self, connection: object, loop: AbstractEventLoop | None = None) -> Lent:
        """Strokes on a connection of the caller's to the same database; on an async one, from outside its loop."""
        raise ConfigError(f"{type(self).__name__} has no database that a connection of yours could be to.")

    def own_key(self, *, make: bool = True) -> bytes | None:
        """A key that only the store's owner can read, made at the first call; None where there is no place for one.

        StoreUnsafe where it would have to be made although there are jobs: it was lost, and a new one fails them all.
        """
        return None

    def get_ready(self) -> None:  # noqa: B027 (most have nothing to do)
        """Do now what the first use would do, before a task may be in a transaction of its own."""

    def exists(self) -> bool:
        """Looking only: False where the first use would create it."""
        return True

    def examine(self) -> list[Finding]:
        """What only this kind of store knows of its health; looks, and changes nothing."""
        return []

    def backup(self, target: Path, *, replace: bool, progress: Callable[[int, int], None]) -> list[Path]:
        """Copy everything to a file while others use the store; the files that were made.

        ConfigError where there is another way to do it, or none. `progress` is told what is done, and of how much.
        """
        raise ConfigError("This store keeps no file that could be copied. Back it up by its own means.")

    @abstractmethod
    def migrate(self) -> list[str]:
        """Bring the schema up to date; names of the steps taken."""

    @abstractmethod
    def schema_version(self) -> int: ...

    @abstractmethod
    def close(self) -> None: ...
