"""Draining a full queue, as `drain` and `backlog` do it, with every job accounted for."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from bench.lab import Lab
from bench.systems import PackhorseSystem, Running, System
from bench.tape import Mark

DEADLINE = 60.0
FINISH_DEADLINE = 20.0


def drain(system: System, jobs: int, *, part: int | None = None, before: Iterable[int] = ()) -> dict[str, Any]:
    """Let the workers perform `jobs` waiting jobs, or stop them after the first `part`.

    The rate is from the first to the last completion; "incl. finish" ends when the store shows every job finished.
    `before` are the numbers performed on this database in earlier drains: none of them may come again.
    """
    target = part or jobs
    with system.start(held=True) as running:
        cpu = running.worker_cpu()
        system.go()
        complete = running.wait_performed(target, DEADLINE)
        finished_at = _wait_finished(system, running) if complete and part is None else None
        cpu = running.worker_cpu() - cpu
        memory = max(process.memory_info().rss for process in running.workers())
    marks = running.marks()
    check(system.lab, system.name, marks, jobs if part is None else None, before)
    if isinstance(system, PackhorseSystem):
        _compare(system, len(marks) + len(set(before)), jobs)
    times = [mark.began for mark in marks[:target]]
    seconds = (times[-1] - times[0]) / 1e9 if len(times) > 1 else 0.0
    figures: dict[str, Any] = {
        "jobs": len(times),
        "rate": (len(times) - 1) / seconds if seconds else 0.0,
        "cpu_us_per_job": cpu / max(1, len(marks)) * 1e6,
        "worker_mb": memory / 1e6,
        "stop_seconds": running.stop_seconds,
        "numbers": [mark.number for mark in marks],
    }
    if finished_at is not None:
        figures["rate_with_finish"] = len(times) / ((finished_at - times[0]) / 1e9)
    return figures


def _wait_finished(system: System, running: Running) -> int | None:
    """When the store first showed everything finished: the start of the look that saw it."""
    looked_at = 0

    def look() -> bool:
        nonlocal looked_at
        looked_at = time.monotonic_ns()
        return system.unfinished() == 0

    if running.wait_until(look, FINISH_DEADLINE, 0.003):
        return looked_at
    left = system.unfinished()
    system.lab.trouble(f"{system.name}: every job was performed, but {left} stay unfinished in the store")
    return None


def check(lab: Lab, name: str, marks: Sequence[Mark], expected: int | None, before: Iterable[int] = ()) -> None:
    """Every one of the jobs 1…expected exactly once; without `expected` only nothing twice."""
    times = Counter(mark.number for mark in marks)
    times.update(set(before))
    doubled = [number for number, count in times.items() if count > 1]
    if doubled:
        lab.trouble(f"{name}: {len(doubled)} jobs were performed more than once, for example number {doubled[0]}")
    if expected is not None and (lost := set(range(1, expected + 1)) - times.keys()):
        lab.trouble(f"{name}: {len(lost)} of {expected} jobs were not performed, for example number {min(lost)}")


def _compare(system: PackhorseSystem, performed: int, jobs: int) -> None:
    """After a clean stop the store must say what the tapes say."""
    counts = {str(state): number for state, number in system.counts().items() if number}
    succeeded = counts.pop("succeeded", 0)
    ready = counts.pop("ready", 0) + counts.pop("waiting", 0)
    if succeeded != performed or succeeded + ready != jobs or counts:
        system.lab.trouble(
            f"packhorse: {performed} of {jobs} jobs performed, but the store shows {succeeded} succeeded, "
            f"{ready} ready or waiting, others {counts}"
        )
