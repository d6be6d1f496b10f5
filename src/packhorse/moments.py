"""The rules of schedules: each gives one moment after the other, and has a text that reads back as itself."""

from __future__ import annotations

import math
import re
from calendar import monthrange
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from zoneinfo import ZoneInfo

from packhorse.clock import LONGEST, SECOND, to_microseconds
from packhorse.clock import length as microseconds
from packhorse.crontab import Cron, cron
from packhorse.errors import ConfigError
from packhorse.zones import moment_of, wall_at

# Those of strftime depend on the machine's language.
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTH_NAMES = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)


@dataclass(frozen=True, slots=True)
class Every:
    """Made by `every`, `minutes` and `hourly`."""

    length: int
    anchor: datetime | None = None

    def next_after(self, moment: int, zone: ZoneInfo) -> int | None:
        anchor = 0 if self.anchor is None else moment_at(self.anchor, zone)
        return anchor + max(0, (moment - anchor) // self.length + 1) * self.length

    def words(self, zone: ZoneInfo) -> str:
        units = ((3600 * SECOND, "hour"), (60 * SECOND, "minute"), (SECOND, "second"))
        size, unit = next((it for it in units if self.length % it[0] == 0), units[-1])
        count = self.length / size
        anchored = "" if self.anchor is None else f" from {shown(moment_at(self.anchor, zone), zone)} ({zone})"
        return (f"every {unit}" if count == 1 else f"every {count:.15g} {unit}s") + anchored

    def __str__(self) -> str:
        seconds, rest = divmod(self.length, SECOND)
        text = f"{seconds}.{rest:06}".rstrip("0").rstrip(".") if rest else f"{seconds}"
        return f"every {text}s" + ("" if self.anchor is None else f" from {_text(self.anchor)}")


@dataclass(frozen=True, slots=True)
class Once:
    """Made by `once`."""

    at: datetime

    def next_after(self, moment: int, zone: ZoneInfo) -> int | None:
        at = moment_at(self.at, zone)
        return at if at > moment else None

    def words(self, zone: ZoneInfo) -> str:
        return f"once at {shown(moment_at(self.at, zone), zone)} ({zone})"

    def __str__(self) -> str:
        return f"once at {_text(self.at)}"


class Kind(StrEnum):
    DAILY = "daily"
    WEEKLY = "weekly"
    BIWEEKLY = "biweekly"
    MONTHLY = "monthly"
    BIMONTHLY = "bimonthly"
    QUARTERLY = "quarterly"
    YEARLY = "yearly"


_DAYS = {Kind.DAILY: 1, Kind.WEEKLY: 7, Kind.BIWEEKLY: 14}
_MONTHS = {Kind.MONTHLY: 1, Kind.BIMONTHLY: 2, Kind.QUARTERLY: 3, Kind.YEARLY: 12}


@dataclass(frozen=True, slots=True)
class Calendar:
    """Made by `daily`, `weekly`, `monthly` and their like.

    The time of day is that of the anchor on the wall clock, whenever clocks are changed; the day of the month is that
    of the anchor, or the last one where the month is shorter.
    """

    kind: Kind
    anchor: datetime

    def next_after(self, moment: int, zone: ZoneInfo) -> int | None:
        anchor, wall = self._wall(zone), wall_at(moment // SECOND, zone)
        if days := _DAYS.get(self.kind):
            passed = (wall - anchor) // timedelta(days=days)
        else:
            passed = _months_between(anchor, wall) // _MONTHS[self.kind]
        step = max(0, passed - 1)
        while (found := moment_of(self._after(anchor, step), zone)) <= moment:
            step += 1
        return found

    def _after(self, anchor: datetime, step: int) -> datetime:
        if days := _DAYS.get(self.kind):
            return anchor + timedelta(days=days * step)
        years, month = divmod(anchor.month - 1 + _MONTHS[self.kind] * step, 12)
        year, month = anchor.year + years, month + 1
        return anchor.replace(year=year, month=month, day=min(anchor.day, monthrange(year, month)[1]))

    def _wall(self, zone: ZoneInfo) -> datetime:
        return self.anchor if self.anchor.tzinfo is None else self.anchor.astimezone(zone).replace(tzinfo=None, fold=0)

    def words(self, zone: ZoneInfo) -> str:
        anchor = self._wall(zone)
        match self.kind:
            case Kind.DAILY:
                day = "every day"
            case Kind.WEEKLY | Kind.BIWEEKLY:
                day = f"every {'second ' * (self.kind is Kind.BIWEEKLY)}week on {_WEEKDAYS[anchor.weekday()]}"
            case Kind.YEARLY:
                day = f"every year on {_MONTH_NAMES[anchor.month - 1]} {anchor.day}"
            case _:
                months = _MONTHS[self.kind]
                day = f"every {'month' if months == 1 else f'{months} months'} on day {anchor.day}"
        if anchor.day > 28 and self.kind in _MONTHS and (self.kind is not Kind.YEARLY or anchor.month == 2):
            day += " or the last one"
        return f"{day} at {_time(anchor)} ({zone})"

    def __str__(self) -> str:
        return f"{self.kind} from {_text(self.anchor)}"


Rule = Cron | Every | Once | Calendar


def every(length: timedelta | float, anchor: datetime | None = None) -> Every:
    """One moment each `length` (a timedelta or seconds), counted from the anchor, which is the first.

    Without an anchor they are counted from 1970 on, UTC, so all processes agree and a restart shifts nothing.
    """
    seconds = length.total_seconds() if isinstance(length, timedelta) else length
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 1 <= seconds < math.inf:
        raise ConfigError(f"every takes a timedelta or a number of seconds, at least one second, not {length!r}.")
    return Every(microseconds(length), None if anchor is None else check_time("anchor", anchor))


def minutes(n: int, anchor: datetime | None = None) -> Every:
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ConfigError(f"minutes takes a whole number from 1 on, not {n!r}.")
    return every(60 * n, anchor)


def hourly(anchor: datetime | None = None) -> Every:
    return every(timedelta(hours=1), anchor)


def once(at: datetime) -> Once:
    return Once(check_time("at", at))


def daily(anchor: datetime) -> Calendar:
    return Calendar(Kind.DAILY, check_time("anchor", anchor))


def weekly(anchor: datetime) -> Calendar:
    return Calendar(Kind.WEEKLY, check_time("anchor", anchor))


def biweekly(anchor: datetime) -> Calendar:
    """Every second week."""
    return Calendar(Kind.BIWEEKLY, check_time("anchor", anchor))


def monthly(anchor: datetime) -> Calendar:
    return Calendar(Kind.MONTHLY, check_time("anchor", anchor))


def bimonthly(anchor: datetime) -> Calendar:
    """Every second month."""
    return Calendar(Kind.BIMONTHLY, check_time("anchor", anchor))


def quarterly(anchor: datetime) -> Calendar:
    return Calendar(Kind.QUARTERLY, check_time("anchor", anchor))


def yearly(anchor: datetime) -> Calendar:
    return Calendar(Kind.YEARLY, check_time("anchor", anchor))


_UNITS = {"s": 1, "m": 60, "h": 3600}
_EVERY = re.compile(r"every (\d{1,12}(?:\.\d{1,6})?)([smh])(?: from (.+))?", re.ASCII)
_ANCHORED = re.compile(rf"({'|'.join(Kind)}) from (.+)")


def parse_rule(text: str) -> Rule:
    """The rule whose text this is: `str(rule)` gives it, and stores keep it. A cron expression may stand alone."""
    if not isinstance(text, str):
        raise ConfigError(f"The rule of a schedule is made by cron(…), every(…) and the like, or a text, not {text!r}.")
    line = " ".join(text.split())
    if line.startswith("cron:"):
        return cron(line.removeprefix("cron:"))
    if line[:1] in "*@0123456789":
        return cron(line)
    if found := _EVERY.fullmatch(line):
        lasting = min(LONGEST, int(Decimal(found[1]) * _UNITS[found[2]] * SECOND))
        return every(timedelta(microseconds=lasting), _parsed(found[3]) if found[3] else None)
    if found := _ANCHORED.fullmatch(line):
        return Calendar(Kind(found[1]), check_time("anchor", _parsed(found[2])))
    if line.startswith("once at "):
        return once(_parsed(line.removeprefix("once at ")))
    raise ConfigError(
        f"{text!r} is no rule of a schedule. Write one like 'cron: 0 3 * * *', 'every 90s', "
        "'every 2h from 2026-01-31T09:00', 'once at 2026-01-31T09:00' or 'monthly from 2026-01-31T09:00' "
        f"({', '.join(Kind)})."
    )


def moment_at(time: datetime, zone: ZoneInfo) -> int:
    """A time without a zone is one of the wall clock."""
    return moment_of(time, zone) if time.tzinfo is None else to_microseconds(time)


def check_time(name: str, time: object) -> datetime:
    if not isinstance(time, datetime) or not 1970 <= time.year < 9000:
        raise ConfigError(f"{name} takes a datetime between the years 1970 and 9000, not {time!r}.")
    return time.replace(fold=0) if time.tzinfo is None else time.astimezone(UTC)


def shown(moment: int, zone: ZoneInfo) -> str:
    wall = wall_at(moment // SECOND, zone)
    return f"{wall:%Y-%m-%d} {_time(wall)}"


def _time(wall: datetime) -> str:
    return f"{wall:%H:%M:%S}" if wall.second else f"{wall:%H:%M}"


def _text(time: datetime) -> str:
    return time.isoformat().replace("+00:00", "Z")


def _parsed(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{text!r} is no time. Write it like 2026-01-31T09:00, with Z behind it for UTC.") from None


def _months_between(earlier: datetime, later: datetime) -> int:
    return (later.year - earlier.year) * 12 + later.month - earlier.month
