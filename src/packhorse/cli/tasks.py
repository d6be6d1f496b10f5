"""`packhorse tasks`: look at an application's tasks, pause and resume them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from packhorse.app import Packhorse
from packhorse.cli.common import Target, actor_option, chosen_task, json_option, on_application, reason_option
from packhorse.cli.completing import known_tasks, paused_tasks
from packhorse.cli.pausing import pause_dict, pause_options, pause_text
from packhorse.cli.showing import cell, note, print_json, show, table
from packhorse.clock import SECOND
from packhorse.limits import Conflict, Key, Limit, Rate, Unique, UniqueConflict, written
from packhorse.queues import check_name
from packhorse.stores.contract import Pause, Paused, Selection
from packhorse.task import BaseTask

ELSE = {Conflict.BLOCK: "", Conflict.DISCARD: ", others are cancelled", Conflict.REPLACE: ", only the newest waits"}
AGAIN = {
    UniqueConflict.KEEP: "",
    UniqueConflict.REPLACE: ", replaced by the next",
    UniqueConflict.RESCHEDULE: ", rescheduled by the next",
    UniqueConflict.MERGE: ", merged with the next",
}


@click.group()
def tasks() -> None:
    """Look at an application's tasks, pause and resume them.

    \b
    Examples:
      packhorse tasks list shop.tasks:app
      packhorse tasks pause shop.tasks.mail --app shop.tasks:app --for 2h --reason 'the mail server moves'
      packhorse tasks resume shop.tasks.mail --app shop.tasks:app
    """


@tasks.command("list")
@on_application(positional=True)
@json_option
def list_tasks(target: Target, as_json: bool) -> None:
    """List the application's tasks with what decides when their jobs run, and other tasks that are paused.

    \b
    Examples:
      packhorse tasks list shop.tasks:app
      packhorse tasks list shop.tasks:app --json
      packhorse tasks list --store sqlite:///packhorse.db       # the paused ones
    """
    app = target.make()
    pauses = _pauses(app)
    others = [name for name in pauses if name not in app.tasks]
    if as_json:
        known = [_task(task, pauses.get(name)) for name, task in app.tasks.items()]
        print_json([*known, *(_stranger(name, pauses[name]) for name in others)])
        return
    show(_table(app, pauses, others) if app.tasks or others else Text("No tasks, and none is paused."))
    for pause in pauses.values():
        show(cell(pause_text(pause), cap=1_000))


@tasks.command()
@on_application(positional=False)
@click.argument("names", metavar="TASK...", nargs=-1, required=True, shell_complete=known_tasks)
@pause_options
@reason_option
@actor_option
@json_option
def pause(
    target: Target,
    names: tuple[str, ...],
    until: timedelta | datetime | None,
    reason: str,
    actor: str | None,
    as_json: bool,
) -> None:
    """Let no more jobs of these tasks begin, in whatever queue they are. Those that run go on.

    A name that the application does not know is refused; without an application any name goes.

    \b
    Examples:
      packhorse tasks pause shop.tasks.mail --app shop.tasks:app --reason 'the mail server moves'
      packhorse tasks pause shop.tasks.mail shop.tasks.report --app shop.tasks:app --for 2h
      packhorse tasks pause shop.tasks.mail --store sqlite:///packhorse.db --until 2026-12-24T18:00
    """
    for name in names:
        check_name(name, "task name")
    app = target.open()
    if target.app is not None:
        for name in names:
            chosen_task(app, name)
    for name in names:
        app.control.pause_task(name, until=until, reason=reason, actor=actor)
        _warn(app, name, known=target.app is not None)
    paused = [pause for name, pause in _pauses(app).items() if name in names]
    if as_json:
        print_json([{"name": pause.name, "paused": pause_dict(pause)} for pause in paused])
        return
    for it in paused:
        show(cell(pause_text(it), cap=1_000))


@tasks.command()
@on_application(positional=False)
@click.argument("names", metavar="TASK...", nargs=-1, required=True, shell_complete=paused_tasks)
@reason_option
@actor_option
@json_option
def resume(target: Target, names: tuple[str, ...], reason: str, actor: str | None, as_json: bool) -> None:
    """Let jobs of paused tasks begin again.

    \b
    Examples:
      packhorse tasks resume shop.tasks.mail --app shop.tasks:app
      packhorse tasks resume shop.tasks.mail shop.tasks.report --store sqlite:///packhorse.db
    """
    for name in names:
        check_name(name, "task name")
    app = target.open()
    if target.app is not None:
        pauses = _pauses(app)
        for name in names:
            if name not in pauses:  # one that was paused may have gone from the code since
                chosen_task(app, name)
    resumed = {name: app.control.resume_task(name, reason=reason, actor=actor) for name in names}
    if as_json:
        print_json(resumed)
        return
    for name, was_paused in resumed.items():
        click.echo(f"Task {name} {'goes on' if was_paused else 'was not paused'}.")


def _pauses(app: Packhorse) -> dict[str, Pause]:
    if not app.inspection.exists():
        return {}
    return {pause.name: pause for pause in app.inspection.pauses() if pause.kind is Paused.TASK}


def _warn(app: Packhorse, name: str, *, known: bool) -> None:
    if known:
        task = app.known_tasks[name]
        for other in (task.name, *task.aliases):
            if other != name:
                note(f"Jobs of {task.name} that were enqueued as {other} go on: pause that name too.")
    elif next(iter(app.inspection.stored_jobs(Selection(tasks=[name]), page=1)), None) is None:
        note(f"There are no jobs of task {name} now. Is the name right?")


# Showing.


def _task(task: BaseTask[..., Any], pause: Pause | None) -> dict[str, Any]:
    return {
        "name": task.name,
        "queue": task.options.queue_name,
        "retries": task.policy.retries,
        "limits": list(_limits(task)),
        "unique": None if task.rules.unique is None else unique_text(task.name, task.rules.unique),
        "share": task.options.share,
        "known": True,
        "paused": pause_dict(pause),
    }


def _stranger(name: str, pause: Pause) -> dict[str, Any]:
    nothing: dict[str, Any] = {"queue": None, "retries": None, "limits": [], "unique": None, "share": None}
    return {"name": name, **nothing, "known": False, "paused": pause_dict(pause)}


def _table(app: Packhorse, pauses: dict[str, Pause], others: list[str]) -> Table:
    made = table("Tasks", "task", "queue", "retries", "limits", right=["retries"])
    for name, task in app.tasks.items():
        retries = "unlimited" if task.policy.retries is None else str(task.policy.retries)
        rules = cell("; ".join(rules_text(task)), cap=1_000)
        made.add_row(_name(name, name in pauses), cell(task.options.queue_name), retries, rules)
    for name in others:
        made.add_row(_name(name, True), "", "", "")
    return made


def _name(name: str, paused: bool) -> Text:
    return cell(name).append(" (paused)" if paused else "", "yellow")


def rules_text(task: BaseTask[..., Any]) -> Iterator[str]:
    yield from _limits(task)
    if task.rules.unique is not None:
        yield unique_text(task.name, task.rules.unique)
    if task.options.share is not None:
        yield f"share {task.options.share}"


def _limits(task: BaseTask[..., Any]) -> Iterator[str]:
    for limit in task.rules.limits:
        yield limit_text(task.name, limit)
    for rate in task.rules.rates:
        yield limit_text(task.name, rate)


def limit_text(task: str, limit: Limit | Rate) -> str:
    """With the key as `packhorse limits` has it, but for the values."""
    key = _key_text(limit.group or task, limit.key)
    if isinstance(limit, Limit):
        return f"at most {limit.to:,} of {key}{ELSE[limit.conflict]}"
    return f"at most {written(limit)} of {key}{'' if limit.burst == 1 else f', burst {limit.burst}'}"


def unique_text(task: str, unique: Unique) -> str:
    if unique.key is not None:
        by = _key_text(unique.group or task, unique.key)
    elif unique.arguments is None:
        by = "all arguments"
    else:
        by = ", ".join(unique.arguments)
    until = " until it starts" if unique.until_start else ""
    lasting = "" if unique.lasting is None else f" for {unique.lasting / SECOND:,g} s"
    return f"unique by {by}{until}{lasting}{AGAIN[unique.conflict]}"


def _key_text(group: str, key: Key) -> str:
    return f"{group}/{key if isinstance(key, str) else getattr(key, '__name__', 'a function') + '(…)'}"
