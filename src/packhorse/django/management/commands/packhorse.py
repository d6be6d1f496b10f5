"""`manage.py packhorse`: performs jobs; with further words, the commands of `packhorse` for this site."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from packhorse.cli import main
from packhorse.django import compat, discovery, importing
from packhorse.django.application import Application
from packhorse.django.backend import PackhorseBackend
from packhorse.errors import ConfigError, PackhorseError, SchemaError
from packhorse.logs import configure
from packhorse.runtime.child import Plan, RoleName
from packhorse.runtime.loading import fix_paths
from packhorse.runtime.probe import held
from packhorse.runtime.reloading import Reloader
from packhorse.runtime.supervisor import Supervisor

ROLES: tuple[RoleName, ...] = ("worker", "dispatcher", "scheduler")
LEVELS = ("ERROR", "INFO", "INFO", "DEBUG")  # by --verbosity


class Command(BaseCommand):
    help = (
        "Perform the jobs of all queues until TERM or INT: starts workers, a dispatcher, a scheduler, as OPTIONS say. "
        f"With a command it is that of packhorse, for this site: {', '.join(sorted([*main.commands, 'import']))}."
    )
    requires_migrations_checks = False

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--alias", default="default", help="The entry of TASKS it is about.")
        parser.add_argument(
            "--only",
            action="append",
            choices=ROLES,
            help="Start only this role; may be repeated. Each must run somewhere.",
        )
        parser.add_argument(
            "--reload",
            action=argparse.BooleanOptionalAction,
            default=None,
            help="Start anew when a Python file of the site changes; by default where DEBUG is on.",
        )
        parser.add_argument("words", nargs=argparse.REMAINDER, metavar="command ...", help="A command of packhorse.")

    def handle(self, *args: Any, **options: Any) -> None:
        alias, words = options["alias"], options["words"]
        if not isinstance(compat.task_backends[alias], PackhorseBackend):
            raise CommandError(f"TASKS[{alias!r}] has another backend than packhorse.django.PackhorseBackend.")
        _show_the_way()
        path = f"{discovery.__name__}:{alias}"
        if words[:1] == ["import"]:
            importing.command.main(args=words[1:], prog_name="manage.py packhorse import", obj=alias)
        if words:
            main.main(args=with_application(words, path), prog_name="manage.py packhorse")
        level = LEVELS[options["verbosity"]]
        configure(level)
        wants_reload = settings.DEBUG if options["reload"] is None else options["reload"]
        if wants_reload:
            command = [sys.executable, *sys.argv[:2], "--no-reload", *sys.argv[2:]]
            raise SystemExit(Reloader(command, Path(getattr(settings, "BASE_DIR", Path.cwd()))).run())
        try:
            app: Application = getattr(discovery, alias)
            raise SystemExit(run(app, plans(app, path, options["only"] or ROLES, level)))
        except SchemaError as error:
            raise CommandError(f"{error} In a Django site: run manage.py migrate.") from error
        except PackhorseError as error:
            raise CommandError(str(error)) from error


def _show_the_way() -> None:
    """Worker processes are fresh Pythons, and find the site's modules where this one found them."""
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([sys.path[0] or os.getcwd(), *filter(None, known)]))
    fix_paths(os.getcwd())


def run(app: Application, wanted: list[Plan]) -> int:
    """Until a signal; the exit status."""
    if not app.store.shared:
        raise ConfigError("The jobs are inside one process, so worker processes would see none of them.")
    # Meet an unusable store, and unusable keys, before any child is started: each would only die of it again.
    app.inspection.schema_version()
    _ = app.seals
    with held(app.backend_options.supervisor_pidfile):
        return Supervisor(app, wanted).run()


def plans(app: Application, path: str, roles: Sequence[str], log_level: str) -> list[Plan]:
    """The processes that OPTIONS ask for, and a scheduler."""
    found = [
        Plan(path, "worker", queues=worker.line, concurrency=worker.threads, log_level=log_level)
        for worker in app.backend_options.workers
        for _ in range(worker.processes)
    ]
    found += [Plan(path, "dispatcher", log_level=log_level) for _ in app.backend_options.dispatchers]
    found.append(Plan(path, "scheduler", log_level=log_level))
    return [plan for plan in found if plan.role in roles]


def with_application(words: Sequence[str], path: str) -> list[str]:
    """A command with the application where it takes one: as its first argument, or as an option."""
    command: click.Command = main
    taken = 0
    while isinstance(command, click.Group) and taken < len(words) and words[taken] in command.commands:
        command = command.commands[words[taken]]
        taken += 1
    names = {param.name for param in command.params}
    if "app" in names:
        return [*words[:taken], path, *words[taken:]]
    return [*words[:taken], "--app", path, *words[taken:]] if "app_option" in names else list(words)
