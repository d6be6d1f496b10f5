"""Huey on SQLite, at its defaults: the fastest Python peer that needs no server."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable

import psutil

from bench.huey_jobs import DATABASE, make_huey
from bench.lab import Lab
from bench.sizes import PROCESSES
from bench.systems.base import START_DEADLINE, Running, System, python


class HueySystem(System):
    name = "huey"
    pace = "medium"
    bulk = False

    def __init__(self, lab: Lab, database: str | None = None) -> None:
        super().__init__(lab, database)
        self.huey, self.noop = make_huey(self.database)

    def enqueue(self, number: int) -> int:
        self.noop(number, "two", three=3)
        return time.monotonic_ns()

    def fill(self, numbers: Iterable[int]) -> None:
        """It has no bulk call."""
        for number in numbers:
            self.enqueue(number)

    def start(self, *, held: bool = False) -> Running:
        return HueyRunning(self)

    def synchronous(self) -> int:
        return int(self.huey.storage.sql("pragma synchronous", results=True)[0][0])

    def unfinished(self) -> int:
        """It keeps no record of finished jobs: what is not queued is gone."""
        return int(self.huey.storage.queue_size())

    def close(self) -> None:
        self.huey.storage.close()


class HueyRunning(Running):
    """A consumer with two worker processes and a scheduler; INT is its word for a clean stop."""

    def __init__(self, system: HueySystem) -> None:
        command = python("-m", "huey.bin.huey_consumer", "bench.huey_jobs.huey")
        options = ["-w", str(PROCESSES), "-k", "process", "-q"]
        env = {DATABASE: system.database}
        super().__init__(system.lab, system.name, [[*command, *options]], env, signal.SIGINT)
        if not self.wait_until(lambda: len(self.tree()) >= 2 + PROCESSES, START_DEADLINE):
            self.stop()
            raise RuntimeError(f"Huey did not start: {self.log.read_text()[-2000:]}")

    def workers(self) -> list[psutil.Process]:
        return self.tree()[1:]
