"""A task: a function with options."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, Self, TypedDict, TypeVar

from packhorse import codec
from packhorse.clock import length, to_microseconds
from packhorse.errors import ConfigError
from packhorse.ids import new_id
from packhorse.job import NewJob
from packhorse.queues import check_name
from packhorse.retry import Backoff, RetryPolicy, make_policy

if TYPE_CHECKING:
    from typing import Unpack

    from packhorse.app import Packhorse
    from packhorse.handle import JobHandle

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

Exceptions = type[BaseException] | tuple[type[BaseException], ...]
TAGS_CAP = 16
SHAPES_CAP = 1_000


class Using(TypedDict, total=False):
    """What may differ from one job of a task to the next."""

    queue_name: str
    priority: int
    run_after: datetime | timedelta | float | None
    expires: datetime | timedelta | float | None
    share: str | None
    tags: tuple[str, ...]


class Declared(TypedDict, total=False):
    """What `@app.task(...)` takes."""

    name: str
    queue_name: str
    priority: int
    expires: timedelta | float | None
    share: str | None
    tags: tuple[str, ...]
    retries: int | None
    backoff: Backoff | timedelta | float | None
    retry_for: Exceptions
    give_up_on: Exceptions
    on_worker_lost: Literal["retry", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    queue_name: str = "default"
    priority: int = 0
    run_after: datetime | timedelta | float | None = None
    expires: datetime | timedelta | float | None = None
    share: str | None = None
    tags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_name(self.queue_name, "queue name")
        if isinstance(self.priority, bool) or not isinstance(self.priority, int) or not -100 <= self.priority <= 100:
            raise ConfigError(f"priority must be a whole number from -100 to 100, not {self.priority!r}.")
        for name in ("run_after", "expires"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, datetime | timedelta | int | float | None):
                raise ConfigError(f"{name} must be a datetime, a timedelta or a number of seconds, not {value!r}.")
            if isinstance(value, float) and not math.isfinite(value):
                raise ConfigError(f"{name} must be a finite number of seconds, not {value!r}.")
            if isinstance(value, datetime) and value.tzinfo is None:
                raise ConfigError(f"{name}={value} has no time zone. Use an aware datetime, or a timedelta.")
        if self.share is not None:
            check_name(self.share, "share")
        if not isinstance(self.tags, tuple) or len(self.tags) > TAGS_CAP:
            raise ConfigError(f"tags must be a tuple of at most {TAGS_CAP} texts, not {self.tags!r}.")
        for tag in self.tags:
            check_name(tag, "tag")


@dataclass(frozen=True, slots=True)
class Call(Generic[R_co]):
    """A task with arguments, ready to be enqueued: what `task.call(...)` makes and `enqueue_many` takes."""

    task: BaseTask[..., R_co]
    payload: bytes

    def new_job(self) -> NewJob:
        options = self.task.options
        job = NewJob(
            new_id(),
            self.task.name,
            self.payload,
            options.queue_name,
            self.task.app.stored_priority(options.priority),
            share=options.share,
            tags=options.tags,
        )
        if options.run_after is None and options.expires is None:
            return job
        run_at, delay = _moment_or_length(options.run_after)
        expires_at, lifetime = _moment_or_length(options.expires)
        return job._replace(run_at=run_at, delay=delay, expires_at=expires_at, lifetime=lifetime)


def _moment_or_length(value: datetime | timedelta | float | None) -> tuple[int | None, int | None]:
    if value is None:
        return None, None
    return (to_microseconds(value), None) if isinstance(value, datetime) else (None, length(value))


class BaseTask(Generic[P, R_co]):
    """What tasks of plain and of coroutine functions share; get one from `@app.task`."""

    def __init__(
        self,
        app: Packhorse,
        function: Callable[P, Any],
        name: str,
        options: Options,
        policy: RetryPolicy,
        on_worker_lost: Literal["retry", "fail"],
    ) -> None:
        self.app = app
        self.function = function
        self.name = name
        self.options = options
        self.policy = policy
        self.on_worker_lost = on_worker_lost
        self.is_coroutine = inspect.iscoroutinefunction(function)
        self._signature = inspect.signature(function)
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        self._names = tuple(name for name, it in self._signature.parameters.items() if it.kind in positional)
        self._shapes: set[tuple[object, ...]] = set()
        self.__name__ = getattr(function, "__name__", name)
        self.__doc__ = function.__doc__
        self.__wrapped__ = function

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R_co]:
        """The task with arguments, to be enqueued later or with others."""
        self._check_shape(args, kwargs)
        return Call(self, codec.encode_arguments(args, kwargs, self._names))

    def _check_shape(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # Whether arguments fit depends on their number and names alone, so each shape is tried once.
        shape = (len(args), *kwargs)
        if shape in self._shapes:
            return
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.name}() cannot be called like this: {error}") from None
        if len(self._shapes) < SHAPES_CAP:
            self._shapes.add(shape)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R_co]:
        return self.app.enqueue(self.call(*args, **kwargs))

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R_co]:
        return await self.app.aenqueue(self.call(*args, **kwargs))

    delay = enqueue
    adelay = aenqueue

    def using(self, **changes: Unpack[Using]) -> Self:
        """A copy whose jobs differ in queue_name, priority, run_after, expires, share or tags."""
        try:
            options = replace(self.options, **changes)
        except TypeError:
            known = ", ".join(Using.__annotations__)
            raise ConfigError(f"using() takes {known}; got {', '.join(changes)}.") from None
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__)
        copy.options = options
        return copy

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"


class Task(BaseTask[P, R_co]):
    """A plain function."""

    function: Callable[P, R_co]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Perform it here and now."""
        return self.function(*args, **kwargs)


class CoroutineTask(BaseTask[P, R_co]):
    """A coroutine function."""

    function: Callable[P, Coroutine[Any, Any, R_co]]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R_co]:
        """Perform it here and now."""
        return self.function(*args, **kwargs)


def make_task(app: Packhorse, function: Callable[..., Any], given: Declared) -> BaseTask[..., Any]:
    if not callable(function) or isinstance(function, type | BaseTask):
        raise ConfigError(f"@app.task goes on a function, not on {function!r}.")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError(
            f"{function.__qualname__} yields, so calling it would run nothing. Return its values instead."
        )
    declared: dict[str, Any] = dict(given)
    if unknown := set(declared) - set(Declared.__annotations__):
        known = ", ".join(Declared.__annotations__)
        raise ConfigError(f"@app.task has no option {sorted(unknown)[0]!r}. It takes {known}.")
    name = check_name(declared.pop("name", None) or import_path(function), "task name (set one with name=…)")
    policy = make_policy(
        declared.pop("retries", 0),
        declared.pop("backoff", None),
        declared.pop("retry_for", Exception),
        declared.pop("give_up_on", ()),
    )
    lost = declared.pop("on_worker_lost", app.settings.on_worker_lost)
    if lost not in ("retry", "fail"):
        raise ConfigError(f"on_worker_lost must be 'retry' or 'fail', not {lost!r}.")
    kind = CoroutineTask if inspect.iscoroutinefunction(function) else Task
    return kind(app, function, name, Options(**declared), policy, lost)


def import_path(function: Callable[..., Any]) -> str:
    """The name under which a worker will know the function, also when its module now runs as a script."""
    module = function.__module__
    if module == "__main__":
        main = sys.modules["__main__"]
        spec = getattr(main, "__spec__", None)
        module = spec.name if spec is not None else Path(getattr(main, "__file__", "") or "main").stem
    return f"{module}.{function.__qualname__}".replace("<locals>.", "")
