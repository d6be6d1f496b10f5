"""What stands in for the machine: its clocks, threads, signals and children, and the line to the store."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from unittest import mock

from packhorse import ids, job
from packhorse.clock import SECOND
from packhorse.runtime import (
    deadlines,
    dispatcher,
    perform,
    process,
    progress,
    scheduler,
    slots,
    supervisor,
    wakeup,
    worker,
)
from packhorse.runtime.process import Process
from packhorse.runtime.supervisor import Child
from simulation.kernel import Kernel, Queue, Threading, Time
from simulation.loop import seats
from simulation.tasks import Stage

if TYPE_CHECKING:
    from simulation.world import Proc, World

BEGINNING = 1_800_000_000 * SECOND


class Clock:
    """The store's. Its wall time may be set; its ticks go on."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._set = 0
        self._boots = 1
        self._booted = 0

    def now(self) -> int:
        return BEGINNING + self._kernel.now + self._set

    def ticks(self) -> int:
        return self._kernel.now - self._booted + SECOND

    def boot(self) -> str:
        return f"boot {self._boots}"

    def step(self, seconds: float) -> None:
        self._set += round(seconds * SECOND)

    def reboot(self) -> None:
        self._boots += 1
        self._booted = self._kernel.now


class Skewed:
    """The clock of a process: not quite the store's."""

    def __init__(self, clock: Clock, skew: int) -> None:
        self._clock = clock
        self._skew = skew
        self.ticks, self.boot = clock.ticks, clock.boot

    def now(self) -> int:
        return self._clock.now() + self._skew


class Line:
    """The store, as one process sees it."""

    def __init__(self, world: World, proc: Proc) -> None:
        self._world = world
        self._proc = proc

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._world.store, name)
        if not callable(real) or name in ("close", "own_key"):
            return real
        self.__dict__[name] = found = partial(self._world.call, self._proc, name, real)
        return found


class Watcher:
    """Wakes a worker when something has changed; without a thread of its own."""

    def __init__(self, world: World, store: Line, queues: object, wake: Callable[[], None]) -> None:
        self._proc = world.proc
        self._wake = wake
        self._armed = False
        self._world = world
        world.watchers.append(self)

    def set_armed(self, armed: bool) -> None:
        self._armed = armed

    def close(self) -> None:
        self._armed = False

    def tell(self) -> None:
        if self._armed and not self._proc.dead:
            self._armed = False
            kernel = self._world.kernel
            kernel.at(kernel.now, self._proc, self._wake)


class Popen:
    """A child, as its supervisor sees it."""

    def __init__(self, world: World, proc: Proc) -> None:
        self._world = world
        self._proc = proc
        self.pid = proc.pid

    @property
    def returncode(self) -> int | None:
        return self._proc.status

    def poll(self) -> int | None:
        return self._proc.status

    def wait(self) -> None:
        """It has ended by the time it can be asked."""

    def kill(self) -> None:
        self._world.crash(self._proc, -signal.SIGKILL)

    def terminate(self) -> None:
        self._later(lambda process: process.stop())

    def send_signal(self, number: int) -> None:
        self._later(lambda process: process.role.quiet())

    def _later(self, act: Callable[[Process], object]) -> None:
        world, proc = self._world, self._proc
        world.kernel.at(world.kernel.now, proc, lambda: act(proc.process) if proc.process else None)


@contextmanager
def stand_ins(world: World) -> Iterator[None]:
    """Everything of the machine that the roles would see; the roles themselves are left as they are."""
    kernel = world.kernel
    noise = random.Random(world.seed + 1)
    time, threading, queue = Time(kernel), Threading(kernel), partial(Queue, kernel)
    network = SimpleNamespace(gethostname=lambda: "host")
    machine = SimpleNamespace(path=os.path, getpid=lambda: world.proc.pid, _exit=world.exit, cpu_count=lambda: 2)

    class SimulatedChild(Child):
        def hear_out(self) -> None:
            """What it says is heard at once."""

        def __post_init__(self) -> None:
            self.started_at = kernel.monotonic()
            if self.plan.role == "worker":
                self.begun = world.new_page()
            self.process = cast(Any, world.start_child(self))

    signals = SimpleNamespace(**{name: getattr(signal, name) for name in dir(signal) if name.startswith("SIG")})
    signals.signal, signals.Signals = (lambda *_: None), signal.Signals
    replaced: dict[Any, dict[str, Any]] = {
        process: {"time": time, "threading": threading, "os": machine, "socket": network},
        worker: {
            "time": time,
            "os": machine,
            "secrets": SimpleNamespace(randbits=noise.getrandbits),
            "Watcher": partial(Watcher, world),
        },
        slots: {"time": time, "threading": threading, "SimpleQueue": queue, "Seat": seats(kernel)},
        # Looked at less often than in earnest, only to save steps.
        deadlines: {"time": time, "threading": threading, "TICK": 0.5},
        dispatcher: {"time": time, "LOOK_EVERY": 2.0},
        scheduler: {"time": time, "LOOK_EVERY": 2.0},
        perform: {"time": time},
        progress: {"threading": threading},
        wakeup: {"threading": threading, "SimpleQueue": queue},
        supervisor: {
            "time": time,
            "threading": threading,
            "os": machine,
            "socket": network,
            "signal": signals,
            "Child": SimulatedChild,
            "_is_stopped": world.is_frozen,
            "forks": SimpleNamespace(handle=lambda *_: None),
        },
        ids: {
            "time": SimpleNamespace(time_ns=lambda: (BEGINNING + kernel.now) * 1_000),
            "os": SimpleNamespace(urandom=noise.randbytes),
            "_sequence": ids._Sequence(),
        },
        job: {"_traceback": lambda error, skip_frames: ""},  # which would look for its source every time
        Stage: {"world": world},
    }
    with ExitStack() as stack:
        for module, names in replaced.items():
            stack.enter_context(mock.patch.multiple(module, create=module is Stage, **names))
        yield
