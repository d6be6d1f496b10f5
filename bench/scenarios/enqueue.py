"""Enqueueing, one by one and in bulk, durable when the call returns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from rich.table import Table

from bench.figures import paired, spread
from bench.lab import Lab
from bench.report import number, times_spread, with_spread
from bench.systems import BareSystem, HueySystem, PackhorseSystem, System

TITLE = "Enqueue: one process, no worker running, jobs per second"
WARM_UP = 100


def run(lab: Lab) -> dict[str, Any]:
    sizes = lab.sizes
    return {
        "jobs": {"one_by_one": sizes.enqueue_jobs, "bulk": sizes.bulk_jobs},
        "one_by_one": _measure(
            lab, "one by one", sizes.enqueue_jobs, _one_by_one, [PackhorseSystem, HueySystem, BareSystem]
        ),
        "bulk": _measure(lab, "bulk", sizes.bulk_jobs, _in_bulk, [PackhorseSystem, BareSystem]),
    }


def _one_by_one(system: System, numbers: range) -> None:
    for job in numbers:
        system.enqueue(job)


def _in_bulk(system: System, numbers: range) -> None:
    system.fill(numbers)


def _measure(
    lab: Lab, way: str, jobs: int, enqueue: Callable[[Any, range], None], systems: list[type[System]]
) -> dict[str, Any]:
    rates: dict[str, list[float]] = {system.name: [] for system in systems}
    for repetition in lab.repetitions(f"enqueue, {way}"):
        for make in systems:
            lab.step(f"enqueue: {way}, {make.name}, {repetition} of {lab.sizes.repetitions}")
            system = make(lab)
            enqueue(system, range(1, WARM_UP + 1))
            began = time.perf_counter()
            enqueue(system, range(WARM_UP + 1, WARM_UP + jobs + 1))
            rates[make.name].append(jobs / (time.perf_counter() - began))
            if system.unfinished() != WARM_UP + jobs:
                lab.trouble(f"{make.name}: {WARM_UP + jobs} jobs enqueued, {system.unfinished()} in the store")
            system.close()
    figures: dict[str, Any] = {name: spread(values) for name, values in rates.items()}
    ours = rates["packhorse"]
    figures["ratios"] = {f"packhorse/{name}": paired(ours, rates[name]) for name in rates if name != "packhorse"}
    return figures


def tables(figures: dict[str, Any]) -> Iterator[Table]:
    table = Table("", "jobs", "packhorse", "huey", "bare sqlite3", "packhorse/huey", "packhorse/bare")
    for way in ("one_by_one", "bulk"):
        rates = figures[way]
        cells = [with_spread(rates[name]) if name in rates else "–" for name in ("packhorse", "huey", "bare")]
        quotients = [times_spread(rates["ratios"].get(f"packhorse/{name}")) for name in ("huey", "bare")]
        table.add_row(way.replace("_", " "), number(figures["jobs"][way]), *cells, *quotients)
    yield table
