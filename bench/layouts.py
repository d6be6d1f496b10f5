"""`python -m bench.layouts`: table layouts for PostgreSQL side by side, in raw SQL of equal promises.

No payload is decoded and no body called: what differs is the server's work, so its CPU is what counts. It is read for
the backends of the workers, and hardly depends on who else uses the machine; rates do.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any, NamedTuple

import click
import psycopg
from rich.console import Console
from rich.table import Table

from bench.figures import rounded, spread
from bench.layout_statements import LAYOUTS, Layout
from bench.report import show, with_spread
from bench.stores.postgres import SETTINGS
from packhorse.job import Token
from packhorse.stores.postgres_connections import Connections
from packhorse.stores.postgres_session import Schema, Session
from tests.servers.postgres import Server

BY_NAME = {layout.name: layout for layout in LAYOUTS}
RESULT = b'{"made":1234567}'
CHUNK = 500_000  # jobs loaded in one statement
WARM = 6  # exchanges about nothing, after which statements are prepared and planned
spawning = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Drain:
    name: str
    waiting: int  # when a drain begins
    jobs: int  # drained of them
    history: int = 0
    batch: int = 1_000
    workers: int = 2
    repetitions: int = 3


@dataclass(frozen=True)
class Pinned:
    """A steady inflow, and the snapshot of another connection, which keeps all that is dead from being cleared away."""

    name: str
    seconds: float
    rate: int  # jobs a second
    window: float  # seconds at the beginning and at the end that are compared
    batch: int = 1_000


DRAINS = (
    Drain("10,000 waiting", 10_000, 10_000, repetitions=5),
    Drain("10,000 waiting, batches of 100", 10_000, 10_000, batch=100),
    Drain("1,000,000 waiting", 1_000_000, 60_000),
    Drain("1,000,000 waiting, 4 workers", 1_000_000, 60_000, workers=4),
    Drain("10,000,000 finished", 60_000, 60_000, history=10_000_000),
    Drain("10,000,000 finished, 4 workers", 60_000, 60_000, history=10_000_000, workers=4),
)
PINNED = Pinned("snapshot pinned", 120, 2_000, 10)
QUICK_DRAINS = (
    Drain("400 waiting", 400, 400, batch=100, repetitions=1),
    Drain("400 waiting of 500, 1,000 finished", 500, 400, history=1_000, batch=100, repetitions=1),
)
QUICK_PINNED = Pinned("snapshot pinned", 2, 200, 0.5)


class Sample(NamedTuple):
    """Of a worker, after an exchange."""

    at: float
    jobs: int
    cpu: float


class Held(NamedTuple):
    """A claimed job, and the number of its row in layouts where an end goes by it."""

    number: int | None
    token: Token


class Worker:
    """One line to the server."""

    def __init__(self, conninfo: str, layout: Layout) -> None:
        self._layout = layout
        self._connection = Connections(conninfo, Schema("public")).connect()
        self.process = secrets.token_bytes(16)
        self.commits = 0

    def exchange(self, ended: Sequence[Held], limit: int, queue: str = "default") -> tuple[list[Held], list[bytes]]:
        """What is claimed, and the ids of those whose end was accepted."""
        now = time.time_ns() // 1_000
        nonce = secrets.randbits(62)
        with self._connection.pipeline():
            c = Session(self._connection, Schema("public"))
            c.plain("begin")
            rows = [(number, *token, 50, RESULT) for number, token in sorted(ended, key=lambda held: held.token.id)]
            accepted = c.batched(self._layout.finish, rows, *[now] * self._layout.finish_moments)
            claimed = c.execute(self._layout.claim, (queue, limit, self.process, nonce, now, limit, now))
            c.plain("commit")
        self.commits += 1
        return [Held(row[-1], Token(*row[:4])) for row in claimed], [id for (id,) in accepted or ()]

    def warm(self) -> None:
        for _ in range(WARM):
            self.exchange([Held(None, Token(self.process, 0, bytes(16), 1))], 1, "nobody's")

    def sample(self, jobs: int) -> Sample:
        return Sample(time.monotonic(), jobs, cpu_of(self._connection))

    def close(self) -> None:
        self._connection.close()


def cpu_of(connection: psycopg.Connection[Any]) -> float:
    """Seconds that its backend, which has one thread, was on a CPU: finer than the ticks of its stat."""
    return int(Path(f"/proc/{connection.info.backend_pid}/schedstat").read_text().split()[0]) / 1e9


# What runs in processes of its own.


def _drain(pipe: Pipe, conninfo: str, layout: str, batch: int, jobs: int) -> None:
    worker = Worker(conninfo, BY_NAME[layout])
    worker.warm()
    pipe.send("ready")
    pipe.recv()
    worker.commits = 0
    samples = [worker.sample(0)]
    held: list[Held] = []
    finished, left = 0, jobs
    while left or held:
        claims, accepted = worker.exchange(held, min(batch, left))
        finished += len(accepted)
        held, left = claims, left - len(claims)
        if left and not claims:
            break
    samples.append(worker.sample(finished))
    pipe.send((samples, worker.commits))
    worker.close()


def _drain_inflow(pipe: Pipe, conninfo: str, layout: str, batch: int, seconds: float) -> None:
    worker = Worker(conninfo, BY_NAME[layout])
    worker.warm()
    pipe.send("ready")
    pipe.recv()
    worker.commits = 0
    samples = [worker.sample(0)]
    held: list[Held] = []
    finished = 0
    deadline = time.monotonic() + seconds
    while held or time.monotonic() < deadline:
        held, accepted = worker.exchange(held, batch if time.monotonic() < deadline else 0)
        finished += len(accepted)
        samples.append(worker.sample(finished))
        if len(held) < batch:
            time.sleep(0.05)  # so that an exchange has about as much to carry in every layout
    pipe.send((samples, worker.commits))
    worker.close()


def _produce(pipe: Pipe, conninfo: str, layout: str, rate: int, seconds: float) -> None:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        pipe.send("ready")
        pipe.recv()
        began = time.monotonic()
        made = 0
        while (passed := time.monotonic() - began) < seconds:
            due = int(passed * rate)
            if due > made:
                put(connection, BY_NAME[layout].wait, made + 1, due)
                made = due
            time.sleep(0.02)
    pipe.send(made)


@contextmanager
def processes(*calls: tuple[Any, ...]) -> Iterator[list[Pipe]]:
    """Each function in a process of its own, begun together when all are ready."""
    pipes: list[Pipe] = []
    children = []
    try:
        for function, *arguments in calls:
            ours, theirs = spawning.Pipe()
            child = spawning.Process(target=function, args=(theirs, *arguments), daemon=True)
            child.start()
            theirs.close()
            pipes.append(ours)
            children.append(child)
        for pipe in pipes:
            pipe.recv()
        for pipe in pipes:
            pipe.send("go")
        yield pipes
        for child in children:
            child.join()
    finally:
        for child in children:
            child.kill()
            child.join()


# Around them.


def put(connection: psycopg.Connection[Any], statement: str, first: int, last: int) -> None:
    psycopg.RawCursor(connection).execute(statement.encode(), [first, last])


class Ground:
    """A database with one layout, and the numbers of its jobs."""

    def __init__(self, server: Server, layout: Layout, number: int) -> None:
        self.layout = layout
        self._server = server
        self._database = f"layout_{number}"
        server.run(f"create database {self._database}")
        self.conninfo = server.conninfo(self._database)
        self._connection = psycopg.connect(self.conninfo, autocommit=True)
        self._connection.execute("set synchronous_commit = off")
        self._connection.execute(layout.tables.encode())
        self._last = 0
        self.waiting = 0
        self.load: dict[str, float] = {}

    def fill(self, history: int, waiting: int) -> None:
        began, cpu, bytes = time.monotonic(), cpu_of(self._connection), self.bytes()
        self._put(self.layout.end, history)
        if history:
            self.load["history_bytes"] = (self.bytes() - bytes) / history
            self.load["history_us"] = (cpu_of(self._connection) - cpu) / history * 1e6
            self.load["history_seconds"] = time.monotonic() - began
        self.top_up(waiting)
        self._connection.execute("vacuum (analyze)")

    def top_up(self, waiting: int) -> None:
        if missing := waiting - self.waiting:
            wal, cpu = self.wal(), cpu_of(self._connection)
            self._put(self.layout.wait, missing)
            self.load["insert_us"] = (cpu_of(self._connection) - cpu) / missing * 1e6
            self.load["insert_wal"] = (self.wal() - wal) / missing
            self.waiting = waiting
        self._connection.execute("checkpoint")

    def _put(self, statement: str, number: int) -> None:
        for first in range(self._last + 1, self._last + number + 1, CHUNK):
            put(self._connection, statement, first, min(first + CHUNK - 1, self._last + number))
        self._last += number

    def vacuum(self) -> float:
        """Seconds of CPU."""
        cpu = cpu_of(self._connection)
        self._connection.execute("vacuum")
        return cpu_of(self._connection) - cpu

    def one(self, statement: str) -> Any:
        [(value,)] = self._connection.execute(statement.encode()).fetchall()
        return value

    def wal(self) -> int:
        return int(self.one("select pg_current_wal_insert_lsn() - '0/0'::pg_lsn"))

    def bytes(self) -> int:
        return int(self.one("select sum(pg_total_relation_size(relid)) from pg_stat_user_tables"))

    def dead(self) -> tuple[int, int]:
        """Row versions that were left behind so far, and how many of them by an update that no index hears of."""
        self._connection.execute("select pg_stat_clear_snapshot()")
        query = "select sum(n_tup_upd + n_tup_del), sum(n_tup_hot_upd) from pg_stat_user_tables"
        [(all, hot)] = self._connection.execute(query).fetchall()
        return int(all), int(hot)

    def drop(self) -> None:
        self._connection.close()
        self._server.run(f"drop database {self._database} with (force)")


class Bench:
    def __init__(self, server: Server, layouts: Sequence[Layout], say: Console) -> None:
        self._server = server
        self._layouts = layouts
        self._say = say
        self._numbers = 0

    @contextmanager
    def grounds(self, history: int, waiting: int) -> Iterator[list[Ground]]:
        with ExitStack() as stack:
            made = []
            for layout in self._layouts:
                self._numbers += 1
                self._say.print(f"{layout.name}: {history:,} finished, {waiting:,} waiting", highlight=False)
                ground = Ground(self._server, layout, self._numbers)
                stack.callback(ground.drop)
                ground.fill(history, waiting)
                made.append(ground)
            yield made

    def drains(self, cases: Sequence[Drain]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Of cases on the same ground; the layouts take turns, so that all meet the same noise."""
        with self.grounds(cases[0].history, cases[0].waiting) as grounds:
            for case in cases:
                runs: dict[str, list[dict[str, float]]] = {ground.layout.name: [] for ground in grounds}
                for number in range(1, case.repetitions + 1):
                    for ground in grounds:
                        self._say.print(f"{ground.layout.name}: {case.name}, {number}", highlight=False)
                        runs[ground.layout.name].append(drain(ground, case))
                yield (
                    case.name,
                    {
                        ground.layout.name: {
                            figure: spread([run[figure] for run in runs[ground.layout.name]])
                            for figure in runs[ground.layout.name][0]
                        }
                        | {"load": dict(ground.load)}
                        for ground in grounds
                    },
                )

    def pinned(self, case: Pinned) -> dict[str, Any]:
        """One layout after the other: the server would share its memory among them."""
        with self.grounds(0, 0) as grounds:
            figures = {}
            for ground in grounds:
                self._say.print(f"{ground.layout.name}: {case.name}", highlight=False)
                figures[ground.layout.name] = pinned(ground, case)
        return figures


def drain(ground: Ground, case: Drain) -> dict[str, float]:
    ground.top_up(case.waiting)
    wal, (dead, hot), before = ground.wal(), ground.dead(), ground.one(ground.layout.finished)
    share = case.jobs // case.workers
    call = (_drain, ground.conninfo, ground.layout.name, case.batch, share)
    with processes(*[call] * case.workers) as pipes:
        ended = [pipe.recv() for pipe in pipes]
    jobs = sum(samples[-1].jobs for samples, _ in ended)
    kept = ground.one(ground.layout.finished) - before
    if not jobs == kept == share * case.workers:
        raise RuntimeError(f"{ground.layout.name}: of {share * case.workers} jobs {jobs} ended and {kept} are kept")
    ground.waiting -= jobs
    wal = ground.wal() - wal
    now_dead, now_hot = ground.dead()
    began, end = min(samples[0].at for samples, _ in ended), max(samples[-1].at for samples, _ in ended)
    size = ground.bytes()
    return {
        "rate": jobs / (end - began),
        "cpu_us": sum(samples[-1].cpu - samples[0].cpu for samples, _ in ended) / jobs * 1e6,
        "wal": wal / jobs,
        "commits": sum(commits for _, commits in ended) / jobs,
        "dead": (now_dead - dead) / jobs,
        "hot": (now_hot - hot) / jobs,
        "vacuum_us": ground.vacuum() / jobs * 1e6,
        "bytes": size / (ground.one(ground.layout.finished) + ground.waiting),
        "load_average": os.getloadavg()[0],
    }


def pinned(ground: Ground, case: Pinned) -> dict[str, Any]:
    with psycopg.connect(ground.conninfo) as other:
        other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        other.execute("select 1")
        common = (ground.conninfo, ground.layout.name)
        with processes(
            (_drain_inflow, *common, case.batch, case.seconds), (_produce, *common, case.rate, case.seconds)
        ) as (worker, producer):
            samples, commits = worker.recv()
            made = producer.recv()
        other.rollback()
    first = [sample for sample in samples if sample.at <= samples[0].at + case.window]
    last = [sample for sample in samples if sample.at >= samples[-1].at - case.window]
    return {
        "made": made,
        "finished": samples[-1].jobs,
        "exchanges": commits,
        "first": _pace(first),
        "last": _pace(last),
        "bytes": ground.bytes(),
        "load_average": os.getloadavg()[0],
    }


def _pace(samples: Sequence[Sample]) -> dict[str, float]:
    seconds, cpu = samples[-1].at - samples[0].at, samples[-1].cpu - samples[0].cpu
    jobs = samples[-1].jobs - samples[0].jobs
    return {
        "rate": jobs / seconds,
        "cpu_us": cpu / max(jobs, 1) * 1e6,
        "exchange_cpu_ms": cpu / max(len(samples) - 1, 1) * 1e3,
    }


COLUMNS = {
    "rate": "jobs/s",
    "cpu_us": "server CPU, µs/job",
    "wal": "WAL, bytes/job",
    "commits": "commits/job",
    "dead": "dead versions/job",
    "hot": "of them HOT",
    "vacuum_us": "vacuum after, CPU µs/job",
    "bytes": "tables and indexes, bytes/job",
}


def drain_table(figures: dict[str, Any]) -> Table:
    table = Table("layout", *COLUMNS.values())
    for name, found in figures.items():
        table.add_row(name, *[with_spread(found[column]) for column in COLUMNS])
    return table


def pinned_table(figures: dict[str, Any]) -> Table:
    table = Table("layout", "CPU µs/job, first", "last", "CPU ms/exchange, first", "last", "made", "finished", "MiB")
    for name, found in figures.items():
        paces = [f"{found[part][figure]:.3g}" for figure in ("cpu_us", "exchange_cpu_ms") for part in ("first", "last")]
        counts = f"{found['made']:,}", f"{found['finished']:,}", f"{found['bytes'] / 2**20:.0f}"
        table.add_row(name, *paces, *counts)
    return table


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON, and nothing else.")
@click.option("--quick", is_flag=True, help="Small sizes, seconds: shows that it works, not how fast.")
@click.option("--only", metavar="TEXT", default="", help="Cases whose name begins with this.")
@click.option("--history", type=int, help="Finished jobs in the background, where there are any.")
def main(as_json: bool, quick: bool, only: str, history: int | None) -> None:
    """Measure table layouts for PostgreSQL."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server goes, too
    cases = [case for case in (QUICK_DRAINS if quick else DRAINS) if case.name.startswith(only)]
    if history is not None:
        cases = [replace(case, history=history) if case.history else case for case in cases]
    console = Console(width=None if sys.stdout.isatty() else 160)
    figures: dict[str, Any] = {}
    load = os.getloadavg()[0]
    server = Server(Path(tempfile.gettempdir()))
    try:
        server.start(**SETTINGS)
        bench = Bench(server, LAYOUTS, Console(stderr=True, quiet=as_json and not sys.stderr.isatty()))
        for ground in dict.fromkeys((case.history, case.waiting) for case in cases):
            figures |= dict(bench.drains([case for case in cases if (case.history, case.waiting) == ground]))
        case = QUICK_PINNED if quick else PINNED
        if case.name.startswith(only):
            figures[case.name] = bench.pinned(case)
        version = server.run("show server_version")[0][0]
    finally:
        server.remove()
    settings = {"postgres": version, "cpus": os.cpu_count(), "load_average": [load, os.getloadavg()[0]]}
    report = rounded({"settings": settings, "figures": figures})
    if as_json:
        click.echo(json.dumps(report, indent=2, ensure_ascii=False))
        return
    for name, found in report["figures"].items():
        show(console, name, [pinned_table(found) if name == PINNED.name else drain_table(found)])


if __name__ == "__main__":
    main()
