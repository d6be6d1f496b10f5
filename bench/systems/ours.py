"""Packhorse, through its public API and its real worker command."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import ClassVar, Self

import psutil

from bench import jobs
from bench.lab import Lab
from bench.sizes import CONCURRENCY, PROCESSES
from bench.systems.base import START_DEADLINE, Running, System, python
from packhorse import JobState

QUEUE = "default"
CHUNK = 10_000


class PackhorseSystem(System):
    name = "packhorse"
    task = jobs.NOOP
    share: str | None = None
    processes = PROCESSES
    signing = True
    env: ClassVar[dict[str, str]] = {}

    def __init__(self, lab: Lab, database: Path | None = None) -> None:
        super().__init__(lab, database)
        self.url = f"sqlite:///{self.database}"
        self.app = jobs.make_app(self.url, signing=self.signing)
        self.noop = self.app.tasks[self.task].using(share=self.share)
        self.nap = self.app.tasks[jobs.NAP]

    def enqueue(self, number: int) -> None:
        self.noop.enqueue(number, "two", three=3)

    def fill(self, numbers: Iterable[int]) -> None:
        call = self.noop.call
        rest = iter(numbers)
        while part := list(islice(rest, CHUNK)):
            self.app.enqueue_many(call(number, "two", three=3) for number in part)

    def copy(self) -> Self:
        """With the key beside the file, or no job could be read."""
        copy = super().copy()
        if (key := Path(f"{self.database}-key")).exists():
            shutil.copy(key, f"{copy.database}-key")
        return copy

    def start(self, *, held: bool = False) -> Running:
        """Held by a paused queue: the workers are up and look, and `go` lets both begin at the same moment."""
        if held:
            self.app.control.pause(QUEUE, reason="bench")
        return PackhorseRunning(self)

    def go(self) -> None:
        self.app.control.resume(QUEUE)

    def counts(self) -> dict[JobState, int]:
        return self.app.inspection.counts()

    def unfinished(self) -> int:
        return sum(number for state, number in self.counts().items() if not state.finished)

    def close(self) -> None:
        self.app.close()


class LimitedSystem(PackhorseSystem):
    """One key for all jobs, and many permits."""

    name = "limited_100"
    task = f"{jobs.LIMITED}.100"


class MoreLimitedSystem(PackhorseSystem):
    name = "limited_1000"
    task = f"{jobs.LIMITED}.1000"


class OneAtATimeSystem(PackhorseSystem):
    name = "limited_1"
    task = f"{jobs.LIMITED}.1"


class RatedSystem(PackhorseSystem):
    """One key for all jobs, and four worker processes."""

    name = "rated"
    task = jobs.RATED
    processes = 4


class FairSystem(PackhorseSystem):
    """All jobs of one share."""

    name = "fair"
    share = "crowd"


class ManySharesSystem(PackhorseSystem):
    """The jobs of ten thousand shares."""

    name = "many_shares"

    def fill(self, numbers: Iterable[int]) -> None:
        tasks = [self.noop.using(share=f"share-{number}") for number in range(10_000)]
        rest = iter(numbers)
        while part := list(islice(rest, CHUNK)):
            self.app.enqueue_many(tasks[number % 10_000].call(number, "two", three=3) for number in part)


class UnsignedSystem(PackhorseSystem):
    name = "unsigned"
    signing = False


class TypedSystem(PackhorseSystem):
    """Signed, and a datetime and a decimal among the arguments."""

    name = "typed"

    def fill(self, numbers: Iterable[int]) -> None:
        call, when, price = self.app.tasks[jobs.TYPED].call, datetime(2026, 1, 1, tzinfo=UTC), Decimal("19.99")
        rest = iter(numbers)
        while part := list(islice(rest, CHUNK)):
            self.app.enqueue_many(call(number, when, price) for number in part)


class WatchedSystem(TypedSystem):
    """One middleware and one subscriber on top."""

    name = "watched"
    env: ClassVar[dict[str, str]] = {jobs.WATCHED: "1"}


class PackhorseRunning(Running):
    def __init__(self, system: PackhorseSystem) -> None:
        command = Path(sys.executable).with_name("packhorse")
        start = [str(command)] if command.exists() else python("-m", "packhorse")
        options = ["--processes", str(system.processes), "--concurrency", str(CONCURRENCY), "--log-level", "WARNING"]
        env = {"PACKHORSE_STORE": system.url, "PACKHORSE_SIGNING": str(system.signing).lower(), **system.env}
        super().__init__(system.lab, system.name, [[*start, "worker", "bench.jobs:app", *options]], env, signal.SIGTERM)
        self._system = system
        self.pids: list[int] = []
        if not self.wait_until(self._enrolled, START_DEADLINE):
            self.stop()
            raise RuntimeError(f"The workers of Packhorse did not start: {self.log.read_text()[-2000:]}")

    def roles(self) -> dict[int, str]:
        """The role of each of our processes by its pid."""
        mine = {process.pid for process in self.tree()}
        return {view.pid: view.role for view in self._system.app.inspection.processes() if view.pid in mine}

    def workers(self) -> list[psutil.Process]:
        if not self.pids:
            self.pids = [pid for pid, role in self.roles().items() if role == "worker"]
        return [psutil.Process(pid) for pid in self.pids if psutil.pid_exists(pid) and pid != os.getpid()]

    def _enrolled(self) -> bool:
        return (
            sorted(self.roles().values())
            == ["dispatcher", "scheduler", "supervisor"] + ["worker"] * self._system.processes
        )
