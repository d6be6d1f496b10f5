"""Every change of clocks in every time zone, 2000 to 2037: cron against a clock that is watched minute by minute.

The run takes some changes of each zone; with EVERY_CLOCK_CHANGE=1 it takes them all, which needs several minutes.
"""

import os
import zoneinfo
from calendar import monthrange
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from functools import cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

import pytest

from packhorse.clock import SECOND
from packhorse.crontab import cron

WHOLE = bool(os.environ.get("EVERY_CLOCK_CHANGE"))

MINUTE = 60
HOUR = 60 * MINUTE
DAY = 24 * HOUR
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


# Forty expressions, and what they mean, said a second time without cron.


class Meaning(NamedTuple):
    text: str
    minutes: set[int]
    hours: set[int]
    on: Callable[[date], bool]
    named: bool
    """Names times of day: skipped ones come behind the gap, repeated ones once."""


def any_day(day: date) -> bool:
    return True


def weekdays(*days: int) -> Callable[[date], bool]:
    return lambda day: day.isoweekday() in days


def days(*numbers: int) -> Callable[[date], bool]:
    return lambda day: day.day in numbers


def months(*numbers: int) -> Callable[[date], bool]:
    return lambda day: day.month in numbers


def last_day(day: date) -> bool:
    return (day + timedelta(days=1)).month != day.month


def last_working_day(day: date) -> bool:
    later = (date(day.year, day.month, n) for n in range(day.day, monthrange(day.year, day.month)[1] + 1))
    return [it.isoweekday() < 6 for it in later] in ([True], [True, False], [True, False, False])


def both(*tests: Callable[[date], bool]) -> Callable[[date], bool]:
    return lambda day: all(test(day) for test in tests)


def either(*tests: Callable[[date], bool]) -> Callable[[date], bool]:
    return lambda day: any(test(day) for test in tests)


def nth(weekday: int, first: int, last: int) -> Callable[[date], bool]:
    return both(weekdays(weekday), lambda day: first <= day.day <= last)


def last_of(weekday: int) -> Callable[[date], bool]:
    return both(weekdays(weekday), lambda day: (day + timedelta(days=7)).month != day.month)


ALL_MINUTES, ALL_HOURS = set(range(60)), set(range(24))

MEANINGS = [
    Meaning("0 0 * * *", {0}, {0}, any_day, True),
    Meaning("30 0 * * *", {30}, {0}, any_day, True),
    Meaning("0 1 * * *", {0}, {1}, any_day, True),
    Meaning("30 1 * * *", {30}, {1}, any_day, True),
    Meaning("59 1 * * *", {59}, {1}, any_day, True),
    Meaning("0 2 * * *", {0}, {2}, any_day, True),
    Meaning("15 2 * * *", {15}, {2}, any_day, True),
    Meaning("30 2 * * *", {30}, {2}, any_day, True),
    Meaning("0 3 * * *", {0}, {3}, any_day, True),
    Meaning("1 3 * * *", {1}, {3}, any_day, True),
    Meaning("59 23 * * *", {59}, {23}, any_day, True),
    Meaning("30 23 * * *", {30}, {23}, any_day, True),
    Meaning("0 12 * * *", {0}, {12}, any_day, True),
    Meaning("0,30 1,2,3 * * *", {0, 30}, {1, 2, 3}, any_day, True),
    Meaning("10-50/20 0-5 * * *", {10, 30, 50}, {0, 1, 2, 3, 4, 5}, any_day, True),
    Meaning("0 0-23 * * *", {0}, ALL_HOURS, any_day, True),
    Meaning("0-59 2 * * *", ALL_MINUTES, {2}, any_day, True),
    Meaning("0-59 0-23 * * *", ALL_MINUTES, ALL_HOURS, any_day, True),
    Meaning("30 2 * * 0", {30}, {2}, weekdays(7), True),
    Meaning("30 1 * * 7", {30}, {1}, weekdays(7), True),
    Meaning("0 0 * * MON-FRI", {0}, {0}, weekdays(1, 2, 3, 4, 5), True),
    Meaning("30 0 1 * *", {30}, {0}, days(1), True),
    Meaning("30 2 L * *", {30}, {2}, last_day, True),
    Meaning("30 2 LW * *", {30}, {2}, last_working_day, True),
    Meaning("30 1 * * 0#1", {30}, {1}, nth(7, 1, 7), True),
    Meaning("30 2 * * SUN#2", {30}, {2}, nth(7, 8, 14), True),
    Meaning("30 2 * 3,10 7L", {30}, {2}, both(last_of(7), months(3, 10)), True),
    Meaning("0 0 1,15,31 * 5", {0}, {0}, either(days(1, 15, 31), weekdays(5)), True),
    Meaning("0 30 2 * * *", {30}, {2}, any_day, True),
    Meaning("0 0 0 30 12 *", {0}, {0}, both(days(30), months(12)), True),
    Meaning("* * * * *", ALL_MINUTES, ALL_HOURS, any_day, False),
    Meaning("*/15 * * * *", {0, 15, 30, 45}, ALL_HOURS, any_day, False),
    Meaning("0 */15 * * * *", {0, 15, 30, 45}, ALL_HOURS, any_day, False),
    Meaning("0 * * * *", {0}, ALL_HOURS, any_day, False),
    Meaning("30 */2 * * *", {30}, set(range(0, 24, 2)), any_day, False),
    Meaning("*/20 2 * * *", {0, 20, 40}, {2}, any_day, False),
    Meaning("*/10 0 * * 0", {0, 10, 20, 30, 40, 50}, {0}, weekdays(7), False),
    Meaning("*/30 23 * * SAT,SUN", {0, 30}, {23}, weekdays(6, 7), False),
    Meaning("45 * L * *", {45}, ALL_HOURS, last_day, False),
    Meaning("*/7 2 * * 7L", set(range(0, 60, 7)), {2}, last_of(7), False),
]

NAMED = sum(1 << n for n, meaning in enumerate(MEANINGS) if meaning.named)


@cache
def of_time(minute: int) -> int:
    """Which expressions name this minute of the day, as bits."""
    hour, rest = divmod(minute, 60)
    return sum(1 << n for n, it in enumerate(MEANINGS) if rest in it.minutes and hour in it.hours)


@cache
def of_day(number: int) -> int:
    """Which expressions name this day since 1970."""
    day = date(1970, 1, 1) + timedelta(days=number)
    return sum(1 << n for n, it in enumerate(MEANINGS) if it.on(day))


# The oracle.


class Change(NamedTuple):
    at: int
    before: int
    after: int

    def watched(self, begin: int, end: int) -> list[list[int]]:
        """Somebody looks at the wall clock every minute, and notes for each expression when it is its turn.

        Minutes of the wall clock seen for the first time count for all, gaps included, which are noticed at their end.
        Minutes seen again count only for those that do not name times of day.
        """
        turns: list[list[int]] = [[] for _ in MEANINGS]
        seen = (begin + self.before) // MINUTE - 1
        for second in range(begin, end, MINUTE):
            wall = (second + (self.before if second < self.at else self.after)) // MINUTE
            whose = of_time(wall % 1440) & of_day(wall // 1440) & ~NAMED
            for new in range(seen + 1, wall + 1):
                whose |= of_time(new % 1440) & of_day(new // 1440) & NAMED
            seen = max(seen, wall)
            while whose:
                turns[(whose & -whose).bit_length() - 1].append(second)
                whose &= whose - 1
        return turns


def changes_of(zone: ZoneInfo) -> Iterator[Change]:
    def offset(second: int) -> int:
        return int(((EPOCH + timedelta(seconds=second)).astimezone(zone).utcoffset() or timedelta()).total_seconds())

    first, last = (int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) for year in (2000, 2038))
    before = offset(first)
    for day in range(first, last, DAY):
        if (after := offset(day + DAY)) != before:
            low, high = day, day + DAY
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if offset(middle) == before else (low, middle)
            assert offset(high) == after, "changed twice in one day"
            yield Change(high, before, after)
            before = after


def zones() -> dict[tuple[Change, ...], str]:
    """One of those that change their clocks alike."""
    found: dict[tuple[Change, ...], str] = {}
    for name in sorted(zoneinfo.available_timezones()):
        found.setdefault(tuple(changes_of(ZoneInfo(name))), name)
    return found


def disagreements(zone: ZoneInfo, change: Change) -> Iterator[str]:
    begin, end = change.at - 50 * HOUR, change.at + 30 * HOUR
    turns = change.watched(begin, end)
    near = abs(change.after - change.before) + 2 * HOUR
    looks = [change.at + after for after in (-90 * MINUTE, -1, 0, 30 * MINUTE, near - 2 * HOUR - 1, near - 2 * HOUR)]
    for meaning, expected in zip(MEANINGS, turns, strict=True):
        rule = cron(meaning.text)

        def next_after(second: int, rule=rule) -> int:
            found = rule.next_after(second * SECOND, zone)
            return end if found is None else min(end, found // SECOND)

        many = len(expected) > 40
        since, until = (change.at - near, change.at + near) if many else (begin - 1, end)
        walked, second = [], since
        while (second := next_after(second)) < until:
            walked.append(second)
        if walked != [turn for turn in expected if since < turn < until]:
            yield f"{meaning.text} in {zone} at {EPOCH + timedelta(seconds=change.at)}"
        for look in looks:
            if next_after(look) != next((turn for turn in expected if turn > look), end):
                yield f"{meaning.text} in {zone} after {EPOCH + timedelta(seconds=look)}"


@pytest.mark.slow
@pytest.mark.timeout(3600 if WHOLE else 600)
@pytest.mark.parametrize("sample", [1, pytest.param(2, marks=pytest.mark.thorough)])
def test_cron_and_the_watched_clock_agree(sample: int):
    """On when it is whose turn, around the change and from wherever one looks."""
    assert len(MEANINGS) == 40
    checked, found = 0, list[str]()
    for number, (changes, name) in enumerate(zones().items()):
        step = 1 if WHOLE else max(1, len(changes) // sample)
        for change in changes[number % step :: step]:
            found += disagreements(ZoneInfo(name), change)
            checked += 1
    print(f"{checked} changes of clocks × {len(MEANINGS)} expressions")
    assert found == []
    assert checked > 150 * sample
