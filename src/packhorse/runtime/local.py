"""Local tasks: what each worker process performs for itself, as long as it lives."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from packhorse.app import Packhorse
from packhorse.job import NewJob
from packhorse.outcome import Outcome, stop
from packhorse.queues import LOCAL, Entry, local_queue
from packhorse.runtime.process import LAST_WORDS, Process
from packhorse.runtime.seats import Why
from packhorse.runtime.worker import Worker

GRACE = 1.0  # seconds in which a local task may see that its worker leaves, before it is interrupted
LEFT = "its worker has left"


class Local(Worker):
    """Performs one job of every local task, on a queue that nobody else serves, beside the slots of the worker."""

    name = "local"

    def __init__(self, app: Packhorse) -> None:
        self._tasks = [task for task in app.tasks.values() if task.performed.local]
        super().__init__(app, (), len(self._tasks))
        self.queues = LOCAL
        self._wanted: list[NewJob] = []
        self._given_up: set[str] = set()

    def begin(self, process: Process) -> None:
        queue = local_queue(process.id)
        self._selected = (Entry(queue, False),)
        self._want({task.name for task in self._tasks}, process)
        self._given_up = set()
        self._slots.interrupt_all(Why.LEAVING)  # of an earlier id, which has lost them
        super().begin(process)

    def turn(self) -> float:
        if self._wanted and not self._quiet:
            self._app.store.insert(self._wanted)
            self._wanted = []
        rest = super().turn()
        if not self._given_up:
            return rest
        self._want(self._given_up, self._process)  # the lease was not lost after all
        self._given_up = set()
        return 0

    def _want(self, names: set[str], process: Process) -> None:
        queue = local_queue(process.id)
        self._wanted = [task.own_call().new_job()._replace(queue=queue) for task in self._tasks if task.name in names]

    def _collect(self) -> list[Outcome]:
        """What would go back to the queue of a lease that is over, or about to be, would stay there for ever."""
        return [self._ended_for_good(outcome) for outcome in super()._collect()]

    def _ended_for_good(self, outcome: Outcome) -> Outcome:
        process, lease = self._process, self._app.settings.lease
        lasts = time.monotonic() - process.renewed_at < lease * 2 / 3
        if outcome.state.finished or (lasts and outcome.token.process == process.id):
            return outcome
        if (claim := self._held.get(outcome.token)) is not None and outcome.token.process == process.id:
            self._given_up.add(claim.task)
        return stop(outcome.token, outcome.duration, LEFT)

    def _hand_in(self, outcome: Outcome) -> None:
        """Nobody could go on with it."""
        if self._quiet and not outcome.state.finished:
            outcome = stop(outcome.token, outcome.duration, LEFT)
        super()._hand_in(outcome)


@contextmanager
def local_tasks(app: Packhorse, worker: bytes) -> Iterator[None]:
    """As long as the worker of that id works, its process performs its own job of every local task."""
    if not any(task.performed.local for task in app.tasks.values()):
        yield
        return
    process = Process(app, Local(app), id=beside(worker))
    thread = threading.Thread(target=process.run, name="packhorse-local", daemon=True)
    thread.start()
    try:
        yield
    finally:
        process.stop(within=GRACE)
        thread.join(GRACE + app.settings.ending_timeout + 2 * LAST_WORDS)


def beside(worker: bytes) -> bytes:
    """The id under which the local tasks of a worker are enrolled, known also to who only knows the worker's."""
    return worker[:-1] + bytes([worker[-1] ^ 1])
