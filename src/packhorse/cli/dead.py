"""`packhorse dead`: the jobs that failed for good."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice

import click
from rich.table import Table
from rich.text import Text

from packhorse.app import Packhorse
from packhorse.cli.acting import PURGE, REPLAY, Choice, Deed, Order, act_on, acts
from packhorse.cli.common import Target, json_option, on_application
from packhorse.cli.jobs import UNNAMED, job_dict, present
from packhorse.cli.selecting import Filters, after_option, filter_options, limit_option
from packhorse.cli.showing import ago, cell, count, note, print_json, show, table
from packhorse.inspection import Scan
from packhorse.job import Job, JobState

FAILED = frozenset({JobState.FAILED})
SCAN_CAP = 1_000_000

_error = click.option(
    "--error", metavar="TEXT", help="Only where the error's type or message has this text, in any case of letters."
)
_scan = click.option(
    "--scan",
    default=10_000,
    show_default=True,
    type=click.IntRange(1, SCAN_CAP),
    metavar="N",
    help="With --error: how many jobs to look at.",
)


@click.group()
def dead() -> None:
    """Look at the jobs that failed for good, replay them, or purge them.

    \b
    Examples:
      packhorse dead list shop.tasks:app --error TimeoutError
      packhorse dead replay --app shop.tasks:app --error TimeoutError --newer-than 2h --all-matching
      packhorse dead purge --app shop.tasks:app --older-than 30d --all-matching
    """


@dead.command("list")
@on_application(positional=True)
@filter_options(states=False)
@_error
@_scan
@limit_option
@after_option
@json_option
def list_dead(
    target: Target, filters: Filters, error: str | None, scan: int, limit: int, after: str | None, as_json: bool
) -> None:
    """List failed jobs with their errors, oldest first.

    Failures are sealed, so that no store can search them: with --error jobs are looked at one by one, at most as many
    as --scan says.

    \b
    Examples:
      packhorse dead list shop.tasks:app --newer-than 1d
      packhorse dead list shop.tasks:app --error 'connection refused' --scan 100000
      packhorse dead list shop.tasks:app --queue mail --json
    """
    app = target.open()
    found = _look(app, filters, error, scan, limit, after)
    if as_json:
        print_json({"jobs": list(map(job_dict, found.jobs)), "looked_at": found.looked_at, "after": found.after})
        return
    show(_table(found.jobs) if found.jobs else Text("No failed job matches."))
    if error is not None:
        note(f"Looked at {count(found.looked_at, 'failed job')}.")
    if found.after is not None:
        note(f"There may be more: --after {found.after}")
    if found.jobs and not target.named:
        note(UNNAMED)


def _look(app: Packhorse, filters: Filters, error: str | None, scan: int, limit: int, after: str | None) -> Scan:
    selection = filters.selection(app, states=FAILED)
    if error is not None:
        return app.inspection.failed(selection, error, limit=limit, scan=scan, after=after)
    found = list(islice(app.inspection.jobs(selection, page=limit + 1, after=after), limit + 1))
    page = found[:limit]
    return Scan(page, len(page), page[-1].id if len(found) > limit else None)


@dead.command("show")
@on_application(positional=False)
@click.argument("id")
@click.option("--arguments", is_flag=True, help="With its arguments; what is secret is masked.")
@json_option
def show_dead(target: Target, id: str, arguments: bool, as_json: bool) -> None:
    """Show a failed job and what became of each attempt.

    \b
    Example:
      packhorse dead show 01976e8c-… --app shop.tasks:app --arguments
    """
    app = target.open()
    job = app.inspection.stored(id)
    if job.state is not JobState.FAILED:
        raise click.ClickException(f"Job {job.id} is {job.state}, not failed. See `packhorse jobs show`.")
    present(app, job, arguments=arguments, result=False, as_json=as_json)
    if not target.named:
        note(UNNAMED)


def _command(name: str, deed: Deed, help: str) -> None:
    @dead.command(name, help=help)
    @on_application(positional=False)
    @filter_options(states=False)
    @_error
    @_scan
    @acts
    def command(
        target: Target,
        filters: Filters,
        error: str | None,
        scan: int,
        ids: tuple[str, ...],
        all_matching: bool,
        limit: int | None,
        order: Order,
    ) -> None:
        act_on(deed, target, Choice(ids, filters, all_matching, limit, error, scan), order)


_command(
    "replay",
    REPLAY,
    """Perform failed jobs again, with fresh attempts. Asks first, unless ids are given.

    \b
    Examples:
      packhorse dead replay 01976e8c-… --app shop.tasks:app
      packhorse dead replay --app shop.tasks:app --error TimeoutError --all-matching --limit 10   # try a few first
      packhorse dead replay --app shop.tasks:app --error TimeoutError --all-matching --reason 'the bank is back'
    """,
)
_command(
    "purge",
    PURGE,
    """Delete failed jobs, with all that is known of them. Asks first.

    \b
    Examples:
      packhorse dead purge 01976e8c-… --app shop.tasks:app
      packhorse dead purge --app shop.tasks:app --older-than 30d --all-matching --yes
    """,
)


def _table(jobs: list[Job]) -> Table:
    made = table("", "id", "task", "queue", "attempts", "failed", "error", right=["attempts"], whole=["id", "failed"])
    now = datetime.now(UTC)
    for job in jobs:
        failed = ago(job.finished_at, now) if job.finished_at is not None else ""
        error = cell(job.failure or "", "red", cap=120)
        made.add_row(job.id, cell(job.task), cell(job.queue), str(job.attempts), failed, error)
    return made
