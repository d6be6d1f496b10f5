"""Jobs in processes of their own: what the way there and back costs, and whether all cores are used."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from rich.table import Table

from bench.drains import check, drain
from bench.figures import spread
from bench.lab import Lab
from bench.report import number, with_spread
from bench.systems import BurnSystem, IsolatedSystem

TITLE = "Isolated: each job in a process of its own, two worker processes"
WARM = 0.2  # of the jobs go before it counts, since the processes have to start
DEADLINE = 60.0


def run(lab: Lab) -> dict[str, Any]:
    sizes = lab.sizes
    rates, used = [], []
    for repetition in lab.repetitions("isolated"):
        lab.step(f"isolated: {sizes.isolated_jobs:,} no-op jobs, {repetition} of {sizes.repetitions}")
        system = IsolatedSystem(lab)
        system.fill(range(1, sizes.isolated_jobs + 1))
        rates.append(drain(system, sizes.isolated_jobs)["rate"])
        system.close()
        lab.step(f"isolated: {sizes.burn_jobs:,} jobs that compute, {repetition} of {sizes.repetitions}")
        used.append(_burn(lab))
    return {
        "jobs": sizes.isolated_jobs,
        "rate": spread(rates),
        "burn_jobs": sizes.burn_jobs,
        "burn_seconds": sizes.burn_seconds,
        "cpus": os.cpu_count(),
        "used": spread(used),
    }


def _burn(lab: Lab) -> float:
    """How much of all CPUs the jobs themselves had, from when they were warm to the last."""
    sizes = lab.sizes
    system = BurnSystem(lab)
    system.fill(range(1, sizes.burn_jobs + 1))
    with system.start(held=True) as running:
        system.go()
        running.wait_performed(sizes.burn_jobs, DEADLINE)
    marks = sorted(running.marks(), key=lambda mark: mark.ended)
    check(lab, system.name, marks, sizes.burn_jobs)
    system.close()
    first = int(len(marks) * WARM)
    seconds = (marks[-1].ended - marks[first].ended) / 1e9
    return (len(marks) - 1 - first) * sizes.burn_seconds / seconds / (os.cpu_count() or 1) * 100


def tables(figures: dict[str, Any]) -> Iterator[Table]:
    table = Table("", "jobs", "")
    table.add_row("no-op jobs a second, first to last", number(figures["jobs"]), with_spread(figures["rate"]))
    words = f"of {figures['cpus']} CPUs used by jobs of {figures['burn_seconds']:g} s of CPU, percent"
    table.add_row(words, number(figures["burn_jobs"]), with_spread(figures["used"]))
    yield table
