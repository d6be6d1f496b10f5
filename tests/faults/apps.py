"""The application of the fault tests, as worker processes load it. All it needs to know comes from the environment.

PACKHORSE_STORE   where jobs live
LEDGER            the effect ledger: a file outside the store, one line per start and finish of a task
FAULTS_SETTINGS   settings of the application, JSON
FAULTS_CONSTANTS  module constants to shorten, JSON: {"packhorse.stores.sqlite_connections.DEADLINE": 0.5}
FAULTS_ARMED      "role marker": only the first process of that role keeps its failpoints; the marker gets its pid
"""

import asyncio
import importlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from packhorse import Context, Packhorse, failpoints, limit, unique
from packhorse.clock import to_microseconds

HOLD_AT_MOST = 60.0


class Ledger:
    """What tasks really did: `key pid start|finish microseconds`, one appending write each."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, key: str, what: str) -> None:
        fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(fd, f"{key} {os.getpid()} {what} {time.time_ns() // 1000}\n".encode())
        finally:
            os.close(fd)

    def starts(self, key: str) -> int:
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        return sum(line.split()[0] == key and line.split()[2] == "start" for line in lines)


def make_app(url: str, ledger_path: Path, **settings: Any) -> Packhorse:
    app = Packhorse("faults", url, **settings)
    ledger = Ledger(ledger_path)

    @app.task(name="note")
    def note(key: str, padding: str = "") -> None:
        ledger.write(key, "start")
        ledger.write(key, "finish")

    @app.task(name="anote")
    async def anote(key: str) -> None:
        ledger.write(key, "start")
        await asyncio.sleep(0)
        ledger.write(key, "finish")

    @app.task(name="mark", takes_context=True)
    def mark(context: Context, key: str) -> None:
        """For schedules: which moment of which schedule is performed, by which job."""
        ledger.write(moment_key(context), "start")
        ledger.write(moment_key(context), "finish")

    @app.task(name="mark_and_go", takes_context=True, keep_succeeded=0)
    def mark_and_go(context: Context, key: str) -> None:
        """The same, but nothing is left of the job."""
        ledger.write(moment_key(context), "start")
        ledger.write(moment_key(context), "finish")

    @app.task(name="nap")
    def nap(key: str, seconds: float) -> None:
        ledger.write(key, "start")
        time.sleep(seconds)
        ledger.write(key, "finish")

    @app.task(name="hold")
    def hold(key: str) -> None:
        """Runs until the test lets it go, see `Place.let_go`."""
        ledger.write(key, "start")
        _wait_for(ledger_path.parent / f"go-{key}")
        ledger.write(key, "finish")

    @app.task(name="die")
    def die(key: str, times: int) -> None:
        """Takes its worker along, so many times."""
        ledger.write(key, "start")
        if ledger.starts(key) <= times:
            os.kill(os.getpid(), signal.SIGKILL)
        ledger.write(key, "finish")

    @app.task(name="stepwise", takes_context=True)
    def stepwise(context: Context, key: str, steps: int) -> int:
        """A line just before each step is recorded, and one as soon as it is known to be."""
        ledger.write(key, "start")
        numbers = []
        for n in range(steps):
            numbers.append(context.step(f"step {n}", effect, f"{key}/{n}", n))
            ledger.write(f"{key}/{n}", "kept")
        assert numbers == list(range(steps))
        ledger.write(key, "finish")
        return sum(numbers)

    def effect(key: str, value: int) -> int:
        ledger.write(key, "effect")
        return value

    @app.task(name="hear", takes_context=True)
    def hear(context: Context, key: str, signal: str) -> None:
        ledger.write(key, "start")
        context.wait_for(signal)
        ledger.write(key, "finish")

    @app.task(name="saga", takes_context=True)
    def saga(context: Context, key: str) -> str:
        ledger.write(key, "start")
        context.step("charge", effect, f"{key}/charge", 1)
        ledger.write(f"{key}/charge", "kept")
        context.sleep(0.02)
        ledger.write(key, "awake")
        said = context.wait_for(f"go:{key}")
        context.step("ship", effect, f"{key}/ship", 2)
        ledger.write(f"{key}/ship", "kept")
        ledger.write(key, "finish")
        return f"{key} {said}"

    @app.task(name="die_strictly", on_worker_lost="fail")
    def die_strictly(key: str) -> None:
        ledger.write(key, "start")
        os.kill(os.getpid(), signal.SIGKILL)

    @app.task(name="visit", limit=limit("{room}", to=1, group="rooms"))
    def visit(key: str, room: str, seconds: float = 0.02) -> None:
        ledger.write(key, "start")
        time.sleep(seconds)
        ledger.write(key, "finish")

    for group in ("one", "two"):

        @app.task(name=f"hold_{group}", limit=limit("same", to=1, group=group))
        def hold_limited(key: str) -> None:
            ledger.write(key, "start")
            _wait_for(ledger_path.parent / f"go-{key}")
            ledger.write(key, "finish")

    @app.task(name="hold_alone", unique=unique("alone"))
    def hold_alone(key: str) -> None:
        ledger.write(key, "start")
        _wait_for(ledger_path.parent / f"go-{key}")
        ledger.write(key, "finish")

    @app.task(name="hold_alone_strictly", unique=unique("alone"), on_worker_lost="fail")
    def hold_alone_strictly(key: str) -> None:
        ledger.write(key, "start")
        _wait_for(ledger_path.parent / f"go-{key}")
        ledger.write(key, "finish")

    @app.task(name="fork")
    def fork(key: str) -> None:
        """Its child enqueues with a store that its parent had open, tells which handles it used, and leaves."""
        ledger.write(key, "start")
        if (child := os.fork()) == 0:
            status = 1
            try:
                note.enqueue(f"{key}-child")
                status = 0
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        note.enqueue(f"{key}-parent")
        if status != 0:
            raise ChildProcessError(f"the forked child ended with {status}")
        ledger.write(key, "finish")

    return app


def moment_key(context: Context) -> str:
    assert context.moment is not None
    return f"{context.schedule}@{to_microseconds(context.moment)}@{context.job_id}"


def _wait_for(path: Path) -> None:
    deadline = time.monotonic() + HOLD_AT_MOST
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"nobody made {path}")
        time.sleep(0.005)


def _role() -> str:
    """What this process is: `python -m packhorse.runtime.child '{"role": ...}'`, or the supervisor."""
    if Path(sys.argv[0]).name != "child.py":
        return "supervisor"
    return str(json.loads(sys.argv[1])["role"])


def _keep_armed() -> bool:
    role, _, marker = os.environ["FAULTS_ARMED"].partition(" ")
    if role != _role():
        return False
    try:
        fd = os.open(marker, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return False
    os.write(fd, str(os.getpid()).encode())
    os.close(fd)
    return True


def from_environment() -> Packhorse:
    for path, value in json.loads(os.environ.get("FAULTS_CONSTANTS", "{}")).items():
        module, _, name = path.rpartition(".")
        namespace = importlib.import_module(module)
        if not hasattr(namespace, name):
            raise AttributeError(f"{path} is gone; the fault tests shorten it")
        setattr(namespace, name, value)
    if "FAULTS_ARMED" in os.environ and not _keep_armed():
        failpoints.arm("")
    settings = json.loads(os.environ.get("FAULTS_SETTINGS", "{}"))
    return make_app(os.environ["PACKHORSE_STORE"], Path(os.environ["LEDGER"]), **settings)


if "LEDGER" in os.environ:
    app = from_environment()
