"""The `packhorse` command."""

from __future__ import annotations

import sys
from io import TextIOWrapper

import click

from packhorse import __version__
from packhorse.cli.backup import backup
from packhorse.cli.checking import check
from packhorse.cli.completing import completion
from packhorse.cli.dead import dead
from packhorse.cli.enqueueing import enqueue
from packhorse.cli.flows import flows
from packhorse.cli.health import doctor, health
from packhorse.cli.jobs import jobs
from packhorse.cli.limits import limits
from packhorse.cli.queues import queues
from packhorse.cli.schedules import schedules
from packhorse.cli.shares import shares
from packhorse.cli.signalling import signal
from packhorse.cli.store import failpoints, migrate, status
from packhorse.cli.tasks import tasks
from packhorse.cli.work import worker
from packhorse.errors import PackhorseError
from packhorse.masking import printable


class _Group(click.Group):
    """Our errors say what to do; a traceback would only hide it."""

    def invoke(self, ctx: click.Context) -> object:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper):  # a terminal may lack some letters
                stream.reconfigure(errors="backslashreplace")
        try:
            return super().invoke(ctx)
        except PackhorseError as error:
            raise click.ClickException(printable(str(error))) from error


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="packhorse")
def main() -> None:
    """Background jobs for Python that nobody loses.

    \b
    Examples:
      packhorse worker shop.tasks:app --queues 'mail,report*,*' --concurrency 10 --processes 2
      packhorse enqueue shop.tasks:app shop.tasks.mail ann@example.com --wait
      packhorse status shop.tasks:app --watch
      packhorse dead list shop.tasks:app --newer-than 1d
      packhorse schedules list shop.tasks:app
      packhorse doctor shop.tasks:app
    """


for command in (
    worker,
    status,
    jobs,
    queues,
    tasks,
    limits,
    schedules,
    shares,
    flows,
    dead,
    enqueue,
    signal,
    check,
    doctor,
    health,
    migrate,
    backup,
    completion,
    failpoints,
):
    main.add_command(command)

if __name__ == "__main__":
    sys.exit(main())
