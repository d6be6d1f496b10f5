"""`python -m chaos.mutants`: put on each mutant, and see whether the checker notices."""

from __future__ import annotations

import sys
import time

import click
from rich.console import Console
from rich.table import Table

from chaos.mutants.hunt import hunt, hunt_in_processes, play
from chaos.mutants.patches import BOTH, MUTANTS
from chaos.mutants.scenes import SCENES


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--only", metavar="NAME,…", help="Some mutants only.")
@click.option("--no-processes", is_flag=True, help="Leave out those that need real workers.")
def main(only: str | None, no_processes: bool) -> None:
    """Make Packhorse wrong in one small way at a time. The exit status is 1 where a mutant gets away."""
    names = list(MUTANTS) if only is None else [name.strip() for name in only.split(",")]
    stderr, console = Console(stderr=True), Console(width=None if sys.stdout.isatty() else 180)
    table = Table("mutant", "store", "caught by", "as")
    escaped = []
    began = time.monotonic()
    for store in BOTH:
        for scene in SCENES:
            if not (verdict := play(SCENES[scene], store)).ok:
                escaped.append(f"{scene} goes badly on {store} without any mutant: {verdict.violations[0]}")
    for name in names:
        mutant = MUTANTS[name]
        if mutant.processes and no_processes:
            continue
        stderr.print(name, highlight=False)
        for store in ["sqlite, real workers"] if mutant.processes else mutant.stores:
            caught = hunt_in_processes(mutant) if mutant.processes else hunt(mutant, store)
            if caught is None:
                escaped.append(f"{name} on {store}: {mutant.says}")
            else:
                table.add_row(name, store, caught.scene, ", ".join(caught.broken))
    console.print(table)
    for text in escaped:
        console.print(f"got away: {text}", highlight=False, markup=False, style="bold red")
    caught_all = "all were caught" if not escaped else f"{len(escaped)} got away"
    console.print(f"{len(names)} mutants, {time.monotonic() - began:.0f} s: {caught_all}", highlight=False)
    sys.exit(1 if escaped else 0)


if __name__ == "__main__":
    main()
