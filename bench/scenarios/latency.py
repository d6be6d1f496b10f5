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
from bench.systems import PackhorseSystem, Running, System

TITLE = "Latency: idle workers, one job every 20 ms, milliseconds from enqueued to begun"
APART = 0.02
WARM_UP = 20
DEADLINE = 30.0


def run(lab: Lab) -> dict[str, Any]:
    """Round trips are taken before and after, as the machine may be busier at one end."""
    store, sizes = lab.store, lab.sizes
    makes: list[type[System]] = [PackhorseSystem, *store.peers, *store.bare_listening]
    trips = store.round_trips(sizes.latency_jobs)
    systems: dict[str, dict[str, float]] = {}
    for make in makes:
        lab.step(f"latency: {make.name}")
        systems[make.name] = _measure(lab, make(lab), sizes.latency_jobs)
    for name, taken in store.round_trips(sizes.latency_jobs).items():
        trips[name] += taken
    ours = systems["packhorse"]
    return {
        "jobs": sizes.latency_jobs,
        "systems": systems,
        "round_trips": {name: _percentiles(taken) for name, taken in trips.items()},
        "ratios": {
            f"{name}/packhorse {key}": ratio(row[key], ours[key])
            for name, row in systems.items()
            if name != "packhorse"
            for key in ("p50", "p95", "p99")
        },
        "packhorse_above": {
            f"{name} {key}": ours[key] - percentile(taken, share)
            for name, taken in trips.items()
            for key, share in (("p50", 0.5), ("p99", 0.99))
        },
    }


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
            enqueued[job] = system.enqueue(job)
            due += APART
            time.sleep(max(0.0, due - time.monotonic()))
        running.wait_performed(WARM_UP + jobs, DEADLINE)
    system.close()
    marks = running.marks()
    check(lab, system.name, marks, WARM_UP + jobs)
    waits = [max(0, mark.began - enqueued[mark.number]) / 1e6 for mark in marks if mark.number in enqueued]
    return _percentiles(waits)


def _percentiles(values: list[float]) -> dict[str, float]:
    return {
        "p50": percentile(values, 0.5),
        "p95": percentile(values, 0.95),
        "p99": percentile(values, 0.99),
        "max": max(values),
    }


def tables(figures: dict[str, Any]) -> Iterator[Table]:
    table = Table("", "jobs", "p50", "p95", "p99", "max")
    for name, row in figures["systems"].items():
        table.add_row(name, number(figures["jobs"]), *_cells(row))
    for name, row in figures["round_trips"].items():
        table.add_row(f"round trip: {name.replace('_', ' ')}", "", *_cells(row))
    yield table
    others = Table("", "")
    for name, value in figures["ratios"].items():
        others.add_row(name, times(value))
    for name, value in figures["packhorse_above"].items():
        others.add_row(f"packhorse above {name.replace('_', ' ')}", f"{value:.2f} ms")
    yield others


def _cells(row: dict[str, float]) -> Iterator[str]:
    return (f"{row[key]:.2f}" for key in ("p50", "p95", "p99", "max"))
