"""For the tests of a site: perform what a test has enqueued, through Django's connection, in the test's transaction.

```python
class OrderTests(TestCase):
    def test_an_order_is_paid(self):
        order = Order.objects.create()
        pay.enqueue(order)
        [result] = drain()
        assert result.status == "SUCCESSFUL"
```

The real worker performs, one job at a time, where the test stands. Nothing has to be committed for it.
"""

from __future__ import annotations

import contextvars
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from asgiref.sync import async_to_sync, sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connections
from django.utils import timezone

from packhorse.clock import Clock, ManualClock, SystemClock, to_microseconds
from packhorse.django import compat
from packhorse.django.application import Application, on_loop
from packhorse.django.discovery import discover
from packhorse.django.results import TaskResult
from packhorse.ids import from_text, to_text
from packhorse.job import Claim
from packhorse.outcome import Outcome, release
from packhorse.reporters import ErrorReport
from packhorse.runtime.progress import Recorder
from packhorse.testing.in_place import InPlaceWorker
from packhorse.testing.recording import MAX_JOBS, TooManyJobs, to_raise

__all__ = ["TooManyJobs", "adrain", "drain"]


def drain(
    alias: str = "default", *, at: datetime | None = None, max_jobs: int = MAX_JOBS, raise_errors: bool = False
) -> list[TaskResult]:
    """Perform one job after another until none is ready; their results, in order, each as its attempt left it.

    Jobs of all queues, of the entry of TASKS that is named. Those that wait for their time, or for a retry, are
    performed by a drain `at` a moment when they are due. Errors stay in the results; with `raise_errors` the first one
    comes out. What a task gives to `on_commit` is called when it ends, as where its transaction commits. A job that is
    not kept has no result. TooManyJobs where a task never stops enqueueing.
    """
    if on_loop():
        raise SynchronousOnlyOperation("drain() uses Django's connection. In an async test, use: await adrain()")
    backend = compat.task_backends[alias]
    app: Application = backend.application
    discover()
    app.register_declared()
    results = []
    with app.through_django(_clock(at)), _working(app) as worker:
        for id in worker.perform_all(max_jobs, raise_errors):
            try:
                results.append(backend.get_result(to_text(id)))
            except compat.TaskResultDoesNotExist:
                pass
    return results


async def adrain(
    alias: str = "default", *, at: datetime | None = None, max_jobs: int = MAX_JOBS, raise_errors: bool = False
) -> list[TaskResult]:
    """As `drain`, for async tests: in the thread that has the test's connection."""
    there = sync_to_async(drain, thread_sensitive=True)
    return await there(alias, at=at, max_jobs=max_jobs, raise_errors=raise_errors)


def _clock(at: datetime | None) -> Clock:
    if at is None:
        return SystemClock()
    return ManualClock(to_microseconds(at if timezone.is_aware(at) else timezone.make_aware(at)))


@contextmanager
def _working(app: Application) -> Iterator[SiteWorker]:
    worker = SiteWorker(app)
    app.error_reporters.append(worker.keep_error)
    try:
        yield worker
    finally:
        app.error_reporters.remove(worker.keep_error)
        worker.end()
        app.store.leave(worker.id)
        if app.events:
            app.events.flush()


class SiteWorker(InPlaceWorker):
    """Performs where Django's connection is: coroutines have it wherever they call `sync_to_async`."""

    def __init__(self, app: Application) -> None:
        super().__init__(app)
        self._performer._recorder = _AtTheEnd(app)
        self._errors: dict[bytes, BaseException] = {}

    @property
    def id(self) -> bytes:
        return self._process.id

    def keep_error(self, told: ErrorReport) -> None:
        self._errors[from_text(told.context.job_id)] = told.error

    def perform_all(self, max_jobs: int, raise_errors: bool) -> Iterator[bytes]:
        performed = 0
        while (claim := self._next()) is not None:
            if performed == max_jobs:
                self.finish(release(claim.token))
                raise TooManyJobs(performed)
            self._errors.pop(claim.token.id, None)
            outcome = self._perform_apart(claim)
            self.finish(outcome)
            if (error := to_raise(self._errors.get(claim.token.id), claim, outcome, raise_errors)) is not None:
                raise error
            performed += 1
            yield claim.token.id

    def _next(self) -> Claim | None:
        while (claim := self.claim()) is None and self._app.store.promote(MAX_JOBS).jobs:
            pass
        return claim

    def _perform_apart(self, claim: Claim) -> Outcome:
        """An error of a statement in it must not break the test's transaction, in which PostgreSQL would go no further.

        Outside a test it would have broken none, or the task's own.
        """
        inside = [it for it in connections.all(initialized_only=True) if it.in_atomic_block]
        places = [(it, it.savepoint(), len(it.run_on_commit)) for it in inside]
        try:
            outcome = self.perform(claim)
        except BaseException:  # the test was interrupted, not the task
            self.finish(release(claim.token))
            raise
        for connection, savepoint, callbacks in places:
            _leave(connection, savepoint, callbacks)
        return outcome

    def _perform(self, claim: Claim) -> Outcome:
        if not self._performer.is_coroutine(claim):
            return super()._perform(claim)
        alone = contextvars.Context()
        outcome: Outcome = alone.run(async_to_sync(self._performer.in_loop), claim)
        return outcome


class _AtTheEnd(Recorder):
    """Writes a job's progress when it ends: a thread of its own would come between the statements of the task."""

    def _ensure_thread(self) -> None:
        pass


def _leave(connection: Any, savepoint: str | None, callbacks: int) -> None:
    if connection.needs_rollback or _is_broken(connection):
        connection.needs_rollback = False
        connection.savepoint_rollback(savepoint)
        del connection.run_on_commit[callbacks:]
        return
    connection.savepoint_commit(savepoint)
    while len(connection.run_on_commit) > callbacks:
        _, callback, *_ = connection.run_on_commit.pop(callbacks)
        callback()


def _is_broken(connection: Any) -> bool:
    """Whether PostgreSQL refuses each further statement of the transaction."""
    if connection.vendor != "postgresql":
        return False
    return bool(connection.connection.info.transaction_status.name == "INERROR")
