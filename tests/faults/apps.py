"""The application of the fault tests, as worker processes load it. All it needs to know comes from the environment.

PACKHORSE_STORE   where jobs live
LEDGER            the effect ledger: a file outside the store, one line per start and finish of a task
FAULTS_SETTINGS   settings of the application, JSON
FAULTS_CONSTANTS  module constants to shorten, JSON: {"packhorse.stores.sqlite_connections.DEADLINE": 0.5}
FAULTS_BOOT       "crash role" or "hang role": processes of that role do not get beyond importing this
FAULTS_LOCAL      if set, there is a local task, and this is what it does: "loop", or "fail" at its first start
FAULTS_ISOLATED   if set, there are tasks in processes of their own
FAULTS_ARMED      "role marker": only the first process of that role keeps its failpoints; the marker gets its pid
"""

import asyncio
import ctypes
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from packhorse import Context, Packhorse, TimedOut, current_context, failpoints, limit, unique
from packhorse.clock import to_microseconds
from tests.faults.forking import add_forking

HOLD_AT_MOST = 240.0


def whole_lines(path: Path) -> list[str]:
    """Without the last one, as long as it is being written: a reader may see the pages of one write come one by one."""
    return path.read_bytes().rpartition(b"\n")[0].decode().splitlines()


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
        lines = whole_lines(self.path) if self.path.exists() else []
        return sum(line.split()[0] == key and line.split()[2] == "start" for line in lines)

    def permit(self, key: str) -> Path:
        """The file with which a test lets a job go."""
        return self.path.parent / f"go-{key}"

    def hold(self, key: str) -> None:
        self.write(key, "start")
        _wait_for(self.permit(key))
        self.write(key, "finish")


def make_app(url: str, ledger_path: Path, **settings: Any) -> Packhorse:
    app = Packhorse("faults", url, **settings)
    ledger = Ledger(ledger_path)
    for add in (_quick, _moments, _held, _deadly, _stepwise, _limited, _late, _isolated, add_forking, _endless):
        add(app, ledger)
    return app


def _quick(app: Packhorse, ledger: Ledger) -> None:
    """Tasks that end by themselves."""

    @app.task(name="note")
    def note(key: str, padding: str = "") -> None:
        ledger.write(key, "start")
        ledger.write(key, "finish")

    @app.task(name="note_strictly", on_worker_lost="fail")
    def note_strictly(key: str) -> None:
        note(key)

    @app.task(name="anote")
    async def anote(key: str) -> None:
        ledger.write(key, "start")
        await asyncio.sleep(0)
        ledger.write(key, "finish")

    @app.task(name="nap")
    def nap(key: str, seconds: float) -> None:
        ledger.write(key, "start")
        time.sleep(seconds)
        ledger.write(key, "finish")

    @app.task(name="nap_and_go", keep_succeeded=0)
    def nap_and_go(key: str, seconds: float) -> None:
        """The same, but nothing is left of the job."""
        nap(key, seconds)

    @app.task(name="block")
    async def block(key: str, seconds: float) -> None:
        """Blocks the loop."""
        ledger.write(key, "start")
        time.sleep(seconds)
        ledger.write(key, "finish")

    @app.task(name="block_and_hold")
    async def block_and_hold(key: str) -> None:
        """Blocks the loop until the test lets it go."""
        ledger.hold(key)

    @app.task(name="grip")
    def grip(key: str) -> None:
        """Holds the interpreter lock for seconds, so that nobody else in this process runs."""
        ledger.write(key, "start")
        ctypes.PyDLL(None).sleep(5)
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


def _moments(app: Packhorse, ledger: Ledger) -> None:
    """What schedules perform: which moment of which schedule, by which job."""

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


def _held(app: Packhorse, ledger: Ledger) -> None:
    """Tasks that run until the test lets them go, see `Place.let_go`, or nearly so."""

    @app.task(name="hold")
    def hold(key: str) -> None:
        ledger.hold(key)

    @app.task(name="ahold")
    async def ahold(key: str) -> None:
        ledger.write(key, "start")
        await asyncio.sleep(HOLD_AT_MOST)

    @app.task(name="stubborn")
    def stubborn(key: str) -> None:
        """Until the test lets it go, whatever is raised in it."""
        ledger.write(key, "start")
        while True:
            try:
                _wait_for(ledger.permit(key))
                break
            except BaseException:
                ledger.write(key, "asked")
        ledger.write(key, "finish")

    @app.task(name="beating")
    def beating(key: str) -> None:
        """Tells that it runs, again and again, until the test lets it go."""
        ledger.write(key, "start")
        while not ledger.permit(key).exists():
            ledger.write(key, "beat")
            time.sleep(0.02)
        ledger.write(key, "finish")

    @app.task(name="daemon")
    def daemon(key: str) -> None:
        """Leaves a process behind that tells which files it has inherited, and lives until the test lets it go."""
        ledger.write(key, "start")
        script = (
            "import os, sys, time, pathlib\n"
            "names = [os.readlink(f'/proc/self/fd/{fd}') for fd in os.listdir('/proc/self/fd') if int(fd) > 2"
            " and os.path.exists(f'/proc/self/fd/{fd}')]\n"
            "pathlib.Path(sys.argv[1] + '-files').write_text(repr(names))\n"
            "while not os.path.exists(sys.argv[1]): time.sleep(0.01)\n"
        )
        path = str(ledger.permit(key))
        subprocess.Popen([sys.executable, "-c", script, path], start_new_session=True)
        _wait_for(Path(f"{path}-files"))
        ledger.write(key, "finish")


def _deadly(app: Packhorse, ledger: Ledger) -> None:
    """Tasks that take their worker along."""

    @app.task(name="die")
    def die(key: str, times: int) -> None:
        """Takes its worker along, so many times."""
        ledger.write(key, "start")
        if ledger.starts(key) <= times:
            os.kill(os.getpid(), signal.SIGKILL)
        ledger.write(key, "finish")

    @app.task(name="die_strictly", on_worker_lost="fail")
    def die_strictly(key: str) -> None:
        ledger.write(key, "start")
        os.kill(os.getpid(), signal.SIGKILL)


def _stepwise(app: Packhorse, ledger: Ledger) -> None:
    """Tasks of several steps, or with children."""

    def effect(key: str, value: int) -> int:
        ledger.write(key, "effect")
        return value

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

    @app.task(name="square")
    def square(key: str, number: int) -> int:
        ledger.write(key, "start")
        ledger.write(key, "finish")
        return number * number

    @app.task(name="family", takes_context=True)
    def family(context: Context, key: str, size: int) -> int:
        ledger.write(key, "start")
        squares = context.children("all", [square.call(f"{key}/{n}", n) for n in range(size)])
        ledger.write(key, "finish")
        return sum(squares)


def _limited(app: Packhorse, ledger: Ledger) -> None:
    """Tasks that are held apart."""

    @app.task(name="visit", limit=limit("{room}", to=1, group="rooms"))
    def visit(key: str, room: str, seconds: float = 0.02) -> None:
        ledger.write(key, "start")
        time.sleep(seconds)
        ledger.write(key, "finish")

    for group in ("one", "two"):

        @app.task(name=f"hold_{group}", limit=limit("same", to=1, group=group))
        def hold_limited(key: str) -> None:
            ledger.hold(key)

    @app.task(name="hold_alone", unique=unique("alone"))
    def hold_alone(key: str) -> None:
        ledger.hold(key)

    @app.task(name="hold_alone_strictly", unique=unique("alone"), on_worker_lost="fail")
    def hold_alone_strictly(key: str) -> None:
        ledger.hold(key)


def _late(app: Packhorse, ledger: Ledger) -> None:
    """Tasks that run longer than they may."""

    for isolate, prefix in ((False, ""), (True, "isolated_")):

        @app.task(name=f"{prefix}late", timeout=0.5, isolate=isolate)
        def late(key: str) -> None:
            ledger.hold(key)

        @app.task(name=f"{prefix}alate", timeout=0.5, isolate=isolate)
        async def alate(key: str) -> None:
            ledger.write(key, "start")
            await asyncio.sleep(HOLD_AT_MOST)

        @app.task(name=f"{prefix}late_once", timeout=2.0, isolate=isolate, retries=1, backoff=0.01)
        def late_once(key: str) -> None:
            ledger.write(key, "start")
            if ledger.starts(key) == 1:
                _wait_for(ledger.permit(key))
            ledger.write(key, "finish")

        @app.task(name=f"{prefix}stubborn_late", timeout=0.5, isolate=isolate)
        def stubborn_late(key: str) -> None:
            """Holds the interpreter lock, so that nobody in this process can do anything about it."""
            ledger.write(key, "start")
            sum(range(10**13))

        @app.task(name=f"{prefix}blocking_late", timeout=0.5, isolate=isolate)
        async def blocking_late(key: str) -> None:
            ledger.write(key, "start")
            time.sleep(HOLD_AT_MOST)

        @app.task(name=f"{prefix}late_in_store", timeout=0.5, isolate=isolate)
        def late_in_store(key: str) -> None:
            """Its step takes longer to be written than it may run itself."""
            ledger.write(key, "start")
            try:
                current_context().step("one", lambda: 1)
                ledger.hold(key)
            except TimedOut:
                current_context().step("two", lambda: 2)
                raise

    @app.task(name="asleep_late", timeout=0.5)
    def asleep_late(key: str) -> None:
        """In the system, where no exception reaches a thread."""
        ledger.write(key, "start")
        time.sleep(HOLD_AT_MOST)


def _isolated(app: Packhorse, ledger: Ledger) -> None:
    """Tasks in processes of their own."""

    @app.task(name="isolated_hold", isolate=True)
    def isolated_hold(key: str) -> None:
        ledger.hold(key)

    @app.task(name="isolated_note", isolate=True)
    def isolated_note(key: str) -> int:
        ledger.write(key, "start")
        ledger.write(key, "finish")
        return os.getpid()

    @app.task(name="isolated_anote", isolate=True)
    async def isolated_anote(key: str) -> None:
        ledger.write(key, "start")
        await asyncio.sleep(0)
        ledger.write(key, "finish")

    @app.task(name="isolated_die", isolate=True)
    def isolated_die(key: str, how: str) -> None:
        ledger.write(key, "start")
        match how:
            case "signal":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "exit":
                os._exit(7)
            case "memory":
                bytearray(1 << 50)

    @app.task(name="isolated_left", takes_context=True, isolate=True)
    def isolated_left(context: Context, key: str) -> None:
        """Until it hears how long it may still run; says whether that is soon."""
        ledger.write(key, "start")
        while (left := context.remaining) is None:
            time.sleep(0.005)
        ledger.write(key, "soon" if left < 100 else "later")

    @app.task(name="isolated_deaf", isolate=True)
    def isolated_deaf(key: str) -> None:
        """Neither looks nor can be interrupted."""
        ledger.write(key, "start")
        sum(range(10**13))


def _endless(app: Packhorse, ledger: Ledger) -> None:
    """Tasks that run until somebody stops them."""

    for isolate, prefix in ((False, ""), (True, "isolated_")):

        @app.task(name=f"{prefix}endless", takes_context=True, isolate=isolate)
        def endless(context: Context, key: str) -> None:
            """Leaves at a checkpoint; says where it goes on, and how far it is."""
            number = context.cursor(0)
            ledger.write(key, "start")
            ledger.write(f"{key}/{number}", "from")
            while True:
                number += 1
                context.progress(number)
                context.checkpoint(number)
                time.sleep(0.01)

    @app.task(name="follow", takes_context=True)
    def follow(context: Context, key: str) -> None:
        ledger.write(key, "start")
        while not context.stop_requested:
            time.sleep(0.01)
        ledger.write(key, "cleaned")
        context.checkpoint()

    @app.task(name="afollow", takes_context=True)
    async def afollow(context: Context, key: str) -> None:
        ledger.write(key, "start")
        try:
            while not context.stop_requested:
                await asyncio.sleep(0.01)
        finally:
            ledger.write(key, "cleaned")
        await context.acheckpoint()

    if how := os.environ.get("FAULTS_LOCAL"):

        @app.task(name="pulse", takes_context=True, local=True, backoff=0.05)
        def pulse(context: Context) -> None:
            key = f"pulse-{context.job_id}"
            ledger.write(key, "start")
            if how == "fail" and ledger.starts(key) == 1:
                raise ValueError("not yet")
            while not context.stop_requested:
                time.sleep(0.01)
            ledger.write(key, "finish")


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
    match os.environ.get("FAULTS_BOOT", "").split():
        case ["crash", role] if role == _role():
            raise ImportError("this application cannot be imported")
        case ["hang", role] if role == _role():
            time.sleep(HOLD_AT_MOST)
    if "FAULTS_ARMED" in os.environ and not _keep_armed():
        failpoints.arm("")
    settings = json.loads(os.environ.get("FAULTS_SETTINGS", "{}"))
    made = make_app(os.environ["PACKHORSE_STORE"], Path(os.environ["LEDGER"]), **settings)
    if not os.environ.get("FAULTS_ISOLATED"):
        drop_isolated(made)
    return made


def drop_isolated(app: Packhorse) -> None:
    """No process is started for such a task, nor kept warm."""
    for name in [name for name, task in app.tasks.items() if task.performed.isolate]:
        del app.tasks[name]


if "LEDGER" in os.environ:
    app = from_environment()
