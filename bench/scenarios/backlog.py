"""Does a long queue slow the workers down? The same number of jobs from a short queue and off the top of a long one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

from rich.table import Table

from bench.drains import drain
from bench.figures import spread
from bench.lab import Lab
from bench.report import number, with_spread
from bench.systems import PackhorseSystem, System

TITLE = "Backlog: drain rate with few and with many jobs waiting, jobs per second"
FILL_DEADLINE = 120.0
FILL_CHUNK = 20_000


def run(lab: Lab) -> dict[str, Any]:
    sizes = lab.sizes
    makes: tuple[type[System], ...] = (PackhorseSystem, lab.store.bares[0])
    short: list[System] = [make(lab) for make in makes]
    long: list[System] = [make(lab) for make in makes]
    waiting = {}
    for few, many in zip(short, long, strict=True):
        lab.step(f"backlog: {sizes.backlog_waiting:,} jobs for {few.name}")
        few.fill(range(1, sizes.backlog_jobs + 1))
        few.close()
        waiting[many.name] = _fill(many, sizes.backlog_waiting)
        for system in (few, many):
            lab.store.settle(system.database)
    rates: dict[str, dict[str, list[float]]] = {system.name: {"short": [], "long": []} for system in short}
    performed: dict[str, set[int]] = {system.name: set() for system in short}
    for repetition in lab.repetitions("backlog", sizes.backlog_repetitions):
        for few, many in zip(short, long, strict=True):
            lab.step(f"backlog: {few.name}, {repetition} of {sizes.backlog_repetitions}")
            rate, before = rates[few.name], performed[many.name]
            if repetition % 2:
                rate["short"].append(_drain_copy(few, sizes.backlog_jobs))
            # Goes on where the last repetition stopped, with as many put behind: filling it anew takes longest.
            taken = drain(many, waiting[many.name], part=sizes.backlog_jobs, before=before)
            rate["long"].append(taken["rate"])
            before.update(taken["numbers"])
            if not repetition % 2:
                rate["short"].append(_drain_copy(few, sizes.backlog_jobs))
            refill = range(waiting[many.name] + 1, waiting[many.name] + 1 + len(taken["numbers"]))
            many.fill(refill)
            waiting[many.name] += len(refill)
    for system in long:
        system.close()
    figures: dict[str, Any] = {"drained": sizes.backlog_jobs}
    for name, taken_rates in rates.items():
        few_rate, many_rate = spread(taken_rates["short"]), spread(taken_rates["long"])
        fall = 100 - many_rate["median"] / few_rate["median"] * 100
        figures[name] = {"waiting": sizes.backlog_waiting, "short": few_rate, "long": many_rate, "fall_percent": fall}
    ours, bare = (figures[name]["fall_percent"] for name in ("packhorse", "bare"))
    figures["difference_points"] = ours - max(0.0, bare)  # a bare loop that got faster is noise, not a mark to meet
    return figures


def _drain_copy(system: System, jobs: int) -> float:
    copy = system.copy()
    rate: float = drain(copy, jobs)["rate"]
    copy.close()
    return rate


def _fill(system: System, jobs: int) -> int:
    """Bounded in time: how many there are now."""
    deadline = time.monotonic() + FILL_DEADLINE
    rest = iter(range(1, jobs + 1))
    filled = 0
    while time.monotonic() < deadline and (part := list(islice(rest, FILL_CHUNK))):
        system.fill(part)
        filled += len(part)
    if filled < jobs:
        system.lab.note(f"{system.name}: filling was stopped after {FILL_DEADLINE:g} s with {filled:,} jobs")
    return filled


def tables(figures: dict[str, Any]) -> Iterator[Table]:
    drained = number(figures["drained"])
    table = Table("", f"{drained} waiting", "many waiting", f"first {drained} of the many", "fall")
    for name in ("packhorse", "bare"):
        row = figures[name]
        fall = f"{row['fall_percent']:.1f} %"
        table.add_row(name, with_spread(row["short"]), number(row["waiting"]), with_spread(row["long"]), fall)
    table.add_row("beyond bare's own fall", "", "", "", f"{figures['difference_points']:.1f} points")
    yield table
