"""A job as Django sees it: seven states folded into four, one error for each attempt that failed."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from packhorse.codec import Arguments
from packhorse.django import compat
from packhorse.django.arguments import shown
from packhorse.errors import PayloadError, ResultUnavailable
from packhorse.handle import JobHandle
from packhorse.ids import from_text
from packhorse.job import Failure, Job, JobState, StoredJob

if TYPE_CHECKING:
    from packhorse.django.application import Application

Status = compat.TaskResultStatus
STATUSES = {
    JobState.SCHEDULED: Status.READY,
    JobState.WAITING: Status.READY,
    JobState.READY: Status.READY,
    JobState.RUNNING: Status.RUNNING,
    JobState.SUCCEEDED: Status.SUCCESSFUL,
    JobState.FAILED: Status.FAILED,
    JobState.CANCELLED: Status.FAILED,
}
CANCELLED = "packhorse.errors.JobCancelled"


class Unavailable(str):
    """In the place of a return value that was not kept, or cannot be trusted: why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult(compat.TaskResult):
    """Django's, with the way to our job. Arguments are what the task is given, but for references in place of models.

    `refresh` and its like are Django's own.
    """

    if TYPE_CHECKING:
        task: Any
        id: str
        status: Any
        enqueued_at: datetime | None
        started_at: datetime | None
        finished_at: datetime | None
        last_attempted_at: datetime | None
        args: list[Any]
        kwargs: dict[str, Any]
        backend: str
        errors: list[Any]
        worker_ids: list[str]

        @property
        def is_finished(self) -> bool: ...
        @property
        def attempts(self) -> int: ...
        def refresh(self) -> None: ...
        async def arefresh(self) -> None: ...

    _return_value: Any = field(init=False, default=None)

    def __post_init__(self) -> None:
        """Django's own takes only what JSON knows."""

    @property
    def job(self) -> JobHandle[Any]:
        """What Packhorse knows of it, and what can be done to it."""
        return JobHandle(self.task.get_backend().application, from_text(self.id))

    @property
    def return_value(self) -> Any:
        if self.status == Status.SUCCESSFUL and isinstance(self._return_value, Unavailable):
            raise ResultUnavailable(self.id, self._return_value)
        return compat.TaskResult.return_value.fget(self)


def enqueued_at(id: str) -> datetime:
    """An id begins with the milliseconds of its making."""
    return datetime.fromtimestamp(int.from_bytes(from_text(id)[:6]) / 1000, UTC)


def new_result(task: Any, id: str, arguments: Arguments) -> TaskResult:
    """Of a job that has just been made."""
    return TaskResult(
        task=task,
        id=id,
        status=Status.READY,
        enqueued_at=enqueued_at(id),
        started_at=None,
        finished_at=None,
        last_attempted_at=None,
        args=shown(arguments.args),
        kwargs=shown(arguments.kwargs),
        backend=task.backend,
        errors=[],
        worker_ids=[],
    )


def result_of(app: Application, task: Any, stored: StoredJob) -> TaskResult:
    """Of a job as the store has it."""
    job = app.public(stored)
    status = STATUSES[job.state]
    if job.state is JobState.RUNNING and job.started_at is None:
        status = Status.READY  # claimed for a slot that will be free in a moment
    try:
        arguments = app.inspection.arguments(stored)
    except PayloadError:
        arguments = Arguments([], {}, {})
    began = [attempt.started_at for attempt in job.failures if attempt.started_at] + [job.started_at]
    result = TaskResult(
        task=task,
        id=job.id,
        status=status,
        enqueued_at=enqueued_at(job.id),
        started_at=began[0],
        finished_at=job.finished_at,
        last_attempted_at=job.started_at or began[max(0, len(began) - 2)],
        args=shown(arguments.args),
        kwargs=shown(arguments.kwargs),
        backend=task.backend,
        errors=_errors(job),
        worker_ids=_workers(job),
    )
    if job.state is JobState.SUCCEEDED:
        object.__setattr__(result, "_return_value", _return_value(app, stored))
    return result


def _errors(job: Job) -> list[Any]:
    errors = [task_error(attempt.failure) for attempt in job.failures]
    if job.state is JobState.FAILED and job.failure is not None:
        errors.append(task_error(job.failure))
    if job.state is JobState.CANCELLED:
        errors.append(compat.TaskError(exception_class_path=CANCELLED, traceback=job.reason or "cancelled"))
    return errors


def _workers(job: Job) -> list[str]:
    workers = [attempt.process for attempt in job.failures]
    performed = job.state.finished or job.state is JobState.RUNNING
    if performed and job.started_at is not None and job.process is not None:
        workers.append(job.process)
    return workers


def task_error(failure: Failure) -> Any:
    path = failure.type if "." in failure.type else f"builtins.{failure.type}"
    return compat.TaskError(exception_class_path=path, traceback=failure.traceback or str(failure))


def _return_value(app: Application, stored: StoredJob) -> Any:
    if stored.result_error is not None:
        return Unavailable(stored.result_error)
    try:
        return app.inspection.result_of(stored)
    except PayloadError as error:
        return Unavailable(str(error))
