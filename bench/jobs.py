"""The application that `packhorse worker bench.jobs:app` runs; its store is $PACKHORSE_STORE."""

from __future__ import annotations

import os

from bench import bodies
from packhorse import Packhorse

NOOP, NAP = "bench.noop", "bench.nap"


def make_app(url: str) -> Packhorse:
    app = Packhorse("bench", url)
    app.task(name=NOOP)(bodies.noop)
    app.task(name=NAP)(bodies.nap)
    return app


app = make_app(os.environ.get("PACKHORSE_STORE") or "memory://")
