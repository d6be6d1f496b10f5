"""Where all of a process wait for endings of jobs: one thread and one watch look on behalf of everybody.

A waiter leaves the ids it waits for and goes to sleep. The thread looks for the ids of all waiters with one statement:
for newcomers at once, as their jobs may have ended before they came, and for all when something has changed. So a
thousand waiters cost as much as one: one connection, and one statement for each change.

Looking is paced. After a look the ids rest for a time that grows with their number, so that looking takes at most about
a tenth of the time, and 10,000 ids are looked at about once a second. Small waits, which most often somebody sits in
front of, have a pace of their own, so that one for 10,000 jobs does not slow them down.

The room is made at the first wait. Its thread ends a few seconds after the last waiter has left, and begins anew with
the next one. A forked child finds the room empty.
"""

from __future__ import annotations

import _thread
import atexit
import copy
import math
import os
import threading
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING
from weakref import WeakSet, ref

from packhorse.errors import StoreError
from packhorse.hops import in_thread
from packhorse.stores.sleepers import AsyncSleeper, Sleeper, Wakeable

if TYPE_CHECKING:
    from packhorse.stores.contract import Store, Watch

FEW = 16  # ids: whoever waits for more has a large wait
REST = 0.000_1  # seconds for each id that was looked at in vain
CALM = 100  # ids up to which that is all the rest
SHARE = 9.0  # rests a look of more ids is followed by, each as long as the look took
POLL, POLL_EACH = 1.0, 0.001  # seconds after which ids are looked at anyway, where a watch may miss something
SWEEP = 10.0  # seconds between two looks for waiters that have gone without a word
WARM = 0.05  # seconds for which a room without waiters goes on listening
LINGER = 5.0  # seconds for which it keeps its thread and its connection
BEGINNING = 1.0  # seconds after which a thread that has not begun is taken for one that never will
CALM_DOWN = 0.5  # seconds between two troubles, at the least
CLOSING = 5.0

_rooms: WeakSet[WaitingRoom] = WeakSet()
_inherited: list[object] = []  # the parent's watches, which a forked child must not touch, nor collect


def _start_over_in_child() -> None:
    for room in list(_rooms):
        room._start_over()


os.register_at_fork(after_in_child=_start_over_in_child)


class Ticket:
    """The ids that one waiter waits for, in one room."""

    looks = False  # whether `take` asks the store, so that it must not be called in an event loop

    def __init__(self, room: WaitingRoom, sleeper: Wakeable) -> None:
        self._room = room
        self._sleeper = ref(sleeper)  # the waiter has it as long as it waits
        self.wanted: set[bytes] = set()
        self.large = False
        self.ended: set[bytes] = set()
        self.error: BaseException | None = None
        self.left = False

    def add(self, ids: Collection[bytes]) -> None:
        """Wait for these too. What has ended before is told as well."""
        self._room.enter(self, ids)

    def take(self) -> set[bytes]:
        """Return the ids that have ended and were not taken yet, gone ones too; raise what hindered the room."""
        return self._room.taken(self)

    def leave(self) -> None:
        self._room.leave(self)

    # For the room.

    def wake(self) -> None:
        if (sleeper := self._sleeper()) is not None:
            sleeper.wake()

    @property
    def gone(self) -> bool:
        sleeper = self._sleeper()
        return sleeper is None or sleeper.gone


class LookingTicket(Ticket):
    """Looks by itself whenever it is asked: for stores that no other thread may ask."""

    looks = True

    def add(self, ids: Collection[bytes]) -> None:
        self.wanted.update(ids)

    def take(self) -> set[bytes]:
        ended = self._room.store.ended(self.wanted)
        self.wanted -= ended
        return ended

    def leave(self) -> None:
        pass


class _Table:
    """Ids that are looked at together, and who waits for each."""

    def __init__(self) -> None:
        self.tickets: dict[bytes, list[Ticket]] = {}
        self.new: dict[bytes, None] = {}
        self.stale = False  # something has changed since the last look at all of them
        self.looking = False  # such a look is under way
        self.rests_until = 0.0
        self.poll_at = math.inf

    def __bool__(self) -> bool:
        return bool(self.tickets)

    def add(self, id: bytes, ticket: Ticket) -> None:
        self.tickets.setdefault(id, []).append(ticket)
        self.new[id] = None

    def remove(self, id: bytes, ticket: Ticket) -> None:
        if (others := self.tickets.get(id)) is None:
            return
        with suppress(ValueError):
            others.remove(ticket)
        if not others:
            del self.tickets[id]
            self.new.pop(id, None)

    def pop(self, id: bytes) -> list[Ticket]:
        self.new.pop(id, None)
        return self.tickets.pop(id, [])

    @property
    def next_look(self) -> float:
        if self.new:
            return 0.0
        return self.rests_until if self.stale else self.poll_at

    def hurry(self) -> None:
        """Look at all of them without a rest."""
        self.stale, self.rests_until = True, 0.0

    def due(self, now: float) -> list[bytes]:
        """The ids to look at now; newcomers do not wait for a change."""
        new, self.new = self.new, {}
        if now < (self.rests_until if self.stale else self.poll_at):
            return list(new)
        self.stale, self.looking = False, True
        return list(self.tickets)

    def looked(self, at: float, took: float, *, polls: bool) -> None:
        if not self.looking:
            return
        self.looking = False
        number = len(self.tickets)
        self.rests_until = at + max(number * REST, SHARE * took if number > CALM else 0.0)
        self.poll_at = at + POLL + number * POLL_EACH if polls else math.inf


class WaitingRoom:
    def __init__(self, store: Store) -> None:
        self.store = store
        self._start_over()
        _rooms.add(self)

    def _start_over(self) -> None:
        if (watch := getattr(self, "_watch", None)) is not None:
            _inherited.append(watch)
        self._lock = threading.Lock()
        self._bell = Sleeper()
        self._small, self._large = self._tables = _Table(), _Table()
        self._tickets: set[Ticket] = set()
        self._watch: Watch | None = None
        self._thread: int | None = None
        self._over = threading.Lock()  # the thread has it as long as it runs
        self._sleeps_in: Wakeable | Watch | None = None
        self._sound = True  # it has looked and slept since the last trouble
        self._closing = False
        self._sweep_at = 0.0
        self._begin_at = 0.0
        self._calm_at = 0.0

    # What waiters do.

    def wait(self, ids: Collection[bytes], timeout: float) -> set[bytes]:
        """Sleep until at least one of them has ended or is gone; those that have, none when the time is up."""
        sleeper, until = Sleeper(), time.monotonic() + timeout
        ticket = self.ticket(sleeper)
        try:
            ticket.add(ids)
            while not (ended := ticket.take()) and (left := until - time.monotonic()) > 0:
                sleeper.nap(left)
            return ended
        finally:
            ticket.leave()

    async def await_ended(self, ids: Collection[bytes], timeout: float) -> set[bytes]:
        """`wait` for coroutines; it holds no thread meanwhile."""
        sleeper, until = AsyncSleeper(), time.monotonic() + timeout
        ticket = self.ticket(sleeper)
        try:
            ticket.add(ids)
            while not (ended := await taken(ticket)) and (left := until - time.monotonic()) > 0:
                await sleeper.sleep(min(left, POLL) if ticket.looks else left)
            return ended
        finally:
            ticket.leave()

    def ticket(self, sleeper: Wakeable) -> Ticket:
        return Ticket(self, sleeper)

    def enter(self, ticket: Ticket, ids: Collection[bytes]) -> None:
        with self._lock:
            if ticket.left:
                return
            if not ticket.wanted:
                ticket.large = len(ids) > FEW
            new = [id for id in dict.fromkeys(ids) if id not in ticket.wanted]
            ticket.wanted.update(new)  # first, as `leave` goes by it
            self._enter(ticket, new)

    def _enter(self, ticket: Ticket, ids: Iterable[bytes]) -> None:
        self._tickets.add(ticket)
        table = self._table(ticket)
        for id in ids:
            table.add(id, ticket)
        self._closing = False
        self._call() if self._thread is not None else self._begin()

    def _begin(self) -> None:
        """Start the thread, which says itself that it runs: an exception may hit this one before it can.

        Not with `threading`, whose `start` waits in Python for the thread: an exception there may leave both hanging.
        """
        now = time.monotonic()
        if now >= self._begin_at:
            self._begin_at = now + BEGINNING
            _thread.start_new_thread(self._run, ())

    def taken(self, ticket: Ticket) -> set[bytes]:
        with self._lock:
            if ticket.error is not None:
                raise copy.copy(ticket.error) from ticket.error  # many threads may raise it
            if ticket.wanted and ticket not in self._tickets and not ticket.left:  # this is a forked child
                self._enter(ticket, ticket.wanted)
            if ticket.wanted and self._thread is None:
                self._begin()
            ended, ticket.ended = ticket.ended, set()
            return ended

    def leave(self, ticket: Ticket) -> None:
        with self._lock:
            self._leave(ticket)

    def _leave(self, ticket: Ticket) -> None:
        ticket.left = True
        if ticket in self._tickets:
            table = self._table(ticket)
            for id in ticket.wanted:
                table.remove(id, ticket)
            self._tickets.remove(ticket)  # last: if an exception comes first, the next sweep finds it
            if not any(self._tables):
                self._call()

    def close(self) -> None:
        """End the thread, and close its watch, unless somebody waits; then they end with the last who does."""
        with self._lock:
            self._closing = True
            over = None if any(self._tables) or self._thread == threading.get_ident() else self._over
            self._call()
        if over is not None and over.acquire(timeout=CLOSING):
            over.release()

    def _table(self, ticket: Ticket) -> _Table:
        return self._large if ticket.large else self._small

    def _call(self) -> None:
        if self._sleeps_in is not None:
            self._sleeps_in.wake()
            self._sleeps_in = None

    # What the thread does.

    def _run(self) -> None:
        over = threading.Lock()
        with over:
            self._serve(over)

    def _serve(self, over: threading.Lock) -> None:
        with self._lock:
            goes_on, self._begin_at = self._thread is None, 0.0
            if goes_on:
                self._thread, self._over = threading.get_ident(), over
        while goes_on:
            try:
                goes_on = self._turn()
            except BaseException as error:
                self._recover(error)

    def _turn(self) -> bool:
        """Look or sleep, once; False where nobody has come for a while."""
        with self._lock:
            now = time.monotonic()
            self._sweep(now)
            wanted = [table.due(now) for table in self._tables]
        if any(wanted):
            self._look(wanted)
        elif not any(self._tables):
            return self._stay()
        elif self._watch is None:
            self._open()
        else:
            self._sleep(self._watch)
        return True

    def _sweep(self, now: float) -> None:
        """Forget the waiters whose event loop was closed, or that an exception has kept from leaving."""
        if now >= self._sweep_at:
            self._sweep_at = now + SWEEP
            for ticket in [ticket for ticket in self._tickets if ticket.gone]:
                self._leave(ticket)

    def _look(self, wanted: list[list[bytes]]) -> None:
        began = time.monotonic()
        ended = self.store.ended(list(dict.fromkeys(chain.from_iterable(wanted))))
        now = time.monotonic()
        with self._lock:
            for table in self._tables:
                self._tell(table, ended)
                table.looked(now, now - began, polls=self._watch is None or not self._watch.misses_nothing)

    def _tell(self, table: _Table, ended: set[bytes]) -> None:
        for id in ended:
            for ticket in table.pop(id):
                if not ticket.ended:
                    ticket.wake()
                ticket.ended.add(id)
                ticket.wanted.discard(id)

    def _open(self) -> None:
        """Begin to watch, and look once more: something may have ended since the first look."""
        watch = self.store.watch_endings()
        with self._lock:
            self._watch = watch
            for table in self._tables:
                table.hurry()

    def _sleep(self, watch: Watch) -> None:
        with self._lock:
            tables = [table for table in self._tables if table]
            left = min([self._sweep_at, *(table.next_look for table in tables)]) - time.monotonic()
            if not tables or left <= 0:
                return
            watches = not all(table.stale for table in tables)  # else it is known that something has changed
            self._sleeps_in = watch if watches else self._bell
            self._sound = True
        if not watches:
            self._bell.sleep(left)
        elif watch.wait(left):
            for table in tables:
                table.stale = True
        self._sleeps_in = None

    def _stay(self) -> bool:
        """Wait for the next one to come; False, and the watch is closed, where nobody does for a while."""
        if self._nobody_comes(WARM):
            if self._watch is not None and not self._closing:
                self._watch.settle()  # nobody needs to call us
            self._nobody_comes(LINGER)
        with self._lock:
            if any(self._tables):
                return True
            self._thread = None
            watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()
        return False

    def _nobody_comes(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while True:
            with self._lock:
                left = until - time.monotonic()
                if any(self._tables) or self._closing or left <= 0:
                    return not any(self._tables)
                self._sleeps_in = self._bell
            self._bell.sleep(left)

    def _recover(self, error: BaseException) -> None:
        """Try once more with a new watch: a connection may have been cut. Else all who wait are told."""
        with self._lock:
            watch, self._watch = self._watch, None
            self._sleeps_in = None
            hopeless = not self._sound or not isinstance(error, StoreError)
            self._sound = hopeless
            for table in self._tables:
                table.hurry()
            if hopeless:
                self._dismiss(error)
        if watch is not None:
            with suppress(Exception):
                watch.close()
        self._bell.sleep(self._calm_at - time.monotonic())
        self._calm_at = time.monotonic() + CALM_DOWN

    def _dismiss(self, error: BaseException) -> None:
        for ticket in tuple(self._tickets):
            ticket.error = error
            self._leave(ticket)
            ticket.wake()


class LonelyRoom(WaitingRoom):
    """Each looks for itself and from time to time: for stores that no other thread may ask."""

    def ticket(self, sleeper: Wakeable) -> Ticket:
        return LookingTicket(self, sleeper)


async def taken(ticket: Ticket) -> set[bytes]:
    return await in_thread(ticket.take) if ticket.looks else ticket.take()


@atexit.register
def _close_all() -> None:
    for room in list(_rooms):
        room.close()
