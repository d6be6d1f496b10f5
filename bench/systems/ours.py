"""Packhorse, through its public API and its real worker command."""

from __future__ import annotations

import os
import signal
import sys
import time
from abc import abstractmethod
from collections.abc import Iterable
from datetime import UTC, datetime
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import ClassVar

import psutil

from bench import jobs
from bench.lab import Lab
from bench.sizes import CONCURRENCY, PROCESSES
from bench.systems.base import START_DEADLINE, Running, System, python
from packhorse import Flow, JobState
from packhorse.flow import Node
from packhorse.task import Call

QUEUE = "default"
CHUNK = 10_000


class PackhorseSystem(System):
    name = "packhorse"
    task = jobs.NOOP
    share: str | None = None
    processes = PROCESSES
    signing = True
    env: ClassVar[dict[str, str]] = {}

    def __init__(self, lab: Lab, database: str | None = None) -> None:
        super().__init__(lab, database)
        self.url = self.where()
        self.app = jobs.make_app(self.url, isolated=jobs.ALONE in self.env, signing=self.signing, keys=lab.store.keys())
        self.noop = self.app.tasks[self.task].using(share=self.share)
        self.nap = self.app.tasks[jobs.NAP]

    def where(self) -> str:
        return self.lab.store.url(self.database)

    def command(self) -> list[str]:
        """That performs its jobs."""
        beside = Path(sys.executable).with_name("packhorse")
        return [*([str(beside)] if beside.exists() else python("-m", "packhorse")), *self.words()]

    def words(self) -> list[str]:
        options = ["--processes", str(self.processes), "--concurrency", str(CONCURRENCY), "--log-level", "WARNING"]
        return ["worker", "bench.jobs:app", *options]

    def environment(self) -> dict[str, str]:
        """Of that command."""
        env = {"PACKHORSE_STORE": self.url, "PACKHORSE_SIGNING": str(self.signing).lower(), **self.env}
        if keys := self.lab.store.keys():
            env["PACKHORSE_KEYS"] = ",".join(keys)
        return env

    def enqueue(self, number: int) -> int:
        self.noop.enqueue(number, "two", three=3)
        return time.monotonic_ns()

    def fill(self, numbers: Iterable[int]) -> None:
        call = self.noop.call
        rest = iter(numbers)
        while part := list(islice(rest, CHUNK)):
            self.app.enqueue_many(call(number, "two", three=3) for number in part)

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


class IsolatedSystem(PackhorseSystem):
    """Each job in a process of its own."""

    name = "isolated"
    task = jobs.ISOLATED
    env: ClassVar[dict[str, str]] = {jobs.ALONE: "1"}


class BurnSystem(PackhorseSystem):
    """The same for jobs that compute."""

    name = "burn"
    env: ClassVar[dict[str, str]] = {jobs.ALONE: "1"}

    def fill(self, numbers: Iterable[int]) -> None:
        call = self.app.tasks[jobs.BURN].call
        self.app.enqueue_many(call(number, self.lab.sizes.burn_seconds) for number in numbers)


class FlowSystem(PackhorseSystem):
    """All jobs are one flow."""

    def fill(self, numbers: Iterable[int]) -> None:
        flow = Flow()
        self.draw(flow, [self.noop.call(number, "two", three=3) for number in numbers])
        flow.enqueue()

    @abstractmethod
    def draw(self, flow: Flow, calls: list[Call[None]]) -> None:
        """Add all of them to the flow."""


class GroupSystem(FlowSystem):
    """Jobs side by side, and one that comes after all of them."""

    name = "group"

    def draw(self, flow: Flow, calls: list[Call[None]]) -> None:
        flow.add(calls[-1], after=flow.group(calls[:-1]))


class LayersSystem(FlowSystem):
    """Ten layers, each job after two of the layer before."""

    name = "layers"

    def draw(self, flow: Flow, calls: list[Call[None]]) -> None:
        width = len(calls) // 10
        above: list[Node[None]] = []
        for start in range(0, len(calls), width):
            layer = calls[start : start + width]
            above = [
                flow.add(call, after=(above[place], above[place - 1]) if above else ())
                for place, call in enumerate(layer)
            ]


class LanesSystem(FlowSystem):
    """A hundred chains side by side."""

    name = "lanes"

    def draw(self, flow: Flow, calls: list[Call[None]]) -> None:
        for lane in range(100):
            last: tuple[Node[None], ...] = ()
            for call in calls[lane::100]:
                last = (flow.add(call, after=last),)


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
        super().__init__(system.lab, system.name, [system.command()], system.environment(), signal.SIGTERM)
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
