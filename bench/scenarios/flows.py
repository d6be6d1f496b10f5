"""What it costs that jobs wait for each other: a large group, and graphs, beside as many plain jobs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.table import Table

from bench.drains import drain
from bench.figures import paired, spread
from bench.lab import Lab
from bench.report import number, times_spread, with_spread
from bench.systems import GroupSystem, LanesSystem, LayersSystem, PackhorseSystem, System

TITLE = "Flows: one flow of many jobs, beside as many plain jobs"
WORDS = {
    "packhorse": "plain jobs",
    "group": "side by side, and one after all",
    "few": "plain jobs",
    "layers": "ten layers, each job after two",
    "lanes": "a hundred chains side by side",
}
AGAINST = {"group": "packhorse", "layers": "few", "lanes": "few"}


class FewSystem(PackhorseSystem):
    name = "few"


def run(lab: Lab) -> dict[str, Any]:
    sizes = lab.sizes
    sources: dict[System, int] = {
        PackhorseSystem(lab): sizes.group_jobs,
        GroupSystem(lab): sizes.group_jobs,
        FewSystem(lab): sizes.graph_jobs,
        LayersSystem(lab): sizes.graph_jobs,
        LanesSystem(lab): sizes.graph_jobs,
    }
    for source, jobs in sources.items():
        lab.step(f"flows: {jobs:,} jobs, {WORDS[source.name]}")
        source.fill(range(1, jobs + 1))
        source.close()
        lab.store.settle(source.database)
    rates: dict[str, list[float]] = {source.name: [] for source in sources}
    memory: dict[str, float] = {}
    for repetition in lab.repetitions("flows"):
        for source in sources if repetition % 2 else reversed(sources):
            lab.step(f"flows: {WORDS[source.name]}, {repetition} of {sizes.repetitions}")
            system = source.copy()
            drained = drain(system, sources[source])
            rates[source.name].append(drained["rate"])
            memory[source.name] = max(memory.get(source.name, 0.0), drained["worker_mb"])
            system.close()
    figures: dict[str, Any] = {
        source.name: {"jobs": jobs, "rate": spread(rates[source.name]), "worker_mb": memory[source.name]}
        for source, jobs in sources.items()
    }
    figures["ratios"] = {
        f"{WORDS[name]} / {WORDS[other]}": paired(rates[name], rates[other]) for name, other in AGAINST.items()
    }
    return figures


def tables(figures: dict[str, Any]) -> Iterator[Table]:
    table = Table("", "jobs", "jobs per second", "memory of a worker, MB")
    for name, words in WORDS.items():
        row = figures[name]
        table.add_row(words, number(row["jobs"]), with_spread(row["rate"]), f"{row['worker_mb']:.0f}")
    yield table
    quotients = Table("ratio", "")
    for name, value in figures["ratios"].items():
        quotients.add_row(name, times_spread(value))
    yield quotients
