"""`packhorse queues`: look at queues, pause and resume them."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from packhorse.cli.common import Target, actor_option, json_option, on_application, queues_argument, reason_option
from packhorse.cli.pausing import pause_dict, pause_options, pause_text
from packhorse.cli.showing import cell, note, print_json, show, table
from packhorse.job import JobState
from packhorse.queues import check_name
from packhorse.stores.contract import QueueCounts


@click.group()
def queues() -> None:
    """Look at queues, pause and resume them.

    \b
    Examples:
      packhorse queues list shop.tasks:app
      packhorse queues pause mail --app shop.tasks:app --for 2h --reason 'the mail server moves'
      packhorse queues resume mail --app shop.tasks:app
    """


@queues.command("list")
@on_application(positional=True)
@json_option
def list_queues(target: Target, as_json: bool) -> None:
    """List the queues that have jobs or are paused.

    \b
    Examples:
      packhorse queues list shop.tasks:app
      packhorse queues list --store sqlite:///packhorse.db --json
    """
    found = target.open().inspection.queues()
    if as_json:
        print_json([queue_dict(queue) for queue in found])
        return
    show(queue_table(found) if found else Text("No jobs, and no paused queues."))
    for queue in found:
        if queue.pause is not None:
            show(cell(pause_text(queue.pause), cap=1_000))


@queues.command()
@on_application(positional=False)
@queues_argument
@pause_options
@reason_option
@actor_option
@json_option
def pause(
    target: Target,
    queues: tuple[str, ...],
    until: timedelta | datetime | None,
    reason: str,
    actor: str | None,
    as_json: bool,
) -> None:
    """Let no more jobs of these queues begin. Those that run go on.

    \b
    Examples:
      packhorse queues pause mail --app shop.tasks:app --reason 'the mail server moves'
      packhorse queues pause mail report --app shop.tasks:app --for 2h
      packhorse queues pause mail --store sqlite:///packhorse.db --until 2026-12-24T18:00
    """
    names = [check_name(name, "queue name") for name in queues]
    app = target.open()
    before = {queue.queue for queue in app.inspection.queues()}
    for name in names:
        app.control.pause(name, until=until, reason=reason, actor=actor)
        if name not in before:
            note(f"Queue {name} has no jobs now. Is the name right?")
    paused = [it for it in app.inspection.queues() if it.queue in names]
    if as_json:
        print_json([queue_dict(queue) for queue in paused])
        return
    for queue in paused:
        if queue.pause is not None:
            show(cell(pause_text(queue.pause), cap=1_000))


@queues.command()
@on_application(positional=False)
@queues_argument
@reason_option
@actor_option
@json_option
def resume(target: Target, queues: tuple[str, ...], reason: str, actor: str | None, as_json: bool) -> None:
    """Let jobs of paused queues begin again.

    \b
    Examples:
      packhorse queues resume mail --app shop.tasks:app
      packhorse queues resume mail report --store sqlite:///packhorse.db
    """
    names = [check_name(name, "queue name") for name in queues]
    app = target.open()
    resumed = {name: app.control.resume(name, reason=reason, actor=actor) for name in names}
    if as_json:
        print_json(resumed)
        return
    for name, was_paused in resumed.items():
        click.echo(f"Queue {name} {'goes on' if was_paused else 'was not paused'}.")


def queue_dict(queue: QueueCounts) -> dict[str, Any]:
    return {"queue": queue.queue, "paused": pause_dict(queue.pause)} | {
        state.value: queue.of(state) for state in JobState
    }


def queue_table(queues: list[QueueCounts]) -> Table:
    states = [state.value for state in JobState]
    made = table("Queues", "queue", *states, right=states)
    for queue in queues:
        name = cell(queue.queue).append(" (paused)" if queue.pause is not None else "", "yellow")
        made.add_row(name, *(f"{queue.of(state):,}" if queue.of(state) else "·" for state in JobState))
    return made
