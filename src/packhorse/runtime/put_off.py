"""Outcomes that cannot be written for now, because a transaction of somebody else holds what they concern."""

from __future__ import annotations

import math
import time
from collections import deque

from packhorse.job import Token
from packhorse.outcome import Outcome

FIRST, LAST = 0.05, 1.0  # seconds between offers
FEW = 16  # offered to find out whether the others go, too
MOST = 10_000  # so many are kept, and then no more jobs are claimed


class PutOff:
    """Their jobs are still ours, and take no slot. They are offered again after longer and longer pauses."""

    def __init__(self) -> None:
        self._waiting: deque[Outcome] = deque()
        self._pause = FIRST
        self._due = math.inf

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def tokens(self) -> list[Token]:
        return [outcome.token for outcome in self._waiting]

    @property
    def is_full(self) -> bool:
        return len(self._waiting) >= MOST

    @property
    def rest(self) -> float:
        """Seconds until some of them are to be offered."""
        return max(0.0, self._due - time.monotonic())

    def due(self) -> list[Outcome]:
        """A few, to be offered now, the last of them first."""
        if time.monotonic() < self._due:
            return []
        self._due = time.monotonic() + LAST if self._waiting else math.inf
        return [self._waiting.popleft() for _ in range(min(FEW, len(self._waiting)))][::-1]

    def note(self, offered: int, put_off: list[Outcome]) -> None:
        """Some of those that were offered could not be written."""
        if put_off:
            self._pause = min(LAST, 2 * self._pause)
            self._waiting.extend(put_off)
            self._due = time.monotonic() + self._pause
        elif offered and self._waiting:  # whoever held them up may be gone
            self._pause, self._due = FIRST, min(self._due, time.monotonic())
