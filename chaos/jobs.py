"""The application that the workers of a run load. All it needs to know comes from the environment.

PACKHORSE_STORE   where jobs live
CHAOS_FOLDER      where the ledger and the clock are, outside the store
CHAOS_SETTINGS    settings of the application, JSON
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from chaos.clock import SteppedClock
from chaos.history import APART, FATAL, SECOND, STRICT, Pace
from chaos.ledger import BEAT, Ledger
from packhorse import Context, Packhorse, limit, rate, unique
from packhorse.clock import to_microseconds
from packhorse.stores import open_store

LIMIT, LIMIT_TO = "narrow", 3
RATE, RATE_PACE = "paced", Pace(20, 1)
UNIQUE_KEYS = 20
FLAKY_FAILURES = 2
WAYS_OUT = ("exit", "exec", "raise", "return")  # of a forked child
LIMITS = {LIMIT: LIMIT_TO} | {f"unique-{n}": 1 for n in range(UNIQUE_KEYS)}
RATES = {RATE: RATE_PACE}


def make_app(url: str, folder: Path, **settings: Any) -> Packhorse:
    clock = SteppedClock(folder / "clock")
    # A server has a clock of its own, which nobody sets here.
    store = open_store(url, clock if url.startswith("sqlite:") else None)
    app = Packhorse("chaos", store, clock=clock, **settings)
    ledger = Ledger(folder / "ledger")

    @app.task(name="quick", takes_context=True)
    async def quick(context: Context) -> str:
        with ledger.run(context) as running:
            await asyncio.sleep(0)
            return running.name

    @app.task(name="along", takes_context=True)
    async def along(context: Context, seconds: float) -> str:
        """A coroutine that takes its time."""
        with ledger.run(context) as running:
            for _ in range(max(1, round(seconds / BEAT))):
                await asyncio.sleep(BEAT)
                running.beat()
            return running.name

    @app.task(name="plain", takes_context=True)
    def plain(context: Context) -> str:
        with ledger.run(context) as running:
            return running.name

    @app.task(name="busy", takes_context=True)
    def busy(context: Context, seconds: float) -> str:
        """A thread that takes its time."""
        with ledger.run(context) as running:
            _take(running.beat, seconds)
            return running.name

    @app.task(name="flaky", takes_context=True, retries=FLAKY_FAILURES, backoff=0.05)
    def flaky(context: Context) -> str:
        with ledger.run(context) as running:
            if context.attempt <= FLAKY_FAILURES:
                raise ConnectionError("as planned")
            return running.name

    @app.task(name="narrow", takes_context=True, limit=limit(LIMIT, to=LIMIT_TO))
    def narrow(context: Context, seconds: float) -> str:
        with ledger.run(context, limit=LIMIT) as running:
            _take(running.beat, seconds)
            return running.name

    @app.task(name="paced", takes_context=True, rate=rate(f"{RATE_PACE.per_second:g}/s", RATE))
    def paced(context: Context) -> str:
        with ledger.run(context, rate=RATE) as running:
            return running.name

    @app.task(name="sole", takes_context=True, unique=unique("sole-{number}"))
    def sole(context: Context, number: int) -> str:
        with ledger.run(context, limit=f"unique-{number}") as running:
            _take(running.beat, 0.02)
            return running.name

    @app.task(name="link", takes_context=True)
    def link(context: Context, place: str, before: Any = None) -> str:
        """A job of a flow; `before` are results of others."""
        with ledger.run(context, place=place) as running:
            return running.name

    @app.task(name="stepwise", takes_context=True)
    def stepwise(context: Context, steps: int) -> str:
        """Durable steps with a sleep between them."""
        with ledger.run(context) as running:
            for n in range(steps):
                running.step(f"step-{n}")
                if n == 0:
                    context.sleep(0.05, "nap")
            return running.name

    @app.task(name="moment", takes_context=True)
    def moment(context: Context) -> str:
        """For schedules."""
        assert context.schedule is not None
        assert context.moment is not None
        at = str(to_microseconds(context.moment))
        with ledger.run(context, schedule=context.schedule, moment=at) as running:
            return running.name

    @app.task(name=STRICT, takes_context=True, on_worker_lost="fail")
    def strict(context: Context) -> str:
        with ledger.run(context) as running:
            return running.name

    @app.task(name=FATAL, takes_context=True)
    def fatal(context: Context) -> None:
        with ledger.run(context) as running:
            running.die()

    @app.task(name=APART, takes_context=True, isolate=True)
    def apart(context: Context, seconds: float, how: str = "") -> str:
        """In a process of its own, which may fork."""
        if how and os.fork() == 0:
            return _leave(how)
        with ledger.run(context) as running:
            _take(running.beat, seconds)
            return running.name

    @app.task(name="split", takes_context=True)
    def split(context: Context, how: str) -> str:
        if (child := os.fork()) == 0:
            return _leave(how)
        with ledger.run(context) as running:
            os.waitpid(child, 0)
            return running.name

    @app.task(name="asplit", takes_context=True)
    async def asplit(context: Context, how: str) -> str:
        if (child := os.fork()) == 0:
            return _leave(how)
        with ledger.run(context) as running:
            await asyncio.to_thread(os.waitpid, child, 0)
            return running.name

    return app


def _leave(how: str) -> str:
    """Out of a forked child, which then comes back to the copy of its worker."""
    match how:
        case "exit":
            sys.exit(3)
        case "exec":
            os.execvp("no-such-program", ["no-such-program"])
        case "raise":
            raise ValueError("in a forked child")
    return "of a forked child"  # no run of any job has that name


def _take(beat: Any, seconds: float) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(BEAT, left))
        beat()


SCHEDULES = {"every-second": SECOND, "every-two": 2 * SECOND, "every-three": 3 * SECOND}


def from_environment() -> Packhorse:
    settings = json.loads(os.environ.get("CHAOS_SETTINGS", "{}"))
    return make_app(os.environ["PACKHORSE_STORE"], Path(os.environ["CHAOS_FOLDER"]), **settings)


if "CHAOS_FOLDER" in os.environ:
    app = from_environment()
