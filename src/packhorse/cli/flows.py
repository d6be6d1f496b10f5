"""`packhorse flows`: look at a flow, and act on all of it."""

from __future__ import annotations

from itertools import islice

import click
from rich.table import Table
from rich.text import Text

from packhorse.app import Packhorse
from packhorse.cli.acting import asked_text
from packhorse.cli.common import Target, actor_option, json_option, on_application, reason_option
from packhorse.cli.jobs import STYLES, job_dict, when
from packhorse.cli.selecting import limit_option
from packhorse.cli.showing import cell, count, note, print_json, show, table
from packhorse.control import known_id
from packhorse.errors import JobNotFound
from packhorse.flow import FlowHandle, members_of
from packhorse.job import Job, JobState
from packhorse.stores.contract import Act, Change, Selection
from packhorse.task import CALLBACK_NAMES, CALLBACKS


@click.group()
def flows() -> None:
    """Look at a flow, cancel it, or retry it from where it stopped.

    \b
    Examples:
      packhorse flows show 01976e8c-… --app shop.tasks:app
      packhorse flows retry 01976e8c-… --app shop.tasks:app --reason 'the API is back'
    """


@flows.command("show")
@on_application(positional=False)
@click.argument("id")
@limit_option
@click.option("--after", type=int, metavar="PLACE", help="Begin behind the job at this place.")
@json_option
def show_flow(target: Target, id: str, limit: int, after: int | None, as_json: bool) -> None:
    """Show the jobs of a flow in the order they were added, and how many are in which state.

    The callbacks of a batch come first, and are not counted.

    \b
    Examples:
      packhorse flows show 01976e8c-… --app shop.tasks:app
      packhorse flows show 01976e8c-… --app shop.tasks:app --limit 1000 --json
    """
    app = target.open()
    flow = _flow(app, id)
    begin = min(CALLBACKS) - 1 if after is None else after
    members = islice(members_of(app.store, known_id(id), begin, limit + 1), limit + 1)
    found = [(place, app.public(job)) for place, job in members]
    page, more = found[:limit], len(found) > limit
    if as_json:
        print_json(
            {
                "id": flow.id,
                "counts": flow.counts(),
                "jobs": [
                    job_dict(job) | {"place": place, "callback": CALLBACK_NAMES.get(place)} for place, job in page
                ],
                "after": page[-1][0] if more else None,
            }
        )
        return
    show(_counts(flow.counts()))
    show(_table(page) if page else Text("No job of it comes behind that place."))
    if more:
        note(f"There are more: --after {page[-1][0]}")


@flows.command("cancel")
@on_application(positional=False)
@click.argument("id")
@reason_option
@actor_option
@json_option
def cancel_flow(target: Target, id: str, reason: str, actor: str | None, as_json: bool) -> None:
    """End all jobs of a flow that have not finished; the workers of running ones are asked to.

    \b
    Examples:
      packhorse flows cancel 01976e8c-… --app shop.tasks:app --reason 'sent by hand'
    """
    app = target.open()
    flow = _flow(app, id)
    running = flow.counts().get(JobState.RUNNING, 0)
    if running and not target.named:
        raise click.ClickException(
            f"{count(running)} of this flow run, and their workers obey only their own application: name it with --app "
            "or --app-name."
        )
    jobs = asked = 0
    for moved in app.control.batches(Selection(flow=known_id(id)), Change(Act.CANCEL), reason=reason, actor=actor):
        jobs += moved.jobs
        asked += moved.asked
    _told(Act.CANCEL, "Cancelled", jobs, asked, as_json)


@flows.command("retry")
@on_application(positional=False)
@click.argument("id")
@reason_option
@actor_option
@json_option
def retry_flow(target: Target, id: str, reason: str, actor: str | None, as_json: bool) -> None:
    """Resume a flow: what failed or was cancelled goes round again, in its order; what succeeded does not.

    \b
    Examples:
      packhorse flows retry 01976e8c-… --app shop.tasks:app --reason 'the API is back'
    """
    app = target.open()
    _told(Act.RETRY, "Retried", _flow(app, id).retry(reason=reason, actor=actor), 0, as_json)


def _flow(app: Packhorse, id: str) -> FlowHandle:
    try:
        raw = known_id(id)
    except JobNotFound:
        raise click.ClickException(f"{id!r} is no id of a flow.") from None
    if not app.store.members(raw, min(CALLBACKS) - 1, 1):
        raise click.ClickException(f"There is no flow {id} in this store, or none of its jobs is kept.")
    return app.flow(id)


def _told(act: Act, done: str, jobs: int, asked: int, as_json: bool) -> None:
    if as_json:
        print_json({"act": act, "jobs": jobs, "asked": asked})
    else:
        click.echo(f"{done} {count(jobs)}.{asked_text(asked)}")


def _counts(counts: dict[JobState, int]) -> Text:
    return Text(", ".join(f"{counts[state]:,} {state}" for state in JobState if state in counts) or "No jobs")


def _table(page: list[tuple[int, Job]]) -> Table:
    made = table("", "place", "id", "state", "queue", "task", "when", "reason", right=["place"], whole=["id", "when"])
    for place, job in page:
        state = cell(job.state, STYLES.get(job.state, ""))
        task, reason = cell(job.task), cell(job.reason or "")
        made.add_row(CALLBACK_NAMES.get(place, str(place)), job.id, state, cell(job.queue), task, when(job), reason)
    return made
