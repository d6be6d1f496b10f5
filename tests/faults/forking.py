"""Tasks that fork. Their children come back to where the worker would go on, or behave."""

from __future__ import annotations

import asyncio
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

    @app.task(name="aecho")
    async def aecho(key: str) -> str:
        ledger.write(key, "start")
        await asyncio.sleep(0)
        ledger.write(key, "finish")
        return key


def _square(number: int) -> int:
    return number * number
