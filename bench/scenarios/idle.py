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
from bench.systems import HueySystem, PackhorseSystem, Running, System
from bench.systems.ours import PackhorseRunning

TITLE = "Idle: CPU and memory with nothing to do"
SETTLE = 2.0
MIB = 1 << 20


def run(lab: Lab) -> dict[str, Any]:
    figures: dict[str, Any] = {"seconds": lab.sizes.idle_seconds}
    for make in (PackhorseSystem, HueySystem):
        lab.step(f"idle: {make.name}")
        figures[make.name] = _measure(make(lab), lab.sizes.idle_seconds)
    return figures


def _measure(system: System, seconds: float) -> dict[str, Any]:
    with system.start() as running:
        warm_up(system, running)
        time.sleep(SETTLE)
        processes = running.tree()
        roles = _roles(running, processes)
        before = [_cpu(process) for process in processes]
        began = time.monotonic()
        time.sleep(seconds)
        span = time.monotonic() - began
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
    return {"processes": rows, "total": total}


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _roles(running: Running, processes: list[psutil.Process]) -> dict[int, str]:
    if isinstance(running, PackhorseRunning):
        known = running.roles()
        return {process.pid: known.get(process.pid, "unknown") for process in processes}
    return {process.pid: "consumer" if place == 0 else "child" for place, process in enumerate(processes)}


def tables(figures: dict[str, Any]) -> Iterator[Table]:
    table = Table("", "process", "CPU %", "RSS MiB", "PSS MiB")
    for name in ("packhorse", "huey"):
        rows = figures[name]["processes"]
        for row in rows:
            table.add_row(name, row["role"], *_cells(row))
        table.add_row(name, f"all {number(len(rows))}", *_cells(figures[name]["total"]), style="bold", end_section=True)
    yield table


def _cells(row: dict[str, float]) -> tuple[str, str, str]:
    return f"{row['cpu_percent']:.2f}", f"{row['rss_mib']:.0f}", f"{row['pss_mib']:.0f}"
