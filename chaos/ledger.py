"""The effect ledger: what tasks really did, in a file outside the store. One appending write for each line."""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from chaos.history import SECOND, SELF, Effect, Fault, Line, What
from chaos.processes import descendants
from packhorse import Context

BEAT = 0.1  # seconds between two signs that a long task still runs


def now() -> int:
    """Microseconds that go on while the machine sleeps, the same for all processes."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


class Ledger:
    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, line: Line) -> None:
        about = ",".join(f"{name}={value}" for name, value in line.about.items())
        words = (line.at, line.what, line.job, line.run, line.generation, line.pid, line.kind, about or "-")
        # Opened anew each time: a task of a forked process, or one that a fault left behind, needs no other care.
        fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(fd, (" ".join(map(str, words)) + "\n").encode())
        finally:
            os.close(fd)

    def read(self) -> Iterator[Line]:
        if not self.path.exists():
            return
        with self.path.open() as file:
            for text in file:
                if text.endswith("\n"):  # what a killed process had begun to write tells nothing
                    yield parse(text)

    @contextmanager
    def run(self, context: Context, **about: str) -> Iterator[Running]:
        """Around the body of a task: its start, and how it ended."""
        running = Running(self, context, about)
        running.write(What.START, **about)
        try:
            yield running
        except BaseException as error:
            running.write(What.RAISED, error=type(error).__name__)
            raise
        running.write(What.FINISH)


class Running:
    """One call of a task's function; its name is the result of the job, so that the store tells which one it took."""

    def __init__(self, ledger: Ledger, context: Context, about: dict[str, str]) -> None:
        self._ledger = ledger
        self._context = context
        self.name = secrets.token_hex(6)

    def write(self, what: What, **about: str) -> None:
        context = self._context
        generation = context.attempt + context.losses
        self._ledger.append(Line(now(), what, context.job_id, self.name, generation, os.getpid(), context.task, about))

    def die(self) -> None:
        """Kill this process, and with it those that it has started."""
        pids = [os.getpid(), *descendants(os.getpid())]
        self.write(What.DIES, pids="+".join(map(str, pids)))
        os.kill(os.getpid(), signal.SIGKILL)

    def beat(self) -> None:
        self.write(What.BEAT)

    def step(self, name: str) -> str:
        """A durable step: what it did, and that it is on record."""

        def effect() -> str:
            self.write(What.EFFECT, step=name)
            return self.name

        value = self._context.step(name, effect)
        self.write(What.KEPT, step=name)
        return value


def deaths(lines: Iterable[Line]) -> Iterator[Fault]:
    """The harm that tasks have done themselves."""
    for line in lines:
        if line.what is What.DIES:
            pids = frozenset(map(int, line.about["pids"].split("+")))
            yield Fault(SELF, line.at, line.at + SECOND, Effect.KILL, pids)


def parse(text: str) -> Line:
    at, what, job, run, generation, pid, kind, about = text.split()
    pairs = dict(pair.split("=", 1) for pair in about.split(",")) if about != "-" else {}
    return Line(int(at), What(what), job, run, int(generation), int(pid), kind, pairs)
