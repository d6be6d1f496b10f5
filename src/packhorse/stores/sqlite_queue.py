"""The queue in which the threads of one process wait for the lock of SQLite's writers."""

from __future__ import annotations

import os
import threading
import time
from _thread import LockType, allocate_lock
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from weakref import WeakValueDictionary

POLL_EVERY = 0.000_1  # the first in the queue asks for the lock, which other processes may have
LOOK_ANYWAY = 0.25  # the others are woken; should that fail, they see for themselves

_queues: WeakValueDictionary[tuple[int, int], WriterQueue] = WeakValueDictionary()
_making = threading.Lock()


def queue_of(lock_file: int) -> WriterQueue:
    """Return the queue of this process for an open lock file."""
    seen = os.fstat(lock_file)
    with _making:
        return _queues.setdefault((seen.st_dev, seen.st_ino), WriterQueue())


def forget_waiters() -> None:
    """Drop what a forked child has copied: the threads that wait are its parent's."""
    global _making
    _making = threading.Lock()
    for queue in list(_queues.values()):
        queue.waiting.clear()


class WriterQueue:
    """First come, first served; only the first asks for the lock, so that a crowd does not ask all at once.

    An exception may be raised into a waiting thread at any moment. A place in the queue is therefore given up by one
    call in C, which cannot be interrupted, and whoever is next does not depend on being told.
    """

    def __init__(self) -> None:
        self.waiting: deque[LockType] = deque()
        self._served_at = 0.0

    def wait(self, try_lock: Callable[[], bool], patience: float) -> bool:
        """Wait for one's turn and for the lock; False when nobody of this process has got it for `patience` seconds."""
        call = allocate_lock()
        call.acquire()
        try:
            self.waiting.append(call)
            return self._stay(call, try_lock, patience)
        finally:
            try:
                self.waiting.remove(call)
            except ValueError:
                pass  # struck before it was in, or in a forked child
            self._call_next()

    def _stay(self, call: LockType, try_lock: Callable[[], bool], patience: float) -> bool:
        came = time.monotonic()
        while True:
            if not self._is_first(call):
                call.acquire(timeout=min(LOOK_ANYWAY, patience))
            elif try_lock():
                self._served_at = time.monotonic()
                return True
            else:
                time.sleep(POLL_EVERY)
            if time.monotonic() - max(came, self._served_at) > patience:
                return False

    def _is_first(self, call: LockType) -> bool:
        try:
            return self.waiting[0] is call
        except IndexError:
            return True

    def _call_next(self) -> None:
        with suppress(IndexError, RuntimeError):  # there is none, or it has been called already
            self.waiting[0].release()
