"""When running jobs have to end: asked first, and by force where that does not help."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from packhorse.job import Token
from packhorse.runtime.process import place_of
from packhorse.runtime.seats import Why

log = logging.getLogger("packhorse.worker")

TICK = 0.05


@dataclass(slots=True)
class Deadline:
    why: Why
    ask_at: float
    force_at: float | None = None  # once it was asked


class Deadlines:
    """A thread of its own keeps them, so that they hold whatever the worker's loop waits for."""

    def __init__(self, ending: float, ask: Callable[[Token, Why], bool], force: Callable[[Token, Why], None]) -> None:
        """`ask` says whether the task was reached; where it was about to begin, it is asked again."""
        self._ending = ending
        self._ask = ask
        self._force = force
        self._kept: dict[Token, Deadline] = {}
        self._some = threading.Event()
        self._closed = False
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def set(self, token: Token, seconds: float, why: Why) -> None:
        """One that is nearer than the one it has."""
        at = time.monotonic() + seconds
        known = self._kept.get(token)
        if known is None or (known.force_at is None and at < known.ask_at):
            self._kept[token] = Deadline(why, at)
        self._some.set()
        if self._thread is None:
            self._start()

    def drop(self, token: Token) -> None:
        """The job has ended."""
        self._kept.pop(token, None)

    def left(self, token: Token) -> float | None:
        """Seconds until it is asked to end."""
        deadline = self._kept.get(token)
        return None if deadline is None else max(0.0, deadline.ask_at - time.monotonic())

    def close(self) -> None:
        self._closed = True
        self._some.set()

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="packhorse-deadlines", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while not self._closed:
            if not self._kept:
                self._some.clear()
                if not self._kept:
                    self._some.wait()
            time.sleep(TICK)
            now = time.monotonic()
            for token, deadline in list(self._kept.items()):
                try:
                    self._look(token, deadline, now)
                except Exception as error:  # the deadlines of the others hold
                    log.error("a deadline could not be kept: %s", place_of(error))

    def _look(self, token: Token, deadline: Deadline, now: float) -> None:
        if deadline.force_at is None:
            if deadline.ask_at <= now and self._ask(token, deadline.why):
                deadline.force_at = now + self._ending
        elif deadline.force_at <= now:
            self.drop(token)
            self._force(token, deadline.why)
