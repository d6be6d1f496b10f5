"""One producer enqueues one job at a time, as fast as it can, while the workers work: what goes in, what comes out?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.table import Table

from bench.drains import check
from bench.figures import percentile, ratio
from bench.lab import Lab
from bench.report import number, times
from bench.scenarios.latency import WARM_UP, warm_up
from bench.systems import PackhorseSystem, System

TITLE = "Sustained: one producer at full speed beside the workers"
DRAIN_DEADLINE = 20.0


def run(lab: Lab) -> dict[str, Any]:
    store = lab.store
    makes: list[type[System]] = [PackhorseSystem, *store.peers, *store.bare_listening]
    systems: dict[str, dict[str, Any]] = {}
    for make in makes:
        lab.step(f"sustained: {make.name}")
        systems[make.name] = _measure(lab, make(lab), lab.sizes.sustained_seconds)
    ours = systems["packhorse"]
    ratios = {
        f"packhorse/{name} {way}": ratio(ours[way], row[way])
        for name, row in systems.items()
        if name != "packhorse"
        for way in ("in", "out")
    }
    return {"seconds": lab.sizes.sustained_seconds, "systems": systems, "ratios": ratios}


def _measure(lab: Lab, system: System, seconds: float) -> dict[str, Any]:
    with system.start() as running:
        warm_up(system, running)
        produced = system.at_full_speed(WARM_UP + 1, seconds)
        job = WARM_UP + produced["jobs"]
        # Give the rest a chance, so that every job can be accounted for.
        complete = running.wait_performed(job, DRAIN_DEADLINE)
    system.close()
    marks = running.marks()
    check(lab, system.name, marks, job if complete or system.name == "packhorse" else None)
    began, ended, calls, errors = produced["began"], produced["ended"], produced["calls"], produced["errors"]
    if errors:
        lab.note(f"{system.name}: {len(errors)} enqueues failed, the first with {errors[0]}")
    out = sum(1 for mark in marks if began <= mark.began <= ended)
    span = (ended - began) / 1e9
    return {
        "jobs": job - WARM_UP,
        "in": (job - WARM_UP) / span,
        "out": out / span,
        "left": job - WARM_UP - out,
        "errors": len(errors),
        "call_ms": {
            "p50": percentile(calls, 0.5) / 1e6,
            "p99": percentile(calls, 0.99) / 1e6,
            "max": max(calls) / 1e6,
        },
    }


def tables(figures: dict[str, Any]) -> Iterator[Table]:
    table = Table("", "jobs", "in/s", "out/s", "left", "enqueue call p50 ms", "p99 ms", "max ms", "errors")
    for name, row in figures["systems"].items():
        call = (f"{row['call_ms'][key]:.2f}" for key in ("p50", "p99", "max"))
        counts = (number(row[key]) for key in ("jobs", "in", "out", "left"))
        table.add_row(name, *counts, *call, number(row["errors"]))
    yield table
    quotients = Table("ratio", "")
    for name, value in figures["ratios"].items():
        quotients.add_row(name, times(value))
    yield quotients
