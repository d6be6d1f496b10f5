"""How values are shown: as the commands show them, with the clock of the site. Templates escape what they are given."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeVar

from django.utils import timezone

from packhorse.cli.showing import ago, readable, span
from packhorse.clock import to_datetime
from packhorse.errors import PayloadError
from packhorse.masking import printable

T = TypeVar("T")

VALUE_CAP = 20_000


class Moment(NamedTuple):
    at: str
    ago: str

    def __str__(self) -> str:
        return f"{self.at} ({self.ago})"


class Link(NamedTuple):
    text: str
    url: str


def at(microseconds: int) -> datetime | None:
    """None where somebody else wrote what lies beyond all calendars."""
    try:
        return to_datetime(microseconds)
    except (OverflowError, ValueError, OSError):
        return None


def moment(at: datetime | None) -> Moment | None:
    if at is None:
        return None
    try:
        local = timezone.localtime(at)
    except (OverflowError, ValueError):  # the first and last hours of all calendars
        local = at
    return Moment(f"{local:%Y-%m-%d %H:%M:%S %Z}", ago(at))


def lasted(since: datetime | None, until: datetime | None) -> str:
    if since is None or until is None or until < since:
        return ""
    length: timedelta = until - since
    return span(length.total_seconds()) if length >= timedelta(minutes=2) else f"{length.total_seconds():.3f} s"


def lines(text: str) -> str:
    """Many lines, with nothing in them that is no letter."""
    return "\n".join(printable(line) for line in text.rstrip().split("\n"))


def value(it: Any) -> str:
    return printable(readable(it), VALUE_CAP)


def opened(ask: Callable[[], T], show: Callable[[T], Any]) -> Any:
    """What is sealed, or why it cannot be shown."""
    try:
        return show(ask())
    except PayloadError as error:
        return f"cannot be shown: {error}"


def facts(rows: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Without those that have nothing."""
    return [(name, printable(it) if isinstance(it, str) else it) for name, it in rows if it is not None and it != ""]
