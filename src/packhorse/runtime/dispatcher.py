"""The dispatcher: makes due jobs ready, gives orphans a verdict, prunes what is kept no longer."""

from __future__ import annotations

import time

from packhorse.app import Packhorse
from packhorse.clock import SECOND
from packhorse.runtime.orphans import COMING_BACK, Judge
from packhorse.runtime.process import Process

LOOK_EVERY = 0.1  # a job may be scheduled for sooner than the next one known
ADOPT_EVERY = 5.0
PRUNE_EVERY = 60.0


class Dispatcher:
    name = "dispatcher"
    queues = ""
    drained, performing, stuck = True, False, False

    def __init__(self, app: Packhorse) -> None:
        self._app = app
        self._judge = Judge(app)
        self._adopt_at = 0.0
        self._prune_at = 0.0

    def begin(self, process: Process) -> None:
        self._process = process

    def turn(self) -> float:
        batch = self._app.settings.batch_size
        promoted = self._app.store.promote(batch)
        now = time.monotonic()
        if now >= self._adopt_at:
            if self._process.keep_lease():
                self._judge.judge(self._process.id)
                self._adopt_at = now + ADOPT_EVERY
            else:
                self._adopt_at = now + self._app.settings.lease * COMING_BACK
        if now >= self._prune_at:
            pruned = self._app.store.prune(self._app.settings.retention, batch)
            self._prune_at = now if pruned >= batch else now + PRUNE_EVERY
        if promoted.jobs == batch:
            return 0
        return LOOK_EVERY if promoted.next_due is None else min(LOOK_EVERY, promoted.next_due / SECOND)

    def quiet(self) -> None:
        """It claims none either."""

    def leave(self) -> None:
        """Nothing of it takes long."""

    def end(self) -> None:
        """Nothing to let go of."""
