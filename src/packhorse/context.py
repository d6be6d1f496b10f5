"""The job being performed, seen from inside."""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, overload

from packhorse.clock import SECOND, length, to_datetime
from packhorse.errors import PackhorseError, PutBack
from packhorse.hops import hopping, in_thread
from packhorse.ids import to_text
from packhorse.job import Claim, Token
from packhorse.limits import Pace, Rate
from packhorse.limits import rate as make_rate
from packhorse.logs import JobLogger, job_extra
from packhorse.steps import Steps
from packhorse.stores.lending import is_async

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from packhorse.task import Call

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
PATIENCE = 1 << 62
NAP = 0.2
_AS_BEFORE: Any = object()


class NoJob(PackhorseError, LookupError):
    def __init__(self) -> None:
        super().__init__(
            "No job is being performed here. Ask inside a task, or use current_context(None). A thread that the task "
            "started itself needs a copy of its context: contextvars.copy_context().run."
        )


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job says it is; `total` is None where it does not know."""

    done: float
    total: float | None = None
    note: str = ""
    at: datetime | None = None

    @property
    def percent(self) -> float | None:
        return None if not self.total else min(100.0, 100.0 * self.done / self.total)


class Host(Protocol):
    """What a context asks of the worker around it."""

    def stop_asked(self, token: Token) -> bool: ...
    def seconds_left(self, token: Token) -> float | None: ...
    def report_progress(self, claim: Claim, progress: Progress) -> None: ...
    def take_token(self, pace: Pace, patience: int) -> int | None: ...
    def steps(self, token: Token) -> Steps: ...
    def complete(
        self, claim: Claim, began: int, result: Any, connection: object, loop: AbstractEventLoop | None
    ) -> None: ...


class Context:
    """Given to tasks declared with `takes_context=True`; anything they call finds it with `current_context()`."""

    __slots__ = ("_began", "_claim", "_host", "_log", "_steps", "metadata")

    def __init__(self, claim: Claim, metadata: dict[str, Any], host: Host) -> None:
        self._claim = claim
        self._host = host
        self._log: JobLogger | None = None
        self._steps: Steps | None = None
        self.metadata = metadata
        self._began = time.monotonic_ns()

    @property
    def job_id(self) -> str:
        return to_text(self._claim.token.id)

    @property
    def task(self) -> str:
        return self._claim.task

    @property
    def queue_name(self) -> str:
        return self._claim.queue

    @property
    def attempt(self) -> int:
        """Counted from 1."""
        return self._claim.attempts + 1

    @property
    def losses(self) -> int:
        """How many workers were lost with this job before."""
        return self._claim.losses

    @property
    def created_at(self) -> datetime:
        return to_datetime(self._claim.created_at)

    @property
    def schedule(self) -> str | None:
        """The key of the schedule that the job came from."""
        return _ticked(self.metadata)[0]

    @property
    def moment(self) -> datetime | None:
        """The moment of its schedule that the job stands for, however late it runs."""
        return _ticked(self.metadata)[1]

    @property
    def stop_requested(self) -> bool:
        """An operator asked for the job's end, or the worker is about to leave."""
        return self._host.stop_asked(self._claim.token)

    @property
    def remaining(self) -> float | None:
        """Seconds until the job is ended by force; None where nothing threatens it."""
        return self._host.seconds_left(self._claim.token)

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Say how far the job is. Cheap at any rate: the newest is written a few times a second."""
        # What is no number is met here, in the task, and not where others' progress is written too.
        progress = Progress(float(done), None if total is None else float(total), str(note))
        self._host.report_progress(self._claim, progress)

    def take(self, rate: Rate | str, *, timeout: float | timedelta | None = None) -> bool:
        """Wait for a token of a rate; False, and nothing is taken, where that would be longer than `timeout`.

        Its key is the task's own unless the rate names a `group`. The slot stays taken meanwhile: where jobs wait long,
        rather give the task a rate.
        """
        wait = self._wait_of(rate, timeout)
        until = time.monotonic() + (wait or 0)
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, NAP))  # in the midst of a long one nothing could interrupt it
        return wait is not None

    async def atake(self, rate: Rate | str, *, timeout: float | timedelta | None = None) -> bool:
        wait = await in_thread(self._wait_of, rate, timeout)
        if wait:
            import asyncio  # only here: whoever enqueues imports this module too

            await asyncio.sleep(wait)
        return wait is not None

    def _wait_of(self, rate: Rate | str, timeout: float | timedelta | None) -> float | None:
        pace = (make_rate(rate) if isinstance(rate, str) else rate).pace(self.task, {})
        if pace is None:
            return 0.0
        wait = self._host.take_token(pace, PATIENCE if timeout is None else max(0, length(timeout)))
        return None if wait is None else wait / SECOND

    # What outlasts the attempt.

    def step(self, name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function once in the life of the job: what it returned is kept, and given to later attempts.

        It is on disk when this returns. Only a crash between the function's end and that makes it run again. Any text
        is a name, but each only once in an attempt.
        """
        steps = self._durable
        if (found := steps.find(name, function)) is not None:
            return found.value  # type: ignore[no-any-return]
        value = function(*args, **kwargs)
        if inspect.iscoroutine(value):
            value.close()
            raise TypeError(f"Step {name!r} is a coroutine function. Await context.astep, in a task that is one too.")
        steps.keep(name, function, value)
        return value

    @overload
    async def astep(
        self, name: str, function: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...
    @overload
    async def astep(self, name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    async def astep(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """A coroutine function is awaited here, a plain one called in a thread."""
        steps = self._durable
        if (found := await in_thread(steps.find, name, function)) is not None:
            return found.value
        here = inspect.iscoroutinefunction(function)
        value = function(*args, **kwargs) if here else await in_thread(function, *args, **kwargs)
        if inspect.isawaitable(value):
            value = await value
        await in_thread(steps.keep, name, function, value)
        return value

    def cursor(self, default: Any = None) -> Any:
        """What the last `checkpoint` kept, in this attempt or an earlier one."""
        return self._durable.cursor(default)

    def checkpoint(self, cursor: Any = _AS_BEFORE) -> None:
        """Keep how far a long loop is; without a cursor, only see whether to go on.

        Where the job should stop, the attempt ends here: cancelled if somebody asked for that, else unspent, so that
        another worker goes on from the last cursor.
        """
        if cursor is not _AS_BEFORE:
            self._durable.checkpoint(cursor)
        if self.stop_requested:
            raise PutBack("stopped at a checkpoint")

    def sleep(self, length: timedelta | float, name: str | None = None) -> None:
        """Give the slot back, and go on after so long, on any worker: the task begins anew and passes this place.

        A sleep without a name is known by its number among them.
        """
        self._durable.sleep(length, name)

    def wait_for(self, signal: str, timeout: timedelta | float | None = None) -> Any:
        """Give the slot back until somebody calls `app.signal`, and get the data; one that came before counts too.

        The next wait for the same name gets the next signal. SignalTimeout where none came in time.
        """
        return self._durable.wait_for(signal, timeout)

    acursor = hopping(cursor)
    acheckpoint = hopping(checkpoint)

    def children(self, name: str, calls: Iterable[Call[T]]) -> list[T]:
        """Enqueue jobs, give the slot back until all have ended, and get their results in order.

        They are enqueued once, whatever becomes of this attempt: the task begins anew and finds them by the name.
        Raises what the first would that did not succeed.
        """
        return self._durable.children(name, calls)

    achildren = hopping(children)
    asleep = hopping(sleep)
    await_for = hopping(wait_for)

    def complete_with(self, connection: object, result: Any = None) -> None:
        """End the job in the transaction of a connection to the store's database: with the task's own writes, or not.

        It has succeeded, with that result, when you commit; call this last, and commit before the task returns.
        ClaimLost where the job is no longer this worker's: let it through, so that your transaction is rolled back.
        """
        self._host.complete(self._claim, self._began, result, connection, None)

    async def acomplete_with(self, connection: object, result: Any = None) -> None:
        import asyncio

        loop = asyncio.get_running_loop() if is_async(connection) else None
        await in_thread(self._host.complete, self._claim, self._began, result, connection, loop)

    @property
    def _durable(self) -> Steps:
        if self._steps is None:
            self._steps = self._host.steps(self._claim.token)
        return self._steps

    @property
    def log(self) -> JobLogger:
        """A logger whose records carry the job's ids."""
        if self._log is None:
            logger = logging.getLogger(f"packhorse.task.{self.task}")
            self._log = JobLogger(logger, job_extra(self.job_id, self.task, self.queue_name, self.attempt))
        return self._log

    def __repr__(self) -> str:
        return f"<Context of {self.task} {self.job_id}, attempt {self.attempt}>"


MOMENT = "packhorse.moment"  # where metadata tell which moment of which schedule a job stands for


def _ticked(metadata: Mapping[str, Any]) -> tuple[str | None, datetime | None]:
    match metadata.get(MOMENT):
        case [str(key), int(moment)]:
            return key, to_datetime(moment)
    return None, None


class _Nobody:
    """The host of a task that is called in place."""

    def stop_asked(self, token: Token) -> bool:
        return False

    def seconds_left(self, token: Token) -> float | None:
        return None

    def report_progress(self, claim: Claim, progress: Progress) -> None:
        """Nobody watches."""

    def take_token(self, pace: Pace, patience: int) -> int | None:
        return 0

    def steps(self, token: Token) -> Steps:
        return Steps(token)

    def complete(
        self, claim: Claim, began: int, result: Any, connection: object, loop: AbstractEventLoop | None
    ) -> None:
        """There is no job to end."""


def in_place(task: str, queue: str, priority: int, metadata: Mapping[str, Any], now: int) -> Context:
    """For a task that is called without a job."""
    claim = Claim(Token(b"", 0, bytes(16), 0), task, b"", queue, priority, 0, 0, now, None, 0)
    return Context(claim, dict(metadata), _Nobody())


performing: ContextVar[Context | None] = ContextVar("packhorse_context", default=None)


@contextmanager
def entered(context: Context) -> Iterator[Context]:
    """What runs inside finds this context."""
    before = performing.set(context)
    try:
        yield context
    finally:
        performing.reset(before)


_RAISE = object()


@overload
def current_context() -> Context: ...
@overload
def current_context(default: T) -> Context | T: ...
def current_context(default: Any = _RAISE) -> Any:
    """The context of the job being performed here; NoJob, or the default, where there is none."""
    context = performing.get()
    if context is None and default is _RAISE:
        raise NoJob
    return default if context is None else context
