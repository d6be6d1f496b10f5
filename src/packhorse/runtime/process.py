"""What every role shares: enrolment, beating, sleeping, waking, stopping, and living through store trouble."""

from __future__ import annotations

import logging
import os
import random
import socket
import threading
import time
import traceback
from collections.abc import Sequence
from typing import Protocol

from packhorse.app import Packhorse
from packhorse.clock import length, to_datetime
from packhorse.errors import PackhorseError, StoreError
from packhorse.events import Event, EventKind
from packhorse.ids import new_id, to_text
from packhorse.runtime.wakeup import Wake
from packhorse.stores.contract import Order, ProcessInfo

log = logging.getLogger("packhorse.runtime")

BACKOFF_CAP = 5.0
STEADY = 30.0  # seconds without trouble after which earlier trouble is forgotten


class Role(Protocol):
    """One method does one round of work; the rest is about coming and going."""

    name: str
    queues: str

    def begin(self, process: Process) -> None:
        """The process is enrolled, for the first time or anew."""

    def turn(self) -> float:
        """One round; seconds until the next, unless woken."""

    def obey(self, orders: Sequence[Order]) -> None:
        """What operators ask of running jobs."""

    def quiet(self) -> None:
        """Claim no more."""

    @property
    def drained(self) -> bool:
        """Nothing is left to do or to write."""

    def end(self) -> None:
        """The last turn is over."""


class Trouble:
    """How long to wait after each failure: longer and longer, also where turns between them go well."""

    def __init__(self) -> None:
        self._failures = 0
        self._last = 0.0

    def delay(self) -> float:
        now = time.monotonic()
        if now - self._last > STEADY:
            self._failures = 0
        self._last = now
        self._failures = min(self._failures + 1, 10)
        return min(BACKOFF_CAP, 0.05 * (1 << self._failures)) * random.uniform(0.5, 1)


def place_of(error: Exception) -> str:
    """What to say of an error in a log: ours as they are, of others no text, since it may quote what is stored."""
    if isinstance(error, PackhorseError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{where}"


class Process:
    """Runs one role until it is stopped and drained."""

    def __init__(self, app: Packhorse, role: Role, *, id: bytes | None = None, supervisor: bytes | None = None) -> None:
        self.app = app
        self.role = role
        self.id = id or new_id()
        self.supervisor = supervisor
        self.wake = Wake()
        self._enrolled = False
        self.stop_by: float | None = None
        self._heart: Heart | None = None

    def run(self) -> None:
        trouble = Trouble()
        try:
            while True:
                failed = False
                try:
                    if not self._enrolled:
                        self._enroll()
                    delay = self.role.turn()
                except Exception as error:  # no row of the store and no bug of ours may end a role
                    failed, delay = True, trouble.delay()
                    what = "the store failed" if isinstance(error, StoreError) else "something failed"
                    log.warning("%s: %s (%s); trying again in %.1f s", self.role.name, what, place_of(error), delay)
                if self.stop_by is not None and (self.role.drained or time.monotonic() >= self.stop_by):
                    return
                if failed:
                    self._back_off(delay)
                else:
                    self.wake.wait(delay if self.stop_by is None else min(delay, 0.1))
        finally:
            if self._heart is not None:
                self._heart.stop()
            self.role.end()
            self._leave()
            self._tell(EventKind.PROCESS_STOPPED)

    def _back_off(self, delay: float) -> None:
        """Only a stop cuts it short: what we write ourselves would wake us too."""
        until = time.monotonic() + delay
        while self.stop_by is None and (left := until - time.monotonic()) > 0:
            self.wake.wait(left)
        if self.stop_by is not None:
            self.wake.wait(min(delay, 0.1))

    def stop(self, within: float | None = None) -> None:
        """Claim no more, finish what runs, then leave; safe in a signal handler."""
        if self.stop_by is None:
            grace = self.app.settings.shutdown_timeout if within is None else within
            self.stop_by = time.monotonic() + grace
            self.role.quiet()
        self.wake.set()

    def enroll_anew(self) -> None:
        """The lease is over and others may have our jobs: only a new name can claim again."""
        log.warning("process %s lost its lease; it goes on under a new id", to_text(self.id))
        self.id = new_id()
        self._enroll()
        self.beat_alone()  # the supervisor beats for the old id

    def keep_lease(self) -> None:
        """For roles that exchange nothing, and so would not be told that it is over."""
        if not self.app.store.exchange(self.id, 0, [], (), 0).alive:
            self.enroll_anew()

    def beat_alone(self) -> None:
        """No supervisor beats for this process, or none any more."""
        if self._heart is None:
            self._heart = Heart(self)

    def _enroll(self) -> None:
        info = ProcessInfo(
            self.id, self.role.name, socket.gethostname(), os.getpid(), self.role.queues, self.supervisor
        )
        self.app.store.enroll(info, length(self.app.settings.lease))
        self.role.begin(self)
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


class Heart:
    """Beats for a process without a supervisor, in a thread of its own so that a long exchange does not stop it."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="packhorse-heart", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        process = self._process
        while not self._stopping.wait(process.app.settings.heartbeat * random.uniform(0.9, 1)):
            try:
                beaten = process.app.store.beat([process.id])
                if beaten.orders:
                    process.role.obey(process.app.control.trusted(beaten.orders))
            except Exception as error:  # a heart that stops costs all jobs of the process
                log.warning("%s could not beat: %s", process.role.name, place_of(error))

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
