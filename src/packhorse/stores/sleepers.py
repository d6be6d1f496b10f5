"""How a thread or a coroutine sleeps until another thread wakes it. Neither holds a thread of an event loop's pool."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio

SLICE = 0.2  # seconds: an exception raised into a sleeping thread, such as a timeout, is met only between two slices
SLICE_EACH = 0.002  # for each thread of the process; so that many threads together wake up at most 500 times a second


class Wakeable(Protocol):
    def wake(self) -> None:
        """End the sleep, or the next one where nobody sleeps. From any thread; never blocks."""

    @property
    def gone(self) -> bool:
        """Whether it will never sleep again."""


class Sleeper:
    """Sleeps in a thread. Its lock is made in C: an exception that hits the thread leaves nothing half done."""

    def __init__(self) -> None:
        self._bell = threading.Lock()
        self._bell.acquire()

    def sleep(self, seconds: float) -> None:
        """Sleep until woken, for so long at the most."""
        self._bell.acquire(timeout=max(0.0, min(seconds, threading.TIMEOUT_MAX)))

    def nap(self, seconds: float) -> None:
        """The same for a slice of the time, where exceptions may be raised into the thread."""
        self.sleep(min(seconds, max(SLICE, threading.active_count() * SLICE_EACH)))

    def wake(self) -> None:
        try:
            self._bell.release()
        except RuntimeError:
            pass  # woken already

    @property
    def gone(self) -> bool:
        return False


class AsyncSleeper:
    """Sleeps in a coroutine of the running loop."""

    def __init__(self) -> None:
        import asyncio  # only here: a program that enqueues and knows no event loop imports this module too

        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        timer: asyncio.TimerHandle | None = None
        if seconds < threading.TIMEOUT_MAX:
            timer = self._loop.call_later(max(0.0, seconds), self._event.set)
        try:
            await self._event.wait()
        finally:
            if timer is not None:
                timer.cancel()
        self._event.clear()

    def wake(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._event.set)
        except RuntimeError:
            pass  # the loop was closed

    @property
    def gone(self) -> bool:
        return self._loop.is_closed()
