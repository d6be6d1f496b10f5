"""Commands about a store: what is in it, and its schema."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table

from packhorse.app import Packhorse
from packhorse.failpoints import POINTS
from packhorse.job import JobState
from packhorse.runtime.loading import load_app
from packhorse.stores.contract import ProcessView, QueueCounts

_app_argument = click.argument("app", required=False)
_store_option = click.option("--store", help="Store URL, where no APP is named.  [default: $PACKHORSE_STORE]")
_json_option = click.option("--json", "as_json", is_flag=True, help="For scripts.")


def _application(app: str | None, store: str | None) -> Packhorse:
    if app is not None and store is not None:
        raise click.UsageError("Name an APP or a --store, not both.")
    application = load_app(app) if app is not None else Packhorse("packhorse", store)
    click.get_current_context().call_on_close(application.close)
    return application


@click.command()
@_app_argument
@_store_option
@_json_option
def status(app: str | None, store: str | None, as_json: bool) -> None:
    """Show queues, their jobs by state, and the processes.

    \b
    Examples:
      packhorse status shop.tasks:app
      packhorse status --store sqlite:///packhorse.db --json
    """
    application = _application(app, store)
    if not application.store.exists():
        raise click.ClickException(
            f"There is no store at {application.store.url} yet. Check the URL, or enqueue first."
        )
    queues, processes = application.inspection.queues(), application.inspection.processes()
    if as_json:
        click.echo(json.dumps({"queues": [_queue(q) for q in queues], "processes": [_process(p) for p in processes]}))
        return
    console = Console()
    console.print(_queue_table(queues) if queues else "No jobs, and no paused queues.")
    console.print(_process_table(processes) if processes else "No processes: nobody performs jobs now.")


def _queue(queue: QueueCounts) -> dict[str, Any]:
    paused = None
    if queue.pause is not None:
        until = queue.pause.until.isoformat() if queue.pause.until else None
        paused = {"until": until, "reason": queue.pause.reason, "actor": queue.pause.actor}
    return {"queue": queue.queue, "paused": paused} | {state.value: queue.of(state) for state in JobState}


def _process(process: ProcessView) -> dict[str, Any]:
    return {
        "id": process.id,
        "role": process.role,
        "host": process.host,
        "pid": process.pid,
        "queues": process.queues,
        "started_at": process.started_at.isoformat(),
        "lease_left": round(process.lease_left, 3),
        "running": process.running,
    }


def _queue_table(queues: list[QueueCounts]) -> Table:
    table = Table(title="Queues", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("queue")
    for state in JobState:
        table.add_column(state.value, justify="right", no_wrap=True)
    for queue in queues:
        name = queue.queue + (" (paused)" if queue.pause is not None else "")
        table.add_row(name, *(f"{queue.of(state):,}" if queue.of(state) else "·" for state in JobState))
    return table


def _process_table(processes: list[ProcessView]) -> Table:
    table = Table(title="Processes", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("role", "host", "pid", "queues", "running", "up", "lease"):
        table.add_column(column, no_wrap=True)
    for process in processes:
        up = datetime.now(UTC) - process.started_at
        lease = f"{process.lease_left:.0f} s" if process.lease_left > 0 else "[red]over[/red]"
        up_text = str(up).split(".")[0]
        table.add_row(
            process.role, process.host, str(process.pid), process.queues, str(process.running), up_text, lease
        )
    return table


@click.command()
@_app_argument
@_store_option
@_json_option
def migrate(app: str | None, store: str | None, as_json: bool) -> None:
    """Bring the store's schema up to date (SQLite does it by itself on first use).

    \b
    Examples:
      packhorse migrate shop.tasks:app
      packhorse migrate --store sqlite:///packhorse.db
    """
    application = _application(app, store)
    done = application.store.migrate()
    version = application.store.schema_version()
    if as_json:
        click.echo(json.dumps({"applied": done, "version": version}))
    elif done:
        click.echo(f"Applied {', '.join(done)}; the schema is now at version {version}.")
    else:
        click.echo(f"Nothing to do: the schema is at version {version}.")


@click.command()
@_json_option
def failpoints(as_json: bool) -> None:
    """List the places where a test can make Packhorse die, stop, fail or wait.

    \b
    Example:
      PACKHORSE_FAILPOINTS='exchange.before_commit=kill@3' packhorse worker shop.tasks:app
    """
    if as_json:
        click.echo(json.dumps(POINTS))
        return
    width = max(map(len, POINTS))
    for name, place in POINTS.items():
        click.echo(f"{name:{width}}  {place}")
