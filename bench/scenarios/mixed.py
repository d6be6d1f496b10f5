"""Short and long jobs together: no job may wait behind a long one while a slot is free.

Jobs sleep 10 ms, one in a hundred sleeps 5 s, on two processes with 8 slots each. Two parts:

* backlog: all jobs at once. The ideal is the time that 16 slots would need if each took the next job in order with no
  pause in between (worked out from the lengths alone).
* paced: jobs come one at a time at 70 % of what the slots can take, so that slots are often free.

How the wait is found. Each body leaves its process, its thread, its start and its end. A thread is a slot; a slot is
busy from a body's start to its end and free in the gaps between (a slot whose thread was never made is free all along).
A job is ready from the return of its enqueue call until its body begins. "Waited while a slot was free" is the
longest overlap of a job's ready time with one gap of one slot: for that long the job stood ready and that slot did
nothing. "While any slot was free" joins the gaps of all slots first, so it also counts a stretch in which slots were
free one after the other, each for a moment; it is never smaller. What is looked at begins when the first job became
ready and ends when the last one began. The requirement is 200 ms.
"""

from __future__ import annotations

import heapq
import random
import time
from collections.abc import Iterator, Sequence
from typing import Any

from rich.table import Table

from bench.drains import FINISH_DEADLINE, check
from bench.figures import percentile, ratio
from bench.lab import Lab
from bench.report import number
from bench.sizes import CONCURRENCY, PROCESSES
from bench.systems import PackhorseSystem
from bench.tape import Mark

TITLE = "Mixed load: 10 ms jobs, 1 % of them long, two processes × 8 slots"
SHORT = 0.01
LONG_SHARE = 0.01
LOAD = 0.7
BATCH = 1_000
REQUIRED_MS = 200
SLOTS = PROCESSES * CONCURRENCY

Span = tuple[int, int]


def run(lab: Lab) -> dict[str, Any]:
    long = lab.sizes.mixed_long
    capacity = SLOTS / ((1 - LONG_SHARE) * SHORT + LONG_SHARE * long)
    paced_jobs = int(capacity * LOAD * lab.sizes.mixed_paced_seconds)
    lab.step("mixed: backlog")
    backlog = _measure(lab, _lengths(lab.sizes.mixed_jobs, long), None)
    lab.step("mixed: paced")
    paced = _measure(lab, _lengths(paced_jobs, long), 1 / (capacity * LOAD))
    return {"slots": SLOTS, "long_seconds": long, "required_ms": REQUIRED_MS, "backlog": backlog, "paced": paced}


def _lengths(jobs: int, long: float) -> list[float]:
    """The same mix every time; the long ones stand anywhere."""
    lengths = [long] * round(jobs * LONG_SHARE) + [SHORT] * (jobs - round(jobs * LONG_SHARE))
    random.Random(7).shuffle(lengths)
    return lengths


def _measure(lab: Lab, lengths: Sequence[float], apart: float | None) -> dict[str, Any]:
    system = PackhorseSystem(lab)
    deadline = sum(lengths) / SLOTS * 2 + 30
    with system.start() as running:
        ready = _enqueue(system, lengths, apart)
        complete = running.wait_performed(len(lengths), deadline)
        if complete and not running.wait_until(lambda: system.unfinished() == 0, FINISH_DEADLINE):
            lab.trouble(f"packhorse: mixed load: {system.unfinished()} jobs stay unfinished in the store")
    marks = running.marks()
    check(lab, "packhorse, mixed load", marks, len(lengths))
    system.close()
    waits = [(ready[mark.number], mark.began) for mark in marks]
    lasted = (max(mark.ended for mark in marks) - marks[0].began) / 1e9
    ideal = _ideal(lengths)
    figures: dict[str, Any] = {
        "jobs": len(lengths),
        "long_jobs": sum(1 for length in lengths if length != SHORT),
        "seconds": lasted,
        "rate": len(marks) / lasted,
        "wait_ms": {
            "p50": percentile([began - since for since, began in waits], 0.5) / 1e6,
            "p99": percentile([began - since for since, began in waits], 0.99) / 1e6,
        },
    }
    if apart is None:
        figures |= {"ideal_rate": len(lengths) / ideal, "share_of_ideal": ratio(ideal, lasted)}
    looked = min(ready.values()), max(mark.began for mark in marks)
    gaps = _gaps(marks, looked)
    figures["waited_while_a_slot_was_free_ms"] = _longest(waits, [gap for slot in gaps for gap in slot]) / 1e6
    figures["waited_while_any_slot_was_free_ms"] = _longest(waits, _joined(gaps)) / 1e6
    return figures


def _enqueue(system: PackhorseSystem, lengths: Sequence[float], apart: float | None) -> dict[int, int]:
    """When each job became ready: on the return of the call that enqueued it."""
    ready: dict[int, int] = {}
    if apart is None:
        for start in range(0, len(lengths), BATCH):
            part = range(start + 1, min(start + BATCH, len(lengths)) + 1)
            system.app.enqueue_many(system.nap.call(job, lengths[job - 1]) for job in part)
            ready |= dict.fromkeys(part, time.monotonic_ns())
        return ready
    due = time.monotonic()
    for job, length in enumerate(lengths, 1):
        system.nap.enqueue(job, length)
        ready[job] = time.monotonic_ns()
        due += apart
        time.sleep(max(0.0, due - time.monotonic()))
    return ready


def _ideal(lengths: Sequence[float]) -> float:
    """Seconds for all jobs in order, on slots that never pause."""
    slots = [0.0] * SLOTS
    for length in lengths:
        heapq.heapreplace(slots, slots[0] + length)
    return max(slots)


def _gaps(marks: Sequence[Mark], looked: Span) -> list[list[Span]]:
    """For each slot the times in which it was free."""
    first, last = looked
    busy: dict[tuple[int, int], list[Span]] = {}
    for mark in marks:
        busy.setdefault(mark.slot, []).append((mark.began, mark.ended))
    unused: list[list[Span]] = [[looked] for _ in range(SLOTS - len(busy))]
    gaps = unused
    for spans in busy.values():
        edges = [first, *(edge for span in sorted(spans) for edge in span), last]
        gaps.append([(since, until) for since, until in zip(edges[::2], edges[1::2], strict=True) if until > since])
    return gaps


def _joined(gaps: Sequence[Sequence[Span]]) -> list[Span]:
    """The times in which at least one slot was free."""
    joined: list[Span] = []
    for since, until in sorted(gap for slot in gaps for gap in slot):
        if joined and since <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(until, joined[-1][1])
        else:
            joined.append((since, until))
    return joined


def _longest(waits: Sequence[Span], gaps: Sequence[Span]) -> int:
    """The longest overlap of any wait with any gap. Long gaps come first, so most need no look."""
    best = 0
    for since, until in sorted(gaps, key=lambda gap: gap[0] - gap[1]):
        if until - since <= best:
            break
        best = max(best, max(min(until, began) - max(since, ready) for ready, began in waits))
    return best


def tables(figures: dict[str, Any]) -> Iterator[Table]:
    columns = ("jobs", "long", "seconds", "jobs/s", "of ideal", "wait p50 ms", "p99 ms")
    table = Table("", *columns, "longest, a slot free, ms", "longest, any slot free, ms")
    for part in ("backlog", "paced"):
        row = figures[part]
        share = f"{row['share_of_ideal'] * 100:.1f} %" if "share_of_ideal" in row else "–"
        table.add_row(
            part,
            number(row["jobs"]),
            number(row["long_jobs"]),
            f"{row['seconds']:.1f}",
            number(row["rate"]),
            share,
            f"{row['wait_ms']['p50']:.1f}",
            f"{row['wait_ms']['p99']:.1f}",
            f"{row['waited_while_a_slot_was_free_ms']:.1f}",
            f"{row['waited_while_any_slot_was_free_ms']:.1f}",
        )
    yield table
