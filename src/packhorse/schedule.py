"""Schedules: rules that give one moment after the other, and which of their moments are due."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import islice, takewhile
from typing import Any, Literal, NamedTuple

from packhorse.clock import SECOND, length, to_microseconds
from packhorse.crontab import Cron
from packhorse.errors import ConfigError
from packhorse.moments import Calendar, Every, Once, Rule, check_time, moment_at, parse_rule, shown
from packhorse.zones import zone_named

MOMENTS_CAP = 1000  # of one call
LATE = 60 * SECOND  # less is in time
END = to_microseconds(datetime(9000, 1, 1, tzinfo=UTC))  # moments lie between 1970 and here


class Misfire(StrEnum):
    """What becomes of moments that were missed: none is made up for, the latest one is, or all are."""

    SKIP = "skip"
    ONCE = "once"
    ALL = "all"


class Overlap(StrEnum):
    """What a tick does while the job of an earlier one is unfinished: add another, none, or one that waits for it."""

    ALLOW = "allow"
    SKIP = "skip"
    QUEUE = "queue"


class Due(NamedTuple):
    """What to do now. `handled` and `repeats` are to be kept for the next time; `next` is when that is."""

    moments: tuple[int, ...]
    """Each gets a job; the oldest first."""
    handled: int
    """What is due up to here has been dealt with."""
    next: int | None
    """Already past if there is more to do at once. None: never again."""
    repeats: int | None
    """How many are left."""
    left_out: bool
    """Some moment passed without a job."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Made by `make_schedule`. All times and lengths are microseconds."""

    rule: Rule
    zone: str = "UTC"
    start: int | None = None
    end: int | None = None
    repeats: int | None = None
    jitter: int = 0
    misfire: Misfire = Misfire.ONCE
    grace: int | None = None
    overlap: Overlap = Overlap.ALLOW

    def next_after(self, moment: int) -> int | None:
        if self.repeats == 0:
            return None
        end = END if self.end is None else self.end
        since = max(-1, moment, -1 if self.start is None else self.start - 1)
        if since >= end:
            return None
        found = self.rule.next_after(since, zone_named(self.zone))
        return found if found is not None and found <= end else None

    def upcoming(self, now: int, count: int = 5) -> list[int]:
        """The next moments after now, as many as there are up to `count`."""
        return list(islice(self._after(now), max(0, min(count, MOMENTS_CAP))))

    def due(self, last: int | None, now: int) -> Due:
        """Which moments get a job now.

        `last` is what was `handled` before, or, if that is later, when the schedule was made or changed. None: it was
        never looked at, and what lies before now is not owed, except by a rule that has but one moment.
        """
        handled = now - 1 if last is None else last
        since = -1 if last is None and isinstance(self.rule, Once) else handled
        first = self.next_after(since)
        if first is None or first > now:
            return Due((), handled, first, self.repeats, False)
        if self.misfire is Misfire.ALL:
            moments = self._all(since, now)
            handled = moments[-1] if moments else self._latest(first, now)
        else:
            handled = self._latest(first, now)
            moments = (handled,) if self._in_time(handled, now) else ()
        rest = self if self.repeats is None else replace(self, repeats=self.repeats - len(moments))
        return Due(moments, handled, rest.next_after(handled), rest.repeats, moments[:1] != (first,))

    def run_at(self, key: str, moment: int) -> int:
        """When the job of a moment may run. Jitter depends on nothing but the key and the moment: all agree on it."""
        digest = hashlib.sha256(f"{key}\0{moment}".encode("utf-8", "surrogatepass")).digest()
        return moment + int.from_bytes(digest[:8]) * (self.jitter + 1) // 2**64

    def describe(self) -> str:
        zone = zone_named(self.zone)
        words = [self.rule.words(zone)]
        if self.start is not None:
            words.append(f"not before {shown(self.start, zone)}")
        if self.end is not None:
            words.append(f"until {shown(self.end, zone)}")
        if self.repeats is not None:
            words.append(f"{self.repeats} more time{'s' * (self.repeats != 1)}")
        return ", ".join(words)

    def _after(self, moment: int) -> Iterator[int]:
        found = self.next_after(moment)
        left = math.inf if self.repeats is None else self.repeats
        while found is not None and left > 0:
            yield found
            found, left = self.next_after(found), left - 1

    def _all(self, since: int, now: int) -> tuple[int, ...]:
        since = since if self.grace is None else max(since, now - self.grace - 1)
        return tuple(islice(takewhile(lambda moment: moment <= now, self._after(since)), MOMENTS_CAP))

    def _in_time(self, moment: int, now: int) -> bool:
        if self.grace is not None:
            return now - moment <= self.grace
        if self.misfire is Misfire.SKIP:
            return now - moment <= LATE
        following = self.rule.next_after(moment, zone_named(self.zone))
        return following is None or now <= following

    def _latest(self, first: int, now: int) -> int:
        """The latest moment up to now, found by halving: there may be millions behind the first."""

        def is_last(moment: int) -> bool:
            following = self.next_after(moment)
            return following is None or following > now

        if is_last(first):
            return first
        before, after = first, now
        while after - before > 1:
            middle = (before + after) // 2
            if is_last(middle):
                after = middle
            else:
                before = middle
        return after


def make_schedule(
    rule: Rule | str,
    *,
    zone: str = "UTC",
    start: datetime | None = None,
    end: datetime | None = None,
    repeats: int | None = None,
    jitter: timedelta | float = 0,
    misfire: Literal["skip", "once", "all"] = "once",
    grace: timedelta | float | None = None,
    overlap: Literal["allow", "skip", "queue"] = "allow",
) -> Schedule:
    """A rule, or its text, and what bounds it.

    Times without a zone are those of the wall clock in `zone`; `start` and `end` belong to the time between them.
    `repeats` is how many moments are left, None or -1 for no limit. A job begins up to `jitter` after its moment.

    `grace` is how late a moment may be to get its job still. Without one that is a minute under `skip`, until the next
    moment under `once`, and for ever under `all`.
    """
    if not isinstance(rule, Cron | Every | Once | Calendar):
        rule = parse_rule(rule)
    if repeats is not None and (isinstance(repeats, bool) or not isinstance(repeats, int) or repeats < -1):
        raise ConfigError(f"repeats must be a whole number from 0 on, or None (or -1) for no limit, not {repeats!r}.")
    zoneinfo = zone_named(zone)
    schedule = Schedule(
        rule,
        zone,
        None if start is None else moment_at(check_time("start", start), zoneinfo),
        None if end is None else moment_at(check_time("end", end), zoneinfo),
        None if repeats == -1 else repeats,
        _length("jitter", jitter),
        _one_of("misfire", misfire, Misfire),
        None if grace is None else _length("grace", grace),
        _one_of("overlap", overlap, Overlap),
    )
    if replace(schedule, repeats=None).next_after(-1) is None:
        raise ConfigError(f"There is no moment between start and end: {schedule.describe()}. Change one of the three.")
    return schedule


def _length(name: str, value: object) -> int:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
        raise ConfigError(f"{name} must be a timedelta or a number of seconds, not negative, not {value!r}.")
    return length(seconds)


def _one_of(name: str, value: object, kind: type[Misfire] | type[Overlap]) -> Any:
    try:
        return kind(value)  # type: ignore[arg-type]
    except ValueError:
        raise ConfigError(f"{name} must be one of {', '.join(kind)}, not {value!r}.") from None
