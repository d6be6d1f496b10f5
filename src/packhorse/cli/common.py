"""What the commands share: which application, what an option's text means, and asking before it is too late."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import wraps
from typing import Any, TypeVar

import click

from packhorse.app import Packhorse
from packhorse.cli.completing import stored_queues
from packhorse.clock import LONGEST
from packhorse.masking import masked_url
from packhorse.runtime.loading import load_app
from packhorse.task import BaseTask

F = TypeVar("F", bound=Callable[..., Any])

NAMELESS = "packhorse"


# Which application.


def loaded(path: str) -> Packhorse:
    """The application of that path. What its module prints must not get between a command's own lines."""
    with redirect_stdout(sys.stderr):
        return load_app(path)


@dataclass(frozen=True, slots=True)
class Target:
    """An application, by its path; or a store, for which the application's own name may be given."""

    app: str | None
    store: str | None
    app_name: str | None

    def __post_init__(self) -> None:
        if self.app is not None and self.store is not None:
            raise click.UsageError("Name an APP or a --store, not both.")
        if self.app is not None and self.app_name is not None:
            raise click.UsageError("An APP has its own name: leave out --app-name.")

    @property
    def named(self) -> bool:
        """Whether signatures can be made and verified: they hold for one application's name."""
        return self.app is not None or self.app_name is not None

    def make(self) -> Packhorse:
        """The application. Its store need not exist."""
        made = loaded(self.app) if self.app is not None else Packhorse(self.app_name or NAMELESS, self.store)
        click.get_current_context().call_on_close(made.close)
        return made

    def open(self) -> Packhorse:
        """The application, the store of which must exist: a command that looks or acts makes none."""
        made = self.make()
        if not made.inspection.exists():
            url = masked_url(made.store.url)
            raise click.ClickException(f"There is no store at {url} yet. Check the URL, or enqueue first.")
        return made


_argument = click.argument("app", required=False)
_option = click.option("--app", "-A", "app_option", metavar="APP", help="The application, as module:name.")
_store = click.option("--store", metavar="URL", help="The store, where no APP is named.  [default: $PACKHORSE_STORE]")
_app_name = click.option(
    "--app-name",
    metavar="NAME",
    help="The application's own name, to go with --store: signatures hold for one name. Without it failures and "
    "arguments cannot be shown, running jobs not be cancelled, and expired ones not be retried.",
)


def on_application(*, positional: bool) -> Callable[[F], F]:
    """Gives a command its `target`: [APP] where nothing else stands there, and --app, --store, --app-name."""

    def decorate(command: F) -> F:
        @wraps(command)
        def with_target(**given: Any) -> Any:
            app, option = given.pop("app", None), given.pop("app_option")
            if app is not None and option is not None:
                raise click.UsageError("Name the APP once.")
            target = Target(app or option, given.pop("store"), given.pop("app_name"))
            return command(target=target, **given)

        decorated: Any = with_target
        for option in (_app_name, _store, _option, *([_argument] if positional else [])):
            decorated = option(decorated)
        return decorated  # type: ignore[no-any-return]

    return decorate


def chosen_task(app: Packhorse, name: str) -> BaseTask[..., Any]:
    """The task of that name; where there is none, an error with those that may be meant."""
    if name in app.known_tasks:
        return app.known_tasks[name]
    near = [known for known in app.known_tasks if known.rpartition(".")[2] == name]
    near += difflib.get_close_matches(name, app.known_tasks, 3)
    if near:
        hint = f"Did you mean {' or '.join(dict.fromkeys(near))}?"
    else:
        hint = f"It has: {', '.join(sorted(app.tasks)[:20]) or 'none'}."
    raise click.ClickException(f"Application {app.name!r} has no task {name!r}. {hint}")


json_option = click.option("--json", "as_json", is_flag=True, help="For scripts.")
yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask.")
reason_option = click.option("--reason", default="", metavar="TEXT", help="Kept in the audit.")
actor_option = click.option("--actor", metavar="NAME", help="Who does it.  [default: the user logged in]")
queues_argument = click.argument("queues", metavar="QUEUE...", nargs=-1, required=True, shell_complete=stored_queues)


# What texts mean.


UNITS = {"w": 604_800, "d": 86_400, "h": 3_600, "m": 60, "s": 1}
_DURATION = re.compile(r"(?:[0-9]{1,9}(?:\.[0-9]{1,9})?[wdhms]){1,5}")
_PART = re.compile(r"([0-9.]+)([wdhms])")


def parse_duration(text: str) -> timedelta | None:
    """None where it is no duration."""
    if not _DURATION.fullmatch(text):
        return None
    seconds = sum(float(number) * UNITS[unit] for number, unit in _PART.findall(text))
    return timedelta(seconds=seconds) if seconds <= LONGEST // 1_000_000 else None


# Both are given to click as types, so that it names the option in its message.


def duration(text: str | timedelta) -> timedelta:
    found = text if isinstance(text, timedelta) else parse_duration(text)
    if found is None:
        raise click.BadParameter(f"{text!r} is no duration. Write one like 30d, 2h, 45m, 10s or 1h30m.")
    return found


def time(text: str | datetime) -> datetime:
    """Without a zone it is this machine's time."""
    try:
        return text if isinstance(text, datetime) else datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{text!r} is no time. Write one like 2026-12-24T18:00 or 2026-12-24T18:00+01:00."
        ) from None


# Asking.


def can_ask() -> bool:
    return sys.stdin.isatty()


def confirm(what: str, *, yes: bool) -> None:
    """`what` is to be done, as in "discard 5 jobs"."""
    if yes:
        return
    if not can_ask():
        raise click.ClickException(
            f"This would {what}. There is no terminal to ask at: give --yes if that is what you want."
        )
    click.confirm(f"{what[0].upper()}{what[1:]}?", abort=True, err=True)
