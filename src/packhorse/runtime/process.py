"""What every role shares: enrolment, beating, sleeping, waking, stopping, and living through store trouble."""

from __future__ import annotations

import logging
import math
import os
import random
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from packhorse import forks
from packhorse.app import Packhorse
from packhorse.clock import length, to_datetime
from packhorse.errors import HeldUp, PackhorseError, StoreError
from packhorse.events import Event, EventKind
from packhorse.hooks import When
from packhorse.ids import new_id, to_text
from packhorse.job import Token
from packhorse.runtime.exits import CUT_OFF
from packhorse.runtime.wakeup import Wake
from packhorse.stores.contract import ProcessInfo

log = logging.getLogger("packhorse.runtime")

BACKOFF_CAP = 6.0
LAST_WORDS = 1.0  # seconds to write what ended when it was asked to
TELL_EVERY = 1.0  # seconds between words to the supervisor that all is well
AT_ONCE = 0.02  # seconds between beats that somebody holds up, each of which waits by itself
STEADY = 30.0  # seconds without trouble after which earlier trouble is forgotten


class Role(Protocol):
    """One method does one round of work; the rest is about coming and going."""

    name: str
    queues: str

    def begin(self, process: Process) -> None:
        """The process is enrolled, for the first time or anew."""

    def turn(self) -> float:
        """One round; seconds until the next, unless woken."""

    def quiet(self) -> None:
        """Claim no more."""

    def leave(self) -> None:
        """Ask what still runs to end, and hand it back."""

    @property
    def drained(self) -> bool:
        """Nothing is left to do or to write."""

    @property
    def performing(self) -> bool:
        """Some task runs."""

    @property
    def stuck(self) -> bool:
        """Nothing is left but what will not end as long as this process lives."""

    def end(self) -> None:
        """The last turn is over."""


class Trouble:
    """How long to wait after each failure: longer and longer, also where turns between them go well.

    And at random, so that many who wait for a store do not all come when it is back.
    """

    def __init__(self) -> None:
        self._failures = 0
        self._last = 0.0

    def delay(self) -> float:
        now = time.monotonic()
        if now - self._last > STEADY:
            self._failures = 0
        self._last = now
        self._failures = min(self._failures + 1, 10)
        return min(BACKOFF_CAP, 0.05 * (1 << self._failures)) * random.uniform(0.1, 1)


def memory_now() -> int:
    """Bytes that this process holds; 0 where that cannot be told."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def place_of(error: Exception) -> str:
    """What to say of an error in a log: ours as they are, of others no text, since it may quote what is stored."""
    if isinstance(error, PackhorseError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{where}"


class Process:
    """Runs one role until it is stopped and drained."""

    def __init__(
        self,
        app: Packhorse,
        role: Role,
        *,
        id: bytes | None = None,
        supervisor: bytes | None = None,
        report: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        """`report` tells the supervisor what it cannot see."""
        self.app = app
        self.role = role
        self.id = id or new_id()
        self.supervisor = supervisor
        self.wake = Wake()
        self.stop_by: float | None = None
        self.recycled = False
        self.renewed_at = time.monotonic()  # the lease lasts that long from then, as far as this process knows
        self._report = report
        self._enrolled = False
        self._alone = False
        self._heart: Heart | None = None
        self._watch: LeaseWatch | None = None
        self._runs_in = forks.generation
        self._unwell_since: float | None = None
        self._told_at = 0.0
        self._stop_told = False
        self._leaving = False

    def run(self) -> None:
        trouble = Trouble()
        self._runs_in = forks.generation
        try:
            while True:
                failed = False
                try:
                    if not self._enrolled:
                        self._enroll()
                    delay = self.role.turn()
                    self._go_well()
                except Exception as error:  # no row of the store and no bug of ours may end a role
                    failed, delay = True, trouble.delay()
                    if forks.generation != self._runs_in:
                        forks.end_copy(error)
                    self._go_badly(error)
                    what = "the store failed" if isinstance(error, StoreError) else "something failed"
                    log.warning("%s: %s (%s); trying again in %.1f s", self.role.name, what, place_of(error), delay)
                if forks.generation != self._runs_in:
                    forks.end_copy()
                if self.stop_by is not None:
                    if not self._stop_told:
                        self._stop_told = True
                        self._hook("stop")
                    if self._finished(self.stop_by):
                        return
                if failed:
                    self._back_off(delay)
                else:
                    self.wake.wait(delay if self.stop_by is None else min(delay, 0.1))
        finally:
            self._end()

    def _end(self) -> None:
        if forks.generation != self._runs_in:
            forks.end_copy(sys.exception())
        if self._heart is not None:
            self._heart.stop()
        if self._watch is not None:
            self._watch.stop()
        self.role.end()
        self._leave()
        self._hook("exit")
        self._tell(EventKind.PROCESS_STOPPED)

    def _hook(self, when: When) -> None:
        self.app.hooks.call(when, self.role.name, to_text(self.id))

    def _finished(self, stop_by: float) -> bool:
        """Whether it may go: everything has ended, or what is left was asked to and has had its time for it."""
        now = time.monotonic()
        if self.role.drained or self.role.stuck:
            return True
        if now < stop_by:
            return False
        if not self._leaving:
            self._leaving = True
            self.role.leave()
        return now >= stop_by + self.app.settings.ending_timeout + LAST_WORDS

    def _go_well(self) -> None:
        now = time.monotonic()
        if self._report is not None and (self._unwell_since is not None or now - self._told_at >= TELL_EVERY):
            self._told_at = now
            self._report({"well": True})
        self._unwell_since = None

    def _go_badly(self, error: Exception) -> None:
        if isinstance(error, HeldUp):
            pass  # by somebody else, as all others are: no reason to give up what runs
        elif self._unwell_since is None:
            self._unwell_since = time.monotonic()
            if self._report is not None:
                self._report({"well": False})
        if not self.role.performing:
            self.tell_idle()

    def replace(self, token: Token, why: str) -> bool:
        """Stop, so that a new process takes the place of this one; False where nobody would start it."""
        if self._report is None:
            return False
        log.warning("%s has to be replaced, because of %s", self.role.name, why)
        self._report({"timed_out": token.id.hex()})
        self.stop()
        return True

    def recycle(self, why: str) -> None:
        """Stop as if asked to, so that a fresh process takes the place of this one."""
        if self._report is not None and self.stop_by is None:
            log.info("%s is replaced: %s", self.role.name, why)
            self.recycled = True
            self.stop()

    def _back_off(self, delay: float) -> None:
        """Only a stop cuts it short: what we write ourselves would wake us too."""
        until = time.monotonic() + delay
        while self.stop_by is None and (left := until - time.monotonic()) > 0:
            self.wake.wait(left)
        if self.stop_by is not None:
            self.wake.wait(min(delay, 0.1))

    def stop(self, within: float | None = None) -> None:
        """Claim no more, finish what runs, then leave; safe in a signal handler."""
        grace = self.app.settings.shutdown_timeout if within is None else within
        stop_by = time.monotonic() + grace
        if self.stop_by is None or stop_by < self.stop_by:
            self.stop_by = stop_by
            self.role.quiet()
        self.wake.set()

    def quiet(self) -> None:
        """Claim no more, and stay; safe in a signal handler."""
        self.role.quiet()
        self.wake.set()

    def enroll_anew(self) -> None:
        """The lease is over and others may have our jobs: only a new name can claim again."""
        log.warning("process %s lost its lease; it goes on under a new id", to_text(self.id))
        self.id = new_id()
        if self._report is not None:
            self._report({"id": self.id.hex()})
        self._enroll()
        self.beat_alone()  # as long as the supervisor may not have heard of it

    def keep_lease(self) -> bool:
        """For roles that exchange nothing, and so would not be told that it is over; False where it was."""
        alive = self.app.store.exchange(self.id, 0, [], (), 0).alive
        if not alive:
            self.enroll_anew()
        return alive

    def beat_alone(self) -> None:
        """No supervisor beats for this process, or none any more."""
        self._alone = True
        self._begin_to_beat()

    def guard_tasks(self) -> None:
        """For a role that performs tasks, which must have ended when the lease does."""
        self._begin_to_beat()
        if self._watch is None:
            self._watch = LeaseWatch(self)

    def _begin_to_beat(self) -> None:
        if self._heart is None:
            self._heart = Heart(self)

    @property
    def vouches(self) -> bool:
        """Whether to beat: not for a role that has failed for long, as nothing comes of the jobs that it holds."""
        lease, since = self.app.settings.lease, self._unwell_since
        if since is not None and time.monotonic() - since > lease * 2 / 3:
            return False
        return self._alone or not self.role.drained

    def beat(self) -> bool:
        """Renew the lease; False where it was over."""
        id, sent_at = self.id, time.monotonic()
        if self.app.store.beat([id]):
            return False
        self.note_renewed(id, sent_at)
        return True

    def note_renewed(self, id: bytes, sent_at: float) -> None:
        """The store was asked for it then, and may have done it at once: the answer says nothing of when."""
        if id == self.id:
            self.renewed_at = max(self.renewed_at, sent_at)

    def confirm_lease(self) -> bool:
        """Whether it lasts for long enough to begin something; asked for where that is not known."""
        return time.monotonic() - self.renewed_at < self.app.settings.lease / 3 or self.beat()

    def tell_idle(self) -> None:
        """No task runs any more, so that nobody has to end this process."""
        if self._report is not None:
            self._report({"idle": True})

    def end_by_force(self) -> None:
        """The only way to be sure that no task runs when the lease is over."""
        if self._report is None:
            log.critical("%s could not keep its lease, and tasks run on beyond it", self.role.name)
        else:
            log.critical("%s could not keep its lease and ends, because tasks still run", self.role.name)
            logging.shutdown()
            os._exit(CUT_OFF)

    def _enroll(self) -> None:
        info = ProcessInfo(
            self.id, self.role.name, socket.gethostname(), os.getpid(), self.role.queues, self.supervisor
        )
        sent_at = time.monotonic()
        self.app.store.enroll(info, length(self.app.settings.lease))
        self.renewed_at = sent_at
        self.role.begin(self)
        if not self._enrolled:
            self._hook("start")
        self._enrolled = True
        if self.supervisor is None:
            self.beat_alone()
        self._tell(EventKind.PROCESS_STARTED)

    def _tell(self, kind: EventKind) -> None:
        if self.app.events:
            at = to_datetime(self.app.clock.now())
            self.app.events.tell(Event(kind=kind, at=at, process_id=to_text(self.id), role=self.role.name))
            if kind is EventKind.PROCESS_STOPPED:
                self.app.events.flush()

    def _leave(self) -> None:
        if not self.role.drained:
            # Its tasks may still run. Whoever sees this process end may hand them on; it must not do so itself.
            log.warning("%s stops while jobs still run; they go back once the process has ended", self.role.name)
            return
        try:
            self.app.store.leave(self.id)
        except Exception as error:
            log.warning("%s could not sign off (%s); its lease will run out", self.role.name, place_of(error))


class LeaseWatch:
    """Sees to it that no task runs when the lease ends, whatever else the process waits for.

    Tasks are asked to stop while a third of the lease is left. Where one does not end, the process ends itself while a
    sixth is left, before others may perform its jobs. As long as somebody holds the store so that nobody can write, no
    lease ends; then half of its length is left (docs/decisions/0028).
    """

    def __init__(self, process: Process) -> None:
        self._process = process
        self._lease = process.app.settings.lease
        self._seen_to = 0.0  # the renewal after which none came in time, where tasks were stopped for that
        self._held_at = -math.inf  # when the store was last seen so
        self._over = threading.Event()
        threading.Thread(target=self._run, name="packhorse-lease", daemon=True).start()

    def _run(self) -> None:
        process = self._process
        while True:
            ask_at = max(process.renewed_at + self._lease * 2 / 3, self._held_at + self._lease / 24)
            pause = max(0.0, ask_at - time.monotonic()) or self._lease / 6
            expected_at = time.monotonic() + pause
            if self._over.wait(pause):
                return
            if time.monotonic() > expected_at + self._lease / 12 and self._over.wait(self._lease / 12):
                return  # the whole process stood still: who beats for it goes first
            renewed_at = process.renewed_at
            due = time.monotonic() >= renewed_at + self._lease * 2 / 3
            if due and renewed_at != self._seen_to and process.role.performing:
                if self._outlasts():
                    continue
                self._seen_to = renewed_at
                self._stop_tasks(renewed_at)

    def _outlasts(self) -> bool:
        """Whether somebody holds the store, or did until a moment ago, so that the lease is about to be renewed."""
        with suppress(Exception):  # a watch that ends would let tasks run on
            if self._process.app.store.is_held():
                self._held_at = time.monotonic()
        return time.monotonic() < self._held_at + self._lease / 6

    def _stop_tasks(self, renewed_at: float) -> None:
        process, role = self._process, self._process.role
        log.error("%s cannot reach the store, and its lease is about to end: its jobs are stopped", role.name)
        role.leave()
        while not self._over.wait(0.05) and process.renewed_at == renewed_at:
            if not role.performing:
                process.tell_idle()
                return
            if time.monotonic() >= max(renewed_at + self._lease * 5 / 6, self._held_at + self._lease / 3):
                process.end_by_force()
                return

    def stop(self) -> None:
        self._over.set()


class Heart:
    """Beats in a thread of its own, so that a long exchange does not stop it.

    Where there is a supervisor, that beats too, also for a process in which a task lets no other thread run. But who
    does not beat itself does not know how long its lease lasts.
    """

    def __init__(self, process: Process) -> None:
        self._process = process
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="packhorse-heart", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        process = self._process
        heartbeat = pause = process.app.settings.heartbeat
        while not self._stopping.wait(pause * random.uniform(0.9, 1)):
            pause = heartbeat
            if not process.vouches or time.monotonic() - process.renewed_at < heartbeat / 2:
                continue
            try:
                if not process.beat():
                    process.wake.set()  # it hears of it in its next turn
                elif time.monotonic() - process.renewed_at > heartbeat:
                    pause = AT_ONCE  # it waited so long that nobody can tell when it was heard
            except HeldUp:  # whoever holds it may let go any moment
                pause = min(heartbeat, AT_ONCE)
            except Exception as error:  # a heart that stops costs all jobs of the process
                log.warning("%s could not beat: %s", process.role.name, place_of(error))

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
