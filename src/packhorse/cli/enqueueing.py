"""`packhorse enqueue`: one job, by hand."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import click

from packhorse.app import Packhorse
from packhorse.cli.arguments import arguments_argument, kwargs_option, made_call, parse_arguments
from packhorse.cli.common import chosen_task, duration, json_option, loaded, parse_duration, time
from packhorse.cli.completing import known_tasks, stored_queues
from packhorse.cli.showing import json_text, note, print_json
from packhorse.errors import PackhorseError
from packhorse.handle import JobHandle
from packhorse.task import Using

FOREVER = "for ever"


@click.command()
@click.argument("app")
@click.argument("task", shell_complete=known_tasks)
@arguments_argument
@kwargs_option
@click.option("--queue", metavar="NAME", shell_complete=stored_queues, help="Another queue than the task's.")
@click.option("--priority", type=click.IntRange(-100, 100), metavar="N", help="Another priority than the task's.")
@click.option("--in", "delay", type=duration, metavar="5m", help="Not before this time has passed.")
@click.option("--at", type=time, metavar="TIME", help="Not before then.")
@click.option(
    "--wait",
    is_flag=False,
    flag_value=FOREVER,
    metavar="[SECONDS]",
    help="Wait for the result, for ever or so long, and print it instead of the id.",
)
@json_option
def enqueue(
    app: str,
    task: str,
    arguments: tuple[str, ...],
    kwargs: str | None,
    queue: str | None,
    priority: int | None,
    delay: timedelta | None,
    at: datetime | None,
    wait: str | None,
    as_json: bool,
) -> None:
    """Enqueue one job of APP (module:name), and print its id.

    An ARGUMENT is JSON, or text where it is not JSON; name=ARGUMENT goes by name. Text that looks like either is
    quoted as JSON: '"42"', '"a=b"'. Put -- before negative numbers.

    \b
    Examples:
      packhorse enqueue shop.tasks:app shop.tasks.mail ann@example.com subject=Hello 'tags=["new"]'
      packhorse enqueue shop.tasks:app shop.tasks.report --kwargs '{"year": 2026}' --queue slow --in 5m
      packhorse enqueue shop.tasks:app shop.tasks.double --wait 30 -- -21
    """
    patience = _patience(wait)
    args, named = parse_arguments(arguments, kwargs)
    application = loaded(app)
    click.get_current_context().call_on_close(application.close)
    chosen = chosen_task(application, task).using(**_changes(queue, priority, delay, at))
    job = application.enqueue(made_call(chosen, args, named))
    if wait is None:
        print_json({"id": job.id}) if as_json else click.echo(job.id)
        return
    _print_result(application, job, patience, as_json)


def _patience(wait: str | None) -> float | None:
    if wait is None or wait == FOREVER:
        return None
    if (found := parse_duration(wait if wait[-1:].isalpha() else f"{wait}s")) is None:
        raise click.UsageError(f"--wait takes seconds, or a duration like 5m, not {wait!r}.")
    return found.total_seconds()


def _changes(queue: str | None, priority: int | None, delay: timedelta | None, at: datetime | None) -> Using:
    if delay is not None and at is not None:
        raise click.UsageError("Give --in or --at, not both.")
    changes: Using = {}
    if queue is not None:
        changes["queue_name"] = queue
    if priority is not None:
        changes["priority"] = priority
    if delay is not None or at is not None:
        changes["run_after"] = at if delay is None else delay
    return changes


def _print_result(app: Packhorse, job: JobHandle[Any], patience: float | None, as_json: bool) -> None:
    try:
        job.result(patience)
    except PackhorseError:
        note(job.id)
        raise
    value = app.inspection.shown_result(app.inspection.stored(job.id))
    if as_json:
        print_json({"id": job.id, "result": value})
    else:
        click.echo(json_text(value))
