"""`packhorse check`: is everything set up as it should be? Starts nothing, opens no store, makes no file."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from packhorse.app import Packhorse
from packhorse.cli.common import NAMELESS, Target, json_option, loaded, on_application
from packhorse.cli.showing import cell, count, print_json, show, table
from packhorse.config import DEFAULT, PREFIX, Settings
from packhorse.errors import ConfigError, PackhorseError
from packhorse.masking import masked_url
from packhorse.reporters import named_reporters
from packhorse.scheduling import Declared
from packhorse.stores import Store, open_store
from packhorse.task import BaseTask

STORE_VARIABLE, REPORTERS_VARIABLE = f"{PREFIX}STORE", f"{PREFIX}ERROR_REPORTERS"
_VARIABLE = re.compile(rf"{PREFIX}[A-Za-z0-9_]+")


@dataclass
class Report:
    settings: Settings | None = None
    app: Packhorse | None = None
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def problem(self, text: str) -> None:
        if text not in self.problems:
            self.problems.append(text)


@click.command()
@on_application(positional=True)
@json_option
def check(target: Target, as_json: bool) -> None:
    """Check settings, keys, tasks, declared schedules, the store's URL and what must be installed; start nothing.

    Opens no store and makes no file, so it can run while an image is built. Ends with status 1 and all that is wrong.

    \b
    Examples:
      packhorse check shop.tasks:app
      packhorse check                       # the environment alone
      packhorse check shop.tasks:app --json
    """
    report = checked(target)
    tasks = list(report.app.tasks.values()) if report.app is not None else []
    if as_json:
        print_json(
            {
                "settings": [dict(zip(("name", "value", "source"), row, strict=True)) for row in _described(report)],
                "store": _store_url(report),
                "tasks": [_task(task) for task in tasks],
                "schedules": [_schedule(it) for it in _declared(report)],
                "problems": report.problems,
                "warnings": report.warnings,
            }
        )
    else:
        _show(report, tasks)
    if report.problems:
        raise SystemExit(1)


def checked(target: Target) -> Report:
    report = Report()
    wrong = _load(target, report)
    if report.app is not None:
        report.settings = report.app.settings
        _check_app(report.app, report)
    else:
        report.settings = _settings(target.app_name or NAMELESS, wrong, report)
        if report.settings is not None:
            _check_keys(report.settings, report)
    return report


# What is wrong in one variable must not hide what is wrong in the next: try again without it.


def _load(target: Target, report: Report) -> set[str]:
    """The variables that had to be left out."""
    wrong: set[str] = set()
    while True:
        try:
            with _without(wrong):
                report.app = loaded(target.app) if target.app else Packhorse(target.app_name or NAMELESS, target.store)
            return wrong
        except PackhorseError as error:
            report.problem(str(error))
            more = _named(error) - wrong or _leading_nowhere(report) - wrong
        except Exception as error:  # the application's own code may raise anything while it is imported
            report.problem(f"Loading {target.app} ended in {_said(error)}")
            return wrong
        if not more:
            return wrong
        wrong |= more


def _settings(app_name: str, wrong: set[str], report: Report) -> Settings | None:
    """What the environment and the file say, where no application can be asked."""
    while True:
        try:
            with _without(wrong):
                return Settings.load({}, app_name=app_name)
        except ConfigError as error:
            report.problem(str(error))
            more = _named(error) - wrong
        if not more:
            return None
        wrong = wrong | more


def _named(error: PackhorseError) -> set[str]:
    """The variables that the error is about; it may go on with what could have been meant."""
    about = re.split(" Did you mean | Known settings: ", str(error))[0]
    return {name for name in _VARIABLE.findall(about) if name in os.environ}


def _leading_nowhere(report: Report) -> set[str]:
    """Variables whose values look right, but name nothing that exists."""
    wrong = set()
    if url := os.environ.get(STORE_VARIABLE):
        try:
            open_store(url)
        except PackhorseError:
            wrong.add(STORE_VARIABLE)
    for name in filter(None, map(str.strip, os.environ.get(REPORTERS_VARIABLE, "").split(","))):
        try:
            named_reporters([name])
        except Exception as error:
            report.problem(_said(error))
            wrong.add(REPORTERS_VARIABLE)
    return wrong


@contextmanager
def _without(variables: set[str]) -> Iterator[None]:
    kept = {name: os.environ.pop(name) for name in variables if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(kept)


# The application.


def _said(error: Exception) -> str:
    if isinstance(error, PackhorseError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


def _check_app(app: Packhorse, report: Report) -> None:
    _check_keys(app.settings, report, app.store)
    if not app.tasks and app.name != NAMELESS:
        report.warnings.append("The application has no tasks. Does its module import those that declare them?")
    for task in app.tasks.values():
        try:
            bool(task.shapes)
        except Exception as error:
            report.problem(f"Task {task.name} has annotations that cannot be used: {_said(error)}")
    for text in app.schedules.problems():
        report.problem(text)
    for name in app.settings.error_reporters:
        if name == "sentry" and find_spec("sentry_sdk") is None:
            report.problem("The error reporter 'sentry' needs the package sentry-sdk: pip install sentry-sdk.")


def _check_keys(settings: Settings, report: Report, store: Store | None = None) -> None:
    if settings.encryption and find_spec("cryptography") is None:
        report.problem("Encryption needs the package cryptography: pip install 'packhorse[crypto]'.")
    if not settings.signing:
        report.warnings.append("Signing is off: whoever can write to the store can have any task performed.")
        return
    try:
        keys = settings.key_ring()
    except ConfigError as error:
        report.problem(str(error))
        return
    makes_its_own = store is None or type(store).own_key is not Store.own_key
    if not keys and not makes_its_own:
        report.problem("The store makes no key of its own: set PACKHORSE_KEYS or keys_file, the same everywhere.")


# Showing.


def _described(report: Report) -> list[tuple[str, str, str]]:
    return report.settings.describe() if report.settings is not None else []


def _store_url(report: Report) -> str | None:
    return masked_url(report.app.store.url) if report.app is not None else None


def _task(task: BaseTask[..., Any]) -> dict[str, Any]:
    return {
        "name": task.name,
        "queue": task.options.queue_name,
        "retries": task.policy.retries,
        "coroutine": task.is_coroutine,
        "aliases": task.aliases,
    }


def _declared(report: Report) -> list[Declared]:
    return report.app.schedules.declared if report.app is not None else []


def _schedule(it: Declared) -> dict[str, Any]:
    return {"key": it.key, "task": it.task.name, "rule": str(it.schedule.rule), "words": it.schedule.describe()}


def _show(report: Report, tasks: list[BaseTask[..., Any]]) -> None:
    if settings := _described(report):
        show(_settings_table(settings))
    if (url := _store_url(report)) is not None:
        show(cell(f"Store: {url}", cap=1_000), Text())
    if tasks:
        show(_tasks_table(tasks))
    if declared := _declared(report):
        show(_schedules_table(declared))
    for text in report.warnings:
        show(Text("warning  ", "yellow").append_text(cell(text, "none", cap=2_000)))
    for text in report.problems:
        show(Text("problem  ", "bold red").append_text(cell(text, "none", cap=2_000)))
    click.echo(f"{count(len(report.problems), 'problem')}, {count(len(report.warnings), 'warning')}.")


def _settings_table(rows: list[tuple[str, str, str]]) -> Table:
    made = table("Settings", "setting", "value", "from", whole=["setting"])
    for name, value, source in rows:
        style = "dim" if source == DEFAULT else ""
        made.add_row(cell(name, style), cell(value, style), cell(source, style))
    return made


def _schedules_table(schedules: list[Declared]) -> Table:
    made = table("Schedules", "key", "task", "when")
    for it in schedules:
        made.add_row(cell(it.key), cell(it.task.name), cell(it.schedule.describe(), cap=1_000))
    return made


def _tasks_table(tasks: list[BaseTask[..., Any]]) -> Table:
    made = table("Tasks", "task", "queue", "retries", "kind", "aliases", right=["retries"])
    for task in tasks:
        retries = "unlimited" if task.policy.retries is None else str(task.policy.retries)
        kind = "coroutine" if task.is_coroutine else "function"
        made.add_row(cell(task.name), cell(task.options.queue_name), retries, kind, cell(", ".join(task.aliases)))
    return made
