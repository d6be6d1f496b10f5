"""What signing, typed values, middleware and events cost: the same drain with and without them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.table import Table

from bench.drains import drain
from bench.figures import spread
from bench.lab import Lab
from bench.report import number, with_spread
from bench.systems import PackhorseSystem, TypedSystem, UnsignedSystem, WatchedSystem

TITLE = "Client: drain without signing, signed, with typed values, watched, jobs per second"
SYSTEMS = {
    "unsigned": "plain values, signing off",
    "packhorse": "plain values, signed (the default)",
    "typed": "signed, with a datetime and a decimal",
    "watched": "the same, one middleware and one subscriber",
}


def run(lab: Lab) -> dict[str, Any]:
    sizes = lab.sizes
    sources = [UnsignedSystem(lab), PackhorseSystem(lab), TypedSystem(lab), WatchedSystem(lab)]
    for source in sources:
        lab.step(f"client: {sizes.client_jobs:,} jobs, {source.name}")
        source.fill(range(1, sizes.client_jobs + 1))
        source.close()
        lab.store.settle(source.database)
    rates: dict[str, list[float]] = {source.name: [] for source in sources}
    cpu: dict[str, list[float]] = {source.name: [] for source in sources}
    for repetition in lab.repetitions("client", sizes.client_repetitions):
        for source in sources if repetition % 2 else reversed(sources):
            lab.step(f"client: {source.name}, {repetition} of {sizes.client_repetitions}")
            system = source.copy()
            taken = drain(system, sizes.client_jobs)
            rates[source.name].append(taken["rate"])
            cpu[source.name].append(taken["cpu_us_per_job"])
            system.close()
    figures: dict[str, Any] = {
        name: {"jobs": sizes.client_jobs, "rate": spread(rates[name]), "cpu_us_per_job": spread(cpu[name])}
        for name in SYSTEMS
    }
    unsigned = figures["unsigned"]["rate"]["median"]
    figures["of_unsigned_percent"] = {
        name: figures[name]["rate"]["median"] / unsigned * 100 for name in SYSTEMS if name != "unsigned"
    }
    return figures


def tables(figures: dict[str, Any]) -> Iterator[Table]:
    table = Table("", "jobs", "jobs per second", "CPU µs per job", "of unsigned")
    for name, words in SYSTEMS.items():
        row = figures[name]
        share = figures["of_unsigned_percent"].get(name)
        table.add_row(
            words,
            number(row["jobs"]),
            with_spread(row["rate"]),
            with_spread(row["cpu_us_per_job"]),
            "" if share is None else f"{share:.0f} %",
        )
    yield table
