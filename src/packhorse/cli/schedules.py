"""`packhorse schedules`: look at schedules, make, edit, pause and remove them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import wraps
from itertools import islice
from typing import Any, TypeVar

import click
from rich.table import Table
from rich.text import Text

from packhorse.app import Packhorse
from packhorse.cli.arguments import arguments_argument, kwargs_option, made_call, parse_arguments
from packhorse.cli.common import (
    Target,
    actor_option,
    chosen_task,
    confirm,
    duration,
    json_option,
    on_application,
    reason_option,
    yes_option,
)
from packhorse.cli.completing import known_tasks, stored_queues, stored_schedules, time_zones
from packhorse.cli.selecting import limit_option
from packhorse.cli.showing import ago, cell, count, grid, moment, note, print_json, readable, show, table
from packhorse.clock import to_datetime
from packhorse.errors import ConfigError, PayloadError
from packhorse.ids import to_text
from packhorse.schedule import MOMENTS_CAP, Misfire, Overlap
from packhorse.scheduling import Bounds, ScheduleView
from packhorse.zones import zone_named

F = TypeVar("F", bound=Callable[..., Any])

SHOWN_MOMENTS = 5
SHOWN_TICKS = 5


@click.group()
def schedules() -> None:
    """Look at schedules, make, edit, pause and remove them.

    Those that the code declares are changed in the code; by hand they can be paused, and run now.

    \b
    Examples:
      packhorse schedules list shop.tasks:app
      packhorse schedules next nightly --app shop.tasks:app
      packhorse schedules pause nightly --app shop.tasks:app --reason 'the disk is full'
      packhorse schedules add weekly shop.tasks.report '0 7 * * MON' --app shop.tasks:app --zone Europe/Berlin
    """


_key = click.argument("key", shell_complete=stored_schedules)
_keys = click.argument("keys", metavar="KEY...", nargs=-1, required=True, shell_complete=stored_schedules)


# Looking.


@schedules.command("list")
@on_application(positional=True)
@limit_option
@click.option("--after", default="", metavar="KEY", help="Begin behind this key.")
@json_option
def list_schedules(target: Target, limit: int, after: str, as_json: bool) -> None:
    """List schedules with what they do and when next, in the schedule's own time zone.

    \b
    Examples:
      packhorse schedules list shop.tasks:app
      packhorse schedules list --store sqlite:///packhorse.db --limit 200 --json
    """
    app = target.open()
    found = list(islice(app.schedules.all(after=after), limit + 1))
    page, more = found[:limit], len(found) > limit
    if as_json:
        print_json({"schedules": list(map(_dict, page)), "after": page[-1].key if more else None})
        return
    show(_table(page) if page else Text("No schedules."))
    for view in page:
        if view.error:
            show(cell(f"Schedule {view.key} gets no job: {view.error}", "red", cap=1_000))
    if more:
        note(f"There are more: --after {page[-1].key!r}")
    if unsaved := _unsaved(app):
        note(f"Declared in the code, and saved when a scheduler of it starts: {', '.join(unsaved)}.")


@schedules.command("show")
@on_application(positional=False)
@_key
@click.option("--arguments", is_flag=True, help="With the arguments of its jobs; what is secret is masked.")
@json_option
def show_schedule(target: Target, key: str, arguments: bool, as_json: bool) -> None:
    """Show all that is known of a schedule: its rule, its next moments, and its last jobs.

    \b
    Examples:
      packhorse schedules show nightly --app shop.tasks:app
      packhorse schedules show nightly --app shop.tasks:app --arguments --json
    """
    app = target.open()
    view = app.schedules.get(key)
    ticks = app.schedules.ticks(key, SHOWN_TICKS)
    extra = _arguments(app, key) if arguments else {}
    if as_json:
        ticked = [{"moment": to_datetime(it.moment), "job": it.job and to_text(it.job)} for it in ticks]
        print_json(_dict(view) | {"upcoming": _upcoming(app, view), "ticks": ticked} | extra)
        return
    show(grid([*_facts(view), *((name, readable(value)) for name, value in extra.items())]))
    if comes := _upcoming(app, view):
        show(Text(), Text("next" if not view.paused else "next, if it were not paused", "bold"))
        _show_moments(view, comes)
    if ticks:
        show(Text(), Text("last", "bold"))
    for it in ticks:
        job = "no job: an earlier one still ran" if it.job is None else f"job {to_text(it.job)}"
        show(cell(f"  {moment_text(view, to_datetime(it.moment))}  {job}", cap=1_000))


@schedules.command("next")
@on_application(positional=False)
@_key
@click.option("--count", "number", default=SHOWN_MOMENTS, show_default=True, type=click.IntRange(1, MOMENTS_CAP))
@json_option
def next_moments(target: Target, key: str, number: int, as_json: bool) -> None:
    """Say when a schedule comes next, in its own time zone.

    \b
    Examples:
      packhorse schedules next nightly --app shop.tasks:app
      packhorse schedules next nightly --app shop.tasks:app --count 50 --json
    """
    app = target.open()
    view = app.schedules.get(key)
    comes = app.schedules.upcoming(key, number)
    if as_json:
        print_json({"key": key, "zone": view.zone, "paused": view.paused, "upcoming": comes})
        return
    show(cell(f"{view.key}: {view.words}", cap=1_000))
    if view.paused:
        note(f"Schedule {key} is paused: these pass without a job.")
    if not comes:
        click.echo("It never comes again.")
    _show_moments(view, comes)


# Acting.


@schedules.command("run-now")
@on_application(positional=False)
@_key
@reason_option
@actor_option
@json_option
def run_now(target: Target, key: str, reason: str, actor: str | None, as_json: bool) -> None:
    """Enqueue one job of a schedule now, besides its moments, and print its id.

    \b
    Examples:
      packhorse schedules run-now nightly --app shop.tasks:app --reason 'the disk is empty again'
    """
    if target.app is None:
        raise click.UsageError("Name the application with --app: only its code can make the job.")
    id = target.open().schedules.run_now(key, reason=reason, actor=actor).id
    print_json({"id": id}) if as_json else click.echo(id)


@schedules.command()
@on_application(positional=False)
@_keys
@reason_option
@actor_option
@json_option
def pause(target: Target, keys: tuple[str, ...], reason: str, actor: str | None, as_json: bool) -> None:
    """Let the moments of schedules pass without a job.

    Jobs that are there already run. A deployment does not end it, not even one that changes the schedule.

    \b
    Examples:
      packhorse schedules pause nightly --app shop.tasks:app --reason 'the disk is full'
      packhorse schedules pause nightly weekly --store sqlite:///packhorse.db
    """
    app = target.open()
    for key in _existing(app, keys):
        app.schedules.pause(key, reason=reason, actor=actor)
    _tell(app, keys, as_json, lambda view: f"Schedule {view.key} is paused until somebody resumes it.")


@schedules.command()
@on_application(positional=False)
@_keys
@reason_option
@actor_option
@json_option
def resume(target: Target, keys: tuple[str, ...], reason: str, actor: str | None, as_json: bool) -> None:
    """Let paused schedules go on with their next moment. What passed meanwhile is not made up for.

    \b
    Examples:
      packhorse schedules resume nightly --app shop.tasks:app
      packhorse schedules resume nightly weekly --store sqlite:///packhorse.db
    """
    app = target.open()
    for key in _existing(app, keys):
        app.schedules.resume(key, reason=reason, actor=actor)
    _tell(app, keys, as_json, lambda view: f"Schedule {view.key} goes on, {next_text(view)}.")


@schedules.command()
@on_application(positional=False)
@_keys
@yes_option
@reason_option
@actor_option
@json_option
def remove(target: Target, keys: tuple[str, ...], yes: bool, reason: str, actor: str | None, as_json: bool) -> None:
    """Remove schedules that were made at run time. Asks first.

    Those that the code declares go when the code no longer does; until then they can be paused.

    \b
    Examples:
      packhorse schedules remove weekly --app shop.tasks:app --reason 'nobody reads it'
      packhorse schedules remove weekly monthly --store sqlite:///packhorse.db --yes
    """
    app = target.open()
    for key in _existing(app, keys):
        app.schedules.check_own(key)
    confirm(f"remove {count(len(keys), 'schedule')}", yes=yes)
    for key in keys:
        app.schedules.remove(key, reason=reason, actor=actor)
    print_json({"removed": keys}) if as_json else click.echo(f"Removed {count(len(keys), 'schedule')}.")


# Making.


class _Nothing(Enum):
    NONE = "none"


def _or_none(parse: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The word none takes back what was said before."""

    @wraps(parse)
    def parsed(text: Any) -> Any:
        return _Nothing.NONE if text in ("none", _Nothing.NONE) else parse(text)

    return parsed


def _wall_time(text: str | datetime) -> datetime:
    try:
        return text if isinstance(text, datetime) else datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is no time. Write one like 2026-12-24T18:00, in the schedule's zone, or 2026-12-24T18:00+01:00."
        ) from None


def _whole(text: str | int) -> int:
    try:
        return int(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no whole number.") from None


_options = (
    click.option("--zone", metavar="NAME", shell_complete=time_zones, help="The time zone, like Europe/Berlin."),
    click.option("--start", type=_or_none(_wall_time), metavar="TIME", help="No moment before then."),
    click.option("--end", type=_or_none(_wall_time), metavar="TIME", help="No moment after then."),
    click.option("--repeats", type=_or_none(_whole), metavar="N", help="So many moments, then no more."),
    click.option("--jitter", type=duration, metavar="5m", help="Each job begins up to so much after its moment."),
    click.option("--misfire", type=click.Choice([it.value for it in Misfire]), help="What to make up for if missed."),
    click.option("--grace", type=_or_none(duration), metavar="1h", help="How late a moment may still get its job."),
    click.option("--overlap", type=click.Choice([it.value for it in Overlap]), help="If the last job still runs."),
    click.option("--queue", "queue_name", metavar="NAME", shell_complete=stored_queues),
    click.option("--priority", type=click.IntRange(-100, 100), metavar="N"),
)
NAMES = tuple(Bounds.__annotations__)


def _making(command: F) -> F:
    """Gives a command `changes`: what was given of all that a schedule can say besides its rule."""

    @wraps(command)
    def with_changes(**given: Any) -> Any:
        asked = {name: given.pop(name) for name in (*NAMES, "queue_name", "priority")}
        changes = {name: None if it is _Nothing.NONE else it for name, it in asked.items() if it is not None}
        return command(changes=changes, **given)

    decorated: Any = with_changes
    for option in reversed((*_options, reason_option, actor_option, json_option)):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]


@schedules.command()
@on_application(positional=False)
@click.argument("key")
@click.argument("task", shell_complete=known_tasks)
@click.argument("rule")
@arguments_argument
@kwargs_option
@_making
def add(
    target: Target,
    key: str,
    task: str,
    rule: str,
    arguments: tuple[str, ...],
    kwargs: str | None,
    changes: dict[str, Any],
    reason: str,
    actor: str | None,
    as_json: bool,
) -> None:
    """Enqueue TASK at every moment of RULE from now on.

    A RULE is a cron expression, or a text like 'every 15m', 'once at 2026-12-24T18:00' or 'monthly from
    2026-01-31T09:00'. An ARGUMENT is JSON, or text where it is not JSON; name=ARGUMENT goes by name.

    \b
    Examples:
      packhorse schedules add weekly shop.tasks.report '0 7 * * MON' year=2026 --app shop.tasks:app --zone Europe/Berlin
      packhorse schedules add poll shop.tasks.poll 'every 30s' --app shop.tasks:app --overlap skip --jitter 5s
      packhorse schedules add gift shop.tasks.mail 'once at 2026-12-24T18:00' ann@example.com --app shop.tasks:app
    """
    if target.app is None:
        raise click.UsageError("Name the application with --app: the store does not know its tasks.")
    args, named = parse_arguments(arguments, kwargs)
    app = target.make()
    call = made_call(chosen_task(app, task), args, named)
    app.schedules.add(call, rule, key=key, reason=reason, actor=actor, **changes)
    _tell(app, [key], as_json, lambda view: f"Schedule {view.key}: {view.words}; {next_text(view)}.")


@schedules.command()
@on_application(positional=False)
@_key
@click.option("--rule", metavar="RULE", help="Another one, as `schedules add` takes it.")
@_making
def edit(
    target: Target,
    key: str,
    rule: str | None,
    changes: dict[str, Any],
    reason: str,
    actor: str | None,
    as_json: bool,
) -> None:
    """Change a schedule that was made at run time: what is given, and nothing else.

    What was due before is not made up for. The word none takes back --start, --end, --repeats and --grace.

    \b
    Examples:
      packhorse schedules edit weekly --app shop.tasks:app --rule '0 8 * * MON' --reason 'they come later now'
      packhorse schedules edit weekly --app shop.tasks:app --end none --repeats 10
    """
    if rule is None and not changes:
        raise click.UsageError("Say what is to change, for example --rule '0 8 * * MON'.")
    app = target.open()
    app.schedules.edit(key, rule=rule, reason=reason, actor=actor, **changes)
    _tell(app, [key], as_json, lambda view: f"Schedule {view.key}: {view.words}; {next_text(view)}.")


def _existing(app: Packhorse, keys: Iterable[str]) -> Iterable[str]:
    """All of them, or none is acted upon."""
    return [app.schedules.get(key).key for key in keys]


def _tell(app: Packhorse, keys: Iterable[str], as_json: bool, sentence: Callable[[ScheduleView], str]) -> None:
    views = [app.schedules.get(key) for key in keys]
    if as_json:
        print_json(list(map(_dict, views)))
        return
    for view in views:
        show(cell(sentence(view), cap=1_000))


# Showing.


def _unsaved(app: Packhorse) -> list[str]:
    saved = {view.key for view in app.schedules.all()} if app.schedules.declared else set()
    return sorted(it.key for it in app.schedules.declared if it.key not in saved)


def _arguments(app: Packhorse, key: str) -> dict[str, Any]:
    try:
        return {"arguments": app.schedules.shown_arguments(key)}
    except PayloadError as error:
        return {"arguments_error": str(error)}


def _upcoming(app: Packhorse, view: ScheduleView) -> list[datetime]:
    try:
        return app.schedules.upcoming(view.key, SHOWN_MOMENTS)
    except ConfigError:  # which the view tells
        return []


def _dict(view: ScheduleView) -> dict[str, Any]:
    spans = {name: _seconds(getattr(view, name)) for name in ("jitter", "grace")}
    return asdict(view) | spans | {"declared": view.declared}


def _seconds(span: timedelta | None) -> float | None:
    return None if span is None else span.total_seconds()


def _table(views: list[ScheduleView]) -> Table:
    made = table("Schedules", "key", "task", "when", "next", whole=["next"])
    for view in views:
        key = cell(view.key).append(" (paused)" if view.paused else "", "yellow")
        key.append(" (error)" if view.error else "", "red")
        made.add_row(key, cell(view.task), cell(view.words, cap=1_000), cell(moment_text(view, view.next_at) or "·"))
    return made


def _facts(view: ScheduleView) -> list[tuple[str, object]]:
    return [
        ("key", view.key),
        ("task", view.task),
        ("when", view.words),
        ("rule", view.rule),
        ("zone", view.zone),
        ("declared", view.source and f"in the code of {view.source}: it is changed there"),
        ("paused", Text("yes", "yellow") if view.paused else None),
        ("repeats", view.repeats),
        ("start", moment_text(view, view.start)),
        ("end", moment_text(view, view.end)),
        ("jitter", view.jitter or None),
        ("misfire", view.misfire),
        ("grace", view.grace),
        ("overlap", view.overlap),
        ("queue", view.queue_name),
        ("priority", view.priority),
        ("error", view.error and cell(view.error, "red", cap=4_000)),
    ]


def next_text(view: ScheduleView) -> str:
    if view.paused:
        return "but it is paused"
    return "and never comes again" if view.next_at is None else f"next at {moment_text(view, view.next_at)}"


def _show_moments(view: ScheduleView, moments: list[datetime]) -> None:
    for at in moments:
        show(cell(f"  {moment_text(view, at)}"))


def moment_text(view: ScheduleView, at: datetime | None) -> str:
    """What the wall clock of its zone shows."""
    try:
        return "" if at is None else f"{at.astimezone(zone_named(view.zone)):%Y-%m-%d %H:%M:%S %Z} ({ago(at)})"
    except (ConfigError, OverflowError):
        return moment(at, datetime.now(UTC))
