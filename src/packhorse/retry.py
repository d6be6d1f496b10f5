"""When to try again after a failed attempt."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from packhorse.clock import SECOND, length
from packhorse.errors import ConfigError
from packhorse.forks import guarded

Backoff = Callable[[int, BaseException], timedelta | float]
"""Seconds to wait after attempt number n ended in this error."""


@dataclass(frozen=True, slots=True)
class Exponential:
    """`base`, then `factor` times as long each time, up to `cap`; jitter is only ever added."""

    base: float = 5.0
    factor: float = 2.0
    cap: float = 3600.0
    jitter: float = 0.25
    draw: Callable[[], float] = random.random

    def __call__(self, attempt: int, error: BaseException) -> float:
        try:
            wait = min(self.cap, self.base * self.factor ** (attempt - 1))
        except OverflowError:  # attempt ten thousand of an unlimited task
            wait = self.cap
        return wait * (1 + self.jitter * self.draw())


@dataclass(frozen=True, slots=True)
class Fixed:
    seconds: float

    def __call__(self, attempt: int, error: BaseException) -> float:
        return self.seconds


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    retries: int | None = 0
    backoff: Backoff = Exponential()
    retry_for: tuple[type[BaseException], ...] = (Exception,)
    give_up_on: tuple[type[BaseException], ...] = ()

    def exhausted(self, attempt: int) -> bool:
        return self.retries is not None and attempt > self.retries

    def wait(self, attempt: int, error: BaseException) -> int | None:
        """Microseconds until the next attempt, or None to give up. `attempt` counts from 1."""
        if self.exhausted(attempt) or isinstance(error, self.give_up_on) or not isinstance(error, self.retry_for):
            return None
        return max(0, length(guarded(self.backoff, attempt, error)))


def make_policy(
    retries: int | None,
    backoff: Backoff | timedelta | float | None,
    retry_for: type[BaseException] | tuple[type[BaseException], ...],
    give_up_on: type[BaseException] | tuple[type[BaseException], ...],
) -> RetryPolicy:
    if retries is not None and (isinstance(retries, bool) or not isinstance(retries, int) or retries < 0):
        raise ConfigError(f"retries must be a whole number from 0 on, or None for unlimited, not {retries!r}.")
    if backoff is None:
        backoff = Exponential()
    elif isinstance(backoff, timedelta | int | float):
        if (fixed := length(backoff)) < 0:
            raise ConfigError(f"backoff must not be negative, but it is {backoff!r}.")
        backoff = Fixed(fixed / SECOND)
    elif not callable(backoff):
        raise ConfigError(f"backoff must be seconds, a timedelta or a callable (attempt, error), not {backoff!r}.")
    return RetryPolicy(retries, backoff, _classes(retry_for, "retry_for"), _classes(give_up_on, "give_up_on"))


def _classes(value: object, name: str) -> tuple[type[BaseException], ...]:
    classes = value if isinstance(value, tuple) else (value,)
    for cls in classes:
        if not (isinstance(cls, type) and issubclass(cls, BaseException)):
            raise ConfigError(f"{name} takes exception classes, not {cls!r}.")
    return classes
