"""Enqueueing, one by one and in bulk, durable when the call returns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from rich.table import Table

from bench.figures import paired, spread
from bench.lab import Lab
from bench.report import number, times_spread, with_spread
from bench.systems import PackhorseSystem, System

TITLE = "Enqueue: one process, no worker running, jobs per second"
WARM_UP = 100


def run(lab: Lab) -> dict[str, Any]:
    sizes = lab.sizes
    every: list[type[System]] = [PackhorseSystem, *lab.store.peers, lab.store.bares[0]]
    return {
        "jobs": {"one_by_one": sizes.enqueue_jobs, "bulk": sizes.bulk_jobs},
        "one_by_one": _measure(lab, "one by one", sizes.enqueue_jobs, _one_by_one, every),
        "bulk": _measure(lab, "bulk", sizes.bulk_jobs, _in_bulk, [make for make in every if make.bulk]),
    }


def _one_by_one(system: System, first: int, last: int) -> None:
    system.one_by_one(first, last)


def _in_bulk(system: System, first: int, last: int) -> None:
    system.fill(range(first, last + 1))


def _measure(
    lab: Lab, way: str, jobs: int, enqueue: Callable[[System, int, int], None], systems: list[type[System]]
) -> dict[str, Any]:
    rates: dict[str, list[float]] = {system.name: [] for system in systems}
    for repetition in lab.repetitions(f"enqueue, {way}"):
        for make in systems:
            lab.step(f"enqueue: {way}, {make.name}, {repetition} of {lab.sizes.repetitions}")
            system = make(lab)
            enqueue(system, 1, WARM_UP)
            began = time.perf_counter()
            enqueue(system, WARM_UP + 1, WARM_UP + jobs)
            rates[make.name].append(jobs / (time.perf_counter() - began))
            if system.unfinished() != WARM_UP + jobs:
                lab.trouble(f"{make.name}: {WARM_UP + jobs} jobs enqueued, {system.unfinished()} in the store")
            system.close()
    figures: dict[str, Any] = {"rates": {name: spread(values) for name, values in rates.items()}}
    ours = rates["packhorse"]
    figures["ratios"] = {f"packhorse/{name}": paired(ours, rates[name]) for name in rates if name != "packhorse"}
    return figures


def tables(figures: dict[str, Any]) -> Iterator[Table]:
    for way in ("one_by_one", "bulk"):
        table = Table(
            f"{number(figures['jobs'][way])} jobs, {way.replace('_', ' ')}", "jobs per second", "packhorse/it"
        )
        for name, rate in figures[way]["rates"].items():
            quotient = figures[way]["ratios"].get(f"packhorse/{name}")
            table.add_row(name, with_spread(rate), "" if quotient is None else times_spread(quotient))
        yield table
