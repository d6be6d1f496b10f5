"""Cron expressions: cronsim reads them and walks the calendar, the changes of clocks are ours.

Left to it, a next moment may lie in the past while an hour is repeated, and six fields follow other rules than five.
"""

from __future__ import annotations

import re
from copy import copy
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from packhorse.clock import SECOND
from packhorse.errors import ConfigError
from packhorse.zones import DAY, change_within_a_day, moment_of, wall_at

EXPRESSION_CAP = 200
FAR = 50 * 366 * DAY  # cronsim gives up after fifty years, and so do we

WORDS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


@dataclass(frozen=True, slots=True)
class Cron:
    """Made by `cron`.

    An expression without a star in its seconds, minutes and hours names times of day. One that the wall clock skips
    comes right behind the gap, once however many were skipped; one that it shows twice comes the first time only. With
    a star, every moment counts at which the wall clock matches, and no other.
    """

    expression: str

    def next_after(self, moment: int, zone: ZoneInfo) -> int | None:
        walls = _compiled(self.expression)
        next_of = _next_named if walls.fixed else _next_matching
        return next_of(walls, moment // SECOND, zone)

    def words(self, zone: ZoneInfo) -> str:
        explained = _compiled(self.expression).explain()
        if found := re.fullmatch(r"At (\d\d:\d\d(?::\d\d)?) (.+)", explained):
            explained = f"{found[2]} at {found[1]}"
        return f"{explained[0].lower()}{explained[1:]} ({zone})"

    def __str__(self) -> str:
        return f"cron: {self.expression}"


def cron(expression: str) -> Cron:
    """Five fields (minute, hour, day, month, weekday), six with seconds in front, or a word like `@daily`."""
    if not isinstance(expression, str) or len(expression) > EXPRESSION_CAP:
        raise ConfigError(
            f"A cron expression is a text like '0 3 * * *', of at most {EXPRESSION_CAP} characters, not {expression!r}."
        )
    text = " ".join(expression.upper().split())
    if text.startswith("@"):
        if (word := text.lower()) not in WORDS:
            raise ConfigError(f"There is no cron word {word!r}. Use one of {', '.join(WORDS)}, or five fields.")
        text = WORDS[word]
    _check_count(text)
    try:
        walls = _compiled(text)
    except (CronSimError, ValueError) as error:
        raise ConfigError(f"Cannot use the cron expression {text!r}: {_why(text, str(error))}") from None
    if walls.after(datetime(2000, 1, 1)) is None:
        raise ConfigError(f"Cannot use the cron expression {text!r}: no day is ever like this. Check day and weekday.")
    return Cron(text)


class _Walls:
    """The wall times of one expression."""

    def __init__(self, expression: str):
        self._sim = CronSim(expression, datetime(2000, 1, 1))
        self.explain = self._sim.explain
        self.fixed = not any("*" in field for field in self._sim.parts[:3])

    def after(self, wall: datetime) -> datetime | None:
        sim = copy(self._sim)  # reading the text again would take longer, and threads may share it
        sim.dt = wall
        try:
            return next(sim)
        except (StopIteration, OverflowError, ValueError):  # not within fifty years, or not before the year 10,000
            return None


_compiled = lru_cache(1024)(_Walls)


def _next_named(walls: _Walls, second: int, zone: ZoneInfo) -> int | None:
    wall = walls.after(wall_at(second, zone))
    # Within a repeated hour, the times still ahead on the wall have had their turn.
    while wall is not None and (moment := moment_of(wall, zone)) <= second * SECOND:
        wall = walls.after(wall)
    return None if wall is None else moment


def _next_matching(walls: _Walls, second: int, zone: ZoneInfo) -> int | None:
    at = second + 1
    while at < second + FAR:  # what matches only in gaps would be looked for until the end of days
        wall = wall_at(at, zone)
        found = walls.after(wall - timedelta(seconds=1))
        if found is None:
            return None
        distance = (found - wall) // timedelta(seconds=1)
        change = change_within_a_day(at, zone)
        if change is not None and at + distance >= change:
            at = change
        elif distance < DAY:
            return (at + distance) * SECOND
        else:
            moment = moment_of(found, zone)
            at = moment // SECOND
            if wall_at(at, zone) == found:
                return moment
    return None


def _check_count(text: str) -> None:
    count = len(text.split())
    if count in (5, 6):
        return
    if count == 7:
        what = "and there is none for years: leave it out, and give the schedule a start and an end"
    else:
        what = "but it takes five (minute, hour, day, month, weekday), or six with seconds in front"
    raise ConfigError(f"The cron expression {text!r} has {count} field{'s' * (count != 1)}, {what}.")


def _why(text: str, error: str) -> str:
    if "?" in text:
        return "write * where other tools take a question mark."
    *others, month, weekday = text.split()
    if month != "*" and _readable(" ".join([*others, "*", weekday])) and _readable(f"0 0 1 {month} *"):
        return "none of its months has such a day."
    return f"its {error.removeprefix('Bad ')} is not right. Five fields are minute, hour, day, month and weekday."


def _readable(text: str) -> bool:
    try:
        _compiled(text)
    except (CronSimError, ValueError):
        return False
    return True
