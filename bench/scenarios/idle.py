"""What the processes cost while there is nothing to do."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import psutil
from rich.table import Table

from bench.lab import Lab
from bench.report import number
from bench.scenarios.latency import warm_up
from bench.sizes import PROCESSES
from bench.systems import PackhorseSystem, Running, System
from bench.systems.base import HeldRunning
from bench.systems.ours import PackhorseRunning

TITLE = "Idle: CPU and memory with nothing to do"
SETTLE = 2.0
MORE = 2
MIB = 1 << 20


def run(lab: Lab) -> dict[str, Any]:
    systems: dict[str, dict[str, Any]] = {}
    makes: list[type[System]] = [PackhorseSystem, *lab.store.peers]
    for make in makes:
        lab.step(f"idle: {make.name}")
        systems[make.name] = _measure(make(lab), lab.sizes.idle_seconds)
    figures: dict[str, Any] = {"seconds": lab.sizes.idle_seconds, "systems": systems}
    if "statements_per_second" in systems["packhorse"]:
        lab.step("idle: packhorse, more workers")
        more = _measure(MoreWorkersSystem(lab), lab.sizes.idle_seconds)
        figures["of_a_worker_process"] = of_one(systems["packhorse"], more)
    return figures


class MoreWorkersSystem(PackhorseSystem):
    """What it says more often than with two workers, the two more say: sessions do not tell whose they are."""

    processes = PROCESSES + MORE


def of_one(few: dict[str, Any], many: dict[str, Any]) -> float:
    return float(many["statements_per_second"] - few["statements_per_second"]) / MORE


def _measure(system: System, seconds: float) -> dict[str, Any]:
    store = system.lab.store
    store.count_statements(system.database)
    with system.start() as running:
        warm_up(system, running)
        time.sleep(SETTLE)
        processes = running.tree()
        roles = _roles(running, processes)
        before = [_cpu(process) for process in processes]
        counted = store.statements(system.database)
        began = time.monotonic()
        time.sleep(seconds)
        span = time.monotonic() - began
        counted_later = store.statements(system.database)
        rows = []
        for process, used in zip(processes, before, strict=True):
            memory = process.memory_full_info()
            rows.append(
                {
                    "role": roles[process.pid],
                    "cpu_percent": (_cpu(process) - used) / span * 100,
                    "rss_mib": memory.rss / MIB,
                    "pss_mib": getattr(memory, "pss", memory.rss) / MIB,
                }
            )
    system.close()
    total = {key: sum(row[key] for row in rows) for key in ("cpu_percent", "rss_mib", "pss_mib")}
    figures: dict[str, Any] = {"processes": rows, "total": total}
    if counted is not None and counted_later is not None:
        figures["statements_per_second"] = (counted_later - counted) / span
    return figures


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _roles(running: Running, processes: list[psutil.Process]) -> dict[int, str]:
    if isinstance(running, PackhorseRunning):
        known = running.roles()
        return {process.pid: known.get(process.pid, "unknown") for process in processes}
    if isinstance(running, HeldRunning):
        return {process.pid: "worker" for process in processes}
    return {process.pid: "consumer" if place == 0 else "child" for place, process in enumerate(processes)}


def tables(figures: dict[str, Any]) -> Iterator[Table]:
    table = Table("", "process", "CPU %", "RSS MiB", "PSS MiB")
    for name, measured in figures["systems"].items():
        rows = measured["processes"]
        for row in rows:
            table.add_row(name, row["role"], *_cells(row))
        table.add_row(name, f"all {number(len(rows))}", *_cells(measured["total"]), style="bold", end_section=True)
    yield table
    statements = Table("", "statements per second")
    for name, measured in figures["systems"].items():
        if "statements_per_second" in measured:
            statements.add_row(name, f"{measured['statements_per_second']:.1f}")
    if "of_a_worker_process" in figures:
        statements.add_row("packhorse, one worker process", f"{figures['of_a_worker_process']:.1f}")
    if statements.row_count:
        yield statements


def _cells(row: dict[str, float]) -> tuple[str, str, str]:
    return f"{row['cpu_percent']:.2f}", f"{row['rss_mib']:.0f}", f"{row['pss_mib']:.0f}"
