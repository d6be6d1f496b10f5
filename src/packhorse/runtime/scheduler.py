"""The scheduler: enqueues the jobs of schedules when their moments come. Any number may run at the same time."""

from __future__ import annotations

import logging
import math
import time

from packhorse import forks
from packhorse.app import Packhorse
from packhorse.clock import SECOND, to_datetime
from packhorse.errors import HeldUp, PayloadError, StoreDataError, StoreError
from packhorse.job import storable
from packhorse.runtime.process import Process, place_of
from packhorse.scheduling import schedule_of
from packhorse.stores.contract import StoredSchedule

log = logging.getLogger("packhorse.scheduler")

KEEP_LEASE_EVERY = 5.0
LOOK_EVERY = 0.5  # schedules may be added or edited at any time
AGAIN_AFTER = 60 * SECOND  # one that could not be turned into jobs
PATIENCE = 15 * SECOND  # so long one is left to schedulers that may know its task
ERROR_CAP = 500


class Scheduler:
    name = "scheduler"
    queues = ""
    drained, performing, stuck = True, False, False

    def __init__(self, app: Packhorse) -> None:
        self._app = app
        self._keep_lease_at = math.inf

    def begin(self, process: Process) -> None:
        self._process = process
        self._keep_lease_at = time.monotonic() + KEEP_LEASE_EVERY
        for key in self._app.schedules.save():
            log.error("schedule %s of this application was left alone: another one has that key", key)
        for text in self._app.schedules.problems():
            log.error("%s", text)

    def turn(self) -> float:
        if time.monotonic() >= self._keep_lease_at:
            self._process.keep_lease()
            self._keep_lease_at = time.monotonic() + KEEP_LEASE_EVERY
        batch = self._app.settings.batch_size
        schedules, next_due, now = self._app.store.due_schedules(batch)
        for schedule in schedules:
            try:
                self._tick(schedule, now)
            except HeldUp:
                log.warning("schedule %s waits for a transaction of somebody else", schedule.key)
            except Exception as error:  # one that makes no sense must not hold up the others
                if isinstance(error, StoreError) and not isinstance(error, StoreDataError):
                    raise
                self._put_off(schedule, error, now)
        return LOOK_EVERY if next_due is None else min(LOOK_EVERY, next_due / SECOND)

    def _tick(self, row: StoredSchedule, now: int) -> None:
        due = schedule_of(row).due(_last(row), now)
        job_of = self._app.schedules.job_of  # with the application's middleware and codecs
        jobs = [(moment, forks.guarded(job_of, row, moment)) for moment in due.moments]
        ticked = self._app.store.tick(row, jobs, handled=due.handled, next_at=due.next, repeats=due.repeats)
        inserted = {tick.job for tick in ticked or ()}
        self._app.tell_enqueued([job for _, job in jobs if job.id in inserted])
        for moment, job in ticked or ():
            if job is None:
                log.info("schedule %s: the job before it still runs at %s", row.key, to_datetime(moment))
        if ticked is not None and due.left_out:
            log.warning("schedule %s: moments before %s passed without a job", row.key, to_datetime(due.handled))

    def _put_off(self, row: StoredSchedule, error: Exception, now: int) -> None:
        """Others may have newer code, or be of the application that it belongs to."""
        is_strange = row.task not in self._app.known_tasks or isinstance(error, PayloadError)
        if is_strange and row.next_at is not None and now - row.next_at < PATIENCE:
            return
        text = storable(place_of(error), ERROR_CAP)
        log.error("schedule %s gets no job: %s", row.key, text)
        again = now + AGAIN_AFTER
        self._app.store.tick(row, [], handled=_last(row), next_at=again, repeats=row.repeats, error=text)

    def quiet(self) -> None:
        """It claims none either."""

    def leave(self) -> None:
        """Nothing of it takes long."""

    def end(self) -> None:
        """Nothing to let go of."""


def _last(row: StoredSchedule) -> int | None:
    """One that was never ticked owes the moment it was saved with, and none before."""
    if row.handled is None and row.next_at is not None:
        return row.next_at - 1
    return row.handled
