"""The real worker, one job at a time, where the test stands."""

from __future__ import annotations

import asyncio
import contextvars
import math
import os
import socket
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from packhorse.app import Packhorse
from packhorse.clock import SECOND, ManualClock, length
from packhorse.codec import Arguments
from packhorse.errors import ConfigError, PayloadError
from packhorse.ids import from_text, new_id
from packhorse.job import Claim, StoredJob
from packhorse.outcome import Outcome, release
from packhorse.queues import EVERYTHING
from packhorse.runtime.dispatcher import Dispatcher
from packhorse.runtime.process import Process
from packhorse.runtime.scheduler import Scheduler
from packhorse.runtime.slots import Slots
from packhorse.runtime.worker import Worker, new_nonce
from packhorse.stores.contract import Entry, ProcessInfo

T = TypeVar("T")

STOPS_CAP = 100_000
NESTED_CAP = 1_000  # jobs that perform other jobs inline; each has a slot, so that the store is told when it starts


class _Tray(Slots):
    """Holds a claim until somebody performs it."""

    claim: Claim | None = None

    def put(self, claims: list[Claim]) -> None:
        if claims:
            [self.claim] = claims


class InPlaceWorker(Worker):
    """A turn claims one job or writes one outcome; between the two the caller performs.

    The lock is not held meanwhile: a task may well enqueue something that is performed inline, in another thread.
    """

    def __init__(self, app: Packhorse) -> None:
        super().__init__(app, EVERYTHING, NESTED_CAP)
        self._slots = self._tray = _Tray(NESTED_CAP, self._performer, self._hand_in)
        self._process = Process(app, self)
        self._asking = 0
        self._one_at_a_time = threading.Lock()
        self._loops: list[asyncio.Runner] = []
        self.keep_lease()

    # Turns.

    def claim(self) -> Claim | None:
        """The next ready job; those that have expired end on the way."""
        with self._one_at_a_time:
            self.keep_lease()
            while True:
                held = len(self._held)
                self._asking = 1
                self.turn()
                self._asking = 0
                if self._tray.claim is not None:
                    claim, self._tray.claim = self._tray.claim, None
                    return claim
                if len(self._held) == held:
                    return None
                self.turn()

    def finish(self, outcome: Outcome) -> None:
        with self._one_at_a_time:
            self._hand_in(outcome)
            self.turn()

    def _room(self, busy: int, outcomes: list[Outcome]) -> int:
        return self._asking

    def _stop_by(self) -> float | None:
        """Asked by a task that looks whether it should stop: nobody else listens meanwhile."""
        orders = self._app.control.trusted(self._app.store.orders([self._process.id]))
        self.obey(orders)
        return math.inf if orders else None

    # Performing.

    def perform(self, claim: Claim) -> Outcome:
        """In this thread or, where an event loop runs in it, in one beside it: no worker performs inside a loop."""
        return out_of_loop(lambda: self._perform(claim))

    def _perform(self, claim: Claim) -> Outcome:
        alone = contextvars.Context()  # as in a worker, nothing of the enqueuing program is seen
        if not self._performer.is_coroutine(claim):
            return alone.run(self._performer.in_thread, claim, self._slots.seat())
        # Not by runner.run, which would make a KeyboardInterrupt a cancellation, and so the job's.
        runner = self._loops.pop() if self._loops else asyncio.Runner(loop_factory=asyncio.new_event_loop)
        loop = runner.get_loop()
        try:
            return loop.run_until_complete(loop.create_task(self._performer.in_loop(claim), context=alone))
        finally:
            self._loops.append(runner)

    async def aperform(self, claim: Claim) -> Outcome:
        """On the running loop, or in a thread."""
        if not self._performer.is_coroutine(claim):
            return await asyncio.to_thread(self._perform, claim)
        me = asyncio.current_task()
        asked_before = me.cancelling() if me is not None else 0
        alone = contextvars.Context()
        outcome = await asyncio.get_running_loop().create_task(self._performer.in_loop(claim), context=alone)
        if me is not None and me.cancelling() > asked_before:  # it was meant for the test, and the job took it
            raise asyncio.CancelledError
        return outcome

    def end(self) -> None:
        super().end()
        for runner in self._loops:
            out_of_loop(runner.close)

    def arguments(self, job: StoredJob, entries: Iterable[Entry]) -> Arguments:
        """As the task will get them, with those of jobs that were merged into it."""
        opened = self._performer._open_job(from_text(job.id), job.task, job.payload)
        task = self._app.known_tasks.get(job.task)
        if task is None:
            raise PayloadError(f"There is no task {job.task!r}.")
        args, kwargs, metadata = task.read(opened)
        if task.rules.merges:
            args, kwargs = task.merged(args, kwargs, self._performer._merged_into(job.task, task, entries))
        return Arguments(args, kwargs, metadata)

    # What others do meanwhile.

    def keep_lease(self) -> None:
        """However far time has moved: a process that lives has beaten meanwhile."""
        self._app.store.enroll(self._introduce(self._process.id), length(self._app.settings.lease))

    def tidy(self) -> None:
        """All that a dispatcher has to do now."""
        self.keep_lease()
        dispatcher = Dispatcher(self._app)
        dispatcher.begin(self._process)
        while dispatcher.turn() == 0:
            pass
        while self._app.store.prune(self._app.settings.retention, self._app.settings.batch_size):
            pass  # a dispatcher does one batch a minute

    def tick_until(self, end: int, clock: ManualClock) -> None:
        """All that a scheduler does until then, at the moments at which it does it."""
        scheduler = Scheduler(self._app)
        scheduler.begin(self._process)
        for _ in range(STOPS_CAP):
            scheduler.turn()
            if (left := end - clock.now()) <= 0:
                return
            next_due = self._app.store.due_schedules(1 << 30).next_due
            clock.advance(min(left, left if next_due is None else next_due) / SECOND)
        raise ConfigError(f"Schedules came {STOPS_CAP:,} times on the way. Travel less far, or pause them.")

    def claim_as_doomed(self, id: bytes) -> bool:
        """Another worker claims the job, starts it, and is never heard of again; False where it is not ready."""
        store, doomed = self._app.store, new_id()
        store.enroll(self._introduce(doomed), length(self._app.settings.lease))
        claims = store.exchange(doomed, new_nonce(), [], EVERYTHING, 1 << 30).claims
        tokens = {claim.token.id: claim.token for claim in claims}
        mine = tokens.pop(id, None)
        store.exchange(
            doomed, new_nonce(), [*map(release, tokens.values())], EVERYTHING, 0, started=[mine] if mine else []
        )
        return mine is not None

    def _introduce(self, id: bytes) -> ProcessInfo:
        return ProcessInfo(id, self.name, socket.gethostname(), os.getpid(), self.queues)


def out_of_loop(function: Callable[[], T]) -> T:
    """Call it here or, where an event loop runs here, in a thread beside it, and wait."""
    loop = None
    with suppress(RuntimeError):
        loop = asyncio.get_running_loop()
    if loop is None:  # behind the block: who looks for an exception that is being handled must find none
        return function()
    with ThreadPoolExecutor(1, "packhorse-testing") as beside:
        return beside.submit(function).result()
