"""The application that `packhorse worker bench.jobs:app` runs; its store is $PACKHORSE_STORE."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from bench import bodies
from packhorse import Context, Event, Middleware, Packhorse, limit, rate

NOOP, NAP, TYPED = "bench.noop", "bench.nap", "bench.typed"
LIMITED, RATED = "bench.limited", "bench.rated"
LIMITS = (1, 100, 1_000)
ISOLATED, BURN = "bench.isolated", "bench.burn"
RATE = 100  # a second
WATCHED, ALONE = "BENCH_WATCHED", "BENCH_ISOLATED"


class Wrapper(Middleware):
    def perform(self, context: Context) -> AbstractContextManager[Any]:
        return nullcontext()


def make_app(url: str, *, isolated: bool = False, **settings: Any) -> Packhorse:
    app = Packhorse("bench", url, **settings)
    app.task(name=NOOP)(bodies.noop)
    app.task(name=NAP)(bodies.nap)
    app.task(name=TYPED)(bodies.typed)
    for to in LIMITS:
        app.task(name=f"{LIMITED}.{to}", limit=limit(to=to))(bodies.noop)
    app.task(name=RATED, rate=rate(f"{RATE}/s"))(bodies.noop)
    if isolated:  # where there are such tasks, workers keep processes for them, and starting those takes long
        app.task(name=ISOLATED, isolate=True)(bodies.noop)
        app.task(name=BURN, isolate=True)(bodies.burn)
    if os.environ.get(WATCHED):
        app.use(Wrapper())
        app.subscribe("succeeded")(watch)
    return app


def watch(event: Event) -> None:
    """Told of every job."""


app = make_app(os.environ.get("PACKHORSE_STORE") or "memory://", isolated=bool(os.environ.get(ALONE)))
