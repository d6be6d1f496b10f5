"""Commands about a store: what is in it, and its schema."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import click
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from packhorse.app import Packhorse
from packhorse.cli.common import Target, json_option, on_application
from packhorse.cli.queues import queue_dict, queue_table
from packhorse.cli.showing import Out, cell, print_json, show, span, table
from packhorse.failpoints import POINTS
from packhorse.stores.contract import ProcessView, QueueCounts

WATCH_EVERY = 2.0


@click.command()
@on_application(positional=True)
@click.option(
    "--watch",
    is_flag=False,
    flag_value=str(WATCH_EVERY),
    type=click.FloatRange(0.1, 3600),
    metavar="[SECONDS]",
    help=f"Look again every so often ({WATCH_EVERY:g} s), until INT.",
)
@json_option
def status(target: Target, watch: float | None, as_json: bool) -> None:
    """Show queues, their jobs by state, and the processes.

    \b
    Examples:
      packhorse status shop.tasks:app
      packhorse status shop.tasks:app --watch
      packhorse status --store sqlite:///packhorse.db --json
    """
    app = target.open()
    if watch is None:
        _show_once(app, as_json)
        return
    try:
        _watch(app, watch, as_json)
    except KeyboardInterrupt:
        pass  # that is how watching ends


def _show_once(app: Packhorse, as_json: bool) -> None:
    queues, processes = app.inspection.queues(), app.inspection.processes()
    if as_json:
        print_json({"queues": [queue_dict(q) for q in queues], "processes": [_process(p) for p in processes]})
    else:
        show(*_tables(queues, processes))


def _watch(app: Packhorse, every: float, as_json: bool) -> None:
    out = Out()
    if as_json or not out.is_terminal:
        for _ in _moments(every):
            _show_once(app, as_json)
        return
    with Live(console=out, auto_refresh=False, transient=False) as live:
        for _ in _moments(every):
            tables = _tables(app.inspection.queues(), app.inspection.processes())
            now = Text(f"{datetime.now().astimezone():%H:%M:%S}, every {every:g} s; Ctrl-C to end", "dim")
            live.update(Group(*tables, now), refresh=True)


def _moments(every: float) -> Iterator[None]:
    while True:
        yield
        time.sleep(every)


def _tables(queues: list[QueueCounts], processes: list[ProcessView]) -> list[Table | Text]:
    return [
        queue_table(queues) if queues else Text("No jobs, and no paused queues."),
        _process_table(processes) if processes else Text("No processes: nobody performs jobs now."),
    ]


def _process(process: ProcessView) -> dict[str, Any]:
    return {
        "id": process.id,
        "role": process.role,
        "host": process.host,
        "pid": process.pid,
        "queues": process.queues,
        "started_at": process.started_at,
        "lease_left": round(process.lease_left, 3),
        "running": process.running,
    }


def _process_table(processes: list[ProcessView]) -> Table:
    made = table("Processes", "role", "host", "pid", "queues", "running", "up", "lease", right=["pid", "running"])
    now = datetime.now(UTC)
    for process in processes:
        lease = Text(f"{process.lease_left:.0f} s") if process.lease_left > 0 else Text("over", "red")
        made.add_row(
            cell(process.role),
            cell(process.host),
            cell(process.pid),
            cell(process.queues),
            cell(process.running),
            span((now - process.started_at).total_seconds()),
            lease,
        )
    return made


@click.command()
@on_application(positional=True)
@json_option
def migrate(target: Target, as_json: bool) -> None:
    """Bring the store's schema up to date (SQLite does it by itself on first use).

    \b
    Examples:
      packhorse migrate shop.tasks:app
      packhorse migrate --store sqlite:///packhorse.db
    """
    app = target.make()
    done = app.control.migrate()
    version = app.inspection.schema_version()
    if as_json:
        print_json({"applied": done, "version": version})
    elif done:
        click.echo(f"Applied {', '.join(done)}; the schema is now at version {version}.")
    else:
        click.echo(f"Nothing to do: the schema is at version {version}.")


@click.command()
@json_option
def failpoints(as_json: bool) -> None:
    """List the places where a test can make Packhorse die, stop, fail or wait.

    \b
    Example:
      PACKHORSE_FAILPOINTS='exchange.before_commit=kill@3' packhorse worker shop.tasks:app
    """
    if as_json:
        print_json(POINTS)
        return
    width = max(map(len, POINTS))
    for name, place in POINTS.items():
        click.echo(f"{name:{width}}  {place}")
