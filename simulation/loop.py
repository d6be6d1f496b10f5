"""What stands in for an event loop: coroutine tasks go on step by step, at moments of virtual time."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from typing import Any

from packhorse.clock import SECOND
from packhorse.runtime.seats import Seat
from simulation.kernel import Kernel, Killed, Owner, Thread


class Nap:
    """`await Nap(seconds)`."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __await__(self) -> Generator[Nap, Any, Any]:
        return (yield self)


class Hop:
    """A call in a thread of its own, that the loop waits for."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function

    def __await__(self) -> Generator[Hop, Any, Any]:
        return (yield self)


class Loop:
    def __init__(self, kernel: Kernel, owner: Owner, tasks: list[Task]) -> None:
        self.kernel = kernel
        self.owner = owner
        self._tasks = tasks

    def call_soon_threadsafe(self, function: Callable[..., object], *args: Any) -> None:
        self.kernel.at(self.kernel.now, self.owner, lambda: function(*args))

    def create_task(self, coroutine: Coroutine[Any, Any, None], context: contextvars.Context) -> Task:
        task = Task(self, coroutine, context)
        self._tasks.append(task)
        return task

    def run_in_executor(self, executor: None, function: Callable[[], Any]) -> Awaitable[Any]:
        return Hop(function)

    def stop(self) -> None:
        """Nothing runs by itself here."""


class Task:
    def __init__(self, loop: Loop, coroutine: Coroutine[Any, Any, None], context: contextvars.Context) -> None:
        self._loop = loop
        self._coroutine = coroutine
        self._context = context
        self._steps = 0
        self._over = False
        self._go_on(loop.kernel.now, None, None)

    def cancel(self) -> None:
        """Where it waits, as asyncio does."""
        self._steps += 1
        self._go_on(self._loop.kernel.now, None, asyncio.CancelledError())

    def close(self) -> None:
        if not self._over:
            self._over = True
            with suppress(Killed):
                self._context.run(self._coroutine.close)

    def _go_on(self, moment: int, value: Any, error: BaseException | None) -> None:
        step = self._steps
        self._loop.kernel.at(moment, self._loop.owner, lambda: self._step(step, value, error))

    def _step(self, step: int, value: Any, error: BaseException | None) -> None:
        if step != self._steps or self._over:
            return
        self._steps += 1
        asyncio._set_running_loop(self._loop)  # type: ignore[arg-type]
        try:
            if error is not None:
                waits_for = self._context.run(self._coroutine.throw, error)
            else:
                waits_for = self._context.run(self._coroutine.send, value)
        except StopIteration:
            self._over = True
            return
        finally:
            asyncio._set_running_loop(None)
        if isinstance(waits_for, Nap):
            self._go_on(self._loop.kernel.now + round(waits_for.seconds * SECOND), None, None)
        else:
            self._hop(waits_for, self._steps)

    def _hop(self, hop: Hop, step: int) -> None:
        loop = self._loop

        def run() -> None:
            value: Any = None
            error: BaseException | None = None
            try:
                value = hop.function()
            except Killed:
                raise
            except BaseException as raised:
                error = raised
            if step == self._steps:
                self._go_on(loop.kernel.now, value, error)

        Thread(loop.kernel, loop.owner, run, "hop").start()


def seats(kernel: Kernel) -> type[Seat]:
    """Where simulated threads perform: they are interrupted when they next wake."""

    class SimulatedSeat(Seat):
        __slots__ = ("_sitting",)

        def __init__(self) -> None:
            super().__init__()
            self._sitting = kernel.current

        def rise(self) -> None:
            self.token = None
            self._sitting.error = None

        def interrupt(self, whom: object, error: type[BaseException]) -> bool:
            if self.token != whom:
                return False
            self._sitting.error = error()
            return True

    return SimulatedSeat
