"""Where the time of one worker process goes, from no-op jobs in one process with stop-watches on its parts."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

from rich.table import Table

from bench.lab import Lab
from bench.report import number
from bench.systems import PackhorseSystem
from bench.systems.base import ROOT, environment, python
from bench.tape import FOLDER, Tapes

TITLE = "Profile: one worker process, no-op jobs"
STORES = ("sqlite",)  # the watches sit on its driver
DEADLINE = 60.0
NOTHING = {"wall": 0.0, "cpu": 0.0, "calls": 0}


def run(lab: Lab) -> dict[str, Any]:
    jobs = lab.sizes.profile_jobs
    lab.step("profile")
    system = PackhorseSystem(lab)
    system.fill(range(1, jobs + 1))
    tapes = lab.new_tapes()
    env = environment() | {FOLDER: str(tapes)}
    command = python("-m", "bench.profiled", system.url)
    try:
        ended = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=DEADLINE)
    except subprocess.TimeoutExpired:
        lab.trouble(f"packhorse: profile: the worker did not end within {DEADLINE:g} s")
        return {"jobs": jobs}
    if ended.returncode != 0:
        lab.trouble(f"packhorse: profile: the worker failed: {ended.stderr[-600:]}")
        return {"jobs": jobs}
    if (performed := Tapes(tapes).count()) != jobs or system.unfinished():
        lab.trouble(f"packhorse: profile: {performed} of {jobs} jobs performed, {system.unfinished()} unfinished")
    system.close()
    return _figures(json.loads(ended.stdout), jobs)


def _figures(taken: dict[str, Any], jobs: int) -> dict[str, Any]:
    parts = taken["parts"]
    turn, exchange, sql, perform, wait = (
        parts.get(name, NOTHING) for name in ("turn", "exchange", "sql", "perform", "wait")
    )
    cpu = {
        "exchange: SQL": sql["cpu"],
        "exchange: Python in the store": exchange["cpu"] - sql["cpu"],
        "worker: Python around the exchange": turn["cpu"] - exchange["cpu"],
        "performing: decode, call, encode": perform["cpu"],
    }
    cpu["slots, waking and the rest"] = taken["cpu"] - sum(cpu.values())
    wall = {
        "exchange: SQL, with fsync": sql["wall"],
        "exchange: Python in the store": exchange["wall"] - sql["wall"],
        "worker: around the exchange, with waiting for the interpreter": turn["wall"] - exchange["wall"],
        "asleep": wait["wall"],
    }
    wall["the rest"] = taken["wall"] - sum(wall.values())
    return {
        "jobs": jobs,
        "rate": jobs / taken["wall"],
        "cpu_us_per_job": taken["cpu"] / jobs * 1e6,
        "exchanges": exchange["calls"],
        "jobs_per_exchange": jobs / max(1, exchange["calls"]),
        "cpu": {name: {"us_per_job": s / jobs * 1e6, "percent": s / taken["cpu"] * 100} for name, s in cpu.items()},
        "loop": {name: {"us_per_job": s / jobs * 1e6, "percent": s / taken["wall"] * 100} for name, s in wall.items()},
        "missing": taken["missing"],
    }


def tables(figures: dict[str, Any]) -> Iterator[Table]:
    if "cpu" not in figures:
        return
    table = Table("jobs", "jobs/s", "CPU µs per job", "exchanges", "jobs per exchange")
    table.add_row(
        *(number(figures[key]) for key in ("jobs", "rate", "cpu_us_per_job", "exchanges", "jobs_per_exchange"))
    )
    yield table
    for key, title in (("cpu", "CPU of all threads"), ("loop", "time of the worker's loop")):
        table = Table(title, "µs per job", "share")
        for name, row in figures[key].items():
            table.add_row(name, f"{row['us_per_job']:.1f}", f"{row['percent']:.0f} %")
        yield table
    if figures["missing"]:
        yield Table(f"not found, so counted elsewhere: {', '.join(figures['missing'])} (see bench/profiled.py)")
