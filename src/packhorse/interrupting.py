"""Exceptions that are raised into a thread from outside, and the code of ours that they must not strike.

CPython raises such an exception wherever the thread next looks: behind a call that took a lock, and before the line
that would have noted it. So where code holds what others need, the exception is put off: the interrupter finds the
guard up and leaves word, and it is raised in the thread itself when the guard is down and nothing is held any more.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Callable, Collection
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

SLICE = 0.5  # seconds of a wait after which the guard is lowered for a moment
# Some versions of Python take locks in there that an exception leaves taken.
TAKES_LOCKS = frozenset({"logging", "logging.handlers", "importlib._bootstrap", "importlib._bootstrap_external"})
FRAMES = 8  # that are looked at
PATIENCE = 1.0  # seconds after which it is raised although the thread is still in there
AGAIN = 0.05  # seconds until one that was lost is raised anew


class Guard:
    """Belongs to the thread that makes it. It is up while the thread has the lock, which nobody else holds for long."""

    __slots__ = ("_asking", "_in_vain_since", "_lock", "_note", "_raised", "_thread")

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._lock = threading.RLock()
        self._asking = threading.Lock()
        self._note: tuple[object, type[BaseException]] | None = None
        self._raised: type[BaseException] | None = None
        self._in_vain_since: float | None = None
        self.sit()

    def sit(self) -> None:
        """From now on it guards this thread, which is the one that made it."""
        _here.guard = self
        _watch_destructors()

    @property
    def whom(self) -> object:
        """Return who would meet an exception now; None where nobody would."""
        return self

    def interrupt(self, whom: object, error: type[BaseException]) -> bool:
        """Raise it in the thread: now, or when the guard is down. False where that meets nobody, or only later."""
        with self._asking:
            if self.whom != whom:
                return False
            if self._lock.acquire(blocking=False):
                try:
                    return self._raise(whom, error)
                finally:
                    self._lock.release()
            self._note = (whom, error)
            # The thread may have lowered its guard in between, and looked for a note before there was one.
            if self._lock.acquire(blocking=False):
                try:
                    noted, self._note = self._note, None
                    return noted is None or self._raise(whom, error)
                finally:
                    self._lock.release()
            return True

    def _raise(self, whom: object, error: type[BaseException]) -> bool:
        if self.whom != whom or self._is_in_the_way():
            return False
        self._raised = error
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), ctypes.py_object(error))
        return True

    def _is_in_the_way(self) -> bool:
        """Whether it would strike code of Python's that takes a lock for all threads. Whoever asks comes again."""
        frame, now = sys._current_frames().get(self._thread), time.monotonic()
        for _ in range(FRAMES):
            if frame is None:
                break
            if frame.f_globals.get("__name__") in TAKES_LOCKS:
                self._in_vain_since = self._in_vain_since or now
                return now < self._in_vain_since + PATIENCE
            frame = frame.f_back
        self._in_vain_since = None
        return False

    @property
    def is_expecting(self) -> bool:
        """Whether something is noted, or may be on its way."""
        return self._note is not None or self._raised is not None

    def forget(self) -> None:
        """Nobody is there any more for whom what is noted or on its way was meant. What is on its way strikes here.

        It is not called back, as PyThreadState_SetAsyncExc can: that leaves Python 3.11 looking for one at every step,
        and for ever at the first where it is profiled.
        """
        self._note = None
        if self._raised is not None:
            self._raised = None
            _let_it_strike()

    def deliver(self) -> None:
        """Raise what was put off, unless more of ours is under way."""
        if self._lock._is_owned():  # type: ignore[attr-defined]
            return
        with self._lock:
            noted, self._note = self._note, None
        if noted is not None and self.whom == noted[0]:
            raise noted[1]

    def is_lost(self, error: type[BaseException]) -> None:
        """It struck where nobody hears it. To be raised anew, as soon as the thread is out of there."""
        again = threading.Thread(target=self._raise_anew, args=[self.whom, error], daemon=True)
        again.start()

    def _raise_anew(self, whom: object, error: type[BaseException]) -> None:
        time.sleep(AGAIN)
        while self.whom == whom and not self.interrupt(whom, error):
            time.sleep(AGAIN)


class _Here(threading.local):
    guard: Guard | None = None


_here = _Here()


def _let_it_strike() -> None:
    """CPython looks for an exception from outside at every function's entry."""


def uninterrupted(function: Callable[P, R]) -> Callable[P, R]:
    """What interrupts the thread waits until the function has ended; then it is raised.

    No context manager, whose own `__enter__` and `__exit__` could be struck: the lock is taken and released by the
    interpreter, in this one frame.
    """

    @wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        guard = _here.guard
        if guard is None:
            return function(*args, **kwargs)
        try:
            with guard._lock:
                if guard._raised is not None:  # it may be on its way still
                    _let_it_strike()
                return function(*args, **kwargs)
        finally:
            if guard._note is not None:
                guard.deliver()

    guarded.__dict__["is_guarded"] = True
    return guarded


def waits(function: Callable[..., set[bytes]]) -> Callable[..., set[bytes]]:
    """As `uninterrupted`, of what waits for ids until a timeout: the guard is lowered again and again."""
    guarded = uninterrupted(function)

    @wraps(function)
    def in_slices(self: Any, ids: Collection[bytes], timeout: float) -> set[bytes]:
        if _here.guard is None:
            return function(self, ids, timeout)
        deadline = time.monotonic() + timeout
        while not (ended := guarded(self, ids, min(timeout, SLICE))) and (timeout := deadline - time.monotonic()) > 0:
            pass
        return ended

    in_slices.__dict__["is_guarded"] = True
    return in_slices


def guard_methods(base: type, kind: type) -> None:
    """Let nothing interrupt what a class does of the public methods that its base declares."""
    for name, method in list(vars(kind).items()):
        declared = not name.startswith("_") and callable(vars(base).get(name))
        if declared and callable(method) and not getattr(method, "is_guarded", False):
            setattr(kind, name, waits(method) if name == "wait_jobs" else uninterrupted(method))


def _watch_destructors() -> None:
    """An exception that strikes in a destructor goes to this hook of Python's, and no further."""
    before = sys.unraisablehook
    if getattr(before, "__module__", "") == __name__:
        return

    def hook(lost: Any) -> None:
        guard = _here.guard
        if guard is not None and guard._raised is not None and guard._raised is lost.exc_type:
            guard.is_lost(guard._raised)
        else:
            before(lost)

    sys.unraisablehook = hook
