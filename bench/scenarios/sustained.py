"""One producer enqueues one job at a time, as fast as it can, while the workers work: what goes in, what comes out?"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from rich.table import Table

from bench.drains import check
from bench.figures import percentile, ratio
from bench.lab import Lab
from bench.report import number, times
from bench.scenarios.latency import WARM_UP, warm_up
from bench.systems import HueySystem, PackhorseSystem, System

TITLE = "Sustained: one producer at full speed beside the workers"
DRAIN_DEADLINE = 20.0


def run(lab: Lab) -> dict[str, Any]:
    figures: dict[str, Any] = {"seconds": lab.sizes.sustained_seconds}
    for make in (PackhorseSystem, HueySystem):
        lab.step(f"sustained: {make.name}")
        figures[make.name] = _measure(lab, make(lab), lab.sizes.sustained_seconds)
    figures["ratios"] = {
        f"packhorse/huey {way}": ratio(figures["packhorse"][way], figures["huey"][way]) for way in ("in", "out")
    }
    return figures


def _measure(lab: Lab, system: System, seconds: float) -> dict[str, Any]:
    calls: list[int] = []
    errors: list[str] = []
    with system.start() as running:
        warm_up(system, running)
        job = WARM_UP
        now = began = time.monotonic_ns()
        end = began + int(seconds * 1e9)
        while now < end:
            job += 1
            try:
                system.enqueue(job)
            except Exception as error:  # a locked database must not end the run
                errors.append(f"{type(error).__name__}: {error}")
                job -= 1
            before, now = now, time.monotonic_ns()
            calls.append(now - before)
        # Give the rest a chance, so that every job can be accounted for.
        complete = running.wait_performed(job, DRAIN_DEADLINE)
    system.close()
    marks = running.marks()
    check(lab, system.name, marks, job if complete or system.name == "packhorse" else None)
    if errors:
        lab.note(f"{system.name}: {len(errors)} enqueues failed, the first with {errors[0]}")
    out = sum(1 for mark in marks if began <= mark.began <= now)
    span = (now - began) / 1e9
    return {
        "jobs": job - WARM_UP,
        "in": (job - WARM_UP) / span,
        "out": out / span,
        "left": job - WARM_UP - out,
        "errors": len(errors),
        "call_ms": {
            "p50": percentile(calls, 0.5) / 1e6,
            "p99": percentile(calls, 0.99) / 1e6,
            "max": max(calls) / 1e6,
        },
    }


def tables(figures: dict[str, Any]) -> Iterator[Table]:
    table = Table("", "jobs", "in/s", "out/s", "left", "enqueue call p50 ms", "p99 ms", "max ms", "errors")
    for name in ("packhorse", "huey"):
        row = figures[name]
        call = (f"{row['call_ms'][key]:.2f}" for key in ("p50", "p99", "max"))
        counts = (number(row[key]) for key in ("jobs", "in", "out", "left"))
        table.add_row(name, *counts, *call, number(row["errors"]))
    quotients = figures["ratios"]
    table.add_row("packhorse/huey", "", times(quotients["packhorse/huey in"]), times(quotients["packhorse/huey out"]))
    yield table
