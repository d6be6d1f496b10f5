"""What was enqueued, and what a test says of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from packhorse.app import Packhorse
from packhorse.clock import length
from packhorse.codec import Arguments
from packhorse.errors import ConfigError, PackhorseError
from packhorse.handle import JobHandle
from packhorse.job import JobState
from packhorse.task import BaseTask


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class RecordedJob:
    """A job as it was enqueued. What came of it is as it was when the record was made; the handle tells the newest.

    state     the last one, where the job is `gone`: discarded, pruned, or kept for no time at all
    error     the exception that the last attempt raised
    """

    id: str
    task: str
    queue_name: str
    priority: int
    created_at: datetime
    run_at: datetime | None
    expires_at: datetime | None
    share: str | None
    tags: tuple[str, ...]
    state: JobState
    attempts: int
    losses: int
    gone: bool
    error: BaseException | None
    handle: JobHandle[Any]
    _decode: Callable[[], Arguments]

    @cached_property
    def arguments(self) -> Arguments:
        """As the task gets them: verified, decoded, upgraded, merged. PayloadError where that is not possible."""
        return self._decode()

    @property
    def args(self) -> tuple[Any, ...]:
        return tuple(self.arguments.args)

    @property
    def kwargs(self) -> dict[str, Any]:
        return self.arguments.kwargs

    @property
    def metadata(self) -> dict[str, Any]:
        return self.arguments.metadata

    def __eq__(self, other: object) -> bool:
        """The same job, whenever it was looked at."""
        return isinstance(other, RecordedJob) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        options = [f"on {self.queue_name!r}"]
        if self.priority:
            options.append(f"priority {self.priority}")
        if self.run_at is not None:
            options.append(f"after {self.run_at - self.created_at}")
        if self.tags:
            options.append(f"tags {', '.join(self.tags)}")
        return f"<{self._call()} {', '.join(options)}: {self.state}{', gone' * self.gone}>"

    def _call(self) -> str:
        try:
            return called(self.task, self.args, self.kwargs)
        except PackhorseError as error:
            return f"{self.task}(?) [{error}]"


WANTED = [it.name for it in fields(RecordedJob) if it.name != "_decode"] + ["args", "kwargs", "metadata"]
MOMENTS = {"run_after": "run_at", "expires": "expires_at"}


class Enqueued(ABC):
    """Jobs, oldest first, and assertions about them."""

    _app: Packhorse

    @property
    @abstractmethod
    def enqueued(self) -> list[RecordedJob]: ...

    def where(self, **wanted: Any) -> Enqueued:
        """Only the jobs that have these options: `jobs.where(queue_name="mail").assert_enqueued(send, "ann")`.

        Takes `run_after` and `expires` as `task.using(...)` does, and any attribute of the records, to be equal;
        `unittest.mock.ANY` equals everything.
        """
        if unknown := set(wanted) - {*WANTED, *MOMENTS}:
            known = ", ".join([*MOMENTS, *WANTED])
            raise ConfigError(f"Jobs have no {sorted(unknown)[0]!r} to be found by. There are {known}.")
        return _Narrowed(self, wanted)

    def assert_enqueued(self, task: BaseTask[..., Any], /, *args: Any, **kwargs: Any) -> list[RecordedJob]:
        """At least one job of the task was enqueued, with these arguments or, where none are given, with any.

        Gives all of them. Whether an argument was passed by place or by name makes no difference.
        """
        __tracebackhide__ = True
        if found := self._matching(task, args, kwargs):
            return found
        raise AssertionError(f"{self._expected(task, args, kwargs)} was not enqueued. {self._seen()}")

    def refute_enqueued(self, task: BaseTask[..., Any], /, *args: Any, **kwargs: Any) -> None:
        """No job of the task was enqueued with these arguments or, where none are given, with any."""
        __tracebackhide__ = True
        if self._matching(task, args, kwargs):
            raise AssertionError(f"{self._expected(task, args, kwargs)} was enqueued. {self._seen()}")

    def count(self, task: BaseTask[..., Any], /, *args: Any, **kwargs: Any) -> int:
        """How often: `assert jobs.count(resize, 42) == 2`."""
        return len(self._matching(task, args, kwargs))

    def _matching(self, task: BaseTask[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[RecordedJob]:
        self._check(task)
        jobs = [job for job in self.enqueued if job.task == task.name]
        if not args and not kwargs:
            return jobs
        task.check_call(args, kwargs)  # a misspelt argument would never match, and so refute everything
        expected = [_by_name(task, args, kwargs)]
        try:
            expected.append(_travelled(task, args, kwargs))
        except Exception:  # ANY does not travel, and a codec of the task's own may raise anything
            pass
        return [job for job in jobs if any(it == _by_name(task, job.args, job.kwargs) for it in expected)]

    def _check(self, task: object) -> None:
        if not isinstance(task, BaseTask) or task.name not in self._app.known_tasks:
            raise ConfigError(f"{task!r} is no task of application {self._app.name!r}.")
        if task is not self._app.known_tasks[task.name]:
            raise ConfigError(
                f"Give the task {task.name} as it was declared, and its options apart, as in "
                "jobs.where(queue_name=…).assert_enqueued(…)."
            )

    def _expected(self, task: BaseTask[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        return called(task.name, args, kwargs) if args or kwargs else f"{task.name}(…)"

    def _seen(self) -> str:
        lines = [f"\n  {job!r}" for job in self.enqueued]
        return f"Jobs enqueued:{''.join(lines)}" if lines else "No job was."


class _Narrowed(Enqueued):
    def __init__(self, jobs: Enqueued, wanted: dict[str, Any]) -> None:
        self._app = jobs._app
        self._jobs = jobs
        self._wanted = wanted

    @property
    def enqueued(self) -> list[RecordedJob]:
        return [job for job in self._jobs.enqueued if all(_fits(job, *item) for item in self._wanted.items())]

    def _expected(self, task: BaseTask[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self._wanted.items())
        return f"{self._jobs._expected(task, args, kwargs)} with {options}"

    def _seen(self) -> str:
        return self._jobs._seen()


def _fits(job: RecordedJob, name: str, wanted: Any) -> bool:
    if name not in MOMENTS:
        return bool(wanted == getattr(job, name))
    moment: datetime | None = getattr(job, MOMENTS[name])
    if isinstance(wanted, timedelta | int | float):
        return moment is not None and moment - job.created_at == timedelta(microseconds=length(wanted))
    return bool(wanted == moment)


def _by_name(task: BaseTask[..., Any], args: Iterable[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    names = task.parameter_names
    return {names[n] if n < len(names) else str(n): value for n, value in enumerate(args)} | {**kwargs}


def _travelled(task: BaseTask[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """As the task would get them: an annotation, or a codec of its own, may make a list of a tuple."""
    encoded, foreign = task.call(*args, **kwargs).encoded, task.stored.codec
    if foreign is not None:
        return _by_name(task, *foreign.decode(encoded.body))
    there = task.app.codec.decode_arguments(encoded.body, typed=encoded.typed)
    if task.shapes is None:
        return _by_name(task, there.args, there.kwargs)
    return _by_name(task, *task.shapes.load_arguments(there.args, there.kwargs))


def called(task: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    shown = [*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())]
    return f"{task}({', '.join(shown)})"
