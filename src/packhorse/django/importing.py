"""`manage.py packhorse import`: schedules of Django Q and of Celery's beat become schedules of ours."""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from hashlib import sha256
from typing import Any
from zoneinfo import ZoneInfo

import click
from django.apps import apps
from django.conf import settings
from django.utils import timezone

from packhorse import moments
from packhorse.cli.showing import cell, note, show, table
from packhorse.crontab import cron
from packhorse.django import discovery
from packhorse.django.application import Application
from packhorse.errors import PackhorseError, ScheduleNotFound
from packhorse.moments import Rule
from packhorse.schedule import make_schedule

NOT_NEEDED = "celery.backend_cleanup"
CRON_FIELDS = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")
# By the letters that Django Q's table has; they follow the wall clock.
CALENDAR: dict[str, Callable[[datetime], Rule]] = {
    "D": moments.daily,
    "W": moments.weekly,
    "BW": moments.biweekly,
    "M": moments.monthly,
    "BM": moments.bimonthly,
    "Q": moments.quarterly,
    "Y": moments.yearly,
}


class Refused(Exception):
    """It cannot be carried over: why, and what to do."""


class Over(Exception):
    """There is nothing to carry over: why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What a schedule of theirs becomes."""

    rule: Rule | str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    queue_name: str | None = None
    bounds: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Theirs:
    """A schedule as it is there; `plan` may refuse."""

    key: str
    name: str
    task: str
    plan: Callable[[], Planned]


# Django Q.


def django_q() -> Iterator[Theirs]:
    for row in _model("django_q", "Schedule").order_by("pk"):
        yield Theirs(f"django-q.{row.pk}", row.name or str(row.pk), row.func, partial(_of_django_q, row))


def _of_django_q(row: Any) -> Planned:
    cluster = getattr(settings, "Q_CLUSTER", {})
    if row.repeats == 0:
        raise Over("it has no repeats left")
    if row.next_run is None:
        raise Over("it has no next run")
    if row.hook:
        raise Refused(f"it has the hook {row.hook}: declare on_finish for the task, and empty the hook")
    if row.intended_date_kwarg:
        raise Refused("it passes the intended date: take context.packhorse.moment, and empty that field")
    kwargs = _django_q_kwargs(row.kwargs)
    if "q_options" in kwargs:
        raise Refused("it has q_options: declare timeout, retries and the like for the task, and take them out")
    zone = cluster.get("time_zone") or settings.TIME_ZONE or "UTC"
    catches_up = cluster.get("catch_up", True) and row.schedule_type != "C"
    repeats = None if row.repeats < 0 or row.schedule_type == "O" else row.repeats
    return Planned(
        rule=_django_q_rule(row, zone),
        args=_django_q_args(row.args),
        kwargs=kwargs,
        queue_name=row.cluster or None,
        bounds={"zone": zone, "repeats": repeats, "misfire": "all" if catches_up else "once"},
    )


def _django_q_rule(row: Any, zone: str) -> Rule:
    match row.schedule_type:
        case "O":
            return moments.once(row.next_run)
        case "I":
            return moments.minutes(row.minutes or 1, row.next_run)
        case "H":
            return moments.hourly(row.next_run)
        case "C":
            return cron(row.cron or "")
        case kind if kind in CALENDAR:
            return CALENDAR[kind](_wall(row.next_run, zone))
        case kind:
            raise Refused(f"its type {kind!r} is not known")


def _django_q_args(text: str | None) -> tuple[Any, ...]:
    found = _literal(text) if text else ()
    return found if isinstance(found, tuple) else (found,)


def _django_q_kwargs(text: str | None) -> dict[str, Any]:
    """A dictionary, or as between the brackets of a call."""
    if not text:
        return {}
    try:
        found = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return {name: _literal(value) for name, value in _keywords(text)}
    if not isinstance(found, dict):
        raise Refused(f"its keyword arguments {text!r} cannot be read")
    return found


def _keywords(text: str) -> Iterable[tuple[str, ast.expr]]:
    try:
        call = ast.parse(f"f({text})", mode="eval").body
    except SyntaxError:
        call = None
    if not isinstance(call, ast.Call) or call.args or any(it.arg is None for it in call.keywords):
        raise Refused(f"its keyword arguments {text!r} cannot be read")
    return [(str(it.arg), it.value) for it in call.keywords]


def _literal(value: str | ast.expr) -> Any:
    try:
        return ast.literal_eval(value)
    except (SyntaxError, ValueError):
        text = value if isinstance(value, str) else ast.unparse(value)
        raise Refused(f"its arguments {text!r} cannot be read") from None


# Celery's beat: rows of django-celery-beat, and the setting.


def celery_beat() -> Iterator[Theirs]:
    seen = set()
    if apps.is_installed("django_celery_beat"):
        for row in _model("django_celery_beat", "PeriodicTask").order_by("pk"):
            seen.add(row.name)
            yield Theirs(_key(row.name), row.name, row.task, partial(_of_periodic_task, row))
    for name, entry in _beat_schedule().items():
        if name not in seen:  # its database scheduler copies the setting into the table
            task = str(entry.get("task") or name)
            yield Theirs(_key(name), name, task, partial(_of_setting, entry))


def _key(name: str) -> str:
    """Names there may have any letters."""
    plain = re.sub(r"[^A-Za-z0-9_.:-]", "-", name)[:80]
    return f"celery-beat.{plain}" + ("" if plain == name else f"-{sha256(name.encode()).hexdigest()[:6]}")


def _beat_schedule() -> Mapping[str, Any]:
    """As Celery's application has it; a site that has left Celery may still have the setting."""
    found: dict[str, Any] = dict(getattr(settings, "CELERY_BEAT_SCHEDULE", {}))
    if "celery" in sys.modules:
        found |= sys.modules["celery"].current_app.conf.beat_schedule
    return found


def _of_periodic_task(row: Any) -> Planned:
    if not row.enabled:
        raise Over("it is not enabled")
    if row.task == NOT_NEEDED:
        raise Over("finished jobs go by themselves")
    _refuse_options(
        exchange=row.exchange,
        routing_key=row.routing_key,
        headers=_json(row.headers, {}),
        priority=row.priority,
        expire_seconds=row.expire_seconds,
    )
    bounds = {"start": row.start_time, "end": row.expires, "repeats": 1 if row.one_off else None}
    if row.solar_id is not None:
        raise Refused("it follows the sun, which we do not: enqueue it from a task of yours that knows when")
    rule: Rule
    if row.clocked_id is not None:
        rule, bounds["repeats"] = moments.once(row.clocked.clocked_time), None
    elif row.interval_id is not None:
        length = timedelta(**{row.interval.period: row.interval.every})
        rule = moments.every(length, None if row.last_run_at is None else row.last_run_at + length)
    elif row.crontab_id is not None:
        rule = _cron({name: getattr(row.crontab, name) for name in CRON_FIELDS})
        bounds["zone"] = str(row.crontab.timezone)
    else:
        raise Refused("it has no schedule")
    return Planned(
        rule=rule,
        args=tuple(_json(row.args, [])),
        kwargs=_json(row.kwargs, {}),
        queue_name=row.queue or None,
        bounds={"zone": _celery_zone(), **bounds},
    )


def _of_setting(entry: Mapping[str, Any]) -> Planned:
    if entry.get("task") == NOT_NEEDED:
        raise Over("finished jobs go by themselves")
    options = dict(entry.get("options") or {})
    queue = options.pop("queue", None)
    _refuse_options(**options)
    schedule = entry.get("schedule")
    rule: Rule
    if hasattr(schedule, "lat"):
        raise Refused("it follows the sun, which we do not: enqueue it from a task of yours that knows when")
    if hasattr(schedule, "month_of_year"):
        rule = _cron({name: getattr(schedule, f"_orig_{name}") for name in CRON_FIELDS})
    else:
        rule = moments.every(getattr(schedule, "run_every", schedule))  # type: ignore[arg-type]
    return Planned(
        rule=rule,
        args=tuple(entry.get("args") or ()),
        kwargs=dict(entry.get("kwargs") or {}),
        queue_name=queue,
        bounds={"zone": _celery_zone()},
    )


def _cron(fields: Mapping[str, Any]) -> Rule:
    """Celery wants both days to match; cron, and we, want either where neither begins with a star."""
    told = {name: "".join(str(value).split()) for name, value in fields.items()}
    if not any(told[name].startswith("*") for name in ("day_of_month", "day_of_week")):
        raise Refused("both days must match, which cron cannot say: schedule one of them, and look at the other there")
    return cron(" ".join(told[name] for name in CRON_FIELDS))


def _refuse_options(**options: Any) -> None:
    for name, value in options.items():
        if value not in (None, "", {}):
            what = "expires" if name == "expire_seconds" else name
            where = (
                f"declare {what} for the task" if what in ("expires", "priority") else "it belongs to Celery's broker"
            )
            raise Refused(f"it has {name}: {where}, and take it out")


def _celery_zone() -> str:
    return str(getattr(settings, "CELERY_TIMEZONE", None) or settings.TIME_ZONE or "UTC")


def _json(text: str | None, otherwise: Any) -> Any:
    try:
        found = json.loads(text) if text else otherwise
    except ValueError:
        found = None
    if type(found) is not type(otherwise):
        raise Refused(f"{text!r} cannot be read")
    return found


# Both.


def _model(label: str, name: str) -> Any:
    if not apps.is_installed(label):
        raise click.ClickException(f"{label} is not in INSTALLED_APPS: its schedules are read from its own tables.")
    return apps.get_model(label, name)._default_manager.all()


def _wall(time: datetime, zone: str) -> datetime:
    return time if timezone.is_naive(time) else time.astimezone(ZoneInfo(zone)).replace(tzinfo=None)


SYSTEMS = {"django-q": django_q, "celery-beat": celery_beat}


@click.command("import", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("system", type=click.Choice(list(SYSTEMS)))
@click.option("--dry-run", is_flag=True, help="Only show what would become of each.")
@click.pass_obj
def command(alias: str, system: str, dry_run: bool) -> None:
    """Make schedules of ours from those of Django Q, or of Celery's beat.

    The tasks must be tasks of ours already, under the same name or with it among their aliases. What was imported
    before is left as it is now. Theirs are only read: stop their scheduler, or each moment comes twice.
    """
    app: Application = getattr(discovery, alias)
    shown = table("", "schedule", "task", "becomes", "")
    refused = 0
    for theirs in SYSTEMS[system]():
        words = ""
        try:
            words, outcome = _carried_over(app, theirs, dry_run)
        except Over as over:
            outcome = f"left out: {over}"
        except (Refused, PackhorseError, TypeError, ValueError) as error:
            refused += 1
            outcome = f"refused: {error}"
        shown.add_row(cell(theirs.name), cell(theirs.task), cell(words), cell(outcome))
    show(shown)
    if refused:
        note(f"{refused} refused. What the others became is in: manage.py packhorse schedules list")
        sys.exit(1)


def _carried_over(app: Application, theirs: Theirs, dry_run: bool) -> tuple[str, str]:
    """The schedule in words, and what came of it."""
    planned = theirs.plan()
    task = app.known_tasks.get(theirs.task)
    if task is None:
        raise Refused(f"there is no task {theirs.task}: put @task on it, with aliases=({theirs.task!r},) if it moved")
    allowed = app.params.get("QUEUES")
    if planned.queue_name is not None and allowed and planned.queue_name not in allowed:
        raise Refused(f"its queue {planned.queue_name} is not in QUEUES")
    words = make_schedule(planned.rule, **planned.bounds).describe()
    call = task.call(*planned.args, **planned.kwargs)
    try:
        app.schedules.get(theirs.key)
        return words, "is there"
    except ScheduleNotFound:
        pass
    if dry_run:
        return words, f"would become {theirs.key}"
    app.schedules.add(
        call, planned.rule, key=theirs.key, queue_name=planned.queue_name, reason="imported", **planned.bounds
    )
    return words, f"became {theirs.key}"
