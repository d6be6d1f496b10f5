"""Sleeping, and being woken."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

from packhorse.errors import StoreError
from packhorse.queues import Selected
from packhorse.stores import Store

log = logging.getLogger("packhorse.runtime")

PATIENCE = 60.0  # seconds after which a watch that was not called begins anew; roles look for themselves more often


class Wake:
    """A flag to sleep on. Unlike threading.Event it may be raised from a signal handler."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        if self._calls.empty():
            self._calls.put(None)

    def wait(self, timeout: float) -> bool:
        """Sleep until somebody calls, or called since the last time."""
        try:
            self._calls.get(timeout=timeout)
        except Empty:
            return False
        while not self._calls.empty():
            self._calls.get()
        return True


class Watcher:
    """Wakes a role when the store has something for it; looks only while the role has room for it."""

    def __init__(self, store: Store, queues: Selected, wake: Callable[[], None]) -> None:
        self._watch = store.watch(queues)
        self._wake = wake
        self._armed = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="packhorse-watcher", daemon=True)
        self._thread.start()

    def set_armed(self, armed: bool) -> None:
        if not armed:
            self._armed.clear()
        if armed or self._closing:  # a clear must not wipe out the call to close
            self._armed.set()

    def close(self) -> None:
        self._closing = True
        self._armed.set()
        self._watch.wake()
        self._thread.join()
        self._watch.close()

    def _run(self) -> None:
        while not self._closing:  # looked at after every clear, which may have wiped out the call to close
            self._armed.wait()
            try:
                changed = self._watch.wait(PATIENCE)
            except StoreError:
                # The role meets the same trouble in its own turn and says so; here only the pace matters.
                changed = False
                self.set_armed(False)
            if changed:
                self.set_armed(False)
                self._wake()
            try:
                self._watch.settle()
            except StoreError:
                pass  # the role meets it, too
