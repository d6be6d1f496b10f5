"""The supervisor: starts the others as fresh processes, beats for them, replaces the dead, stops them in order."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from types import FrameType

from packhorse.app import Packhorse
from packhorse.clock import length
from packhorse.failpoints import failpoint
from packhorse.ids import new_id
from packhorse.runtime.child import Plan, encode_order
from packhorse.runtime.orphans import Judge
from packhorse.runtime.process import Trouble, place_of
from packhorse.runtime.wakeup import Wake
from packhorse.stores.contract import ProcessInfo

log = logging.getLogger("packhorse.supervisor")

RESTART_CAP = 30.0
STEADY = 60.0  # a child that lived this long starts again with no delay


@dataclass
class Child:
    plan: Plan
    supervisor: bytes
    id: bytes = field(default_factory=new_id)
    failures: int = 0

    def __post_init__(self) -> None:
        self.started_at = time.monotonic()
        self.process = subprocess.Popen(self.plan.command(self.id, self.supervisor), stdin=subprocess.PIPE, bufsize=0)
        assert self.process.stdin is not None
        os.set_blocking(self.process.stdin.fileno(), False)
        log.info("started %s with pid %d", self.plan.role, self.process.pid)
        failpoint("supervisor.after_start")

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    @property
    def cause(self) -> str:
        """How it ended, as the end of a sentence about it."""
        status = self.process.returncode
        if status < 0:
            known = {number.value: number.name for number in signal.Signals}
            return f"was killed by {known.get(-status, f'signal {-status}')}"
        return f"exited with status {status}"

    def tell(self, line: bytes) -> None:
        """Never waits for a child that does not read: every beat says it again."""
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.write(line)


class Supervisor:
    def __init__(self, app: Packhorse, plans: Iterable[Plan]) -> None:
        self._app = app
        self._plans = list(plans)
        self._id = new_id()
        self._wake = Wake()
        self._children: list[Child] = []
        self._due: list[tuple[float, Plan, int]] = []
        self._judge = Judge(app)
        self._unjudged: dict[bytes, str] = {}
        self._beat_at = 0.0
        self._stopping = False
        self._at_once = False

    def run(self) -> int:
        """Until a signal, or until the workers have done their part; the exit status."""
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)
        signal.signal(signal.SIGQUIT, self._on_signal)
        signal.signal(signal.SIGCHLD, lambda *_: self._wake.set())
        self._enroll()
        self._children = [Child(plan, self._id) for plan in self._plans]
        trouble = Trouble()
        while not self._stopping:
            try:
                self._turn()
                pause = self._pause()
            except Exception as error:  # whatever it is, children must be watched over
                pause = trouble.delay()
                log.error("the supervisor failed (%s); it goes on in %.1f s", place_of(error), pause)
            self._wake.wait(pause)
        self._stop()
        return 0

    def _enroll(self) -> None:
        info = ProcessInfo(self._id, "supervisor", socket.gethostname(), os.getpid())
        self._app.store.enroll(info, length(self._app.settings.lease))

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._at_once = self._at_once or number == signal.SIGQUIT or (number == signal.SIGINT and self._stopping)
        self._stopping = True
        self._wake.set()

    def _turn(self) -> None:
        self._beat()
        for child in [child for child in self._children if child.ended]:
            self._children.remove(child)
            self._bury(child)
        if self._unjudged:
            self._judge_children()
        for due in [due for due in self._due if due[0] <= time.monotonic()]:
            self._due.remove(due)
            self._start(due[1], due[2])
        working = [plan.role for plan in self._plans_in_hand()]
        if "worker" not in working:
            self._stopping = True

    def _start(self, plan: Plan, failures: int) -> None:
        try:
            self._children.append(Child(plan, self._id, failures=failures))
        except OSError as error:
            log.error("a %s could not be started: %s", plan.role, error.strerror)
            self._due.append((time.monotonic() + min(RESTART_CAP, 2.0 ** min(failures, 10)), plan, failures + 1))

    def _plans_in_hand(self) -> list[Plan]:
        return [child.plan for child in self._children] + [plan for _, plan, _ in self._due]

    def _pause(self) -> float:
        now = time.monotonic()
        moments = [self._beat_at, *(due[0] for due in self._due)]
        return max(0.0, min(moments) - now) if not self._stopping else 0.0

    def _beat(self) -> None:
        if time.monotonic() < self._beat_at:
            return
        self._beat_at = time.monotonic() + self._app.settings.heartbeat
        try:
            beaten = self._app.store.beat([self._id, *(child.id for child in self._children)])
            if self._id in beaten.dead:
                log.warning("the supervisor lost its lease; it goes on under a new id")
                self._id = new_id()
                self._enroll()
            for order in self._app.control.trusted(beaten.orders):
                for child in self._children:
                    if child.id == order.token.process:
                        child.tell(encode_order(order))
        except Exception as error:  # its children would lose their leases if it ended
            log.warning("the supervisor could not beat: %s", place_of(error))

    def _bury(self, child: Child) -> None:
        """A child has ended. If it was not its own wish, its jobs get a verdict now and a new one takes its place."""
        if child.process.returncode == 0 and (child.plan.burst or child.plan.max_jobs is not None):
            log.info("%s with pid %d has done its part", child.plan.role, child.process.pid)
            return
        log.error("%s with pid %d %s", child.plan.role, child.process.pid, child.cause)
        self._unjudged[child.id] = child.cause
        lived = time.monotonic() - child.started_at
        failures = 0 if lived > STEADY else child.failures + 1
        delay = 0.0 if failures <= 1 else min(RESTART_CAP, 2.0 ** (failures - 2))
        self._due.append((time.monotonic() + delay, child.plan, failures))

    def _judge_children(self) -> None:
        try:
            self._judge.judge(self._id, self._unjudged)
            self._unjudged = {}
        except Exception as error:
            log.warning("the jobs of dead children wait for a verdict: %s", place_of(error))

    def _stop(self) -> None:
        """Workers first, so that nothing is left to do when the dispatcher goes."""
        failpoint("supervisor.before_stop")
        log.info("stopping; running jobs have %g s to finish", self._app.settings.shutdown_timeout)
        workers = [child for child in self._children if child.plan.role == "worker"]
        others = [child for child in self._children if child.plan.role != "worker"]
        self._stop_children(workers)
        self._stop_children(others)
        try:
            self._app.store.leave(self._id)
        except Exception as error:
            log.warning("the supervisor could not sign off: %s", place_of(error))

    def _stop_children(self, children: list[Child]) -> None:
        for child in children:
            child.process.terminate()
        deadline = time.monotonic() + self._app.settings.shutdown_timeout + 1
        while not all(child.ended for child in children):
            if self._at_once or time.monotonic() > deadline:
                for child in children:
                    child.process.kill()
                    child.process.wait()
                break
            self._beat()
            self._wake.wait(min(max(0.0, self._beat_at - time.monotonic()), 0.5))
        for child in children:
            if child.process.returncode != 0:
                self._hand_back(child)

    def _hand_back(self, child: Child) -> None:
        """It stopped because we asked, and it is gone for certain: what it held goes back unspent."""
        log.warning("%s with pid %d %s; what it held goes back", child.plan.role, child.process.pid, child.cause)
        try:
            self._app.store.leave(child.id)
        except Exception as error:
            log.warning("the jobs of pid %d wait for the end of its lease: %s", child.process.pid, place_of(error))
