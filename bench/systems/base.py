"""What every measured system can do, and how its processes are started, watched and ended."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Self

import psutil

import packhorse
from bench.producer import Produced, at_full_speed, one_by_one
from bench.sizes import PROCESSES
from bench.tape import FOLDER, Mark, Tapes

if TYPE_CHECKING:
    from bench.lab import Lab

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path(packhorse.__file__).parents[1]  # of the version that this process measures
START_DEADLINE = 20.0
STOP_DEADLINE = 40.0
SLOW_STOP = 3.0


class System(ABC):
    """One system with one database, fresh or copied."""

    name: str
    pace: ClassVar[str] = "fast"  # how many jobs it is given to drain: Sizes.drain_jobs
    bulk: ClassVar[bool] = True  # has a call for many jobs

    def __init__(self, lab: Lab, database: str | None = None) -> None:
        self.lab = lab
        self.database = database or lab.store.new(self.name)

    @abstractmethod
    def enqueue(self, number: int) -> int:
        """One no-op job, durable when the call returns: when that was, in nanoseconds."""

    @abstractmethod
    def fill(self, numbers: Iterable[int]) -> None:
        """Many no-op jobs, in the quickest way the system has."""

    @abstractmethod
    def start(self, *, held: bool = False) -> Running:
        """Its worker processes, ready to work; `held` ones wait for `go` where the system can do that."""

    @abstractmethod
    def unfinished(self) -> int:
        """Jobs that the store does not yet show as finished."""

    @abstractmethod
    def close(self) -> None: ...

    def go(self) -> None:
        """Let held workers begin."""
        return

    def copy(self) -> Self:
        """The same jobs in a new database, so that repetitions start alike without filling again; after `close`."""
        return type(self)(self.lab, self.lab.store.copy(self.database))

    def one_by_one(self, first: int, last: int) -> None:
        asyncio.run(one_by_one(self._enqueue, first, last))

    def at_full_speed(self, first: int, seconds: float) -> Produced:
        return asyncio.run(at_full_speed(self._enqueue, first, seconds))

    async def _enqueue(self, number: int) -> None:
        self.enqueue(number)


class HeldSystem(System):
    """Each of its processes says that it is ready, and begins when a line comes."""

    processes = PROCESSES
    _running: Running | None = None

    @abstractmethod
    def command(self) -> list[str]:
        """Of one worker process."""

    def start(self, *, held: bool = False) -> Running:
        self._running = HeldRunning(self)
        if not held:
            self.go()
        return self._running

    def go(self) -> None:
        assert self._running is not None
        for handle in self._running.handles:
            assert handle.stdin is not None
            handle.stdin.write(b"go\n")
            handle.stdin.flush()


class Running:
    """Worker processes from start to stop, as a context; ended by their own handles whatever happens."""

    def __init__(self, lab: Lab, name: str, commands: list[list[str]], env: dict[str, str], stop: signal.Signals):
        self.lab = lab
        self.name = name
        self.stop_seconds = 0.0
        self._stop_signal = stop
        folder = lab.new_tapes()
        self._tapes = Tapes(folder)
        self.log = lab.new_folder("log") / "stderr.txt"
        env = environment() | {FOLDER: str(folder)} | env
        self.handles: list[subprocess.Popen[bytes]] = []
        lab.store.working(True)
        with self.log.open("wb") as log:
            for command in commands:
                handle = subprocess.Popen(
                    command, cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
                )
                self.handles.append(handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def alive(self) -> bool:
        return all(handle.poll() is None for handle in self.handles)

    def wait_until(self, condition: Callable[[], bool], seconds: float, pause: float = 0.01) -> bool:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline or not self.alive:
                return condition()
            time.sleep(pause)
        return True

    def wait_performed(self, jobs: int, seconds: float) -> bool:
        """Until so many jobs were performed; looks seldom, because there are only a few cores."""
        return self.wait_until(lambda: self._tapes.count() >= jobs, seconds, 0.02)

    def performed(self) -> int:
        return self._tapes.count()

    def marks(self) -> list[Mark]:
        return self._tapes.marks()

    def tree(self) -> list[psutil.Process]:
        """Our own children and all of theirs."""
        found = []
        for handle in self.handles:
            if handle.poll() is None:
                top = psutil.Process(handle.pid)
                found += [top, *top.children(recursive=True)]
        return found

    def workers(self) -> list[psutil.Process]:
        """The processes that perform jobs."""
        return self.tree()

    def worker_cpu(self) -> float:
        """Seconds of CPU the workers have used so far."""
        return float(sum(times.user + times.system for times in (process.cpu_times() for process in self.workers())))

    def stop(self) -> None:
        if not self.handles:
            return
        self._tapes.count()  # maps the tapes of processes that end now
        tree = self.tree()
        began = time.monotonic()
        for handle in self.handles:
            if handle.poll() is None:
                handle.send_signal(self._stop_signal)
        for handle in self.handles:
            try:
                handle.wait(max(0.1, began + STOP_DEADLINE - time.monotonic()))
            except subprocess.TimeoutExpired:
                self.lab.trouble(f"{self.name}: process {handle.pid} did not stop within {STOP_DEADLINE:g} s")
        self.stop_seconds = time.monotonic() - began
        if self.stop_seconds > SLOW_STOP:
            self.lab.note(f"{self.name}: a clean stop took {self.stop_seconds:.1f} s")
        _, left = psutil.wait_procs(tree, timeout=5)
        for process in left:
            self.lab.trouble(f"{self.name}: process {process.pid} outlived its parent and was killed")
            process.kill()
        for handle in self.handles:
            handle.wait()
            for pipe in (handle.stdin, handle.stdout):
                if pipe is not None:
                    pipe.close()
        self.handles = []
        self.lab.store.working(False)
        if text := self.log.read_text(errors="replace").strip():
            self.lab.note(f"{self.name} wrote to its log: {text[-240:]}")


class HeldRunning(Running):
    def __init__(self, system: HeldSystem) -> None:
        super().__init__(system.lab, system.name, [system.command()] * system.processes, {}, signal.SIGTERM)
        deadline = time.monotonic() + START_DEADLINE
        for handle in self.handles:
            assert handle.stdout is not None
            if handle.stdout.readline() != b"ready\n" or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"{system.name} did not start: {self.log.read_text()[-2000:]}")


def environment() -> dict[str, str]:
    """Of every process we start: it imports what stands in this folder, wherever else Packhorse is installed."""
    return os.environ | {"PYTHONPATH": os.pathsep.join((str(SOURCE), str(ROOT)))}


def python(*arguments: str) -> list[str]:
    return [sys.executable, *arguments]
