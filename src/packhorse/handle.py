"""What `enqueue` returns: a live view of one job, from any process."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from packhorse.context import Progress
from packhorse.errors import JobCancelled, JobFailed, JobNotFound, NotFinished, PayloadError, ResultUnavailable
from packhorse.hops import in_thread
from packhorse.ids import to_text
from packhorse.job import Failure, FailureKind, Job, JobState, StoredJob

if TYPE_CHECKING:
    from packhorse.app import Packhorse

R_co = TypeVar("R_co", covariant=True)


class JobHandle(Generic[R_co]):
    def __init__(self, app: Packhorse, raw_id: bytes) -> None:
        self._app = app
        self._raw_id = raw_id

    @property
    def id(self) -> str:
        return to_text(self._raw_id)

    def look(self) -> Job:
        """All that is known of the job now; JobNotFound where it is gone."""
        return self._app.public(self._stored())

    def _stored(self) -> StoredJob:
        job = self._app.looking.job(self._raw_id)
        if job is None:
            raise JobNotFound(self.id)
        return job

    async def alook(self) -> Job:
        return await in_thread(self.look)

    @property
    def state(self) -> JobState:
        return self._stored().state

    def progress(self) -> Progress | None:
        """How far the job says it is; None where it has said nothing."""
        return self._app.inspection.progress(self.id)

    async def aprogress(self) -> Progress | None:
        return await in_thread(self.progress)

    def result(self, timeout: float | None = None) -> R_co:
        """Wait for the return value (for ever, or `timeout` seconds).

        Raises NotFinished where there is none yet, JobFailed, JobCancelled, or ResultUnavailable where the job
        succeeded but its return value could not be stored.
        """
        deadline = time.monotonic() + (math.inf if timeout is None else timeout)
        while not (job := self._stored()).finished:
            if (left := deadline - time.monotonic()) <= 0:
                raise NotFinished(self.id, job.state, timeout or 0)
            self._app.store.room.wait([self._raw_id], left)
        return self._outcome(job)

    async def aresult(self, timeout: float | None = None) -> R_co:
        deadline = time.monotonic() + (math.inf if timeout is None else timeout)
        while True:
            if (left := deadline - time.monotonic()) > 0:  # in this order no thread is needed before the job has ended
                await self._app.store.room.await_ended([self._raw_id], left)
            job = await in_thread(self._stored)
            if job.finished:
                return self._outcome(job)
            if left <= 0:
                raise NotFinished(self.id, job.state, timeout or 0)

    def _outcome(self, job: StoredJob) -> R_co:
        """What the finished job gave; or it is raised."""
        match job.state:
            case JobState.FAILED:
                unknown = Failure(FailureKind.EXCEPTION, "unknown", "not recorded")
                raise JobFailed(self.id, self._app.public(job).failure or unknown)
            case JobState.CANCELLED:
                raise JobCancelled(self.id, self._app.public(job).reason)
        if job.result_error is not None:
            raise ResultUnavailable(self.id, job.result_error)
        try:
            value: R_co = self._app.inspection.result_of(job)
        except PayloadError as error:
            raise ResultUnavailable(self.id, str(error)) from None
        return value

    def cancel(self, reason: str = "cancelled") -> bool:
        """End it before it runs, or ask the worker that performs it; False where it has finished already."""
        return self._app.control.cancel([self.id], reason=reason) > 0

    async def acancel(self, reason: str = "cancelled") -> bool:
        return await in_thread(self.cancel, reason)

    def stop(self, reason: str = "") -> bool:
        """As `cancel`, on purpose: it is shown as stopped, and `restart` lets it go on."""
        return self._app.control.stop([self.id], reason=reason) > 0

    async def astop(self, reason: str = "") -> bool:
        return await in_thread(self.stop, reason)

    def restart(self, reason: str = "") -> bool:
        """Let it run again: now if it has failed or was cancelled, after its worker has ended it if it runs."""
        return self._app.control.restart([self.id], reason=reason) > 0

    async def arestart(self, reason: str = "") -> bool:
        return await in_thread(self.restart, reason)

    def reload(self, *args: Any, **kwargs: Any) -> bool:
        """The same with other arguments; False where it has succeeded."""
        return self._app.control.reload(self.id, args, kwargs)

    async def areload(self, *args: Any, **kwargs: Any) -> bool:
        return await in_thread(self.reload, *args, **kwargs)

    def retry(self, reason: str = "") -> bool:
        """Perform a failed or cancelled job again, with fresh attempts; False where it is neither."""
        return self._app.control.retry([self.id], reason=reason) > 0

    async def aretry(self, reason: str = "") -> bool:
        return await in_thread(self.retry, reason)

    def __repr__(self) -> str:
        return f"<JobHandle {self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JobHandle) and other._raw_id == self._raw_id

    def __hash__(self) -> int:
        return hash(self._raw_id)
