"""What pausing queues and pausing tasks share: until when, and how a pause is shown."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import Any, TypeVar

import click

from packhorse.cli.common import duration, time
from packhorse.cli.showing import moment
from packhorse.stores.contract import Pause

F = TypeVar("F", bound=Callable[..., Any])

_for = click.option("--for", "lasting", type=duration, metavar="2h", help="Resume by itself after this time.")
_until = click.option("--until", type=time, metavar="TIME", help="Resume by itself then.")


def pause_options(command: F) -> F:
    """Gives a command its `until`: a time from now, a moment, or None."""

    @wraps(command)
    def with_until(**given: Any) -> Any:
        return command(until=_end(given.pop("lasting"), given.pop("until")), **given)

    decorated: Any = with_until
    for option in (_until, _for):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]


def _end(lasting: timedelta | None, until: datetime | None) -> timedelta | datetime | None:
    if lasting is not None and until is not None:
        raise click.UsageError("Give --for or --until, not both.")
    if until is not None and until <= datetime.now(UTC):
        raise click.UsageError(f"--until {until.isoformat()} is over already.")
    return until if lasting is None else lasting


def pause_dict(pause: Pause | None) -> dict[str, Any] | None:
    return None if pause is None else {"until": pause.until, "reason": pause.reason, "actor": pause.actor}


def pause_text(pause: Pause) -> str:
    end = f"until {moment(pause.until)}" if pause.until is not None else "until somebody resumes it"
    reason = f": {pause.reason}" if pause.reason else ""
    return f"{pause.kind.capitalize()} {pause.name} is paused {end}, by {pause.actor}{reason}"
