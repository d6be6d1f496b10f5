"""`packhorse jobs`: look at jobs, and act on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import islice
from typing import Any, TypeVar

import click
from rich.table import Table
from rich.text import Text

from packhorse.app import Packhorse
from packhorse.cli.acting import CANCEL, DISCARD, RESTART, RETRY, RUN_NOW, STOP, Choice, Deed, Order, act_on, acts
from packhorse.cli.arguments import arguments_argument, fitting, kwargs_option, parse_arguments
from packhorse.cli.common import Target, actor_option, json_option, on_application, reason_option
from packhorse.cli.selecting import Filters, after_option, filter_options, limit_option
from packhorse.cli.showing import ago, below, cell, grid, moment, note, print_json, readable, show, table
from packhorse.context import Progress
from packhorse.errors import PayloadError
from packhorse.job import STOPPED, Job, JobState, StoredJob
from packhorse.steps import Step
from packhorse.stores.contract import Act

T = TypeVar("T")

UNNAMED = "What is signed can be verified, and shown, where the application is named: --app, or --app-name."
STYLES = {JobState.FAILED: "red", JobState.RUNNING: "green", JobState.CANCELLED: "yellow"}


@click.group()
def jobs() -> None:
    """Look at jobs, and retry, cancel, stop, restart, discard or hasten them.

    \b
    Examples:
      packhorse jobs list shop.tasks:app --state failed --queue mail --newer-than 2h
      packhorse jobs show 01976e8c-… --app shop.tasks:app
      packhorse jobs retry --app shop.tasks:app --state failed --task shop.tasks.mail --all-matching
    """


# Looking.


@jobs.command("list")
@on_application(positional=True)
@filter_options()
@limit_option
@after_option
@json_option
def list_jobs(target: Target, filters: Filters, limit: int, after: str | None, as_json: bool) -> None:
    """List jobs, oldest first.

    \b
    Examples:
      packhorse jobs list shop.tasks:app --state ready --state running
      packhorse jobs list shop.tasks:app --state failed --newer-than 1d --json
      packhorse jobs list --store sqlite:///packhorse.db --queue mail --limit 200
    """
    app = target.open()
    found = list(islice(app.inspection.jobs(filters.selection(app), page=limit + 1, after=after), limit + 1))
    page, more = found[:limit], len(found) > limit
    if as_json:
        print_json({"jobs": [job_dict(job) for job in page], "after": page[-1].id if more else None})
        return
    show(job_table(page) if page else Text("No job matches."))
    if more:
        note(f"There are more: --after {page[-1].id}")


@jobs.command("show")
@on_application(positional=False)
@click.argument("id")
@click.option("--arguments", is_flag=True, help="With its arguments; what is secret is masked.")
@click.option("--result", is_flag=True, help="With its result, likewise.")
@json_option
def show_job(target: Target, id: str, arguments: bool, result: bool, as_json: bool) -> None:
    """Show all that is known of a job.

    \b
    Examples:
      packhorse jobs show 01976e8c-… --app shop.tasks:app
      packhorse jobs show 01976e8c-… --app shop.tasks:app --arguments --result --json
    """
    app = target.open()
    present(app, app.inspection.stored(id), arguments=arguments, result=result, as_json=as_json)
    if not target.named:
        note(UNNAMED)


def present(app: Packhorse, stored: StoredJob, *, arguments: bool, result: bool, as_json: bool) -> None:
    job = app.public(stored)
    progress, progress_error = _opened(lambda: app.inspection.progress(stored.id))
    steps, steps_error = _opened(lambda: app.inspection.steps(stored.id))
    extras: dict[str, Any] = {}
    if arguments:
        extras |= _named("arguments", *_opened(lambda: app.inspection.shown_arguments(stored)))
    if result and job.state is JobState.SUCCEEDED and job.result_error is None:
        extras |= _named("result", *_opened(lambda: app.inspection.shown_result(stored)))
    if as_json:
        kept = None if steps is None else [asdict(step) for step in steps]
        print_json(job_dict(job) | {"progress": progress and asdict(progress), "steps": kept} | extras)
        return
    done = progress_error and f"cannot be shown: {progress_error}" if progress is None else progress_text(progress)
    sealed = [(name, readable(value)) for name, value in extras.items()]
    past = steps_error and f"cannot be shown: {steps_error}" if steps is None else ", ".join(map(step_text, steps))
    show(grid([*_facts(job), ("progress", done), ("steps", past), *sealed]))
    for attempt in job.failures:
        spent = "" if attempt.spent else ", not spent"
        title = f"attempt {attempt.number}, {moment(attempt.ended_at)}{spent}: {attempt.failure}"
        show(Text(), cell(title, cap=4_000), *below(attempt.failure))
    if job.failure is not None:
        show(Text(), cell(f"failed, {moment(job.finished_at)}: {job.failure}", "red", cap=4_000), *below(job.failure))


def _opened(ask: Callable[[], T]) -> tuple[T | None, str | None]:
    """What is sealed, or why it cannot be shown."""
    try:
        return ask(), None
    except PayloadError as error:
        return None, str(error)


def _named(name: str, value: object, error: str | None) -> dict[str, Any]:
    return {name: value} if error is None else {f"{name}_error": error}


def progress_text(progress: Progress) -> str:
    total = "" if progress.total is None else f" of {progress.total:g}"
    percent = "" if progress.percent is None else f" ({progress.percent:.0f} %)"
    when = "" if progress.at is None else f", {ago(progress.at)}"
    return f"{progress.done:g}{total}{percent}{progress.note and f': {progress.note}'}{when}"


def step_text(step: Step) -> str:
    return f"{step.kind} {step.name}".rstrip() + f" ({ago(step.at)})"


def _facts(job: Job) -> list[tuple[str, object]]:
    now = datetime.now(UTC)
    return [
        ("id", job.id),
        ("task", job.task),
        ("state", Text(f"{job.state} ({STOPPED})" if job.stopped else job.state, STYLES.get(job.state, ""))),
        ("queue", job.queue),
        ("priority", job.priority),
        ("attempts", job.attempts),
        ("losses", job.losses or None),
        ("tags", ", ".join(map(str, job.tags))),
        ("share", job.share),
        ("created", moment(job.created_at, now)),
        ("run at", moment(job.run_at, now)),
        ("awaits", job.awaits),
        ("expires", moment(job.expires_at, now)),
        ("claimed", moment(job.claimed_at, now)),
        ("started", moment(job.started_at, now)),
        ("finished", moment(job.finished_at, now)),
        ("process", job.process),
        ("reason", job.reason),
        ("result", job.result_error and f"not kept: {job.result_error}"),
    ]


def job_dict(job: Job) -> dict[str, Any]:
    return asdict(job)


def job_table(jobs: list[Job]) -> Table:
    made = table("", "id", "state", "queue", "task", "attempts", "when", right=["attempts"], whole=["id", "when"])
    now = datetime.now(UTC)
    for job in jobs:
        state = cell(STOPPED if job.stopped else job.state, STYLES.get(job.state, ""))
        made.add_row(job.id, state, cell(job.queue), cell(job.task), str(job.attempts), when(job, now))
    return made


def when(job: Job, now: datetime | None = None) -> str:
    if job.finished_at is not None:
        return f"ended {ago(job.finished_at, now)}"
    if job.state is JobState.RUNNING and (began := job.started_at or job.claimed_at) is not None:
        return f"began {ago(began, now)}"
    if job.state is JobState.SCHEDULED and job.run_at is not None:
        return f"due {ago(job.run_at, now)}"
    return f"made {ago(job.created_at, now)}"


# Acting.


def _command(name: str, deed: Deed, help: str) -> None:
    @jobs.command(name, help=help)
    @on_application(positional=False)
    @filter_options()
    @acts
    def command(
        target: Target, filters: Filters, ids: tuple[str, ...], all_matching: bool, limit: int | None, order: Order
    ) -> None:
        act_on(deed, target, Choice(ids, filters, all_matching, limit), order)


_command(
    "retry",
    RETRY,
    """Perform failed and cancelled jobs again, with fresh attempts.

    \b
    Examples:
      packhorse jobs retry 01976e8c-… 01976e8d-… --app shop.tasks:app
      packhorse jobs retry --app shop.tasks:app --queue mail --newer-than 2h --all-matching --reason 'mail is back'
    """,
)
_command(
    "cancel",
    CANCEL,
    """End jobs that have not finished; the workers of running ones are asked to.

    The record is kept, and `jobs retry` brings them back.

    \b
    Examples:
      packhorse jobs cancel 01976e8c-… --app shop.tasks:app --reason 'sent by hand'
      packhorse jobs cancel --app shop.tasks:app --state scheduled --task shop.tasks.remind --all-matching
    """,
)
_command(
    "stop",
    STOP,
    """End jobs on purpose: as `jobs cancel` does, but they are shown as stopped, until `jobs restart`.

    \b
    Examples:
      packhorse jobs stop 01976e8c-… --app shop.tasks:app --reason 'the feed is broken'
      packhorse jobs stop --app shop.tasks:app --state running --task shop.tasks.follow --all-matching
    """,
)
_command(
    "restart",
    RESTART,
    """Let jobs run again: stopped, failed and cancelled ones as by `jobs retry`, running ones from where they are.

    The workers of running ones are asked to end them; that attempt does not count, and any worker goes on.

    \b
    Examples:
      packhorse jobs restart 01976e8c-… --app shop.tasks:app
      packhorse jobs restart --app shop.tasks:app --state running --task shop.tasks.follow --all-matching
    """,
)


@jobs.command("reload")
@on_application(positional=False)
@click.argument("id")
@arguments_argument
@kwargs_option
@reason_option
@actor_option
@json_option
def reload_job(
    target: Target,
    id: str,
    arguments: tuple[str, ...],
    kwargs: str | None,
    reason: str,
    actor: str | None,
    as_json: bool,
) -> None:
    """Restart a job with other arguments, which are given as to `packhorse enqueue`.

    One that has not run yet waits on with them. Needs the code of the application: --app.

    \b
    Examples:
      packhorse jobs reload 01976e8c-… --app shop.tasks:app eu-west limit=20
      packhorse jobs reload 01976e8c-… --app shop.tasks:app --kwargs '{"region": "eu-west"}' --reason 'moved'
    """
    args, named = parse_arguments(arguments, kwargs)
    app = target.open()
    job = app.inspection.stored(id)
    if (task := app.known_tasks.get(job.task)) is None:
        raise click.ClickException(
            f"The task {job.task} of the job is not known here: name its application with --app."
        )
    done = app.control.reload(job.id, *fitting(task, args, named), reason=reason, actor=actor)
    if as_json:
        print_json({"act": Act.RELOAD, "jobs": int(done)})
    elif done:
        click.echo("The job runs with these arguments from now on; if it is running, its worker was asked to end it.")
    if not done:
        note(f"Job {job.id} has succeeded, and stays as it is.")
        raise SystemExit(1)


_command(
    "discard",
    DISCARD,
    """Delete jobs that do not run, with all that is known of them. Asks first.

    \b
    Examples:
      packhorse jobs discard 01976e8c-… --app shop.tasks:app
      packhorse jobs discard --app shop.tasks:app --state succeeded --older-than 1d --all-matching --yes
    """,
)
_command(
    "run-now",
    RUN_NOW,
    """Make scheduled jobs ready.

    \b
    Examples:
      packhorse jobs run-now 01976e8c-… --app shop.tasks:app
      packhorse jobs run-now --app shop.tasks:app --queue mail --all-matching
    """,
)
