"""sqlite3 alone: what the store and Python allow."""

from __future__ import annotations

import time
from collections.abc import Iterable
from itertools import islice

from bench.bare_worker import INSERT, TABLE, connect, new_row
from bench.lab import Lab
from bench.sizes import BARE_BATCH, BARE_LARGE_BATCH
from bench.systems.base import HeldSystem, python

BULK = 1_000


class BareSystem(HeldSystem):
    name = "bare"
    pace = "bare"
    batch = BARE_BATCH

    def __init__(self, lab: Lab, database: str | None = None) -> None:
        super().__init__(lab, database)
        self._connection = connect(self.database)
        if not self._connection.execute("select 1 from sqlite_master").fetchone():
            self._connection.executescript(TABLE)

    def enqueue(self, number: int) -> int:
        self._connection.execute("begin immediate")
        self._connection.execute(INSERT, new_row(number))
        self._connection.execute("commit")
        return time.monotonic_ns()

    def fill(self, numbers: Iterable[int]) -> None:
        rest = iter(numbers)
        while part := [new_row(number) for number in islice(rest, BULK)]:
            self._connection.execute("begin immediate")
            self._connection.executemany(INSERT, part)
            self._connection.execute("commit")

    def command(self) -> list[str]:
        return python("-m", "bench.bare_worker", self.database, str(self.batch))

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
