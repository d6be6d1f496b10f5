"""Tasks as Django knows them, with our options."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, Protocol, TypeVar, overload

from django.utils import timezone
from django.utils.module_loading import import_string

from packhorse.django import compat
from packhorse.errors import ConfigError
from packhorse.limits import Limit, Rate, Unique
from packhorse.retry import Backoff
from packhorse.task import Call as NativeCall
from packhorse.task import Common, CommonlyDeclared, Exceptions, Upgrade
from packhorse.varying import check_names

if TYPE_CHECKING:
    from typing import Self, Unpack

    from packhorse.django.performing import TaskContext
    from packhorse.django.results import TaskResult

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Given(Enum):
    """An option that nobody has given differs from each that somebody has."""

    NOT = "not given"

    def __repr__(self) -> str:
        return "NOT_GIVEN"


NOT_GIVEN: Any = Given.NOT

declared: dict[str, Task[..., Any]] = {}
"""Every task, by its import path: a worker performs these and no others."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Task(compat.Task, Generic[P, R]):
    """A task of Django's framework that knows our options. Make one with `@task`, ours or Django's own."""

    priority: int = 0
    backend: str = "default"
    queue_name: str = "default"
    run_after: datetime | None = None
    takes_context: bool = False

    enqueue_on_commit: bool | None = NOT_GIVEN
    discard_missing: bool = NOT_GIVEN
    expires: datetime | timedelta | float | None = NOT_GIVEN
    share: str | None = NOT_GIVEN
    tags: tuple[str, ...] = NOT_GIVEN
    metadata: Mapping[str, Any] = NOT_GIVEN
    timeout: timedelta | float | None = NOT_GIVEN
    limit: Limit | Sequence[Limit] | None = NOT_GIVEN
    rate: Rate | str | Sequence[Rate | str] | None = NOT_GIVEN
    unique: Unique | bool | None = NOT_GIVEN
    on_success: Callback | None = NOT_GIVEN
    on_failure: Callback | None = NOT_GIVEN
    on_finish: Callback | None = NOT_GIVEN
    retries: int | None = NOT_GIVEN
    backoff: Backoff | timedelta | float | None = NOT_GIVEN
    retry_for: Exceptions = NOT_GIVEN
    give_up_on: Exceptions = NOT_GIVEN
    isolate: bool = NOT_GIVEN
    on_worker_lost: Literal["retry", "fail"] = NOT_GIVEN
    aliases: tuple[str, ...] = NOT_GIVEN
    version: int = NOT_GIVEN
    upgrade: Upgrade | None = NOT_GIVEN
    results: bool = NOT_GIVEN
    result_ttl: timedelta | float | None = NOT_GIVEN
    keep_succeeded: timedelta | float | None = NOT_GIVEN
    keep_failed: timedelta | float | None = NOT_GIVEN
    keep_cancelled: timedelta | float | None = NOT_GIVEN

    def __post_init__(self) -> None:
        compat.Task.__post_init__(self)
        known = declared.get(self.module_path)
        if known is None or known.func is not self.func:
            declared[self.module_path] = self

    def __hash__(self) -> int:
        """Options may hold anything."""
        return hash((self.func, self.priority, self.backend, self.queue_name, self.run_after))

    @property
    def declared(self) -> Task[P, R]:
        """As its decorator made it."""
        return declared[self.module_path]

    def given(self, names: Sequence[str]) -> dict[str, Any]:
        """Those of these options that somebody has given."""
        found = {name: getattr(self, name) for name in names}
        return {name: value for name, value in found.items() if value is not NOT_GIVEN}

    def changed(self, names: Sequence[str]) -> dict[str, Any]:
        """Those of these options in which this copy differs from the task as it was declared."""
        first = self.declared
        if first is self:
            return {}
        return {name: value for name, value in self.given(names).items() if value != getattr(first, name)}

    def using(self, **changes: Unpack[Using]) -> Self:
        """A copy whose jobs differ. `run_after` may be a length of time, which counts from now."""
        try:
            check_names(changes, Using.__annotations__, Declared.__annotations__)
        except ConfigError as error:
            raise TypeError(str(error)) from None
        run_after = changes.get("run_after")
        if isinstance(run_after, timedelta):
            changes["run_after"] = timezone.now() + run_after
        kept: Any = {name: value for name, value in changes.items() if value is not None or name not in DJANGOS_OWN}
        return replace(self, **kept)

    def later(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """The task with arguments, for `enqueue_many` and for flows: chains, groups, batches."""
        return self.get_backend().call(self, args, kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        """As what it differs in: options may hold functions, which no other process can be told."""
        return _restored, (self.module_path, self.changed([it.name for it in fields(self) if it.name != "func"]))

    if TYPE_CHECKING:

        def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> TaskResult: ...
        async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> TaskResult: ...
        def call(self, *args: P.args, **kwargs: P.kwargs) -> R: ...
        async def acall(self, *args: P.args, **kwargs: P.kwargs) -> R: ...


class Using(Common, total=False):
    """What may differ from one job of a task to the next."""

    priority: int | None
    queue_name: str | None
    run_after: datetime | timedelta | None
    backend: str | None
    enqueue_on_commit: bool | None
    discard_missing: bool
    expires: datetime | timedelta | float | None
    on_success: Callback | None
    on_failure: Callback | None
    on_finish: Callback | None


class Declared(CommonlyDeclared, total=False):
    """What `@task(...)` takes."""

    backend: str
    enqueue_on_commit: bool | None
    discard_missing: bool
    on_success: Callback | None
    on_failure: Callback | None
    on_finish: Callback | None


DJANGOS_OWN = ("priority", "queue_name", "run_after", "backend")
OF_THE_DJANGO_SIDE = ("enqueue_on_commit", "discard_missing")
CALLBACKS = ("on_success", "on_failure", "on_finish")
OPTIONS = [name for name in Declared.__annotations__ if name not in DJANGOS_OWN]


@dataclass(frozen=True, slots=True)
class Call(NativeCall[R]):
    """A Django task with arguments: what `task.later(...)` makes; flows take it as they take any call."""

    django_task: Task[..., R] = field(kw_only=True)


Callback = Task[..., Any] | Call[Any]


def _restored(path: str, changes: dict[str, Any]) -> Task[..., Any]:
    task = import_string(path)
    if not isinstance(task, compat.Task):
        raise ValueError(f"Expected {path!r} to be a task.")
    return replace(as_ours(task), **changes)


def as_ours(task: Any) -> Task[..., Any]:
    """A task that was made for another backend and is now used with ours has no options."""
    if isinstance(task, Task):
        return task
    names = ("func", "priority", "backend", "queue_name", "run_after", "takes_context")
    return Task(**{name: getattr(task, name) for name in names})


class TaskDecorator(Protocol):
    # A coroutine function is also a function that returns a coroutine, here and below, and so comes first.
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...


class ContextTaskDecorator(Protocol):
    @overload
    def __call__(self, function: Callable[Concatenate[TaskContext, P], Coroutine[Any, Any, R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[TaskContext, P], R], /) -> Task[P, R]: ...


@overload
def task(function: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, R]: ...
@overload
def task(function: Callable[P, R], /) -> Task[P, R]: ...
@overload
def task(*, takes_context: Literal[True], **options: Unpack[Declared]) -> ContextTaskDecorator: ...
@overload
def task(*, takes_context: Literal[False] = False, **options: Unpack[Declared]) -> TaskDecorator: ...
def task(function: Callable[..., Any] | None = None, /, *, takes_context: bool = False, **options: Any) -> Any:
    """Make a function a task of Django's framework, with our options, on every version of Django.

    One whose backend is not ours, as in tests, is the same task: its options wait for ours.
    """
    if unknown := [name for name in options if name not in Declared.__annotations__]:
        import difflib

        if unknown[0] == "run_after":
            raise TypeError("run_after differs from job to job: say it with task.using(run_after=…).")
        near = difflib.get_close_matches(unknown[0], Declared.__annotations__, 1)
        hint = f"Did you mean {near[0]!r}?" if near else f"It takes {', '.join(Declared.__annotations__)}."
        raise TypeError(f"@task has no option {unknown[0]!r}. {hint}")

    def made(function: Callable[..., Any]) -> Task[..., Any]:
        return Task(func=function, takes_context=takes_context, **options)

    return made if function is None else made(function)


def stock_tasks(module: object) -> Iterator[Any]:
    """Tasks in a module that were made for other backends, and may be used with ours."""
    return (value for value in vars(module).values() if isinstance(value, compat.Task) and not isinstance(value, Task))
