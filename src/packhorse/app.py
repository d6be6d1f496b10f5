"""Packhorse: an application's store, tasks and settings; enqueueing."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar, overload

from packhorse.clock import Clock, SystemClock, length, to_datetime
from packhorse.codec import Caps, Codec, Tag
from packhorse.config import Settings
from packhorse.context import Context
from packhorse.control import Control, known_id
from packhorse.errors import ConfigError, DuplicateTask, EnqueueError, PayloadError, StoreError
from packhorse.events import Event, EventKind, Events, Subscriber, known_kinds
from packhorse.handle import JobHandle
from packhorse.hooks import H, Hooks, Role, When
from packhorse.hops import Behind, in_thread
from packhorse.ids import from_text, new_ids, to_text
from packhorse.inspection import Inspection
from packhorse.job import FAILURE_CAP, Attempt, Failure, FailureKind, Job, NewJob, StoredJob, with_callbacks
from packhorse.lending import Lending, lent_to
from packhorse.middleware import Draft, Middleware
from packhorse.outcome import Outcome
from packhorse.queues import check_name
from packhorse.reporters import Reporter, named_reporters
from packhorse.seals import Seals
from packhorse.signing import Envelopes, generate_secret
from packhorse.stores import Store, open_store
from packhorse.stores.contract import Lent
from packhorse.task import BaseTask, Call, CoroutineTask, Declared, Options, Task, make_task

if TYPE_CHECKING:
    from typing import Unpack

    from packhorse.flow import FlowHandle
    from packhorse.moments import Rule
    from packhorse.scheduling import Bounds, Schedules

P = ParamSpec("P")
R = TypeVar("R")

S = TypeVar("S", bound=Subscriber)
T = TypeVar("T", bound="BaseTask[..., Any]")
V = TypeVar("V")

SEALED_REASON = "packhorse.errors.Cancel"  # the type of a failure that is none: why a task cancelled itself

DEFAULT_STORE = "sqlite:///packhorse.db"
BATCH_BYTES = 8 << 20  # of arguments, after which a batch is large enough
KEEP_SIGNALS = timedelta(days=7)


class TaskDecorator(Protocol):
    # The overlap is meant, here and below: a coroutine function is also a function that returns a coroutine. It comes
    # first, so that its result type is what it returns once awaited.
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> CoroutineTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...


class ContextTaskDecorator(Protocol):
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> CoroutineTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...


class Packhorse:
    """`Packhorse("shop")` keeps its jobs in $PACKHORSE_STORE, else in packhorse.db beside you."""

    path: str | None = None  # as module:name, where no variable of a module holds it

    def __init__(
        self,
        name: str,
        store: str | Store | None = None,
        *,
        config: str | Path | None = None,
        clock: Clock | None = None,
        **settings: Any,
    ) -> None:
        self.name = check_name(name, "application name")
        self.settings = Settings.load(settings, app_name=name, config=config)
        self.clock = clock or SystemClock()
        if store is None:
            store = self.settings.store or DEFAULT_STORE
        # Where nobody hands in a clock, the store knows best which one those who share it can agree on.
        self.store = open_store(store, clock) if isinstance(store, str) else store
        settings_ = self.settings
        self.codec = Codec(Caps(settings_.payload_cap, settings_.result_cap, settings_.depth_cap, settings_.items_cap))
        self.tasks: dict[str, BaseTask[..., Any]] = {}
        self.known_tasks: dict[str, BaseTask[..., Any]] = {}  # by their aliases too
        self.events = Events()
        self.hooks = Hooks()
        self.error_reporters: list[Reporter] = named_reporters(settings_.error_reporters)
        self.performing: list[Middleware] = []
        self._enqueuing: list[Middleware] = []
        self._seals: Seals | None = None
        self.control = Control(self)
        self.inspection = Inspection(self)
        self._schedules: Schedules | None = None

    @property
    def seals(self) -> Seals:
        """Made at the first use: SQLite may have to make a key first. Twice does no harm, a lock in a fork would."""
        if self._seals is None:
            self._seals = self._make_seals(self._ring(make=True))
        return self._seals

    @property
    def opening(self) -> Seals:
        """For who only looks: makes no key, and where there is none, finds nothing that can be trusted."""
        if self._seals is None:
            ring = self._ring(make=False)
            if self.settings.signing and not ring:
                return self._make_seals((generate_secret(),))
            self._seals = self._make_seals(ring)
        return self._seals

    def _ring(self, *, make: bool) -> tuple[bytes, ...]:
        settings = self.settings
        if not settings.signing:
            return ()
        own = None if settings.has_keys else self.store.own_key(make=make)
        ring = settings.key_ring() if own is None else (own,)
        if make and not ring:
            raise ConfigError(
                f"The store {type(self.store).__name__} needs a key to sign jobs with. Set PACKHORSE_KEYS to 32 or "
                "more random characters, the same everywhere, or switch signing off with signing=False."
            )
        return ring

    def _make_seals(self, ring: tuple[bytes, ...]) -> Seals:
        settings = self.settings
        cap = max(settings.payload_cap, settings.result_cap, FAILURE_CAP)
        return Seals(
            Envelopes(
                self.name, ring, encrypt=settings.encryption, compress_above=settings.compress_above, size_cap=cap
            )
        )

    @overload
    def task(  # type: ignore[overload-overlap]
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> CoroutineTask[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(self, /, *, takes_context: Literal[True], **options: Unpack[Declared]) -> ContextTaskDecorator: ...
    @overload
    def task(self, /, *, takes_context: Literal[False] = False, **options: Unpack[Declared]) -> TaskDecorator: ...
    def task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        takes_context: bool = False,
        **options: Unpack[Declared],
    ) -> Any:
        """Make a function a task, with options or without."""
        if function is None:
            return lambda function: self._register(make_task(self, function, options, takes_context))
        return self._register(make_task(self, function, options, takes_context))

    def _register(self, task: BaseTask[..., Any]) -> BaseTask[..., Any]:
        for name in (task.name, *task.aliases):
            if name in self.known_tasks:
                raise DuplicateTask(name)
        self.tasks[task.name] = task
        self.known_tasks.update(dict.fromkeys((task.name, *task.aliases), task))
        return task

    @property
    def schedules(self) -> Schedules:
        """Schedules that were made at run time, and those that the code declares."""
        if self._schedules is None:
            from packhorse.scheduling import Schedules  # with calendars and time zones, which few need

            self._schedules = Schedules(self)
        return self._schedules

    def recurring(
        self,
        schedule: Rule | str,
        *,
        key: str | None = None,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        queue_name: str | None = None,
        priority: int | None = None,
        **bounds: Unpack[Bounds],
    ) -> Callable[[T], T]:
        """Enqueue a task at every moment of a rule; goes above `@app.task`, any number of times with different keys.

        The key is the task's name unless one is given; queue and priority are the task's own.
        """
        return self.schedules.declare(schedule, key, args, kwargs, queue_name, priority, bounds)

    # Extending.

    def register_type(
        self, type: type[V], *, name: str, encode: Callable[[V], Any], decode: Callable[[Any], V]
    ) -> None:
        """Let values of a class of yours travel: `encode` gives plain or known values, `decode` takes them back."""
        self.codec.register(Tag(check_name(name, "type name"), type, encode, decode))

    def use(self, middleware: Middleware) -> None:
        """Let it change what is enqueued, or what tasks run in; the first one used is the outermost."""
        if not isinstance(middleware, Middleware):
            raise ConfigError("app.use takes an instance of a subclass of packhorse.Middleware.")
        if type(middleware).enqueue is not Middleware.enqueue:
            self._enqueuing.append(middleware)
        if type(middleware).perform is not Middleware.perform:
            self.performing.append(middleware)

    def subscribe(self, *kinds: str) -> Callable[[S], S]:
        """Decorates a function that is told of events: of these kinds, or of all."""
        known_kinds(*kinds)  # now, for where the parentheses are forgotten no function will follow

        def subscribed(subscriber: S) -> S:
            self.events.subscribe(subscriber, *kinds)
            return subscriber

        return subscribed

    def hook(self, when: When, *, role: Role | None = None) -> Callable[[H], H]:
        """Decorates a function that is called when a process starts, is asked to stop, or leaves (`exit`).

        In that process, with an Occasion; of one role (supervisor, worker, dispatcher, scheduler) or of each.
        """
        return lambda hook: self.hooks.add(when, role, hook)

    def drafted(self, task: BaseTask[..., Any]) -> Options:
        """The options of a job about to be enqueued, as middleware wants them."""
        if not self._enqueuing:
            return task.options
        metadata = dict(task.options.metadata)
        draft = Draft(task.name, replace(task.options, metadata=metadata), metadata)
        for middleware in self._enqueuing:
            before, draft = draft.metadata, middleware.enqueue(draft)
            if not isinstance(draft, Draft):
                given = type(draft).__name__
                raise ConfigError(f"{type(middleware).__name__}.enqueue must return a Draft, not a {given}.")
            # The options have it as well; the one that was replaced counts.
            kept: Any = draft.metadata if draft.metadata is not before else draft.options.metadata
            draft = Draft(task.name, replace(draft.options, metadata=kept), kept)
        return draft.options

    # Enqueueing.

    def on(self, connection: object) -> Lending:
        """`with app.on(connection):` what is enqueued inside is part of the connection's transaction.

        A connection to the store's own database: of sqlite3 or psycopg, a connection or session of SQLAlchemy, or
        Django's; `async with` for an async one.
        """
        return Lending(self, connection)

    @property
    def lent(self) -> Lent | None:
        """What a caller lends to those who enqueue here."""
        return lent_to(self)

    @property
    def writing(self) -> Store | Lent:
        """Where to write what is enqueued here."""
        return self.lent or self.store

    @property
    def looking(self) -> Store | Lent:
        """Where to look for one job."""
        return self.store

    def enqueue(self, call: Call[R]) -> JobHandle[R]:
        return self._insert([call])[0]

    async def aenqueue(self, call: Call[R]) -> JobHandle[R]:
        return await in_thread(self.enqueue, call)

    def enqueue_many(
        self, calls: Iterable[Call[R]], *, progress: Callable[[int], object] | None = None
    ) -> list[JobHandle[R]]:
        """Enqueue calls made with `task.call(...)`, one write per `batch_size`, or a few of them; each is all or none.

        `progress` is called after each with the number of jobs so far. Where it ends early, the error's `enqueued` are
        the handles of those that were written, and `left_out` the calls that were taken and not written.
        """
        return [JobHandle(self, id) for id in self.write_many(calls, progress=progress)]

    async def aenqueue_many(
        self, calls: Iterable[Call[R]], *, progress: Callable[[int], object] | None = None
    ) -> list[JobHandle[R]]:
        return await in_thread(partial(self.enqueue_many, progress=progress), calls)

    def _insert(self, calls: list[Call[R]]) -> list[JobHandle[R]]:
        return [JobHandle(self, id) for id in self.write(calls, lambda: [call.new_job() for call in calls])]

    def write_many(
        self,
        calls: Iterable[Call[R]],
        flow: bytes | None = None,
        *,
        progress: Callable[[int], object] | None = None,
    ) -> list[bytes]:
        """Insert calls batch by batch, as members of a flow if one is named; the ids that stand for them."""
        ids: list[bytes] = []
        with Behind(here=self.lent is not None) as behind:  # while one batch is written, the next is made

            def collect(taken: list[Call[R]]) -> None:
                """What was written meanwhile; `taken` are calls of the batch behind it."""
                try:
                    new = behind.collect()
                except EnqueueError as error:
                    error.left_out += taken
                    raise
                ids.extend(new)
                if progress is not None and new:
                    progress(len(ids))

            place = 0
            try:
                for batch in _batches(calls, self.settings.batch_size * self.store.batches_at_once):
                    jobs = self._make(batch, partial(_made, batch, flow, place))
                    place += len(batch)
                    collect(batch)
                    behind.do(partial(self._put, batch, jobs))
                collect([])
            except EnqueueError as error:
                collect(error.left_out)
                raise error.after([JobHandle(self, id) for id in ids]) from error.__cause__
            except Exception as error:  # making one of the calls failed
                collect([])
                error.add_note(f"{len(ids):,} jobs before it were enqueued; the others of its batch were not.")
                raise
        return ids

    def write(self, calls: list[Call[R]], make: Callable[[], list[NewJob]]) -> list[bytes]:
        """Insert what is made of the calls, and tell subscribers; the ids that stand for them."""
        return self._put(calls, self._make(calls, make))

    def _make(self, calls: list[Call[R]], make: Callable[[], list[NewJob]]) -> list[NewJob]:
        try:
            return make()
        except StoreError as error:
            raise EnqueueError(f"Nothing was enqueued: {error}", left_out=calls) from error

    def _put(self, calls: list[Call[R]], jobs: list[NewJob]) -> list[bytes]:
        try:
            ids = self.writing.insert(jobs)
        except StoreError as error:
            raise EnqueueError(f"Nothing was enqueued: {error}", left_out=calls) from error
        self.tell_enqueued(jobs)
        return ids

    def tell_enqueued(self, jobs: list[NewJob]) -> None:
        if not self.events.wants(EventKind.ENQUEUED):
            return
        now = to_datetime(self.clock.now())
        for job in with_callbacks(jobs):
            event = Event(
                kind=EventKind.ENQUEUED, at=now, job_id=to_text(job.id), task=job.task, queue_name=job.queue, attempt=0
            )
            self.events.tell(event)

    # Signals.

    def signal(self, name: str, data: Any = None, *, keep: timedelta | float = KEEP_SIGNALS) -> int:
        """Let every job go on that waits for the name, and give it the data; how many do.

        It is kept for a week, or so long, for jobs that come to wait for it.
        """
        encoded = self.codec.encode_value(data, "the data of the signal")
        if (lasting := length(keep)) < 0:
            raise ConfigError(f"keep must not be negative: {keep!r}.")
        sealed = self.seals.signal(check_name(name, "signal name"), encoded, self.clock.now())
        return self.store.signal(name, sealed, lasting)

    async def asignal(self, name: str, data: Any = None, *, keep: timedelta | float = KEEP_SIGNALS) -> int:
        return await in_thread(self.signal, name, data, keep=keep)

    # Looking.

    def job(self, id: str | uuid.UUID) -> JobHandle[Any]:
        """The job of that id, enqueued by any process; JobNotFound where there is none."""
        handle: JobHandle[Any] = JobHandle(self, known_id(id))
        handle.look()
        return handle

    async def ajob(self, id: str | uuid.UUID) -> JobHandle[Any]:
        return await in_thread(self.job, id)

    def flow(self, id: str | uuid.UUID) -> FlowHandle:
        """The flow of that id, enqueued by any process."""
        from packhorse.flow import FlowHandle

        return FlowHandle(self, known_id(id))

    @property
    def ageing(self) -> int:
        return 0 if self.settings.ageing is None else length(self.settings.ageing)

    def stored_priority(self, priority: int) -> int:
        """Larger runs sooner in every store; `lower_first` flips the numbers here, at the public edge, both ways."""
        return priority if self.settings.priority_order == "higher_first" else -priority

    def public(self, job: StoredJob) -> Job:
        """What a store knows of a job, verified and in words."""
        raw = from_text(job.id)
        known = {name: getattr(job, name) for name in _KNOWN}
        known["priority"] = self.stored_priority(job.priority)
        failure = None if job.failure is None else self.open_failure(raw, job.failure)
        if failure is not None and failure.type == SEALED_REASON:
            known["reason"], failure = failure.message, None
        opened = ((it, self.open_failure(raw, it.failure)) for it in job.failures)
        failures = tuple(
            Attempt(it.number, it.process, it.started_at, it.ended_at, failed, it.spent)
            for it, failed in opened
            if failed.type != SEALED_REASON
        )
        return Job(**known, failure=failure, failures=failures)

    def open_failure(self, id: bytes, data: bytes) -> Failure:
        try:
            return self.opening.open_failure(id, data)
        except PayloadError as error:
            return Failure(FailureKind.UNDECODABLE, "unknown", f"The stored failure cannot be shown. {error}")

    def sealed(self, outcome: Outcome) -> Outcome:
        """Failures leave this process sealed."""
        if outcome.failure is None:
            return outcome
        return outcome._replace(failure=self.seals.failure(outcome.token.id, outcome.failure))

    def close(self) -> None:
        if self.events:
            self.events.flush()
        self.store.close()


_KNOWN = [field.name for field in fields(Job) if field.name not in ("failure", "failures")]


def _made(calls: list[Call[R]], flow: bytes | None, first: int) -> list[NewJob]:
    jobs = [call.new_job(id) for call, id in zip(calls, new_ids(len(calls)), strict=True)]
    if flow is None:
        return jobs
    return [job._replace(member=(flow, place)) for place, job in enumerate(jobs, first)]


def _batches(calls: Iterable[Call[R]], size: int) -> Iterator[list[Call[R]]]:
    """So many, or fewer where they are large."""
    batch: list[Call[R]] = []
    length = 0
    for call in calls:
        batch.append(call)
        length += len(call.encoded.body)
        if len(batch) == size or length > BATCH_BYTES:
            yield batch
            batch, length = [], 0
    if batch:
        yield batch
