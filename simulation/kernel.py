"""Virtual time, and threads that run one at a time: each hands over when it waits, and the seed decides who is next.

They are real threads, so that the roles run as they are, with all they have on their stacks while they wait. But only
the one that has the baton runs, so a seed gives the same history every time.
"""

from __future__ import annotations

import heapq
import math
import random
import threading
from collections import deque
from collections.abc import Callable
from queue import Empty
from typing import Any

from packhorse.clock import SECOND

STEPS_CAP = 50_000  # of one seed: far more than any takes, unless something goes round in circles


class Killed(BaseException):
    """Raised in the threads of a process that is no more, wherever they wait or call."""


class Owner:
    """What threads belong to: a process, with its own monotonic clock."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dead = False
        self.frozen_until = 0
        self.ticks_behind = 0  # microseconds of virtual time that its monotonic clock did not count


class Thread:
    """The part of threading.Thread that Packhorse uses."""

    def __init__(self, kernel: Kernel, owner: Owner, target: Callable[[], object], name: str) -> None:
        self._kernel = kernel
        self.owner = owner
        self.target = target
        self.name = name
        self.baton: threading.Lock | None = None  # of the real thread that runs it
        self.ended = False
        self.waits = 0  # counts its waits, so that an old alarm wakes nobody
        self.woken = False
        self.error: BaseException | None = None  # raised in it when it next wakes
        self.joining: list[Thread] = []

    def start(self) -> None:
        self._kernel.begin(self)

    def join(self) -> None:
        kernel = self._kernel
        while not self.ended:
            self.joining.append(kernel.current)
            kernel.wait(None)

    def is_alive(self) -> bool:
        return not self.ended


class Crew:
    """Real threads, kept from seed to seed: to start one costs more than a turn."""

    def __init__(self) -> None:
        self._idle: list[tuple[threading.Lock, list[Thread]]] = []

    def run(self, thread: Thread) -> None:
        """Give it a real thread, which begins at once."""
        if self._idle:
            baton, hand = self._idle.pop()
        else:
            baton, hand = threading.Lock(), []
            baton.acquire()
            threading.Thread(target=self._work, args=(baton, hand), daemon=True, name="simulated").start()
        hand.append(thread)
        thread.baton = baton
        baton.release()

    def _work(self, baton: threading.Lock, hand: list[Thread]) -> None:
        while True:
            baton.acquire()
            thread = hand.pop()
            kernel = thread._kernel
            try:
                thread.target()
            except Killed:
                pass
            except BaseException as error:
                kernel.fail(f"{thread.owner.name}: {thread.name} ended in {error!r}", error)
            self._idle.append((baton, hand))
            kernel.end(thread)


CREW = Crew()


class Kernel:
    def __init__(self, rng: random.Random) -> None:
        self.now = 0
        self.rng = rng
        self._events: list[tuple[int, float, int, Thread | None, Any]] = []
        self._count = 0
        self._unwinding = False
        self._threads: list[Thread] = []
        self.main = Thread(self, Owner("world"), lambda: None, "main")
        self.main.baton = threading.Lock()
        self.main.baton.acquire()
        self.current = self.main
        self.failure: str | None = None
        self.error: BaseException | None = None
        self.switches = 0

    # For simulated threads.

    def thread(self, target: Callable[..., object], args: tuple[Any, ...] = (), name: str = "", **_: Any) -> Thread:
        """As threading.Thread(...): it belongs to whoever makes it."""
        return Thread(self, self.current.owner, lambda: target(*args), name)

    def begin(self, thread: Thread) -> None:
        self._push(self.now, thread, thread.waits)

    def sleep(self, seconds: float) -> None:
        self.wait(self.later(seconds))

    def later(self, seconds: float) -> int:
        return self.now + max(0, math.ceil(seconds * SECOND))

    def wait(self, until: int | None) -> bool:
        """Let others run; True where somebody woke this thread before that moment."""
        me = self.current
        self.check()
        me.waits += 1
        me.woken = False
        if until is not None:
            self._push(until, me, me.waits)
        self._hand_over(me)
        self.check()
        me.waits += 1
        if me.error is not None:
            error, me.error = me.error, None
            raise error
        return me.woken

    def wake(self, thread: Thread) -> None:
        if not thread.woken:
            thread.woken = True
            self._push(self.now, thread, thread.waits)

    def at(self, moment: int, owner: Owner, act: Callable[[], object]) -> None:
        """Call it then, in the name of the owner; it must not wait."""
        self._push(max(moment, self.now), None, (owner, act))

    def check(self) -> None:
        if self._unwinding or self.current.owner.dead:
            raise Killed

    def fail(self, text: str, error: BaseException | None = None) -> None:
        """What was found to be wrong; the first is told."""
        if self.failure is None:
            self.failure, self.error = text, error

    # For the main thread.

    def unwind(self) -> None:
        """End every thread that is left, so that its real one is free for the next seed."""
        self._unwinding = True
        for thread in self._threads:
            if not thread.ended:
                self.current = thread
                assert thread.baton is not None
                assert self.main.baton is not None
                thread.baton.release()
                self.main.baton.acquire()
        self.current = self.main

    # Handing over.

    def end(self, thread: Thread) -> None:
        thread.ended = True
        if self._unwinding:
            assert self.main.baton is not None
            self.main.baton.release()
            return
        for other in thread.joining:
            self.wake(other)
        self._pass_to(self._next())

    def _hand_over(self, me: Thread) -> None:
        following = self._next()
        if following is me:
            self.current = me
            return
        assert me.baton is not None
        mine = me.baton
        self._pass_to(following)
        mine.acquire()

    def _pass_to(self, thread: Thread) -> None:
        self.current = thread
        self.switches += 1
        if thread.baton is None:
            self._threads.append(thread)
            CREW.run(thread)
        else:
            thread.baton.release()

    def _push(self, moment: int, thread: Thread | None, what: Any) -> None:
        self._count += 1
        if self._count > STEPS_CAP:
            self.fail("it comes to no end")
        heapq.heappush(self._events, (moment, self.rng.random(), self._count, thread, what))

    def _next(self) -> Thread:
        """Who runs next. What is no thread is done on the way."""
        while self.failure is None:
            moment, _, _, thread, what = heapq.heappop(self._events)
            owner = what[0] if thread is None else thread.owner
            if owner.dead or (thread is not None and (thread.waits != what or thread.ended)):
                continue
            self.now = max(self.now, moment)
            if owner.frozen_until > self.now:
                self._push(owner.frozen_until, thread, what)
            elif thread is not None:
                return thread
            else:
                self.current = Thread(self, owner, what[1], "alarm")
                try:
                    what[1]()
                except Killed:
                    pass
                except BaseException as error:
                    self.fail(f"{owner.name}: {error!r}", error)
        return self.main

    # What stands in for modules.

    def monotonic(self) -> float:
        return (self.now - self.current.owner.ticks_behind) / SECOND + 1_000

    def monotonic_ns(self) -> int:
        return round(self.monotonic() * 1e9)


class Time:
    """As the module `time`, for those who measure and sleep."""

    def __init__(self, kernel: Kernel) -> None:
        self.monotonic = kernel.monotonic
        self.monotonic_ns = kernel.monotonic_ns
        self.sleep = kernel.sleep


class Threading:
    """As the module `threading`."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.Thread = kernel.thread

    def Event(self) -> Event:
        return Event(self._kernel)

    def Lock(self) -> Lock:
        return Lock(self._kernel)

    def get_ident(self) -> int:
        return id(self._kernel.current)

    def current_thread(self) -> Thread:
        return self._kernel.current


class Event:
    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._is_set = False
        self._waiting: list[Thread] = []

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        waiting, self._waiting = self._waiting, []
        for thread in waiting:
            self._kernel.wake(thread)

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        kernel = self._kernel
        until = None if timeout is None else kernel.later(timeout)
        while not self._is_set:
            self._waiting.append(kernel.current)
            if not kernel.wait(until):
                self._waiting.remove(kernel.current)
                break
        return self._is_set


class Lock:
    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._held = False
        self._waiting: list[Thread] = []

    def __enter__(self) -> None:
        while self._held:
            self._waiting.append(self._kernel.current)
            self._kernel.wait(None)
        self._held = True

    def __exit__(self, *_: object) -> None:
        self._held = False
        if self._waiting:
            self._kernel.wake(self._waiting.pop(0))


class Queue:
    """As queue.SimpleQueue."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._items: deque[Any] = deque()
        self._waiting: list[Thread] = []

    def put(self, item: Any) -> None:
        self._items.append(item)
        if self._waiting:
            self._kernel.wake(self._waiting.pop(0))

    def empty(self) -> bool:
        return not self._items

    def get(self, timeout: float | None = None) -> Any:
        kernel = self._kernel
        until = None if timeout is None else kernel.later(timeout)
        if timeout == 0:
            kernel.sleep(0.001)  # nothing takes no time at all, or a role that has much to do would stop the clock
        while not self._items:
            me = kernel.current
            self._waiting.append(me)
            if not kernel.wait(until):
                if me in self._waiting:
                    self._waiting.remove(me)
                if not self._items:
                    raise Empty
        return self._items.popleft()
