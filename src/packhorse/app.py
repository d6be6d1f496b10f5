"""Packhorse: an application's store, tasks and settings; enqueueing."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, overload

from packhorse.clock import Clock, SystemClock
from packhorse.config import Settings
from packhorse.control import Control, known_id
from packhorse.errors import DuplicateTask, EnqueueError, StoreError
from packhorse.handle import JobHandle
from packhorse.inspection import Inspection
from packhorse.job import Job
from packhorse.queues import check_name
from packhorse.stores import Store, open_store
from packhorse.task import BaseTask, Call, CoroutineTask, Declared, Task, make_task

if TYPE_CHECKING:
    from typing import Unpack

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_STORE = "sqlite:///packhorse.db"


class TaskDecorator(Protocol):
    # The overlap is meant, here and below: a coroutine function is also a function that returns a coroutine. It comes
    # first, so that its result type is what it returns once awaited.
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> CoroutineTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...


class Packhorse:
    """`Packhorse("shop")` keeps its jobs in $PACKHORSE_STORE, else in packhorse.db beside you."""

    def __init__(
        self, name: str, store: str | Store | None = None, *, clock: Clock | None = None, **settings: Any
    ) -> None:
        self.name = check_name(name, "application name")
        self.settings = Settings.of(**settings)
        self.clock = clock or SystemClock()
        if store is None:
            store = os.environ.get("PACKHORSE_STORE") or DEFAULT_STORE
        self.store = open_store(store, self.clock) if isinstance(store, str) else store
        self.tasks: dict[str, BaseTask[..., Any]] = {}
        self.control = Control(self)
        self.inspection = Inspection(self)

    @overload
    def task(  # type: ignore[overload-overlap]
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> CoroutineTask[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(self, /, **options: Unpack[Declared]) -> TaskDecorator: ...
    def task(self, function: Callable[..., Any] | None = None, /, **options: Unpack[Declared]) -> Any:
        """Make a function a task, with options or without."""
        if function is None:
            return lambda function: self._register(make_task(self, function, options))
        return self._register(make_task(self, function, options))

    def _register(self, task: BaseTask[..., Any]) -> BaseTask[..., Any]:
        if task.name in self.tasks:
            raise DuplicateTask(task.name)
        self.tasks[task.name] = task
        return task

    def enqueue(self, call: Call[R]) -> JobHandle[R]:
        return self._insert([call])[0]

    async def aenqueue(self, call: Call[R]) -> JobHandle[R]:
        return await asyncio.to_thread(self.enqueue, call)

    def enqueue_many(self, calls: Iterable[Call[R]]) -> list[JobHandle[R]]:
        """Enqueue calls made with `task.call(...)`, one write per `batch_size`; each batch is all or none."""
        handles: list[JobHandle[R]] = []
        try:
            for batch in _batches(calls, self.settings.batch_size):
                handles += self._insert(batch)
        except EnqueueError as error:
            if not handles:
                raise
            raise EnqueueError(f"Only the first {len(handles):,} jobs were enqueued: {error.__cause__}") from error
        except Exception as error:  # making one of the calls failed
            error.add_note(f"{len(handles):,} jobs before it were enqueued; the others of its batch were not.")
            raise
        return handles

    async def aenqueue_many(self, calls: Iterable[Call[R]]) -> list[JobHandle[R]]:
        return await asyncio.to_thread(self.enqueue_many, calls)

    def _insert(self, calls: list[Call[R]]) -> list[JobHandle[R]]:
        jobs = [call.new_job() for call in calls]
        try:
            return [JobHandle(self, id) for id in self.store.insert(jobs)]
        except StoreError as error:
            raise EnqueueError(f"Nothing was enqueued: {error}") from error

    def job(self, id: str | uuid.UUID) -> JobHandle[Any]:
        """The job of that id, enqueued by any process; JobNotFound where there is none."""
        handle: JobHandle[Any] = JobHandle(self, known_id(id))
        handle.look()
        return handle

    async def ajob(self, id: str | uuid.UUID) -> JobHandle[Any]:
        return await asyncio.to_thread(self.job, id)

    def stored_priority(self, priority: int) -> int:
        """Larger runs sooner in every store; `lower_first` flips the numbers here, at the public edge, both ways."""
        return priority if self.settings.priority_order == "higher_first" else -priority

    def public(self, job: Job) -> Job:
        return replace(job, priority=self.stored_priority(job.priority))

    def close(self) -> None:
        self.store.close()


def _batches(calls: Iterable[Call[R]], size: int) -> Iterator[list[Call[R]]]:
    rest = iter(calls)
    while batch := list(islice(rest, size)):
        yield batch
