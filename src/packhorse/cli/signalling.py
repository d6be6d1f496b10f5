"""`packhorse signal`: let jobs go on that wait for it."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import click

from packhorse.app import KEEP_SIGNALS
from packhorse.cli.common import Target, duration, json_option, on_application
from packhorse.cli.showing import count, print_json


@click.command()
@on_application(positional=False)
@click.argument("name")
@click.option("--data", metavar="JSON", help="What the jobs get.  [default: null]")
@click.option(
    "--keep", type=duration, default=KEEP_SIGNALS, metavar="7d", help="For jobs that come to wait for it later."
)
@json_option
def signal(target: Target, name: str, data: str | None, keep: timedelta, as_json: bool) -> None:
    """Let jobs go on that wait for the signal NAME.

    \b
    Examples:
      packhorse signal approved:42 --app shop.tasks:app --data '{"by": "ann"}'
      packhorse signal prices-updated --app shop.tasks:app --keep 1h
    """
    if not target.named:
        raise click.UsageError("A signal is signed for one application: give --app, or --app-name with --store.")
    value = _value(data)
    woken = target.open().signal(name, value, keep=keep)
    if as_json:
        print_json({"jobs": woken})
    else:
        click.echo(f"{count(woken)} waited for {name}; it is kept for those that come.")


def _value(text: str | None) -> Any:
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"--data is not JSON: {error}") from None
