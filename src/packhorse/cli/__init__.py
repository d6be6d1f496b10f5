"""The `packhorse` command."""

from __future__ import annotations

import sys

import click

from packhorse import __version__
from packhorse.cli.store import failpoints, migrate, status
from packhorse.cli.work import worker
from packhorse.errors import PackhorseError


class _Group(click.Group):
    """Our errors say what to do; a traceback would only hide it."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except PackhorseError as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="packhorse")
def main() -> None:
    """Background jobs for Python that nobody loses.

    \b
    Examples:
      packhorse worker shop.tasks:app --queues 'mail,report*,*' --concurrency 10 --processes 2
      packhorse status --store sqlite:///packhorse.db
      packhorse migrate
    """


for command in (worker, status, migrate, failpoints):
    main.add_command(command)

if __name__ == "__main__":
    sys.exit(main())
