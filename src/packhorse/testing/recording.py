"""`recorded` and `inline`: an application with a store of the test's own, and time that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from packhorse.app import Packhorse
from packhorse.clock import SECOND, ManualClock, SystemClock, length, to_datetime, to_microseconds
from packhorse.control import known_id
from packhorse.errors import ConfigError, JobFailed, JobNotFound, NotFinished, PackhorseError, Retry
from packhorse.handle import JobHandle
from packhorse.ids import from_text, to_text
from packhorse.job import Claim, Failure, JobState, NewJob, StoredJob, with_callbacks
from packhorse.limits import Pace
from packhorse.outcome import Outcome, release
from packhorse.reporters import ErrorReport
from packhorse.stores.contract import Entry, StoredSchedule, Tick
from packhorse.stores.memory import MemoryStore
from packhorse.stores.sleepers import Wakeable
from packhorse.stores.waiting_room import LonelyRoom, LookingTicket, Ticket, WaitingRoom
from packhorse.testing.in_place import InPlaceWorker
from packhorse.testing.records import Enqueued, RecordedJob

T = TypeVar("T")

MAX_JOBS = 1_000
DEEPEST = 16  # how deep jobs performed inline may lie within each other; Python's stack is finite
OF_TASKS = (SystemExit, asyncio.CancelledError, GeneratorExit)  # what a task may raise that is no Exception


def recorded(app: Packhorse, *, at: datetime | None = None) -> Recording:
    """Keep what is enqueued inside the block, and run none of it until `drain` or `turn`.

    Time stands still, at this moment or `at` another, until `travel`. Whoever waits for a job that has not run is told
    so at once, by NotPerformed. Works with `with` and with `async with`.
    """
    return Recording(app, at)


def inline(app: Packhorse, *, at: datetime | None = None, raise_errors: bool = False) -> Recording:
    """Perform at once, in the thread that enqueues, what is enqueued inside the block.

    An error of a task stays in its job, where `handle.result()` finds it as JobFailed; with `raise_errors` it comes out
    of `enqueue`. What has to wait (for its time, a retry, a rate, a paused queue) waits as in `recorded`, for `travel`
    and `drain`. What a task enqueues is performed at once, too, inside that task.
    """
    return Recording(app, at, inline=True, raise_errors=raise_errors)


HOW = {
    JobState.SCHEDULED: "travel() to its time and drain()",
    JobState.WAITING: "drain() first, and travel() before that where it waits for a rate",
}


class NotPerformed(NotFinished):
    """Somebody waits inside a test for a job that nobody will perform meanwhile."""

    def __init__(self, id: str, state: JobState, awaits: str | None = None) -> None:
        how = HOW.get(state, "drain() first") if awaits is None else f"app.signal({awaits!r}, …) and drain()"
        PackhorseError.__init__(
            self,
            f"Job {id} is {state}, and in a test it stays so until you say otherwise: {how}, or use inline(app) where "
            "the code under test waits for results itself.",
        )
        self.id = id
        self.state = state


class TooManyJobs(PackhorseError):
    def __init__(self, performed: int) -> None:
        super().__init__(
            f"{performed:,} jobs were performed, and still one is ready. Does a task enqueue itself for ever? If not, "
            "allow for more: drain(max_jobs=…)."
        )


class Recording(Enqueued):
    """What `recorded` and `inline` give you."""

    def __init__(
        self, app: Packhorse, at: datetime | None = None, *, inline: bool = False, raise_errors: bool = False
    ) -> None:
        self._app = app
        self._clock = ManualClock(SystemClock().now() if at is None else _moment(at))
        self._store = RecordingStore(self._clock, self._perform_inline if inline else None)
        self._raise_errors = raise_errors
        self._errors: dict[bytes, BaseException] = {}
        self._performing: list[Claim] = []
        self._worker: InPlaceWorker | None = None
        self._entered = False
        self._leaving = ExitStack()

    # Coming and going.

    def __enter__(self) -> Self:
        if self._worker is not None:
            raise ConfigError("This block was entered before. Make another with recorded(app) or inline(app).")
        app = self._app
        own = app.store, app.clock, app._seals

        def restore() -> None:
            app.store, app.clock, app._seals = own

        with ExitStack() as stack:
            stack.callback(restore)
            app.store, app.clock, app._seals = self._store, self._clock, None  # which may hold the store's own key
            app.error_reporters.append(self._keep_error)
            stack.callback(app.error_reporters.remove, self._keep_error)
            self._worker = InPlaceWorker(app)
            stack.callback(self._worker.end)
            stack.callback(self._flush)
            self._leaving = stack.pop_all()
        self._entered = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered = False
        self._leaving.close()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)

    @property
    def _here(self) -> InPlaceWorker:
        if self._worker is None or not self._entered:
            raise ConfigError("Jobs are performed and time moves only inside the block.")
        return self._worker

    # Looking.

    @property
    def enqueued(self) -> list[RecordedJob]:
        """All that was enqueued, oldest first, whatever has become of it; also after the block."""
        return [self._record(id) for id in self._store.seen]

    @property
    def now(self) -> datetime:
        return to_datetime(self._clock.now())

    def _record(self, id: bytes) -> RecordedJob:
        first, last, gone, entries = self._store.look_back(id)
        worker = self._worker
        assert worker is not None
        return RecordedJob(
            id=first.id,
            task=first.task,
            queue_name=first.queue,
            priority=self._app.stored_priority(first.priority),
            created_at=first.created_at,
            run_at=first.run_at,
            expires_at=first.expires_at,
            share=first.share,
            tags=first.tags,
            state=last.state,
            attempts=last.attempts,
            losses=last.losses,
            gone=gone,
            error=self._errors.get(id),
            handle=JobHandle(self._app, id),
            _decode=lambda: worker.arguments(first, entries),
        )

    # Performing.

    def turn(self, *, raise_errors: bool = False) -> RecordedJob | None:
        """Perform the next job that is ready, as `drain` does; None where none is."""
        if (claim := self._claim()) is None:
            return None
        job = self._ended(claim, self._perform(claim), raise_errors)
        self._flush()
        return job

    async def aturn(self, *, raise_errors: bool = False) -> RecordedJob | None:
        if (claim := self._claim()) is None:
            return None
        job = self._ended(claim, await self._aperform(claim), raise_errors)
        await asyncio.to_thread(self._flush)
        return job

    def drain(self, *, max_jobs: int = MAX_JOBS, raise_errors: bool = False) -> list[RecordedJob]:
        """Perform one job after another until none is ready; these, in order, each as its attempt left it.

        Plain functions run in this thread, coroutines too, on a loop of the block's own. (Called inside a running loop,
        it performs in another thread and blocks the loop: rather await `adrain`.) Errors stay in their jobs; with
        `raise_errors` the first one that a task raises comes out, also where a retry would follow. `Retry`, `Snooze`
        and `Cancel` are no errors, unless they leave the job failed. What is meant for the test itself comes out in
        any case: KeyboardInterrupt, pytest.fail, a test's timeout. TooManyJobs where a task never stops enqueueing.
        """
        return [self._ended(claim, self._perform(claim), raise_errors) for claim in self._ready(max_jobs)]

    async def adrain(self, *, max_jobs: int = MAX_JOBS, raise_errors: bool = False) -> list[RecordedJob]:
        """Like `drain`, but coroutines run on this very loop, and plain functions in a thread."""
        performed: list[RecordedJob] = []
        ready = self._ready(max_jobs)
        while (claim := await asyncio.to_thread(next, ready, None)) is not None:
            performed.append(self._ended(claim, await self._aperform(claim), raise_errors))
        return performed

    def _ready(self, max_jobs: int) -> Iterator[Claim]:
        performed = 0
        while (claim := self._claim() or self._claim_after_events()) is not None:
            if performed == max_jobs:
                self._here.finish(release(claim.token))
                raise TooManyJobs(performed)
            yield claim
            performed += 1

    def _claim(self) -> Claim | None:
        claim = self._here.claim()
        if claim is not None:
            self._errors.pop(claim.token.id, None)
        return claim

    def _claim_after_events(self) -> Claim | None:
        """A subscriber may have enqueued something."""
        self._flush()
        return self._claim() if self._app.events else None

    def _perform(self, claim: Claim) -> Outcome:
        with self._begun(claim):
            return self._here.perform(claim)

    async def _aperform(self, claim: Claim) -> Outcome:
        with self._begun(claim):
            return await self._here.aperform(claim)

    @contextmanager
    def _begun(self, claim: Claim) -> Iterator[None]:
        self._performing.append(claim)
        try:
            yield
        except BaseException:  # the test was interrupted, not the task
            self._here.finish(release(claim.token))
            raise
        finally:
            self._performing.remove(claim)

    def _perform_inline(self, ids: list[bytes]) -> None:
        if len(self._performing) < DEEPEST:  # else those who perform come to it next
            self.drain(raise_errors=self._raise_errors)
            self._store.wait_while_running(ids)  # another thread may have been quicker to claim them

    def _ended(self, claim: Claim, outcome: Outcome, raise_errors: bool) -> RecordedJob:
        self._here.finish(outcome)
        if (error := self._to_raise(claim, outcome, raise_errors)) is not None:
            self._flush()
            raise error
        return self._record(claim.token.id)

    def _to_raise(self, claim: Claim, outcome: Outcome, raise_errors: bool) -> BaseException | None:
        return to_raise(self._errors.get(claim.token.id), claim, outcome, raise_errors)

    def _keep_error(self, told: ErrorReport) -> None:
        self._errors[from_text(told.context.job_id)] = told.error

    def _flush(self) -> None:
        if self._app.events:
            self._app.events.flush()

    # Time.

    def travel(self, by: timedelta | float, *, schedules: bool = False) -> None:
        """Time passes: what is due becomes ready, what is kept no longer is pruned. Nothing is performed yet.

        With `schedules` a scheduler is at work meanwhile, and each moment that comes on the way gets its job.
        """
        if (microseconds := length(by)) < 0:
            raise ConfigError(f"Time moves on, not back: travel({by!r}).")
        here = self._here
        end = self._clock.now() + microseconds
        if schedules:
            here.tick_until(end, self._clock)
        self._clock.advance((end - self._clock.now()) / SECOND)
        here.tidy()
        self._flush()

    def travel_to(self, moment: datetime, *, schedules: bool = False) -> None:
        by = _moment(moment) - self._clock.now()
        if by < 0:
            raise ConfigError(f"Time moves on, not back, and it is {self.now} already.")
        self.travel(timedelta(microseconds=by), schedules=schedules)

    def lose_worker(self, job: RecordedJob | JobHandle[Any] | str) -> RecordedJob:
        """Let a worker die while it performs the job, which has to be ready.

        It claims and starts the job, and is not heard of again. Its lease runs out (so much time passes), and the job
        gets its verdict: it is ready again, or has failed with ProcessPrunedError.
        """
        id = known_id(job if isinstance(job, str) else job.id)
        known = self._store.job(id)
        if known is None:
            raise JobNotFound(to_text(id))
        if not self._here.claim_as_doomed(id):
            raise ConfigError(
                f"No worker can claim job {known.id} to be lost with it: it is not ready, or its queue is paused."
            )
        self.travel(self._app.settings.lease)
        return self._record(id)


def to_raise(error: BaseException | None, claim: Claim, outcome: Outcome, raise_errors: bool) -> BaseException | None:
    """What comes out to the test of an attempt that ended so, where the task has raised that error."""
    if isinstance(error, TooManyJobs) or not isinstance(error, (Exception, *OF_TASKS, type(None))):
        return error  # meant for the test, whoever met it
    if not raise_errors:
        return None
    failed = outcome.state is JobState.FAILED
    if error is not None and (failed or not isinstance(error, Retry)):
        error.add_note(f"Raised in attempt {claim.attempts + 1} of job {to_text(claim.token.id)} ({claim.task}).")
        return error
    if failed and outcome.failure is not None:  # the task was never called
        return JobFailed(to_text(claim.token.id), Failure.decode(outcome.failure))
    return None


class RecordingStore(MemoryStore):
    """Remembers every job that was enqueued, and does not wait for what will not happen."""

    def __init__(self, clock: ManualClock, on_insert: Callable[[list[bytes]], None] | None) -> None:
        super().__init__(clock)
        self._on_insert = on_insert
        self._ticking = False
        self.seen: dict[bytes, tuple[StoredJob, Callable[[], StoredJob], Mapping[tuple[str, str], bytes]]] = {}

    def insert(self, jobs: Sequence[NewJob]) -> list[bytes]:
        with self._changed:
            fresh = [new.id for new in with_callbacks(jobs) if new.id not in self._jobs]
            ids = super().insert(jobs)
            for job in (self._jobs[id] for id in fresh if id in self._jobs):
                self.seen[job.new.id] = self._view(job, wide=True), partial(self._view, job), job.entries
            tell = None if self._ticking else self._on_insert
        if tell is not None:
            tell(fresh)
        return ids

    def signal(self, name: str, data: bytes, keep: int) -> int:
        woken = super().signal(name, data, keep)
        if self._on_insert is not None:
            self._on_insert([])
        return woken

    def tick(self, schedule: StoredSchedule, jobs: Sequence[tuple[int, NewJob]], **after: Any) -> list[Tick] | None:
        ticked = self._before_performing(partial(super().tick, schedule, jobs, **after))
        if self._on_insert is not None and ticked:
            self._on_insert([tick.job for tick in ticked if tick.job is not None])
        return ticked

    def run_schedule(self, job: NewJob, actor: str, reason: str) -> bytes:
        id = self._before_performing(partial(super().run_schedule, job, actor, reason))
        if self._on_insert is not None:
            self._on_insert([id])
        return id

    def _before_performing(self, stroke: Callable[[], T]) -> T:
        """Performing comes behind the stroke: inside it everybody else would have to wait."""
        with self._changed:
            self._ticking = True
            try:
                return stroke()
            finally:
                self._ticking = False

    def look_back(self, id: bytes) -> tuple[StoredJob, StoredJob, bool, list[Entry]]:
        """The job when it was enqueued, when it was last known, whether it is gone, and what was kept of it."""
        with self._changed:
            first, look, entries = self.seen[id]
            kept = [Entry(*name, data) for name, data in sorted(entries.items())]
            return first, look(), id not in self._jobs, kept

    def take_token(self, pace: Pace, patience: int) -> int | None:
        """No test sleeps until a token counts."""
        return None if super().take_token(pace, patience) is None else 0

    def wait_while_running(self, ids: list[bytes]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not any(job.token for id in ids if (job := self._jobs.get(id))))

    def _new_room(self) -> WaitingRoom:
        return _NobodyPerforms(self)


class _NobodyPerforms(LonelyRoom):
    def ticket(self, sleeper: Wakeable) -> Ticket:
        return _HopelessTicket(self, sleeper)


class _HopelessTicket(LookingTicket):
    def take(self) -> set[bytes]:
        ended = super().take()
        if not ended and self.wanted and (job := self._room.store.job(min(self.wanted))) is not None:
            raise NotPerformed(job.id, job.state, job.awaits)
        return ended


def _moment(at: datetime) -> int:
    if at.tzinfo is None:
        raise ConfigError(f"{at} has no time zone. Use an aware datetime.")
    return to_microseconds(at)
