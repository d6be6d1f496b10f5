"""How long does a job wait for an idle worker? From the moment the enqueue call returned to the start of the body.

A body that began before the call returned, which happens because the commit comes first, counts as 0.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from rich.table import Table

from bench.drains import check
from bench.figures import percentile, ratio
from bench.lab import Lab
from bench.report import number, times
from bench.systems import HueySystem, PackhorseSystem, Running, System

TITLE = "Latency: idle workers, one job every 20 ms, milliseconds from enqueued to begun"
APART = 0.02
WARM_UP = 20
DEADLINE = 30.0


def run(lab: Lab) -> dict[str, Any]:
    figures: dict[str, Any] = {"jobs": lab.sizes.latency_jobs}
    for make in (PackhorseSystem, HueySystem):
        lab.step(f"latency: {make.name}")
        figures[make.name] = _measure(lab, make(lab), lab.sizes.latency_jobs)
    figures["ratios"] = {
        f"huey/packhorse {name}": ratio(figures["huey"][name], figures["packhorse"][name])
        for name in ("p50", "p95", "p99")
    }
    return figures


def warm_up(system: System, running: Running) -> None:
    """Jobs numbered 1…WARM_UP, so that imports, threads and connections are there."""
    for job in range(1, WARM_UP + 1):
        system.enqueue(job)
        time.sleep(APART)
    if not running.wait_performed(WARM_UP, DEADLINE):
        system.lab.trouble(f"{system.name}: the first {WARM_UP} jobs were not performed within {DEADLINE:g} s")
    time.sleep(0.5)


def _measure(lab: Lab, system: System, jobs: int) -> dict[str, float]:
    enqueued: dict[int, int] = {}
    with system.start() as running:
        warm_up(system, running)
        due = time.monotonic()
        for job in range(WARM_UP + 1, WARM_UP + jobs + 1):
            system.enqueue(job)
            enqueued[job] = time.monotonic_ns()
            due += APART
            time.sleep(max(0.0, due - time.monotonic()))
        running.wait_performed(WARM_UP + jobs, DEADLINE)
    system.close()
    marks = running.marks()
    check(lab, system.name, marks, WARM_UP + jobs)
    waits = [max(0, mark.began - enqueued[mark.number]) / 1e6 for mark in marks if mark.number in enqueued]
    return {
        "p50": percentile(waits, 0.5),
        "p95": percentile(waits, 0.95),
        "p99": percentile(waits, 0.99),
        "max": max(waits),
    }


def tables(figures: dict[str, Any]) -> Iterator[Table]:
    table = Table("", "jobs", "p50", "p95", "p99", "max")
    for name in ("packhorse", "huey"):
        table.add_row(
            name, number(figures["jobs"]), *(f"{figures[name][key]:.2f}" for key in ("p50", "p95", "p99", "max"))
        )
    table.add_row("huey/packhorse", "", *(times(value) for value in figures["ratios"].values()), "")
    yield table
