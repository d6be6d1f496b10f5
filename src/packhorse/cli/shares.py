"""`packhorse shares`: look at the weights of fair shares, and change them."""

from __future__ import annotations

import click
from rich.table import Table
from rich.text import Text

from packhorse.cli.common import Target, actor_option, json_option, on_application, reason_option
from packhorse.cli.completing import known_shares, weighted_shares
from packhorse.cli.showing import cell, count, print_json, show, table
from packhorse.limits import WEIGHT_CAP
from packhorse.queues import check_name


@click.group()
def shares() -> None:
    """Look at the weights of fair shares, and change them.

    Jobs of different shares take turns. A share without a weight gets one turn where others get one.

    \b
    Examples:
      packhorse shares list shop.tasks:app
      packhorse shares set ann 3 --app shop.tasks:app --reason 'pays more'
      packhorse shares reset ann --app shop.tasks:app
    """


@shares.command("list")
@on_application(positional=True)
@json_option
def list_shares(target: Target, as_json: bool) -> None:
    """List the shares whose weight was set.

    \b
    Examples:
      packhorse shares list shop.tasks:app
      packhorse shares list --store sqlite:///packhorse.db --json
    """
    weights = target.open().inspection.weights()
    if as_json:
        print_json([{"share": share, "weight": weight} for share, weight in weights.items()])
        return
    show(_table(weights) if weights else Text("No share has a weight: all get one turn where others get one."))


@shares.command("set")
@on_application(positional=False)
@click.argument("share", shell_complete=known_shares)
@click.argument("weight", type=click.IntRange(1, WEIGHT_CAP))
@reason_option
@actor_option
@json_option
def set_weight(target: Target, share: str, weight: int, reason: str, actor: str | None, as_json: bool) -> None:
    """Give SHARE so many turns, from now on, where others get one.

    Jobs that stand in their place already keep it.

    \b
    Examples:
      packhorse shares set ann 3 --app shop.tasks:app --reason 'pays more'
      packhorse shares set ann 10 --store sqlite:///packhorse.db
    """
    check_name(share, "share")
    app = target.open()
    was = app.inspection.weights().get(share)
    app.control.set_weight(share, weight, reason=reason, actor=actor)
    if as_json:
        print_json({"share": share, "weight": weight, "was": was})
        return
    click.echo(f"Share {share} gets {count(weight, 'turn')} from now on where others get one.")


@shares.command("reset")
@on_application(positional=False)
@click.argument("share", shell_complete=weighted_shares)
@reason_option
@actor_option
@json_option
def reset_weight(target: Target, share: str, reason: str, actor: str | None, as_json: bool) -> None:
    """Take back the weight of SHARE: it gets one turn where others get one.

    \b
    Examples:
      packhorse shares reset ann --app shop.tasks:app
      packhorse shares reset ann --store sqlite:///packhorse.db --reason 'like the others'
    """
    check_name(share, "share")
    app = target.open()
    was = app.inspection.weights().get(share)
    app.control.set_weight(share, None, reason=reason, actor=actor)
    if as_json:
        print_json({"share": share, "weight": None, "was": was})
        return
    click.echo(f"Share {share} {'had no weight' if was is None else f'no longer has the weight {was:,}'}.")


def _table(weights: dict[str, int]) -> Table:
    made = table("Shares", "share", "weight", right=["weight"])
    for share, weight in weights.items():
        made.add_row(cell(share), f"{weight:,}")
    return made
