"""`python -m chaos.timeouts`: timeouts at random moments, in tasks that are always inside some call of the store.

One process performs jobs in eight threads; each goes on until it is interrupted. Another one writes to the same store
meanwhile. In the end every interruption must have met its task, every job that was acknowledged must be there, and no
lock, descriptor or connection may be left behind.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import random
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from chaos.mutants.patches import MUTANTS, Patches
from packhorse import Context, Embedded, JobState, NotFinished, Packhorse, TimedOut
from packhorse.errors import StoreUnavailable
from packhorse.interrupting import Guard
from packhorse.job import FailureKind
from packhorse.runtime import deadlines
from packhorse.runtime.slots import Slots
from packhorse.stores.contract import Selection
from tests.servers.postgres import Server

SLOTS = 8
TICK = 0.002  # seconds: how exactly deadlines are kept here
TIMEOUTS = (0.001, 0.003, 0.007, 0.012, 0.02)
AHEAD = 400  # jobs that wait to be performed
PAGE = 1_000
SILENT = 120.0  # seconds without a sign of the performing process, after which it is wedged
STUCK = 20.0  # seconds in which another process could not write once
PERFORMED, KEPT = "default", "kept"
SHARED_MEMORY = Path("/dev/shm")


@dataclass
class Figures:
    store: str = ""
    jobs: int = 0
    raised: int = 0  # interruptions that were accepted
    deferred: int = 0  # of those, what waited for the end of a call
    met: int = 0  # by their tasks, which go on with the store or let it through; others had not begun to
    acknowledged: int = 0  # jobs that tasks enqueued
    refused: int = 0  # calls that a busy store did not take in time, and said so
    seconds: float = 0.0
    # What must be 0.
    lost: int = 0  # tasks that had to be given up, or ended in another way than they met
    missing: int = 0  # acknowledged, and not there
    wedges: int = 0  # others could not write
    descriptors: int = 0  # more than at the beginning
    connections: int = 0  # on the server, when all are closed
    odd: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not any([self.lost, self.missing, self.wedges, self.descriptors, self.connections, self.odd])


class Ledger:
    """What the tasks of this process know of themselves."""

    def __init__(self) -> None:
        self.met: set[str] = set()
        self.acknowledged: list[str] = []
        self.counts: Counter[str] = Counter()


def make_app(url: str, key: str, ledger: Ledger) -> Packhorse:
    app = Packhorse("timeouts", url, keys=[key], ending_timeout=30, heartbeat=0.5, lease=60, polling_interval=0.2)

    @app.task(name="kept", queue_name=KEPT)
    def kept(name: str) -> None:
        """Nobody performs it."""

    @app.task(name="busy", takes_context=True)
    def busy(context: Context, seed: int) -> None:
        dice = random.Random(seed)
        calls = [call for call in CALLS for _ in range(CALLS[call])]
        number = 0
        try:
            while True:
                number += 1
                try:
                    dice.choice(calls)(app, context, number, ledger)
                except StoreUnavailable:
                    ledger.counts["refused"] += 1
        except TimedOut:
            ledger.met.add(context.job_id)
            if dice.random() < 0.5:  # clean up, with what the store was just doing
                enqueue(app, context, number, ledger)
                step(app, context, number + 1_000_000, ledger)
            raise

    return app


def enqueue(app: Packhorse, context: Context, number: int, ledger: Ledger) -> None:
    handle = app.tasks["kept"].enqueue(f"{context.job_id} {number}")
    ledger.acknowledged.append(handle.id)


def step(app: Packhorse, context: Context, number: int, ledger: Ledger) -> None:
    assert context.step(f"step {number}", lambda: number) == number


def progress(app: Packhorse, context: Context, number: int, ledger: Ledger) -> None:
    context.progress(number, note="on the way")


def signal(app: Packhorse, context: Context, number: int, ledger: Ledger) -> None:
    """And wait for it, which is there."""
    name = f"signal-{context.job_id}-{number}"
    app.signal(name, number, keep=60)
    assert context.wait_for(name) == number


def wait(app: Packhorse, context: Context, number: int, ledger: Ledger) -> None:
    try:
        app.job(context.job_id).result(timeout=0.002)
    except NotFinished:
        pass


def think(app: Packhorse, context: Context, number: int, ledger: Ledger) -> None:
    for _ in range(number % 50 * 100):
        pass


CALLS = {enqueue: 3, step: 3, progress: 3, signal: 1, wait: 1, think: 5}


# The process that performs.


class Watcher:
    """Counts what is raised, and how."""

    def __init__(self) -> None:
        self.raised: set[bytes] = set()
        self.counts: Counter[str] = Counter()
        interrupt, deliver, give_up = Slots.interrupt, Guard.deliver, Slots.give_up

        def counting_interrupt(slots: Slots, token: Any, why: Any) -> bool:
            if reached := interrupt(slots, token, why):
                self.raised.add(token.id)
            return reached

        def counting_deliver(guard: Guard) -> None:
            try:
                deliver(guard)
            except BaseException:
                self.counts["deferred"] += 1
                raise

        def counting_give_up(slots: Slots, token: Any) -> None:
            self.counts["given up"] += 1
            give_up(slots, token)

        patched: Any = (Slots, "interrupt", counting_interrupt), (Guard, "deliver", counting_deliver)
        for owner, name, function in (*patched, (Slots, "give_up", counting_give_up)):
            setattr(owner, name, function)


def perform(url: str, key: str, count: int, seed: int, say: Callable[[dict[str, Any]], None]) -> Figures:
    logging.disable(logging.CRITICAL)
    deadlines.TICK = TICK
    if "CHAOS_MUTANT" in os.environ:
        MUTANTS[os.environ["CHAOS_MUTANT"]].put_on(Patches())
    ledger, watcher = Ledger(), Watcher()
    app = make_app(url, key, ledger)
    _run(app, SLOTS * 4, seed, lambda done: None)  # what a process opens once
    before = _descriptors(app)
    began = time.monotonic()
    figures = Figures(jobs=_run(app, count, seed + 1, lambda done: say({"done": done})))
    figures.seconds = time.monotonic() - began
    after = _descriptors(app)
    figures.descriptors = max(0, after - before)
    _count(app, ledger, watcher, figures)
    app.close()
    return figures


def _run(app: Packhorse, count: int, seed: int, say: Callable[[int], None]) -> int:
    """Until so many jobs more have ended."""
    dice = random.Random(seed)
    busy = app.tasks["busy"]
    ended = _ended(app)
    wanted, given = ended + count, 0
    with Embedded(app, concurrency=SLOTS, queues=PERFORMED):
        while ended < wanted:
            lack = min(AHEAD - (given - (ended - (wanted - count))), count - given)
            if lack > 0:
                calls = (busy.using(timeout=dice.choice(TIMEOUTS)).call(dice.random()) for _ in range(lack))
                app.enqueue_many(calls)
                given += lack
            time.sleep(0.1)
            ended = _ended(app)
            say(ended - (wanted - count))
    return count


def _ended(app: Packhorse) -> int:
    return sum(number for state, number in app.inspection.counts().items() if state.finished)


def _descriptors(app: Packhorse) -> int:
    """When all that can be closed is: threads that end take theirs along."""
    least, until = sys.maxsize, time.monotonic() + 5
    while time.monotonic() < until:
        app.close()
        gc.collect()
        found = len(os.listdir("/proc/self/fd"))
        if found == least:
            break
        least = min(least, found)
        time.sleep(0.3)
    return least


def _count(app: Packhorse, ledger: Ledger, watcher: Watcher, figures: Figures) -> None:
    figures.raised = len(watcher.raised)
    figures.deferred = watcher.counts["deferred"]
    figures.met = len(ledger.met)
    figures.acknowledged = len(ledger.acknowledged)
    figures.refused = ledger.counts["refused"]
    there = set()
    for job in _jobs(app):
        if job.queue == KEPT:
            there.add(job.id)
            continue
        known = app.job(job.id).look()
        timed_out = known.failure is not None and known.failure.kind is FailureKind.TIMEOUT
        raised = bytes.fromhex(job.id.replace("-", "")) in watcher.raised
        if job.state is not JobState.FAILED or not timed_out or not raised:
            figures.lost += 1
            why = known.failure and known.failure.message
            if len(figures.odd) < 10:
                figures.odd.append(f"job {job.id}: {job.state}, met {job.id in ledger.met}, raised {raised}: {why}")
    figures.lost += watcher.counts["given up"]
    figures.missing = len(set(ledger.acknowledged) - there)


def _jobs(app: Packhorse) -> Iterator[Any]:
    after = None
    while page := app.store.jobs(Selection(), after, PAGE):
        yield from page
        after = bytes.fromhex(page[-1].id.replace("-", ""))


# The process that looks on.


@contextmanager
def opened(store: str) -> Iterator[tuple[str, Server | None]]:
    with ExitStack() as stack:
        if store == "postgres":
            server = Server()
            stack.callback(server.remove)
            server.start()
            yield server.url("postgres", schema="timeouts"), server
            return
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="packhorse-", dir=SHARED_MEMORY))
        yield f"sqlite:///{folder}/jobs.db", None


class Writer:
    """Another process of the store: it must always be able to write, sooner or later."""

    def __init__(self, url: str, key: str) -> None:
        self.app = make_app(url, key, Ledger())
        self.wedges = 0
        self._wrote_at = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(0.25):
            self.write()

    def write(self) -> None:
        try:
            self.app.tasks["kept"].enqueue("of another process")
        except StoreUnavailable:
            if time.monotonic() - self._wrote_at < STUCK:
                return
            self.wedges += 1
        self._wrote_at = time.monotonic()

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self.app.close()


def storm(store: str, count: int, seed: int, say: Callable[[str], None]) -> Figures:
    with opened(store) as (url, server):
        key = secrets.token_urlsafe(32)
        writer = Writer(url, key)
        writer.write()
        figures = _watched(url, key, count, seed, say)
        figures.store = store
        wedges = writer.wedges
        writer.write()
        figures.wedges += writer.wedges
        if wedges != writer.wedges:
            figures.odd.append("when all was over, another process could not write")
        writer.close()
        if server is not None:
            figures.connections = _connections(server)
    return figures


def _watched(url: str, key: str, count: int, seed: int, say: Callable[[str], None]) -> Figures:
    given = json.dumps([url, key, count, seed])
    command = [sys.executable, "-m", "chaos.timeouts", "--perform", given]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as performing:
        assert performing.stdout is not None
        alarm = _Alarm(performing)
        last: dict[str, Any] = {}
        told_at = 0.0
        for line in performing.stdout:
            alarm.hear()
            last = json.loads(line)
            if "done" in last and time.monotonic() - told_at > 2:
                told_at = time.monotonic()
                say(f"{store_of(url)}: {last['done']:,} of {count:,} timeouts")
        alarm.stop()
    if "figures" in last:
        return Figures(**last["figures"])
    why = "it said nothing for long" if alarm.rang else f"exit status {performing.returncode}"
    return Figures(wedges=1, odd=[f"the performing process did not come to its end: {why}; last: {last}"])


def store_of(url: str) -> str:
    return url.partition(":")[0]


class _Alarm:
    """Ends a process that gives no sign any more."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.rang = False
        self._process = process
        self._heard_at = time.monotonic()
        self._over = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def hear(self) -> None:
        self._heard_at = time.monotonic()

    def stop(self) -> None:
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(1):
            if time.monotonic() - self._heard_at > SILENT:
                self.rang = True
                self._process.kill()
                return


def _connections(server: Server) -> int:
    """That are left, when all have had time to go."""
    left = "select count(*) from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()"
    until = time.monotonic() + 10
    while True:
        [(number,)] = server.run(left)
        assert isinstance(number, int)
        if number == 0 or time.monotonic() > until:
            return number
        time.sleep(0.2)


def _say(message: dict[str, Any]) -> None:
    """To the process that looks on, and hears only by this that this one lives."""
    print(json.dumps(message), flush=True)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--store", default="sqlite", show_default=True, type=click.Choice(["sqlite", "postgres"]))
@click.option("--count", default=100_000, show_default=True, type=click.IntRange(1), help="Timeouts.")
@click.option("--seed", default=1, show_default=True, help="The same seed makes the same jobs.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON, and nothing else.")
@click.option("--perform", "given", hidden=True)
def main(store: str, count: int, seed: int, as_json: bool, given: str | None) -> None:
    """Raise timeouts in tasks that enqueue, step, signal and wait, and check that nothing is lost or left behind.

    The exit status is 1 where something is.
    """
    if given is not None:
        url, key, count, seed = json.loads(given)
        _say({"figures": asdict(perform(url, key, count, seed, _say))})
        return
    stderr = Console(stderr=True)
    figures = storm(store, count, seed, lambda text: stderr.print(text, highlight=False))
    if as_json:
        click.echo(json.dumps(asdict(figures) | {"ok": figures.ok}, indent=2))
    else:
        _print(figures)
    sys.exit(0 if figures.ok else 1)


def _print(figures: Figures) -> None:
    table = Table("figure", "number")
    for name, value in asdict(figures).items():
        if name != "odd":
            table.add_row(name.replace("_", " "), f"{value:,.1f}" if isinstance(value, float) else str(value))
    console = Console(width=None if sys.stdout.isatty() else 100)
    console.print(table)
    for text in figures.odd:
        console.print(f"[red]{text}")
    console.print("every promise was kept" if figures.ok else "[red]a promise was broken")


if __name__ == "__main__":
    main()
