"""Wall clocks: time zones by name, and which moment a wall time is."""

from __future__ import annotations

import difflib
import zoneinfo
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from packhorse.clock import SECOND
from packhorse.errors import ConfigError

DAY = 86_400  # seconds

_MACHINES_OWN = {"localtime", "posixrules"}  # all schedulers must agree on what a name means
_EPOCH = datetime(1970, 1, 1)
_EPOCH_UTC = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def zone_named(name: object) -> ZoneInfo:
    if isinstance(name, str) and (zone := _zone(name)):
        return zone
    known = zoneinfo.available_timezones() - _MACHINES_OWN
    if not known:
        raise ConfigError("No time zones are known on this machine. Install them with: pip install tzdata")
    nearest = _nearest(str(name).lower(), {zone.lower(): zone for zone in known})
    what = f"Did you mean {' or '.join(nearest)}?" if nearest else "Give a name like Europe/Berlin, or UTC."
    raise ConfigError(f"There is no time zone {name!r}. {what}")


@lru_cache(1024)
def _zone(name: str) -> ZoneInfo | None:
    try:
        return None if name in _MACHINES_OWN else ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        return None


def _nearest(name: str, known: dict[str, str]) -> list[str]:
    if name in known:
        return [known[name]]
    cities = [zone for lower, zone in known.items() if lower.rpartition("/")[2] == name.replace(" ", "_")]
    return sorted(cities)[:3] or [known[lower] for lower in difflib.get_close_matches(name, known)]


def wall_at(second: int, zone: ZoneInfo) -> datetime:
    """What a wall clock shows."""
    return (_EPOCH_UTC + timedelta(seconds=second)).astimezone(zone).replace(tzinfo=None, fold=0)


def moment_of(wall: datetime, zone: ZoneInfo) -> int:
    """When a wall clock shows this: the first time if it does so twice, right behind the gap if it never does."""
    before, after = (_offset(wall.replace(tzinfo=zone, fold=fold)) for fold in (0, 1))
    since_epoch = wall - _EPOCH
    if before < after:
        return SECOND * _change(_seconds(since_epoch - after), _seconds(since_epoch - before), zone)
    return (since_epoch - before) // _MICROSECOND


def change_within_a_day(second: int, zone: ZoneInfo) -> int | None:
    """When the clocks are changed next, if that is within a day. Nowhere are they changed twice in one."""
    if _offset_at(second, zone) == _offset_at(second + DAY, zone):
        return None
    return _change(second, second + DAY, zone)


def _change(before: int, after: int, zone: ZoneInfo) -> int:
    offset = _offset_at(before, zone)
    while after - before > 1:
        middle = (before + after) // 2
        if _offset_at(middle, zone) == offset:
            before = middle
        else:
            after = middle
    return after


def _offset_at(second: int, zone: ZoneInfo) -> timedelta:
    return _offset((_EPOCH_UTC + timedelta(seconds=second)).astimezone(zone))


def _offset(moment: datetime) -> timedelta:
    return moment.utcoffset() or timedelta()


def _seconds(length: timedelta) -> int:
    return length // timedelta(seconds=1)
