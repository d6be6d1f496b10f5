"""The supervisor: starts the others as fresh processes, beats for them, replaces the dead, stops them in order."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from packhorse import forks
from packhorse.app import Packhorse
from packhorse.clock import length
from packhorse.errors import HeldUp
from packhorse.failpoints import failpoint
from packhorse.ids import new_id, to_text
from packhorse.runtime.begun import Begun, make_page
from packhorse.runtime.child import Plan
from packhorse.runtime.child import run as run_child
from packhorse.runtime.exits import GAVE_UP, RECYCLED, how_ended
from packhorse.runtime.forking import Forked
from packhorse.runtime.loading import environment, existing, python
from packhorse.runtime.local import beside
from packhorse.runtime.orphans import COMING_BACK, Death, Judge
from packhorse.runtime.process import AT_ONCE, LAST_WORDS, Trouble, place_of
from packhorse.runtime.reloading import heed_end
from packhorse.runtime.wakeup import Wake
from packhorse.stores.contract import ProcessInfo

log = logging.getLogger("packhorse.supervisor")

RESTART_CAP = 30.0
FROZEN = 5.0  # seconds after which a child that was stopped by a signal is ended
LOOK_EVERY = 1.0  # seconds between looks at children that nobody told of
STEADY = 60.0  # a child that lived this long starts again with no delay
HEAR_OUT = 0.5  # seconds to hear the last words of a dead child, where one of its own keeps the line open


class Started(subprocess.Popen[bytes]):
    """A fresh Python."""

    def __init__(self, told: dict[str, Any], begun: int | None = None) -> None:
        """`begun` is a descriptor that the child gets too; it may be closed afterwards."""
        self._report, writing = os.pipe()
        told = told | {"report": writing, "begun": begun}
        command, folder = python(run_child.__module__, json.dumps(told)), told["folder"]
        try:
            super().__init__(
                command,
                cwd=existing(folder),
                env=environment(folder),
                stdin=subprocess.PIPE,
                bufsize=0,
                pass_fds=[writing] if begun is None else [writing, begun],
            )
        except OSError:
            os.close(self._report)
            raise
        finally:
            os.close(writing)
        assert self.stdin is not None
        forks.keep_private(self.stdin)

    def report(self) -> int:
        """A descriptor to hear it on."""
        return self._report


@dataclass
class Child:
    plan: Plan
    supervisor: bytes
    wake: Callable[[], None]
    id: bytes = field(default_factory=new_id)
    failures: int = 0
    ready: bool = False
    quiet: bool = False
    overdue: bool = False
    well_at: float = 0.0
    unwell_since: float | None = None
    idle: bool = False
    stopped_since: float | None = None
    timed_out: set[bytes] = field(default_factory=set)
    former: list[bytes] = field(default_factory=list)
    begun: Begun | None = None

    def __post_init__(self) -> None:
        self.started_at = time.monotonic()
        told = self.plan.told(self.id, self.supervisor)
        page = make_page(self.plan.concurrency) if self.plan.role == "worker" else None
        try:
            if page is not None:
                self.begun = Begun(page, self.plan.concurrency)
            if self.plan.preload:
                self.process: Started | Forked = Forked(run_child, self.plan.app.partition(":")[0], told, page)
            else:
                self.process = Started(told, page)
        finally:
            if page is not None:
                os.close(page)
        reading = self.process.report()
        self._listener = threading.Thread(target=self._listen, args=(reading,), name="packhorse-report", daemon=True)
        self._listener.start()
        log.info("started %s with pid %d", self.plan.role, self.process.pid)
        failpoint("supervisor.after_start")

    def _listen(self, fd: int) -> None:
        with forks.keep_private(os.fdopen(fd, "rb")) as lines:
            for line in lines:
                with suppress(ValueError):  # its last words may be cut off
                    self._hear(json.loads(line))

    def hear_out(self) -> None:
        """It has ended; what it said before may say which jobs were its own, and which one is to blame."""
        self._listener.join(HEAR_OUT)

    def _hear(self, said: dict[str, Any]) -> None:
        now = time.monotonic()
        if "ready" in said:
            self.ready = True
        elif "id" in said:
            self.former.append(self.id)
            self.id = bytes.fromhex(said["id"])
        elif "timed_out" in said:
            self.timed_out.add(bytes.fromhex(said["timed_out"]))
        elif "idle" in said:
            self.idle = True
        elif said.get("well"):
            self.well_at, self.unwell_since, self.idle = now, None, False
        else:
            self.unwell_since = now
        self.wake()

    def frozen_for(self) -> float:
        """Seconds that it has been seen stopped, by a signal, one look after the other."""
        if not _is_stopped(self.process.pid):
            self.stopped_since = None
        elif self.stopped_since is None:
            self.stopped_since = time.monotonic()
        return 0.0 if self.stopped_since is None else time.monotonic() - self.stopped_since

    @property
    def ids(self) -> list[bytes]:
        """All it has had; jobs that it claimed under an earlier one may still be its own."""
        return [*self.former, self.id]

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    @property
    def cause(self) -> str:
        """How it ended, as the end of a sentence about it."""
        return how_ended(self.process.returncode)

    def death(self, *, asked: bool = False) -> Death:
        """What the verdict on its jobs goes by, once it has ended."""
        begun = None if self.begun is None else self.begun.read()
        return Death(self.cause, frozenset(self.timed_out), begun, asked, self.process.pid)


class Supervisor:
    def __init__(self, app: Packhorse, plans: Iterable[Plan]) -> None:
        self._app = app
        self._plans = list(plans)
        self._id = new_id()
        self._wake = Wake()
        self._children: list[Child] = []
        self._due: list[tuple[float, Plan, int]] = []
        self._judge = Judge(app)
        self._unjudged: dict[bytes, Death] = {}
        self._unready: Counter[str] = Counter()
        self._judge_at = 0.0
        self._beat_at = 0.0
        self._beaten_at = time.monotonic()
        self._held_at = 0.0
        self._stopping = False
        self._at_once = False
        self._quiet = False
        self._status = 0

    def run(self) -> int:
        """Until a signal, or until the workers have done their part; the exit status."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            forks.handle(number, self._on_signal)
        forks.handle(signal.SIGUSR1, self._on_quiet)
        forks.handle(signal.SIGCHLD, lambda *_: self._wake.set())
        heed_end(self.stop)
        self._enroll(self._id)
        self._app.hooks.call("start", "supervisor", to_text(self._id))
        for plan in self._plans:
            self._start(plan, 0)
        trouble = Trouble()
        while not self._stopping:
            try:
                self._turn()
                pause = self._pause()
            except Exception as error:  # whatever it is, children must be watched over
                pause = trouble.delay()
                log.error("the supervisor failed (%s); it goes on in %.1f s", place_of(error), pause)
            self._wake.wait(pause)
        self._app.hooks.call("stop", "supervisor", to_text(self._id))
        self._stop()
        self._app.hooks.call("exit", "supervisor", to_text(self._id))
        return self._status

    def could_claim(self, within: float) -> str:
        """Why some worker here could not claim a job within so many seconds; empty where all could."""
        now = time.monotonic()
        workers = [child for child in list(self._children) if child.plan.role == "worker"]
        if missing := sum(plan.role == "worker" for plan in self._plans) - len(workers):
            return f"{missing} worker processes are not running"
        if self._quiet or self._stopping:
            return "no more jobs are claimed, as somebody asked for"
        for child in workers:
            if now - child.well_at > within:
                return f"the worker with pid {child.process.pid} has not reached the store for {within:g} s"
        return ""

    def _enroll(self, id: bytes) -> None:
        info = ProcessInfo(id, "supervisor", socket.gethostname(), os.getpid())
        self._app.store.enroll(info, length(self._app.settings.lease))
        self._id = id

    def stop(self) -> None:
        """As at a TERM; safe in any thread."""
        self._stopping = True
        self._wake.set()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._at_once = self._at_once or number == signal.SIGQUIT or (number == signal.SIGINT and self._stopping)
        self._stopping = True
        self._wake.set()

    def _on_quiet(self, number: int, frame: FrameType | None) -> None:
        self._quiet = True
        self._wake.set()

    def _turn(self) -> None:
        self._beat()
        self._look_after_children()
        for child in [child for child in self._children if child.ended]:
            self._children.remove(child)
            self._bury(child)
        if os.getpid() == 1:
            self._reap_strangers()
        if (self._unjudged or self._judge.owes) and time.monotonic() >= self._judge_at:
            self._judge_children()
        for due in [due for due in self._due if due[0] <= time.monotonic()]:
            self._due.remove(due)
            self._start(due[1], due[2])
        if any(plan.role == "worker" for plan in self._plans):
            self._stopping |= all(plan.role != "worker" for plan in self._plans_in_hand())

    def _start(self, plan: Plan, failures: int) -> None:
        try:
            self._children.append(Child(plan, self._id, self._wake.set, failures=failures))
        except OSError as error:
            log.error("a %s could not be started: %s", plan.role, error.strerror)
            self._due.append((time.monotonic() + min(RESTART_CAP, 2.0 ** min(failures, 10)), plan, failures + 1))

    def _look_after_children(self) -> None:
        """End those that are not ready in time, are frozen, or may perform jobs that will soon be others'."""
        now, settings = time.monotonic(), self._app.settings
        for child in self._children:
            if child.ready:
                self._unready[child.plan.role] = 0
            if not child.ready and now - child.started_at > settings.boot_timeout:
                child.overdue = True
                log.error("%s with pid %d was not ready in time", child.plan.role, child.process.pid)
            elif child.frozen_for() > FROZEN:
                log.error("%s with pid %d is frozen", child.plan.role, child.process.pid)
            elif now - max(
                self._beaten_at, self._held_at, child.well_at
            ) > settings.lease * 5 / 6 and self._may_perform(child):
                log.error("the store cannot be reached; the worker with pid %d has to end", child.process.pid)
            else:
                continue
            child.process.kill()
        if self._quiet:
            for child in self._children:
                if child.plan.role == "worker" and child.ready and not child.quiet:
                    child.quiet = True
                    child.process.send_signal(signal.SIGUSR1)

    def _may_perform(self, child: Child) -> bool:
        return child.plan.role == "worker" and not child.idle

    def _reap_strangers(self) -> None:
        """As the first process of a container it inherits everybody's orphans."""
        ours = {child.process.pid for child in self._children}
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if found is None or found.si_pid in ours:
                return  # one of ours is met in its turn
            os.waitpid(found.si_pid, 0)

    def _plans_in_hand(self) -> list[Plan]:
        return [child.plan for child in self._children] + [plan for _, plan, _ in self._due]

    def _pause(self) -> float:
        now = time.monotonic()
        moments = [self._beat_at, now + LOOK_EVERY, *(due[0] for due in self._due)]
        return max(0.0, min(moments) - now) if not self._stopping else 0.0

    def _beat(self) -> None:
        if time.monotonic() < self._beat_at:
            return
        self._beat_at = time.monotonic() + self._app.settings.heartbeat
        try:
            dead = self._beat_for_all()
            if time.monotonic() - self._beaten_at > self._app.settings.heartbeat:
                dead += self._beat_for_all()  # one that had to wait says nothing of when it was heard
            if self._id in dead:
                self._enroll(new_id())
                self._judge_at = time.monotonic() + self._app.settings.lease * COMING_BACK
                log.warning("the supervisor lost its lease; it goes on under a new id")
        except HeldUp as error:  # by one who keeps all others away, too; the next beat must be among the first after it
            self._held_at = time.monotonic()
            self._beat_at = self._held_at + min(AT_ONCE, self._app.settings.heartbeat)
            log.debug("the supervisor could not beat: %s", error)
        except Exception as error:  # its children would lose their leases if it ended
            log.warning("the supervisor could not beat: %s", place_of(error))

    def _beat_for_all(self) -> list[bytes]:
        sent_at = time.monotonic()  # leases may be counted from then, however late the answer comes
        dead = self._app.store.beat([self._id, *(child.id for child in self._children if self._vouches(child))])
        self._beaten_at = sent_at
        return dead

    def _vouches(self, child: Child) -> bool:
        """Not for one that cannot reach the store by itself: it stops its tasks before the lease is over."""
        since = child.unwell_since
        return since is None or time.monotonic() - since < self._app.settings.lease * 2 / 3

    def _bury(self, child: Child) -> None:
        """A child has ended. If it was not its own wish, its jobs get a verdict now and a new one takes its place."""
        child.hear_out()
        if child.process.returncode == RECYCLED:
            self._due.append((time.monotonic(), child.plan, 0))
            return
        if child.process.returncode == 0 and (child.plan.burst or child.plan.max_jobs is not None):
            log.info("%s with pid %d has done its part", child.plan.role, child.process.pid)
            return
        log.error("%s with pid %d %s", child.plan.role, child.process.pid, child.cause)
        self._unjudged |= dict.fromkeys(child.ids, child.death())
        self._unjudged[beside(child.ids[0])] = Death(child.cause)
        if child.timed_out:
            self._due.append((time.monotonic(), child.plan, 0))
            return
        lived = time.monotonic() - child.started_at
        failures = 0 if lived > STEADY else child.failures + 1
        if not child.ready and self._gives_up(child):
            self._status, self._stopping = GAVE_UP, True
            return
        delay = 0.0 if failures <= 1 else min(RESTART_CAP, 2.0 ** (failures - 2))
        self._due.append((time.monotonic() + delay, child.plan, failures))

    def _gives_up(self, child: Child) -> bool:
        """Those that somebody else killed say nothing about whether they could ever be ready."""
        role, limit = child.plan.role, self._app.settings.max_restarts
        self._unready[role] += child.process.returncode >= 0 or child.overdue
        if limit is None or self._unready[role] <= limit:
            return False
        log.critical("a %s died %d times in a row before it was ready: giving up", role, self._unready[role])
        return True

    def _judge_children(self) -> None:
        try:
            self._judge.judge(self._id, self._unjudged)
            if self._judge.owes:
                self._judge_at = time.monotonic() + LOOK_EVERY
            if not self._app.store.beat([self._id]):  # without a lease it was given nothing to judge
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
        settings = self._app.settings
        deadline = time.monotonic() + settings.shutdown_timeout + settings.ending_timeout + LAST_WORDS + 1
        while not all(child.ended for child in children):
            if self._at_once or time.monotonic() > deadline:
                for child in children:
                    child.process.kill()
                    child.process.wait()
                break
            self._beat()
            self._wake.wait(min(max(0.0, self._beat_at - time.monotonic()), 0.5))
        for child in children:
            if child.process.returncode not in (0, RECYCLED):
                self._hand_back(child)

    def _hand_back(self, child: Child) -> None:
        """It stopped because we asked, and it is gone for certain: what it held goes back unspent.

        But what does not end is to blame for its own end, what must not begin twice fails if it had begun, and its
        local tasks end with it.
        """
        child.hear_out()
        if child.process.returncode == -signal.SIGTERM and not child.ready:
            log.info("%s with pid %d was stopped before it had begun", child.plan.role, child.process.pid)
            return
        self._unjudged[beside(child.ids[0])] = Death(child.cause)
        self._unjudged |= dict.fromkeys(child.ids, child.death(asked=True))
        self._judge_children()
        if child.timed_out or self._unjudged:
            return
        log.warning("%s with pid %d %s; what it held goes back", child.plan.role, child.process.pid, child.cause)
        try:
            for id in child.ids:
                self._app.store.leave(id)
        except Exception as error:
            log.warning("the jobs of pid %d wait for the end of its lease: %s", child.process.pid, place_of(error))


def _is_stopped(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1] == b"T"
    except OSError:
        return False
