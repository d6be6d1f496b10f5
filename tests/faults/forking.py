"""Tasks that fork. Their children come back to where the worker would go on, or behave."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import sys
import time
from typing import TYPE_CHECKING

from packhorse import Packhorse

if TYPE_CHECKING:
    from tests.faults.apps import Ledger

ASLEEP = 240.0


def leave(how: str) -> None:
    """Out of a task, in the child that it has forked."""
    match how:
        case "exit":
            sys.exit(5)
        case "exec":
            os.execvp("no-such-program", ["no-such-program"])
        case "raise":
            raise ValueError("in the forked child")
        case "return":
            return
    raise AssertionError(how)


def add_forking(app: Packhorse, ledger: Ledger) -> None:

    def forked(key: str) -> bool:
        """Whether this is the child; the parent has seen it end, and how."""
        ledger.write(key, "start")
        if (child := os.fork()) == 0:
            return True
        ledger.write(key, f"ended-{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}")
        ledger.write(key, "finish")
        return False

    for isolate, prefix in ((False, ""), (True, "isolated_")):

        @app.task(name=f"{prefix}split", isolate=isolate)
        def split(key: str, how: str) -> str:
            if forked(key):
                leave(how)
            return key

        @app.task(name=f"{prefix}asplit", isolate=isolate)
        async def asplit(key: str, how: str) -> str:
            if forked(key):
                if how == "await":
                    await asyncio.sleep(0)
                else:
                    leave(how)
            return key

        @app.task(name=f"{prefix}split_aside", isolate=isolate)
        async def split_aside(key: str, how: str) -> str:
            """Forks in a thread beside the loop."""

            def aside() -> None:
                if forked(key):
                    leave(how)

            await asyncio.to_thread(aside)
            return key

        @app.task(name=f"{prefix}echo", isolate=isolate)
        def echo(key: str) -> str:
            ledger.write(key, "start")
            ledger.write(key, "finish")
            return key

        @app.task(name=f"{prefix}leave_asleep", isolate=isolate)
        def leave_asleep(key: str) -> int:
            """Leaves a child behind that only sleeps; its pid."""
            ledger.write(key, "start")
            if (child := os.fork()) == 0:
                time.sleep(ASLEEP)
                os._exit(0)
            ledger.write(key, "finish")
            return child

        @app.task(name=f"{prefix}pool", isolate=isolate)
        def pool(key: str) -> list[int]:
            """Children that behave, of multiprocessing."""
            ledger.write(key, "start")
            context = multiprocessing.get_context("fork")
            process = context.Process(target=echo.function, args=(f"{key}-child",))
            process.start()
            process.join()
            with context.Pool(2) as workers:
                squares = workers.map(_square, range(4))
            ledger.write(key, "finish")
            return [process.exitcode or 0, *squares]

    @app.task(name="isolated_babble", isolate=True)
    def babble(key: str) -> str:
        """At its first start it says what its process would say of another job, and nothing after that."""
        ledger.write(key, "start")
        if ledger.starts(key) == 1:
            said = {"job": ["00", 1, "00", 1], "outcome": {"state": "succeeded"}, "memory": 0}
            os.write(json.loads(sys.argv[1])[1], json.dumps(said).encode() + b"\n")
            time.sleep(ASLEEP)
        ledger.write(key, "finish")
        return key

    @app.task(name="aecho")
    async def aecho(key: str) -> str:
        ledger.write(key, "start")
        await asyncio.sleep(0)
        ledger.write(key, "finish")
        return key


def _square(number: int) -> int:
    return number * number


EVERYWHERE = '''
"""All but the tasks forks. Each line of the ledger says what did, and how its child ended."""
import os
from contextlib import contextmanager
from packhorse import Middleware, Packhorse, every
from packhorse.pickling import PickleCodec

app = Packhorse("everywhere", os.environ["STORE"], heartbeat=0.25, lease=10.0, polling_interval=0.2)

def fork(what):
    if "ENQUEUING" in os.environ:
        return
    if (child := os.fork()) == 0:
        raise SystemExit(5)
    note(f"{what} {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}")

def note(text):
    fd = os.open(os.environ["LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, f"{text}\\n".encode())
    os.close(fd)

@app.hook("start")
@app.hook("stop")
@app.hook("exit")
def hook(occasion):
    fork(f"{occasion.when}-{occasion.role}")

@app.subscribe("succeeded")
def subscriber(event):
    fork(f"subscriber-{event.task}")

def reporter(told):
    fork(f"reporter-{told.context.task}")

app.error_reporters.append(reporter)

class Around(Middleware):
    def enqueue(self, draft):
        fork(f"enqueue-{draft.task}")
        return draft

    @contextmanager
    def perform(self, context):
        fork(f"before-{context.task}")
        yield
        fork(f"after-{context.task}")

app.use(Around())

class Forking(PickleCodec):
    def decode(self, data):
        fork("decode")
        return super().decode(data)

    def encode(self, value):
        fork("encode")
        return super().encode(value)

def backoff(attempt, error):
    fork("backoff")
    return 0.01

@app.task(name="plain", codec=Forking())
def plain():
    note("done")
    return "plain"

@app.task(name="along", codec=Forking())
async def along():
    note("done")
    return "along"

@app.task(name="failing", retries=1, backoff=backoff)
def failing():
    note("done")
    raise ValueError("as planned")

@app.recurring(every(1))
@app.task(name="due")
def due():
    note("done")
'''
