"""How many of a process may use connections at once: the others queue, and whoever came first goes first.

A place belongs to the connection it was taken for. One that is dropped, because an exception hit the thread that had
just got it, finds its way back by itself: as an object that nobody refers to.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from weakref import ref

from packhorse.errors import StoreUnavailable

POOL = 16  # places, unless the URL says otherwise
OWN = 8  # places for what keeps a worker alive
WITHIN = 10.0  # seconds for which a place is waited for
SLICE = 0.2  # seconds: how soon one that was dropped is found, and an exception raised into who queues is met


class Place:
    taken = False  # also of one that an exception from outside kept from being made

    def __init__(self, places: Places) -> None:
        self._places = places

    def leave(self) -> None:
        """Let the next one have it; once."""
        if self.taken:
            self._places.give(self)

    def __del__(self) -> None:
        if self.taken:
            self._places.dropped.append(None)  # whatever lock this thread may have: this needs none


class Places:
    def __init__(self, number: int) -> None:
        self._number = number
        self._free = number
        self._lock = threading.Lock()
        self._queue: deque[tuple[Place, threading.Lock]] = deque()
        self.dropped: deque[None] = deque()

    def take(self) -> Place:
        """Raises StoreUnavailable where none has become free in time."""
        place = Place(self)
        with self._lock:
            if self.dropped:
                self._pick_up()
            if self._free and not self._queue:
                self._free -= 1
                place.taken = True
                return place
            called = threading.Lock()
            called.acquire()
            self._queue.append((place, called))
        self._wait(place, called)
        return place

    def _wait(self, place: Place, called: threading.Lock) -> None:
        deadline = time.monotonic() + WITHIN
        while not called.acquire(timeout=SLICE):
            with self._lock:
                self._pick_up()
                if place.taken or time.monotonic() < deadline:
                    continue
                self._queue.remove((place, called))
            raise StoreUnavailable(
                f"PostgreSQL: all {self._number} connections that this process may have at once have been in use for "
                f"{WITHIN:g} s. Look for what holds them up, or allow more with pool=… in the store URL."
            )

    def give(self, place: Place) -> None:
        with self._lock:
            if place.taken:
                place.taken = False
                self._free += 1
            self._pick_up()

    def _pick_up(self) -> None:
        while self.dropped:
            self.dropped.popleft()
            self._free += 1
        while self._free and self._queue:
            place, called = self._queue.popleft()
            self._free -= 1
            place.taken = True
            called.release()


class Lanes(threading.local):
    """Which places the thread is to take: it never waits for one while it has something that others may wait for."""

    own = False  # those kept for what must not wait for the program's other threads
    beyond = False  # none, as it has somebody's transaction in hand
    _last: ref[Place] | None = None

    def __init__(self, common: Places, own: Places) -> None:
        self._common = common
        self._own = own

    def take(self) -> Place | None:
        """None where it goes without: it has one already, or `beyond`."""
        last = self._last() if self._last is not None else None
        if self.beyond or (last is not None and last.taken):
            return None
        place = (self._own if self.own else self._common).take()
        self._last = ref(place)
        return place
