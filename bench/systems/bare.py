"""sqlite3 alone: what the store and Python allow."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from bench.bare_worker import INSERT, TABLE, connect, new_row
from bench.lab import Lab
from bench.sizes import BARE_BATCH, BARE_LARGE_BATCH, PROCESSES
from bench.systems.base import START_DEADLINE, Running, System, python

BULK = 1_000


class BareSystem(System):
    name = "bare"
    batch = BARE_BATCH
    processes = PROCESSES

    def __init__(self, lab: Lab, database: Path | None = None) -> None:
        super().__init__(lab, database)
        self._connection = connect(str(self.database))
        if not self._connection.execute("select 1 from sqlite_master").fetchone():
            self._connection.executescript(TABLE)
        self._running: Running | None = None

    def enqueue(self, number: int) -> None:
        self._connection.execute("begin immediate")
        self._connection.execute(INSERT, new_row(number))
        self._connection.execute("commit")

    def fill(self, numbers: Iterable[int]) -> None:
        rest = iter(numbers)
        while part := [new_row(number) for number in islice(rest, BULK)]:
            self._connection.execute("begin immediate")
            self._connection.executemany(INSERT, part)
            self._connection.execute("commit")

    def start(self, *, held: bool = False) -> Running:
        self._running = BareRunning(self)
        if not held:
            self.go()
        return self._running

    def go(self) -> None:
        assert self._running is not None
        for handle in self._running.handles:
            assert handle.stdin is not None
            handle.stdin.write(b"go\n")
            handle.stdin.flush()

    def unfinished(self) -> int:
        return int(self._connection.execute("select count(*) from job where state < 2").fetchone()[0])

    def close(self) -> None:
        self._connection.close()


class BareLargeSystem(BareSystem):
    """The same loop with larger batches."""

    name = "bare_large"
    batch = BARE_LARGE_BATCH


class BareOneSystem(BareSystem):
    """The same loop in one process, one job at a time: each costs a commit."""

    name = "bare_one"
    batch = 1
    processes = 1


class BareRunning(Running):
    def __init__(self, system: BareSystem) -> None:
        command = python("-m", "bench.bare_worker", str(system.database), str(system.batch))
        super().__init__(system.lab, system.name, [command] * system.processes, {}, signal.SIGTERM)
        deadline = time.monotonic() + START_DEADLINE
        for handle in self.handles:
            assert handle.stdout is not None
            if handle.stdout.readline() != b"ready\n" or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"The bare loop did not start: {self.log.read_text()[-2000:]}")
