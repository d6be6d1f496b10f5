"""Event loops in which tasks run, and what becomes of them in a copy of the process that a task has forked."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NoReturn, ParamSpec, TypeVar, cast
from weakref import WeakSet

from packhorse import forks

P = ParamSpec("P")
R = TypeVar("R")

LOST = "A forked child came back to the event loop of its parent, where it cannot go on: it ends.\n"

_loops: WeakSet[asyncio.AbstractEventLoop] = WeakSet()


def new_loop() -> asyncio.AbstractEventLoop:
    """An event loop for tasks. A copy of the process that comes back to it, or to one of its threads, ends."""
    loop = asyncio.new_event_loop()
    loop.set_default_executor(_Threads(thread_name_prefix="packhorse-aside"))
    _loops.add(loop)
    return loop


class _Threads(ThreadPoolExecutor):
    """What coroutines do in threads is not ours either, and a copied thread would wait for more to do for ever."""

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        return super().submit(forks.guarded, fn, *args, **kwargs)


def _empty_loops() -> None:
    """What was about to run belongs to other jobs, and the selector to the parent as well."""
    for loop in list(_loops):
        if hasattr(loop, "_ready"):
            cast(Any, loop)._ready = _NoMore()
        else:  # of another maker; it ends with this round
            loop.stop()


class _NoMore:
    """In place of the queue of a copied loop, which looks into it before it runs or waits for anything."""

    def append(self, handle: Any) -> None:
        """It will never run."""

    def __len__(self) -> int:
        forks.leave(1, LOST)

    def popleft(self) -> NoReturn:
        forks.leave(1, LOST)


os.register_at_fork(after_in_child=_empty_loops)
