"""Commands that run."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Literal

import click

from packhorse.errors import ConfigError
from packhorse.logs import configure
from packhorse.masking import masked_url
from packhorse.queues import parse_queues
from packhorse.runtime.child import Plan, RoleName
from packhorse.runtime.embedded import run_here
from packhorse.runtime.loading import fix_paths, load_app, start_folder
from packhorse.runtime.probe import Probe, held
from packhorse.runtime.reloading import Reloader
from packhorse.runtime.supervisor import Supervisor

APART = ("processes", "only", "recycle_jobs", "recycle_memory", "cpu_affinity", "probe", "preload")
DEFAULT = click.core.ParameterSource.DEFAULT
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
@click.option(
    "--only",
    multiple=True,
    type=click.Choice(["worker", "dispatcher", "scheduler"]),
    help="Start only this role; may be repeated. Each must run somewhere.",
)
@click.option("--recycle-jobs", type=click.IntRange(1), help="Replace a worker process after so many jobs.")
@click.option("--recycle-memory", type=click.IntRange(1), metavar="MB", help="Replace one that holds more than this.")
@click.option("--cpu-affinity", is_flag=True, help="Keep each worker process on a CPU of its own.")
@click.option("--lock-file", type=click.Path(dir_okay=False), help="Refuse to start while another one holds this file.")
@click.option("--probe", metavar="[HOST:]PORT", help="Answer GET /health here: 200 while workers can claim, else 503.")
@click.option("--preload", is_flag=True, help="Import APP once and fork from there, to save memory.")
@click.option("--in-process", is_flag=True, help="All roles as threads of this one process, for small machines.")
@click.option("--reload", is_flag=True, help="Start anew when a Python file below this folder changes.")
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
    only: tuple[RoleName, ...],
    recycle_jobs: int | None,
    recycle_memory: int | None,
    cpu_affinity: bool,
    lock_file: str | None,
    probe: str | None,
    preload: bool,
    in_process: bool,
    reload: bool,
    log_level: str,
    log_format: Literal["text", "json"],
) -> None:
    """Perform the jobs of APP (module:name), until TERM or INT.

    Starts worker processes, a dispatcher and a scheduler, and replaces them when they die. On TERM or INT running jobs
    may finish; a second INT, or QUIT, ends at once and hands them back. USR1: claim no more jobs.

    Exit status: 0 after a stop or when the work is done, 1 where it cannot start, 70 where its processes die again and
    again before they are ready.

    \b
    Examples:
      packhorse worker shop.tasks:app
      packhorse worker shop.tasks:app --queues 'mail,report*,*' --concurrency 10 --processes 2
      packhorse worker shop.tasks:app --burst          # perform what is ready, then leave
      packhorse worker shop.tasks:app --log-format json
      packhorse worker shop.tasks:app --only worker --queues mail   # dispatcher and scheduler run elsewhere
      packhorse worker shop.tasks:app --probe 8080                  # curl localhost:8080/health
    """
    configure(log_level, log_format)
    parse_queues(queues)
    if reload:
        command = [sys.executable, "-m", "packhorse", *(word for word in sys.argv[1:] if word != "--reload")]
        raise SystemExit(Reloader(command, Path.cwd()).run())
    folder = start_folder()
    application = load_app(app)
    fix_paths(folder)
    click.get_current_context().call_on_close(application.close)
    if not application.store.shared:
        raise ConfigError(
            f"The store {masked_url(application.store.url)} lives inside one process, so worker processes would see no "
            "jobs. Use SQLite, or run a worker inside your program with packhorse.Embedded."
        )
    # Meet an unusable store, and unusable keys, before any child is started: each would only die of it again.
    application.inspection.schema_version()
    _ = application.seals
    if in_process:
        if unused := [name for name in APART if click.get_current_context().get_parameter_source(name) != DEFAULT]:
            option = unused[0].replace("_", "-")
            raise click.UsageError(f"--{option} is for processes of their own; leave it or --in-process out.")
        with held(lock_file):
            raise SystemExit(run_here(application, queues, concurrency, burst=burst, max_jobs=max_jobs))
    any_role = Plan(app, "worker", preload=preload, log_level=log_level, log_format=log_format, folder=folder)
    work = replace(any_role, queues=queues, concurrency=concurrency, burst=burst, max_jobs=max_jobs)
    work = replace(work, recycle_jobs=recycle_jobs, recycle_memory=recycle_memory and recycle_memory * 1_000_000)
    plans = [
        *_on_cpus([work] * (processes or os.cpu_count() or 1), cpu_affinity),
        replace(any_role, role="dispatcher"),
        replace(any_role, role="scheduler"),
    ]
    supervisor = Supervisor(application, [plan for plan in plans if not only or plan.role in only])
    with held(lock_file), Probe(probe, supervisor.could_claim):
        status = supervisor.run()
    raise SystemExit(status)


def _on_cpus(plans: list[Plan], apart: bool) -> list[Plan]:
    if not apart or not hasattr(os, "sched_getaffinity"):
        return plans
    cpus = sorted(os.sched_getaffinity(0))
    return [replace(plan, cpu=cpus[number % len(cpus)]) for number, plan in enumerate(plans)]
