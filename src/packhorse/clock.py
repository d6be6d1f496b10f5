"""The one source of time. Everything reads it through a clock that is handed in, so tests can move it."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

SECOND = 1_000_000  # times and stored lengths are whole microseconds


class Clock(Protocol):
    def now(self) -> int:
        """Wall time: microseconds since 1970, UTC."""

    def ticks(self) -> int:
        """Microseconds that never jump and that go on while the machine sleeps; comparable within one boot."""

    def boot(self) -> str:
        """Names the boot that `ticks` counts from."""


class SystemClock:
    def __init__(self) -> None:
        # Only Linux counts time asleep in a clock of its own; elsewhere monotonic is the nearest thing.
        self._ticks_id = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
        boot_id = Path("/proc/sys/kernel/random/boot_id")
        self._boot = boot_id.read_text().strip() if boot_id.exists() else "this-boot"

    def now(self) -> int:
        return time.time_ns() // 1000

    def ticks(self) -> int:
        return time.clock_gettime_ns(self._ticks_id) // 1000

    def boot(self) -> str:
        return self._boot


class ManualClock:
    """Stands still until told to move."""

    def __init__(self, now: int = 1_800_000_000 * SECOND) -> None:
        self._now = now
        self._ticks = SECOND
        self._boot = "manual"

    def now(self) -> int:
        return self._now

    def ticks(self) -> int:
        return self._ticks

    def boot(self) -> str:
        return self._boot

    def advance(self, seconds: float) -> None:
        """Time passes."""
        self._now += round(seconds * SECOND)
        self._ticks += round(seconds * SECOND)

    def step(self, seconds: float) -> None:
        """Somebody sets the wall clock; no time passes."""
        self._now += round(seconds * SECOND)

    def reboot(self) -> None:
        self._ticks = SECOND
        self._boot += "'"


def to_datetime(microseconds: int) -> datetime:
    return datetime.fromtimestamp(microseconds // SECOND, UTC) + timedelta(microseconds=microseconds % SECOND)


def to_microseconds(moment: datetime) -> int:
    if moment.tzinfo is None:
        moment = moment.astimezone()
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


LONGEST = 100 * 365 * 86_400 * SECOND  # a hundred years: far within what stores and datetimes can hold


def length(value: timedelta | float) -> int:
    """A timedelta or a number of seconds, as microseconds; at most LONGEST."""
    if isinstance(value, timedelta):
        return min(LONGEST, value // timedelta(microseconds=1))
    return round(min(value * SECOND, LONGEST))
