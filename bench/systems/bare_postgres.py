"""psycopg alone: what PostgreSQL, its driver and Python allow."""

from __future__ import annotations

import time
from collections.abc import Iterable

from bench.bare_postgres_worker import CHANNEL, COPY, INSERT, TABLE, TYPES, connect, new_row
from bench.lab import Lab
from bench.sizes import BARE_BATCH, BARE_LARGE_BATCH
from bench.systems.base import HeldSystem, python


class BarePostgresSystem(HeldSystem):
    name = "bare"
    pace = "bare"
    batch = BARE_BATCH

    def __init__(self, lab: Lab, database: str | None = None) -> None:
        super().__init__(lab, database)
        self._connection = connect(lab.store.url(self.database))
        if database is None:
            self._connection.execute(TABLE)

    def enqueue(self, number: int) -> int:
        self._connection.execute(INSERT, new_row(number), prepare=True)
        return time.monotonic_ns()

    def fill(self, numbers: Iterable[int]) -> None:
        with self._connection.cursor().copy(COPY) as copy:
            copy.set_types(TYPES)
            for number in numbers:
                copy.write_row(new_row(number))

    def command(self) -> list[str]:
        return python("-m", "bench.bare_postgres_worker", self.lab.store.url(self.database), str(self.batch))

    def unfinished(self) -> int:
        row = self._connection.execute("select count(*) from job where state < 2").fetchone()
        assert row is not None
        return int(row[0])

    def close(self) -> None:
        self._connection.close()


class Bare300System(BarePostgresSystem):
    name = "bare_300"
    batch = BARE_LARGE_BATCH


class Bare1000System(BarePostgresSystem):
    name = "bare_1000"
    batch = 1_000


class BareOnePostgresSystem(BarePostgresSystem):
    """The same loop in one process, one job at a time: each costs a commit."""

    name = "bare_one"
    batch = 1
    processes = 1


class BareListeningSystem(BarePostgresSystem):
    """Workers are notified of each job, in the commit that brings it."""

    def enqueue(self, number: int) -> int:
        with self._connection.pipeline(), self._connection.transaction():
            self._connection.execute(INSERT, new_row(number), prepare=True)
            self._connection.execute(f"notify {CHANNEL}".encode())
        return time.monotonic_ns()
