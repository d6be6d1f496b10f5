"""One worker in this process, with a stop-watch on each of its parts: `python -m bench.profiled URL`; prints JSON.

Parts are timed where they begin and end, on the clock of the wall and on the CPU clock of the thread, which costs
about 1 µs per job. A sampler (sys._current_frames) was not used: its thread gets the interpreter lock mostly while
others are inside SQLite, so it sees too much of that.
"""

from __future__ import annotations

import functools
import importlib
import json
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

# part: module, class, method
POINTS = {
    "turn": ("packhorse.runtime.worker", "Worker", "turn"),
    "exchange": ("packhorse.stores.sqlite", "SQLiteStore", "exchange"),
    "perform": ("packhorse.runtime.perform", "Performer", "in_thread"),
    "wait": ("packhorse.runtime.wakeup", "Wake", "wait"),
}


class StopWatch:
    """Wall and CPU nanoseconds of one part, summed over threads."""

    def __init__(self) -> None:
        self._own = threading.local()
        self._all: list[list[int]] = []

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        wall, cpu = time.perf_counter_ns, time.thread_time_ns

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            sums = self._sums()
            wall_began, cpu_began = wall(), cpu()
            try:
                return function(*args, **kwargs)
            finally:
                sums[0] += wall() - wall_began
                sums[1] += cpu() - cpu_began
                sums[2] += 1

        return timed

    def _sums(self) -> list[int]:
        try:
            return self._own.sums  # type: ignore[no-any-return]
        except AttributeError:
            self._own.sums = [0, 0, 0]
            self._all.append(self._own.sums)
            return self._own.sums  # type: ignore[no-any-return]

    def main_thread(self) -> dict[str, float]:
        return _named(self._sums())

    def total(self) -> dict[str, float]:
        return _named([sum(column) for column in zip(*self._all, strict=True)] or [0, 0, 0])


def _named(sums: list[int]) -> dict[str, float]:
    return {"wall": sums[0] / 1e9, "cpu": sums[1] / 1e9, "calls": sums[2]}


sql = StopWatch()


class TimedCursor(sqlite3.Cursor):
    execute = sql(sqlite3.Cursor.execute)
    executemany = sql(sqlite3.Cursor.executemany)
    fetchone = sql(sqlite3.Cursor.fetchone)
    fetchall = sql(sqlite3.Cursor.fetchall)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        return iter(self.fetchall())  # one reading of the clock for all rows


class TimedConnection(sqlite3.Connection):
    """Its short cuts make plain cursors, so they are written out here."""

    def cursor(self, factory: Any = TimedCursor) -> Any:
        return super().cursor(factory)

    def execute(self, *args: Any) -> Any:
        return self.cursor().execute(*args)

    def executemany(self, *args: Any) -> Any:
        return self.cursor().executemany(*args)


def main() -> None:
    watches, missing = _install()
    from bench.jobs import make_app
    from bench.sizes import CONCURRENCY
    from packhorse.queues import parse_queues
    from packhorse.runtime.process import Process
    from packhorse.runtime.worker import Worker

    app = make_app(sys.argv[1])
    process = Process(app, Worker(app, parse_queues("*"), CONCURRENCY, burst=True))
    wall, cpu = time.perf_counter(), time.process_time()
    process.run()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    parts = {name: watch.total() for name, watch in watches.items()} | {"sql": sql.main_thread()}
    # The worker's own loop is the main thread; heart and watcher are not it.
    for name in ("turn", "exchange", "wait"):
        if name in watches:
            parts[name] = watches[name].main_thread()
    print(json.dumps({"wall": wall, "cpu": cpu, "parts": parts, "missing": missing}))


def _install() -> tuple[dict[str, StopWatch], list[str]]:
    """Put the watches on; a point that no longer exists is named instead of failing the run."""
    sqlite3.connect = functools.partial(sqlite3.connect, factory=TimedConnection)  # type: ignore[assignment]
    watches, missing = {}, []
    for part, (module, owner, method) in POINTS.items():
        try:
            cls = getattr(importlib.import_module(module), owner)
            function = getattr(cls, method)
        except (ImportError, AttributeError):
            missing.append(f"{module}.{owner}.{method}")
            continue
        watches[part] = StopWatch()
        setattr(cls, method, watches[part](function))
    return watches, missing


if __name__ == "__main__":
    main()
