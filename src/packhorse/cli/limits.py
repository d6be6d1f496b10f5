"""`packhorse limits`: look at the keys of limits and rates, and change the numbers of limits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from typing import Any, TypeVar

import click
from rich.table import Table
from rich.text import Text

from packhorse.cli.common import Target, actor_option, json_option, on_application, reason_option
from packhorse.cli.completing import stored_limits
from packhorse.cli.selecting import limit_option
from packhorse.cli.showing import cell, count, note, print_json, show, span, table
from packhorse.clock import SECOND
from packhorse.limits import PERMITS_CAP, written
from packhorse.stores.contract import LimitView, RateView

V = TypeVar("V")

_after = click.option("--after", default="", metavar="KEY", help="Begin behind this key.")
_key = click.argument("key", shell_complete=stored_limits)


@click.group()
def limits() -> None:
    """Look at the keys of limits and rates, and change how many jobs of one may run at a time.

    A KEY is the name of a task or group, a slash and a value: shop.tasks.import_orders/42, printer/.

    \b
    Examples:
      packhorse limits list shop.tasks:app
      packhorse limits set printer/ 0 --app shop.tasks:app --reason 'out of paper'
      packhorse limits reset printer/ --app shop.tasks:app
      packhorse limits rates shop.tasks:app
    """


@limits.command("list")
@on_application(positional=True)
@limit_option
@_after
@json_option
def list_limits(target: Target, limit: int, after: str, as_json: bool) -> None:
    """List the keys that have holders, waiting jobs or a number set by hand.

    A job waits in the line of one key at a time, the first that has no room for it.

    \b
    Examples:
      packhorse limits list shop.tasks:app
      packhorse limits list --store sqlite:///packhorse.db --limit 200 --json
    """
    page, more = _page(target.open().inspection.limits(after=after), limit)
    if as_json:
        print_json({"limits": [asdict(view) for view in page], "after": page[-1].key if more else None})
        return
    show(_table(page) if page else Text("No limit has holders, waiting jobs or a number set by hand."))
    if more:
        note(f"There are more: --after {page[-1].key!r}")


@limits.command("rates")
@on_application(positional=True)
@limit_option
@_after
@json_option
def list_rates(target: Target, limit: int, after: str, as_json: bool) -> None:
    """List the keys of rates that were used of late or are waited for.

    \b
    Examples:
      packhorse limits rates shop.tasks:app
      packhorse limits rates --store sqlite:///packhorse.db --limit 200 --json
    """
    page, more = _page(target.open().inspection.rates(after=after), limit)
    if as_json:
        print_json({"rates": [_rate(view) for view in page], "after": page[-1].key if more else None})
        return
    show(_rates_table(page) if page else Text("No rate was used of late, and nobody waits for one."))
    if more:
        note(f"There are more: --after {page[-1].key!r}")


@limits.command("set")
@on_application(positional=False)
@_key
@click.argument("number", metavar="N", type=click.IntRange(0, PERMITS_CAP))
@reason_option
@actor_option
@json_option
def set_limit(target: Target, key: str, number: int, reason: str, actor: str | None, as_json: bool) -> None:
    """Let N jobs of KEY run at a time from now on, whatever their tasks say; 0 lets nobody begin.

    Jobs that have their permit already keep it.

    \b
    Examples:
      packhorse limits set printer/ 0 --app shop.tasks:app --reason 'out of paper'
      packhorse limits set shop.tasks.import_orders/42 10 --store sqlite:///packhorse.db
    """
    app = target.open()
    before = app.inspection.limit(key)
    app.control.set_limit(key, number, reason=reason, actor=actor)
    if not before.holders and not before.waiting:
        note(f"Limit {key} has no jobs now. Is the key right?")
    if as_json:
        print_json({"key": key, "to": number, "was": before.to})
        return
    many = f"; {count(before.holders)} {'has its' if before.holders == 1 else 'have their'} permit already"
    click.echo(f"Limit {key} is {number:,} from now on{many if before.holders > number else ''}.")


@limits.command("reset")
@on_application(positional=False)
@_key
@reason_option
@actor_option
@json_option
def reset_limit(target: Target, key: str, reason: str, actor: str | None, as_json: bool) -> None:
    """Take back the number that was set by hand: the tasks' own counts again.

    \b
    Examples:
      packhorse limits reset printer/ --app shop.tasks:app
      packhorse limits reset printer/ --store sqlite:///packhorse.db --reason 'paper is there'
    """
    app = target.open()
    before = app.inspection.limit(key)
    app.control.set_limit(key, None, reason=reason, actor=actor)
    if as_json:
        print_json({"key": key, "to": None, "was": before.to})
        return
    was = "had no number set by hand" if before.to is None else f"is no longer {before.to:,}: its tasks' number counts"
    click.echo(f"Limit {key} {was}.")


def _page(views: Iterator[V], limit: int) -> tuple[list[V], bool]:
    """So many of them, and whether there are more."""
    found = list(islice(views, limit + 1))
    return found[:limit], len(found) > limit


def _table(views: list[LimitView]) -> Table:
    made = table("Limits", "key", "set to", "holders", "waiting", right=["set to", "holders", "waiting"])
    for view in views:
        numbers = (view.to, view.holders or None, view.waiting or None)
        made.add_row(cell(view.key), *("·" if number is None else f"{number:,}" for number in numbers))
    return made


def _rate(view: RateView) -> dict[str, Any]:
    return {
        "key": view.key,
        "rate": written(view.pace),
        "burst": view.pace.burst,
        "opens_in": view.opens_in / SECOND,
        "waiting": view.waiting,
    }


def _rates_table(views: list[RateView]) -> Table:
    made = table("Rates", "key", "rate", "next token", "waiting", right=["next token", "waiting"])
    for view in views:
        words = f"{written(view.pace)}, burst {view.pace.burst}"
        waiting = f"{view.waiting:,}" if view.waiting else "·"
        made.add_row(cell(view.key), cell(words), _soon(view.opens_in / SECOND), waiting)
    return made


def _soon(seconds: float) -> str:
    if seconds <= 0:
        return "now"
    return f"in {span(seconds)}" if seconds >= 10 else f"in {seconds:.1f}s"
