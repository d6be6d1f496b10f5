"""Copying a store while it is in use."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import click

from packhorse.cli.common import Target, json_option, on_application
from packhorse.cli.showing import Advance, print_json, progress
from packhorse.masking import printable
from packhorse.stores.sqlite_health import size as count_bytes


@click.command()
@on_application(positional=False)
@click.argument("file", metavar="TARGET", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Replace a TARGET that is there already.")
@json_option
def backup(target: Target, file: Path, force: bool, as_json: bool) -> None:
    """Copy a SQLite store to the file TARGET while workers run.

    The copy holds all that was stored when it began. The key of the store is copied to TARGET-key, if it has one of its
    own. Copying the files by other means is not safe.

    \b
    Examples:
      packhorse backup /backups/jobs.db --app shop.tasks:app
      packhorse backup jobs-copy.db --store sqlite:///packhorse.db --force
    """
    app = target.open()
    with ExitStack() as stack:
        made = app.control.backup(file, replace=force, progress=_bar(stack))
    if as_json:
        print_json({"files": [str(each) for each in made], "bytes": made[0].stat().st_size})
        return
    click.echo(f"Copied {count_bytes(made[0].stat().st_size)} to {printable(str(made[0]))}.")
    for each in made[1:]:
        click.echo(f"The key is in {printable(str(each))}. Keep it as secret as the store.")


def _bar(stack: ExitStack) -> Callable[[int, int], None]:
    """Shown from the moment on when it is known how much there is to do."""
    advance: Advance | None = None
    before = 0

    def show(done: int, total: int) -> None:
        nonlocal advance, before
        if advance is None:
            advance = stack.enter_context(progress("Copy pages", total))
        advance(done - before)
        before = done

    return show
