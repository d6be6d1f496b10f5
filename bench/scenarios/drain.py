"""No-op jobs waiting, two worker processes: how fast does the queue empty?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.table import Table

from bench.drains import drain
from bench.figures import paired, spread
from bench.lab import Lab
from bench.report import number, times_spread, with_spread
from bench.systems import BareLargeSystem, BareSystem, HueySystem, PackhorseSystem, System

TITLE = "Drain: no-op jobs, two worker processes, jobs per second"
MEASURES = ("rate", "rate_with_finish", "cpu_us_per_job", "stop_seconds")


def run(lab: Lab) -> dict[str, Any]:
    sizes = lab.sizes
    jobs = dict.fromkeys(("bare", "bare_large"), sizes.drain_bare_jobs)
    jobs |= {"packhorse": sizes.drain_jobs, "huey": sizes.drain_huey_jobs}
    sources: list[System] = [PackhorseSystem(lab), HueySystem(lab), BareSystem(lab), BareLargeSystem(lab)]
    for source in sources:
        lab.step(f"drain: {jobs[source.name]:,} jobs for {source.name}")
        source.fill(range(1, jobs[source.name] + 1))
    taken: dict[str, list[dict[str, Any]]] = {source.name: [] for source in sources}
    for repetition in lab.repetitions("drain"):
        for source in sources:
            lab.step(f"drain: {source.name}, {repetition} of {sizes.repetitions}")
            system = source.copy()
            taken[source.name].append(drain(system, jobs[source.name]))
            system.close()
    for source in sources:
        source.close()
    figures: dict[str, Any] = {name: _summary(runs) for name, runs in taken.items()}
    figures["ratios"] = {
        f"packhorse/{name}{suffix}": paired(_values(taken["packhorse"], measure), _values(taken[name], measure))
        for name in ("huey", "bare", "bare_large")
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
    for name in ("packhorse", "huey", "bare", "bare_large"):
        row = figures[name]
        table.add_row(name, number(row["jobs"]), *(with_spread(row.get(measure)) for measure in MEASURES))
    yield table
    quotients = Table("ratio", "")
    for name, value in figures["ratios"].items():
        quotients.add_row(name, times_spread(value))
    yield quotients
