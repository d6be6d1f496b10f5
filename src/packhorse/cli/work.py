"""Commands that run."""

from __future__ import annotations

import os
from typing import Literal

import click

from packhorse.errors import ConfigError
from packhorse.logs import configure
from packhorse.masking import masked_url
from packhorse.queues import parse_queues
from packhorse.runtime.child import Plan
from packhorse.runtime.loading import load_app
from packhorse.runtime.supervisor import Supervisor

LEVELS = ["DEBUG", "INFO", "WARNING", "ERROR"]


@click.command()
@click.argument("app")
@click.option(
    "--queues", default="*", show_default=True, help="Queues to serve, in strict order; * and prefix* match many."
)
@click.option(
    "--concurrency", default=8, show_default=True, type=click.IntRange(1), help="Jobs at once in each process."
)
@click.option("--processes", type=click.IntRange(1), help="Worker processes.  [default: one per CPU]")
@click.option("--burst", is_flag=True, help="Leave when no job is ready.")
@click.option("--max-jobs", type=click.IntRange(1), help="Leave after so many jobs in each process.")
@click.option("--log-level", default="INFO", show_default=True, type=click.Choice(LEVELS, case_sensitive=False))
@click.option(
    "--log-format",
    default="text",
    show_default=True,
    type=click.Choice(["text", "json"]),
    help="Lines to read, or one JSON object per line.",
)
def worker(
    app: str,
    queues: str,
    concurrency: int,
    processes: int | None,
    burst: bool,
    max_jobs: int | None,
    log_level: str,
    log_format: Literal["text", "json"],
) -> None:
    """Perform the jobs of APP (module:name), until TERM or INT.

    Starts worker processes, a dispatcher and a scheduler, and replaces them when they die. On TERM or INT running jobs
    may finish; a second INT, or QUIT, ends at once and hands them back.

    \b
    Examples:
      packhorse worker shop.tasks:app
      packhorse worker shop.tasks:app --queues 'mail,report*,*' --concurrency 10 --processes 2
      packhorse worker shop.tasks:app --burst          # perform what is ready, then leave
      packhorse worker shop.tasks:app --log-format json
    """
    configure(log_level, log_format)
    parse_queues(queues)
    application = load_app(app)
    click.get_current_context().call_on_close(application.close)
    if not application.store.shared:
        raise ConfigError(
            f"The store {masked_url(application.store.url)} lives inside one process, so worker processes would see no "
            "jobs. Use SQLite, or run a worker inside your program with packhorse.Embedded."
        )
    # Meet an unusable store, and unusable keys, before any child is started: each would only die of it again.
    application.inspection.schema_version()
    _ = application.seals
    count = processes or os.cpu_count() or 1
    work = Plan(app, "worker", queues, concurrency, burst, max_jobs, log_level, log_format)
    others = [Plan(app, role, log_level=log_level, log_format=log_format) for role in ("dispatcher", "scheduler")]
    plans = [work] * count + others
    raise SystemExit(Supervisor(application, plans).run())
