"""Do processes grow? Memory, descriptors and threads of every process, sampled while work and harm go on."""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

WARM_UP = 20.0  # seconds in which a process is expected to grow
HOUR = 3600.0
SHORTEST = 20.0  # seconds of samples below which a slope says nothing


class Sample(NamedTuple):
    at: float
    rss: float  # MB
    descriptors: int
    threads: int


Series = Sequence[Sample]
FIELDS = ("rss", "descriptors", "threads")


def look(pid: int) -> Sample | None:
    """None where it is gone."""
    try:
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        descriptors = len(os.listdir(f"/proc/{pid}/fd"))
        return Sample(
            time.monotonic(), int(status["VmRSS"].split()[0]) / 1024, descriptors, int(status["Threads"].split()[0])
        )
    except (OSError, KeyError, ValueError):
        return None


class Sampler:
    """`members` gives the role of each process by its pid; asked with every sample."""

    def __init__(self, members: Callable[[], Mapping[int, str]], every: float = 2.0) -> None:
        self._members = members
        self._every = every
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chaos-sampler", daemon=True)
        self.samples: dict[tuple[int, str], list[Sample]] = defaultdict(list)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ending.wait(self._every):
            with suppress(OSError):
                for pid, role in self._members().items():
                    if (sample := look(pid)) is not None:
                        self.samples[pid, role].append(sample)


def slope(points: Sequence[tuple[float, float]]) -> float:
    """The line through them that fits best, in units per second."""
    n = len(points)
    mean_x, mean_y = sum(x for x, _ in points) / n, sum(y for _, y in points) / n
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0


def figures(samples: Mapping[tuple[int, str], Series]) -> list[dict[str, Any]]:
    """Of each process that lived long enough: first, last and slope per hour, without the time it takes to warm up."""
    found = []
    for (pid, role), series in samples.items():
        warm = [sample for sample in series if sample.at >= series[0].at + WARM_UP]
        if len(warm) < 3 or warm[-1].at - warm[0].at < SHORTEST:
            continue
        row: dict[str, Any] = {"role": role, "pid": pid, "minutes": (warm[-1].at - warm[0].at) / 60}
        for name in FIELDS:
            points = [(sample.at, float(getattr(sample, name))) for sample in warm]
            row[name] = {"first": points[0][1], "last": points[-1][1], "per hour": slope(points) * HOUR}
        found.append(row)
    return sorted(found, key=lambda row: (row["role"], row["pid"]))
