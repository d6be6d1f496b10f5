"""What `huey_consumer bench.huey_jobs.huey` runs; its database is $BENCH_HUEY."""

from __future__ import annotations

import os
from typing import Any

from huey import SqliteHuey

from bench import bodies

DATABASE = "BENCH_HUEY"


def make_huey(path: str) -> tuple[SqliteHuey, Any]:
    """Huey at its defaults: WAL, and SQLite's own default for synchronous, which is FULL."""
    huey = SqliteHuey("bench", filename=path)
    return huey, huey.task(name="noop")(bodies.noop)


if DATABASE in os.environ:
    huey, noop = make_huey(os.environ[DATABASE])
