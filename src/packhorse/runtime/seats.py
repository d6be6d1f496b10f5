"""Interrupting a task that runs in a thread: an exception is raised inside it, where it next runs Python code."""

from __future__ import annotations

import sys
from collections.abc import Callable
from enum import StrEnum
from typing import Any

from packhorse import forks
from packhorse.errors import Interrupted, TimedOut
from packhorse.interrupting import Guard
from packhorse.job import Token


class Why(StrEnum):
    """Why a task is to end before its time."""

    TIMEOUT = "timeout"
    LEAVING = "leaving"
    ORDERED = "ordered"

    @property
    def error(self) -> type[TimedOut | Interrupted]:
        return TimedOut if self is Why.TIMEOUT else Interrupted


class Seat(Guard):
    """Where one thread performs its jobs. Whoever interrupts meets the task or nobody, never the code around it."""

    __slots__ = ("token",)

    def __init__(self) -> None:
        super().__init__()
        self.token: Token | None = None

    @property
    def whom(self) -> Token | None:
        return self.token

    def call(self, token: Token, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        self.token = token
        before = forks.generation
        try:
            return function(*args, **kwargs)
        finally:
            if forks.generation != before:
                forks.end_copy(sys.exception())
            self.rise()

    def rise(self) -> None:
        """The task is over. An interruption that is on its way strikes in here, and none after it."""
        while self.token is not None or self.is_expecting:
            try:
                with self._lock:
                    self.token = None
                    self.forget()
            except (TimedOut, Interrupted):
                continue

    def interrupt(self, whom: object, error: type[BaseException]) -> bool:
        """False where the thread performs something else by now."""
        return whom is not None and super().interrupt(whom, error)
