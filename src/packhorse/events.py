"""Events watch: told after something happened, in a thread of their own, so that no subscriber is ever felt."""

from __future__ import annotations

import atexit
import inspect
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from packhorse.errors import ConfigError
from packhorse.forks import guarded
from packhorse.interrupting import uninterrupted
from packhorse.job import Failure

log = logging.getLogger("packhorse.events")

WAITING_CAP = 10_000
FLUSH_AT_MOST = 5.0


class EventKind(StrEnum):
    """What can be watched. Job events are told once the store has it, by the process that did it.

    RETRYING is an attempt that failed and will be followed by another, LOST a job whose worker died.
    """

    ENQUEUED = "enqueued"
    STARTED = "started"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    RETRYING = "retrying"
    SNOOZED = "snoozed"
    CANCELLED = "cancelled"
    LOST = "lost"
    PROCESS_STARTED = "process_started"
    PROCESS_STOPPED = "process_stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    kind: EventKind
    at: datetime
    job_id: str | None = None
    task: str | None = None
    queue_name: str | None = None
    attempt: int | None = None
    duration: float | None = None
    failure: Failure | None = None
    process_id: str | None = None
    role: str | None = None


Subscriber = Callable[[Event], object]


class Events:
    """Who watches what. Falsy while nobody does, and then nothing is made to be told."""

    def __init__(self) -> None:
        self._subscribers: list[tuple[frozenset[EventKind], Subscriber]] = []
        self._wanted: frozenset[EventKind] = frozenset()
        self._begin()

    def _begin(self) -> None:
        self._waiting: deque[Event] = deque()
        self._changed = threading.Condition()
        self._busy = False
        self._thread: threading.Thread | None = None
        self._dropped = 0

    def __bool__(self) -> bool:
        return bool(self._subscribers)

    def wants(self, kind: EventKind) -> bool:
        """Whether anybody watches this kind: ask before you make an event."""
        return kind in self._wanted

    def subscribe(self, subscriber: Subscriber, *kinds: str) -> None:
        called = getattr(subscriber, "__call__", None)  # noqa: B004 - of an object, which may be a coroutine function
        if called is None or inspect.iscoroutinefunction(subscriber) or inspect.iscoroutinefunction(called):
            raise ConfigError("A subscriber is a plain function: it runs in a thread of its own, outside any loop.")
        wanted = known_kinds(*kinds)
        if not self._subscribers:
            atexit.register(self.flush)
            # What waits is the parent's to pass on, and its thread and maybe its lock stay behind.
            os.register_at_fork(after_in_child=self._begin)
        self._subscribers.append((wanted, subscriber))
        self._wanted |= wanted

    @uninterrupted
    def tell(self, event: Event) -> None:
        """Never raises, and never waits for a subscriber."""
        if event.kind not in self._wanted:  # it must not push out what somebody waits for
            return
        with self._changed:
            if len(self._waiting) >= WAITING_CAP:
                self._waiting.popleft()
                self._dropped += 1
            self._waiting.append(event)
            if self._thread is None or not self._thread.is_alive():
                self._start()
            self._changed.notify_all()

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="packhorse-events", daemon=True)
        try:
            thread.start()
        except Exception:  # the interpreter is about to end, or there are too many threads
            self._dropped += len(self._waiting)
            self._waiting.clear()  # so that nobody waits for what will not be passed on
        else:
            self._thread = thread

    def flush(self, within: float = FLUSH_AT_MOST) -> bool:
        """Wait until everything told so far was passed on."""
        if threading.current_thread() is self._thread:
            return False  # a subscriber cannot wait for itself
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._busy, within)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting)
                event, dropped = self._waiting.popleft(), self._dropped
                self._busy, self._dropped = True, 0
            if dropped:
                log.warning("%d events were dropped: subscribers are too slow, or had no thread to run in", dropped)
            for wanted, subscriber in self._subscribers:
                if event.kind in wanted:
                    self._pass_on(subscriber, event)

    def _pass_on(self, subscriber: Subscriber, event: Event) -> None:
        try:
            guarded(subscriber, event)
        except BaseException as error:  # even SystemExit: others are to be told, and the thread must live
            name = getattr(subscriber, "__qualname__", type(subscriber).__name__)
            log.error("subscriber %s failed at %s: %s", name, event.kind, type(error).__name__, exc_info=True)


def known_kinds(*kinds: str) -> frozenset[EventKind]:
    """Those named, or all where none is."""
    if any(map(callable, kinds)):
        raise ConfigError('Name kinds, or none for all of them: @app.subscribe("failed") or @app.subscribe().')
    try:
        return frozenset(map(EventKind, kinds)) or frozenset(EventKind)
    except ValueError as error:
        raise ConfigError(f"{error}. There are {', '.join(EventKind)}.") from None
