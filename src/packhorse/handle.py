"""What `enqueue` returns: a live view of one job, from any process."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Generic, TypeVar

from packhorse import codec
from packhorse.errors import JobCancelled, JobFailed, JobNotFound, NotFinished, ResultUnavailable
from packhorse.ids import to_text
from packhorse.job import Failure, FailureKind, Job, JobState

if TYPE_CHECKING:
    from packhorse.app import Packhorse

R_co = TypeVar("R_co", covariant=True)
WAIT_SLICE = 1.0  # a cancelled `aresult` leaves a thread behind for at most this long


class JobHandle(Generic[R_co]):
    def __init__(self, app: Packhorse, raw_id: bytes) -> None:
        self._app = app
        self._raw_id = raw_id

    @property
    def id(self) -> str:
        return to_text(self._raw_id)

    def look(self) -> Job:
        """All that is known of the job now; JobNotFound where it is gone."""
        job = self._app.store.job(self._raw_id)
        if job is None:
            raise JobNotFound(self.id)
        return self._app.public(job)

    async def alook(self) -> Job:
        return await asyncio.to_thread(self.look)

    @property
    def state(self) -> JobState:
        return self.look().state

    def result(self, timeout: float | None = None) -> R_co:
        """Wait for the return value (for ever, or `timeout` seconds).

        Raises NotFinished where there is none yet, JobFailed, JobCancelled, or ResultUnavailable where the job
        succeeded but its return value could not be stored.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while (job := self._wait_slice(deadline)) is None:
            if deadline is not None and time.monotonic() >= deadline:
                raise NotFinished(self.id, self.state, timeout or 0)
        return self._outcome(job)

    async def aresult(self, timeout: float | None = None) -> R_co:
        deadline = None if timeout is None else time.monotonic() + timeout
        while (job := await asyncio.to_thread(self._wait_slice, deadline)) is None:
            if deadline is not None and time.monotonic() >= deadline:
                raise NotFinished(self.id, (await self.alook()).state, timeout or 0)
        return self._outcome(job)

    def _wait_slice(self, deadline: float | None) -> Job | None:
        """The job, once it has finished; an operator may have sent it round again between the two looks."""
        left = WAIT_SLICE if deadline is None else min(WAIT_SLICE, max(0.0, deadline - time.monotonic()))
        if not self._app.store.wait_jobs([self._raw_id], left):
            return None
        job = self.look()
        return job if job.finished else None

    def _outcome(self, job: Job) -> R_co:
        match job.state:
            case JobState.FAILED:
                raise JobFailed(self.id, job.failure or Failure(FailureKind.EXCEPTION, "unknown", "not recorded"))
            case JobState.CANCELLED:
                raise JobCancelled(self.id, job.reason)
        if job.result_error is not None:
            raise ResultUnavailable(self.id, job.result_error)
        value: R_co = codec.decode_result(job.result)
        return value

    def cancel(self, reason: str = "cancelled") -> bool:
        """End it before it runs, or ask the worker that performs it; False where it has finished already."""
        return self._app.control.cancel([self.id], reason=reason) > 0

    async def acancel(self, reason: str = "cancelled") -> bool:
        return await asyncio.to_thread(self.cancel, reason)

    def retry(self, reason: str = "") -> bool:
        """Perform a failed or cancelled job again, with fresh attempts; False where it is neither."""
        return self._app.control.retry([self.id], reason=reason) > 0

    async def aretry(self, reason: str = "") -> bool:
        return await asyncio.to_thread(self.retry, reason)

    def __repr__(self) -> str:
        return f"<JobHandle {self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JobHandle) and other._raw_id == self._raw_id

    def __hash__(self) -> int:
        return hash(self._raw_id)
