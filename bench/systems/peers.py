"""Peers on PostgreSQL, each in an environment of its own."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import psycopg

from bench.environments import installed, versions
from bench.lab import Lab
from bench.producer import Produced
from bench.systems.base import ROOT, STOP_DEADLINE, HeldSystem, environment

PSYCOPG = ("psycopg[binary]==3.3.8", "psycopg-pool==3.3.3")


class PeerSystem(HeldSystem):
    """Enqueues through a program of its own, `bench.peers.client`, which is asked in lines of JSON."""

    module: ClassVar[str]
    requirements: ClassVar[tuple[str, ...]]
    needs: ClassVar[tuple[int, int]] = (3, 11)
    size: ClassVar[int]
    words: ClassVar[str]
    left: ClassVar[str]  # counts what is not finished
    python: ClassVar[Path]

    def __init__(self, lab: Lab, database: str | None = None) -> None:
        super().__init__(lab, database)
        self._client: subprocess.Popen[str] | None = None
        self._own: psycopg.Connection[Any] | None = None
        if database is None:
            self._ask("install")

    @classmethod
    def describe(cls) -> str:
        names = tuple(requirement.split("==")[0].split("[")[0] for requirement in cls.requirements)
        found = versions(cls.python, names)
        return f"{cls.words}; " + " ".join(f"{name} {found[name]}" for name in (*names, "python"))

    def enqueue(self, number: int) -> int:
        return int(self._ask("enqueue", number))

    def fill(self, numbers: Iterable[int]) -> None:
        every = list(numbers)
        self._ask("fill", every[0], every[-1])

    def one_by_one(self, first: int, last: int) -> None:
        self._ask("one_by_one", first, last)

    def at_full_speed(self, first: int, seconds: float) -> Produced:
        produced: Produced = self._ask("at_full_speed", first, seconds)
        return produced

    def unfinished(self) -> int:
        if self._own is None:
            self._own = psycopg.connect(self.lab.store.url(self.database), autocommit=True)
        row = self._own.execute(self.left.encode()).fetchone()
        assert row is not None
        return int(row[0])

    def command(self) -> list[str]:
        return self._program("worker")

    def _program(self, name: str) -> list[str]:
        url = self.lab.store.url(self.database)
        return [str(self.python), "-m", f"bench.peers.{name}", self.module, url, str(self.size)]

    def _ask(self, *call: Any) -> Any:
        if self._client is None:
            self._client = subprocess.Popen(
                self._program("client"),
                cwd=ROOT,
                env=environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            if call != ("install",):
                self._ask("open")
        assert self._client.stdin is not None
        assert self._client.stdout is not None
        self._client.stdin.write(json.dumps(call) + "\n")
        self._client.stdin.flush()
        if not (answer := self._client.stdout.readline()):
            raise RuntimeError(f"{self.name}: the program that enqueues ended at {call[0]}")
        if call == ("install",):
            self._leave()
        return json.loads(answer)

    def _leave(self) -> None:
        client, self._client = self._client, None
        if client is None:
            return
        try:
            client.communicate(timeout=STOP_DEADLINE)
        except subprocess.TimeoutExpired:
            self.lab.trouble(f"{self.name}: the program that enqueues did not end")
            client.kill()
            client.wait()

    def close(self) -> None:
        if self._client is not None:
            self._ask("close")
        self._leave()
        if self._own is not None:
            self._own.close()
        self._own = None


def available(lab: Lab, peers: tuple[type[PeerSystem], ...]) -> tuple[type[PeerSystem], ...]:
    """Those that can be installed here; the others are told of."""
    found: list[type[PeerSystem]] = []
    for peer in peers:
        lab.step(f"installing {peer.name}")
        try:
            peer.python = installed(peer.module, peer.requirements, peer.needs)
        except RuntimeError as error:
            lab.note(f"{peer.name} is left out: {error}")
            continue
        found.append(peer)
    return tuple(found)


class PgqueuerSystem(PeerSystem):
    name = "pgqueuer"
    module = "pgqueuer"
    requirements = ("pgqueuer[asyncpg]==1.6.0", "asyncpg==0.32.0", "uvloop==0.23.0")
    size = 1_000
    words = "batches of 1,000, uvloop"
    left = "select count(*) from pgqueuer"


class PgqueuerDefaultSystem(PgqueuerSystem):
    name = "pgqueuer_10"
    pace = "medium"
    size = 10
    words = "batches of 10, its default, uvloop"


class ObanSystem(PeerSystem):
    name = "oban"
    module = "oban"
    pace = "medium"
    requirements = ("oban==0.7.0", *PSYCOPG, "uvloop==0.23.0")
    needs = (3, 12)
    size = 100
    words = "embedded, limit 100, uvloop"
    left = "select count(*) from oban_jobs where state not in ('completed', 'cancelled', 'discarded')"


class ChancySystem(PeerSystem):
    name = "chancy"
    module = "chancy"
    pace = "medium"
    requirements = ("chancy==0.26.0", *PSYCOPG)
    size = 100
    words = "asyncio executor, concurrency 100, eager polling"
    left = "select count(*) from chancy_jobs where state not in ('succeeded', 'failed')"


class ProcrastinateSystem(PeerSystem):
    name = "procrastinate"
    module = "procrastinate"
    pace = "slow"
    requirements = ("procrastinate==3.10.0", *PSYCOPG)
    size = 5
    words = "concurrency 5, quicker than 1 and than 30"
    left = "select count(*) from procrastinate_jobs where status in ('todo', 'doing')"


class SaqSystem(PeerSystem):
    name = "saq"
    module = "saq"
    pace = "slow"
    bulk = False
    requirements = ("saq[postgres]==0.26.4", *PSYCOPG)
    size = 50
    words = "concurrency 50"
    left = "select count(*) from saq_jobs where status not in ('complete', 'failed', 'aborted')"
