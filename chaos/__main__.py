"""`python -m chaos`: run, hurt, settle, check."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import click
from rich.console import Console

from chaos.checker import check
from chaos.keeping import kept
from chaos.report import as_values, print_report
from chaos.run import Arena, Done, Plan


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--store", default="sqlite", show_default=True, type=click.Choice(["sqlite", "postgres"]), help="What to run on."
)
@click.option("--minutes", default=10.0, show_default=True, type=click.FloatRange(0.1), help="How long to do harm.")
@click.option("--seed", default=1, show_default=True, help="The same seed does the same things in the same order.")
@click.option("--rate", default=120.0, show_default=True, type=click.FloatRange(1), help="Jobs a second.")
@click.option("--only", metavar="FAULT,…", help="Some faults only, as the table names them.")
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON, and nothing else.")
@click.option("--soak", is_flag=True, help="Leave the first supervisor alone, and tell how its processes grow.")
@click.option("--folder", type=click.Path(path_type=Path, file_okay=False), help="Keep history and logs here.")
@click.option("--again", type=click.Path(path_type=Path, exists=True), help="Check what is kept there, run nothing.")
def main(
    store: str,
    minutes: float,
    seed: int,
    rate: float,
    only: str | None,
    as_json: bool,
    soak: bool,
    folder: Path | None,
    again: Path | None,
) -> None:
    """Run mixed jobs on real workers, do harm to them, and check that every promise was kept.

    The exit status is 1 where one was broken.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that folders and processes go, too
    stderr = Console(stderr=True)
    chosen = tuple(name.strip() for name in only.split(",")) if only else ()
    plan = Plan(store=store, seconds=60 * minutes, seed=seed, per_second=rate, only=chosen, soak=soak)
    if again is not None:
        done = Done(plan, kept(again), 0.0)
    else:
        if folder is not None:
            folder.mkdir(mode=0o700, parents=True)
        with Arena(plan, lambda text: stderr.print(text, highlight=False), folder) as arena:
            done = arena.run()
    values = as_values(done, check(done.history))
    if as_json:
        click.echo(json.dumps(values, indent=2, ensure_ascii=False))
    else:
        print_report(Console(width=None if sys.stdout.isatty() else 140), values)
    sys.exit(0 if values["ok"] else 1)


if __name__ == "__main__":
    main()
