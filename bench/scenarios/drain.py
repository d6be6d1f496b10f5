"""No-op jobs waiting, two worker processes: how fast does the queue empty?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.table import Table

from bench.drains import drain
from bench.figures import paired, spread
from bench.lab import Lab
from bench.report import number, times_spread, with_spread
from bench.systems import PackhorseSystem, System

TITLE = "Drain: no-op jobs, two worker processes, jobs per second"
MEASURES = ("rate", "rate_with_finish", "cpu_us_per_job", "stop_seconds")


def run(lab: Lab) -> dict[str, Any]:
    return measure(lab, "drain", every(lab), settled=True)


def every(lab: Lab) -> list[type[System]]:
    return [PackhorseSystem, *lab.store.peers, *lab.store.variants, *lab.store.bares]


def measure(lab: Lab, scenario: str, makes: Sequence[type[System]], *, settled: bool) -> dict[str, Any]:
    """Each system drains copies of what it was filled with; `settled` after the store's housekeeping.

    The first one is held against each of the others.
    """
    store, sizes = lab.store, lab.sizes
    sources: list[System] = []
    for make in makes:
        lab.step(f"{scenario}: {sizes.drain_jobs[make.pace]:,} jobs for {make.name}")
        source = make(lab)
        source.fill(range(1, sizes.drain_jobs[make.pace] + 1))
        source.close()
        if settled:
            store.settle(source.database)
        sources.append(source)
    taken: dict[str, list[dict[str, Any]]] = {source.name: [] for source in sources}
    for repetition in lab.repetitions(scenario):
        for source in sources:
            lab.step(f"{scenario}: {source.name}, {repetition} of {sizes.repetitions}")
            system = source.copy()
            taken[source.name].append(drain(system, sizes.drain_jobs[source.pace]))
            system.close()
    first = makes[0].name
    ours = taken[first]
    figures: dict[str, Any] = {"systems": {name: _summary(runs) for name, runs in taken.items()}}
    figures["ratios"] = {
        f"{first}/{name}{suffix}": paired(_values(ours, measure), _values(taken[name], measure))
        for name in taken
        if name != first
        for measure, suffix in (("rate", ""), ("rate_with_finish", ", incl. finish"))
    }
    return figures


def _values(runs: list[dict[str, Any]], measure: str) -> list[float]:
    return [run.get(measure, 0.0) for run in runs]


def _summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    summary: dict[str, Any] = {"jobs": runs[0]["jobs"], "repetitions": len(runs)}
    for measure in MEASURES:
        if values := [run[measure] for run in runs if measure in run]:
            summary[measure] = spread(values)
    return summary


def tables(figures: dict[str, Any]) -> Iterator[Table]:
    table = Table("", "jobs", "first to last", "incl. finish", "CPU µs per job", "seconds to stop")
    for name, row in figures["systems"].items():
        table.add_row(name, number(row["jobs"]), *(with_spread(row.get(measure)) for measure in MEASURES))
    yield table
    quotients = Table("ratio", "")
    for name, value in figures["ratios"].items():
        quotients.add_row(name, times_spread(value))
    yield quotients
