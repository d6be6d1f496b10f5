"""What decides when a job may run, and what it costs: limits, rates and fair turns beside plain jobs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from rich.table import Table

from bench.drains import drain
from bench.figures import paired, spread
from bench.jobs import RATE
from bench.lab import Lab
from bench.report import number, times_spread, with_spread
from bench.systems import (
    FairSystem,
    LimitedSystem,
    ManySharesSystem,
    MoreLimitedSystem,
    OneAtATimeSystem,
    PackhorseSystem,
    RatedSystem,
    System,
)

TITLE = "Limits: one key for all jobs, a rate, fair turns"
WORDS = {
    "packhorse": "plain jobs",
    "limited_1000": "limit of 1,000",
    "limited_100": "limit of 100",
    "fair": "one share",
    "many_shares": "10,000 shares",
    "limited_1": "limit of 1",
    "bare_one": "the bare loop, one job a commit",
}
AGAINST = {
    "limited_1000": "packhorse",
    "limited_100": "packhorse",
    "fair": "packhorse",
    "many_shares": "packhorse",
    "limited_1": "bare_one",
}
NEWCOMER = 999_999_999
WAIT = 30.0


def run(lab: Lab) -> dict[str, Any]:
    figures = _drains(lab)
    figures["rate"] = _rate(lab)
    figures["newcomer"] = _newcomer(lab)
    return figures


def _drains(lab: Lab) -> dict[str, Any]:
    sizes = lab.sizes
    sources: list[System] = [
        PackhorseSystem(lab),
        LimitedSystem(lab),
        MoreLimitedSystem(lab),
        FairSystem(lab),
        ManySharesSystem(lab),
        OneAtATimeSystem(lab),
        lab.store.bare_one(lab),
    ]
    parts = {"limited_1": sizes.limit_one_jobs, "bare_one": sizes.limit_one_jobs}
    for source in sources:
        lab.step(f"limits: {sizes.limit_jobs:,} jobs, {WORDS[source.name]}")
        source.fill(range(1, sizes.limit_jobs + 1))
        source.close()
        lab.store.settle(source.database)
    rates: dict[str, list[float]] = {source.name: [] for source in sources}
    for repetition in lab.repetitions("limits"):
        for source in sources if repetition % 2 else reversed(sources):
            lab.step(f"limits: {WORDS[source.name]}, {repetition} of {sizes.repetitions}")
            system = source.copy()
            rates[source.name].append(drain(system, sizes.limit_jobs, part=parts.get(source.name))["rate"])
            system.close()
    figures: dict[str, Any] = {
        name: {"jobs": parts.get(name, sizes.limit_jobs), "waiting": sizes.limit_jobs, "rate": spread(rates[name])}
        for name in WORDS
    }
    figures["ratios"] = {
        f"{WORDS[name]} / {WORDS[other]}": paired(rates[name], rates[other]) for name, other in AGAINST.items()
    }
    return figures


def _rate(lab: Lab) -> dict[str, Any]:
    """How many begin in a time, with four workers; the first second is left out, in which they start."""
    seconds = lab.sizes.rate_seconds
    lab.step(f"limits: {RATE} a second, {seconds:g} s")
    system = RatedSystem(lab)
    system.fill(range(1, round(RATE * (seconds + 10))))
    with system.start() as running:
        running.wait_until(lambda: running.performed() > RATE, WAIT)
        running.wait_until(lambda: False, seconds + 0.5)
    marks = running.marks()
    system.close()
    begin = marks[0].began + 1_000_000_000
    begun = sum(begin <= mark.began < begin + seconds * 1e9 for mark in marks)
    return {
        "asked": RATE,
        "seconds": seconds,
        "workers": system.processes,
        "begun": begun,
        "off_percent": (begun / (RATE * seconds) - 1) * 100,
    }


def _newcomer(lab: Lab) -> dict[str, Any]:
    """The first job of a second share, behind all that another brought."""
    crowd = lab.sizes.crowd_jobs
    lab.step(f"limits: a newcomer behind {crowd:,} jobs of another share")
    system = FairSystem(lab)
    system.fill(range(1, crowd + 1))
    figures: dict[str, Any] = {"crowd": crowd, "jobs_before": [], "seconds": []}
    with system.start() as running:
        for step in range(3):
            running.wait_until(lambda: running.performed() > 1_000, WAIT)
            began = time.monotonic_ns()
            system.noop.using(share="newcomer").enqueue(NEWCOMER - step, "two", three=3)
            running.wait_until(lambda number=NEWCOMER - step: _seen(running.marks(), number), WAIT)  # type: ignore[misc]
            marks = running.marks()
            found = next((mark for mark in marks if mark.number == NEWCOMER - step), None)
            if found is None:
                lab.trouble(f"the newcomer did not begin within {WAIT:g} s")
                break
            figures["jobs_before"].append(sum(began <= mark.began < found.began for mark in marks))
            figures["seconds"].append((found.began - began) / 1e9)
    system.close()
    return figures


def _seen(marks: list[Any], number: int) -> bool:
    return any(mark.number == number for mark in marks)


def tables(figures: dict[str, Any]) -> Iterator[Table]:
    table = Table("", "waiting", "drained", "jobs per second")
    for name, words in WORDS.items():
        row = figures[name]
        table.add_row(words, number(row["waiting"]), number(row["jobs"]), with_spread(row["rate"]))
    yield table
    quotients = Table("ratio", "")
    for name, value in figures["ratios"].items():
        quotients.add_row(name, times_spread(value))
    yield quotients
    rate, newcomer = figures["rate"], figures["newcomer"]
    others = Table("", "")
    others.add_row(
        f"{rate['asked']} a second asked, {rate['workers']} workers, {rate['seconds']:g} s",
        f"{rate['begun']} begun, {rate['off_percent']:+.2f} %",
    )
    for before, seconds in zip(newcomer["jobs_before"], newcomer["seconds"], strict=True):
        others.add_row(
            f"a newcomer behind {number(newcomer['crowd'])} jobs of another share",
            f"{number(before)} jobs before it, {seconds * 1e3:.1f} ms",
        )
    yield others
