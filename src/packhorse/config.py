"""The settings of an application: one checked dataclass."""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass, fields
from typing import Any, Literal, Self

from packhorse.clock import length
from packhorse.errors import ConfigError
from packhorse.stores.contract import EXCHANGE_JOBS, Retention

DAY = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Lengths are seconds."""

    heartbeat: float = 5.0
    lease: float = 30.0
    shutdown_timeout: float = 30.0
    polling_interval: float = 1.0
    lookahead: int = EXCHANGE_JOBS
    batch_size: int = EXCHANGE_JOBS
    keep_succeeded: float | None = 7 * DAY
    keep_failed: float | None = 30 * DAY
    keep_cancelled: float | None = 7 * DAY
    on_worker_lost: Literal["retry", "fail"] = "retry"
    priority_order: Literal["higher_first", "lower_first"] = "higher_first"

    @classmethod
    def of(cls, **given: Any) -> Self:
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                hint = f"Did you mean {near[0]!r}?" if near else f"Known settings: {', '.join(known)}."
                raise ConfigError(f"There is no setting {name!r}. {hint}")
        return cls(**given)

    def __post_init__(self) -> None:
        for name in ("heartbeat", "lease", "shutdown_timeout", "polling_interval"):
            value = getattr(self, name)
            if not _is_length(value):
                raise ConfigError(f"{name} must be a number of seconds from 0 on, not {value!r}.")
            if value == 0 and name in ("heartbeat", "polling_interval"):
                raise ConfigError(f"{name} must be more than 0 seconds: it is the pause between two looks.")
        for name in ("keep_succeeded", "keep_failed", "keep_cancelled"):
            value = getattr(self, name)
            if value is not None and not _is_length(value):
                raise ConfigError(f"{name} must be a number of seconds from 0 on, or None for good, not {value!r}.")
        if self.lease < 4 * self.heartbeat:
            raise ConfigError(
                f"lease={self.lease:g} is too short for heartbeat={self.heartbeat:g}: a lease must outlast four beats. "
                f"Use lease={4 * self.heartbeat:g} or more, or a shorter heartbeat."
            )
        for name, least in (("lookahead", 0), ("batch_size", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= EXCHANGE_JOBS:
                raise ConfigError(f"{name} must be a whole number from {least} to {EXCHANGE_JOBS}, not {value!r}.")
        if self.on_worker_lost not in ("retry", "fail"):
            raise ConfigError(f"on_worker_lost must be 'retry' or 'fail', not {self.on_worker_lost!r}.")
        if self.priority_order not in ("higher_first", "lower_first"):
            raise ConfigError(f"priority_order must be 'higher_first' or 'lower_first', not {self.priority_order!r}.")

    @property
    def retention(self) -> Retention:
        kept = (self.keep_succeeded, self.keep_failed, self.keep_cancelled)
        return Retention(*(None if seconds is None else length(seconds) for seconds in kept))


def _is_length(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
