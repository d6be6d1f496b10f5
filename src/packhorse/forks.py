"""Forked copies of our processes: a copy ends where its code would go on into ours.

A task may fork. Its child has a copy of everything, also of the worker around the task; when the code of the task
leaves by an exception or by a return, it would come back into that copy, which would perform jobs, answer and beat like
the worker itself. So whatever calls code that is not ours notes the generation first, and ends the copy where it is
another one afterwards.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn, ParamSpec, Protocol, TypeVar
from weakref import WeakSet

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound="HasDescriptor")

FAREWELL = 2.0  # seconds to write what is left to say; a lock may have been held by a thread that was not copied

generation = 0  # forks between the first of our processes and this one

_handlers: dict[int, Callable[[int, Any], object]] = {}
_private: WeakSet[HasDescriptor] = WeakSet()
_forking = threading.local()


class HasDescriptor(Protocol):
    """A file, a socket, or what else has a descriptor."""

    def fileno(self) -> int: ...


# Before the fork.


def handle(number: int, handler: Callable[[int, Any], object]) -> None:
    """Install a signal handler for this process alone: copies get the default action, so that the signal ends them."""
    _handlers[number] = handler
    signal.signal(number, handler)


def keep_private(file: F) -> F:
    """Take its descriptor away from copies: they must not talk on it, nor keep it open. Returns the file."""
    _private.add(file)
    return file


def _hold_signals() -> None:
    """One that comes to the child before its handlers are gone would be lost on them."""
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _handlers) if _handlers else None


def _release_signals() -> None:
    if (mask := getattr(_forking, "mask", None)) is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


# In the copy.


def _begin() -> None:
    global generation
    generation += 1
    _reset_signals()
    _take_away()
    _release_signals()


def _reset_signals() -> None:
    """What is ignored stays ignored, as in a program that a task starts: the terminal sends INT to everybody."""
    for number, handler in _handlers.items():
        if signal.getsignal(number) is handler:
            signal.signal(number, signal.SIG_DFL)
    if _handlers:
        signal.set_wakeup_fd(-1)
    _handlers.clear()


def _take_away() -> None:
    """Not by closing: the number would be given to another file, which our objects would take for theirs."""
    if not _private:
        return
    nothing = os.open(os.devnull, os.O_RDWR)
    for file in list(_private):
        with suppress(OSError, ValueError):  # it is closed
            os.dup2(nothing, file.fileno(), inheritable=False)
    os.close(nothing)


os.register_at_fork(before=_hold_signals, after_in_parent=_release_signals, after_in_child=_begin)


def guarded(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Call code that is not ours. A copy of this process that comes back from there ends."""
    before = generation
    try:
        result = function(*args, **kwargs)
    except BaseException as error:
        if generation != before:
            end_copy(error)
        raise
    if generation != before:
        end_copy()
    return result


def end_copy(error: BaseException | None = None) -> NoReturn:
    """End this copy as a program ends whose last line was reached, or raised this. Nothing else of ours runs in it."""
    match error:
        case None:
            leave(0)
        case SystemExit(code=int() | None as code):
            leave((code or 0) & 0xFF)
        case SystemExit(code=said):
            leave(1, f"{said}\n")
        case _:
            leave(1, lambda: "".join(traceback.format_exception(error)))


def leave(status: int, words: str | Callable[[], str] = "") -> NoReturn:
    """End this copy now, after these words on standard error."""

    def tell() -> None:
        with suppress(Exception):
            sys.stderr.write(words if isinstance(words, str) else words())
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()

    try:
        teller = threading.Thread(target=tell, daemon=True)
        teller.start()
        teller.join(FAREWELL)
    finally:
        os._exit(status)
