"""`python -m bench`: measure, print, clean up."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

import click
from rich.console import Console

from bench.figures import rounded
from bench.lab import Lab
from bench.report import settings_table, show
from bench.scenarios import SCENARIOS
from bench.settings import describe, fingerprint
from bench.sizes import FULL, QUICK
from bench.stores import STORES


def chosen(store: str, only: str | None) -> list[str]:
    known = [name for name, scenario in SCENARIOS.items() if store in getattr(scenario, "STORES", (store,))]
    names = known if only is None else [name.strip() for name in only.split(",")]
    if unknown := [name for name in names if name not in known]:
        raise click.BadParameter(f"{unknown[0]!r} is none of {', '.join(known)}.", param_hint="--only")
    return names


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--store", default="sqlite", show_default=True, type=click.Choice(list(STORES)), help="What to measure on."
)
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON, and nothing else.")
@click.option("--quick", is_flag=True, help="Small sizes, under a minute: shows that it works, not how fast.")
@click.option("--only", metavar="NAME,…", help=f"Of {', '.join(SCENARIOS)}.")
def main(store: str, as_json: bool, quick: bool, only: str | None) -> None:
    """Measure Packhorse beside its peers and beside a bare loop on the same store.

    Times decide nothing here: the exit status is 1 only where jobs were lost, doubled or stuck.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that folders and processes go, too
    console = Console(width=None if sys.stdout.isatty() else 140)
    sizes = QUICK if quick else FULL
    began = time.monotonic()
    names = chosen(store, only)
    with Lab(sizes, STORES[store], len(names), quiet=as_json and not sys.stderr.isatty()) as lab:
        settings = describe(lab) | {"sizes": "quick" if quick else "full", "repetitions": sizes.repetitions}
        figures: dict[str, Any] = {}
        for name in names:
            try:
                figures[name] = SCENARIOS[name].run(lab)
            except Exception as error:  # the other scenarios may still tell something
                lab.trouble(f"{name} could not be measured: {type(error).__name__}: {error}")
            lab.scenario_done()
    if fingerprint() != settings["source"]:
        lab.note("Packhorse's source was changed during the run: the figures are of more than one version")
    settings |= {"seconds": time.monotonic() - began, "load_average_after": os.getloadavg()[0]}
    report = rounded({"settings": settings, "figures": figures, "troubles": lab.troubles, "notes": lab.notes})
    if as_json:
        click.echo(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        _print(console, report)
    sys.exit(1 if lab.troubles else 0)


def _print(console: Console, report: dict[str, Any]) -> None:
    show(console, "What was measured with what", [settings_table(report["settings"])])
    for name, figures in report["figures"].items():
        show(console, SCENARIOS[name].TITLE, SCENARIOS[name].tables(figures))
    for note in report["notes"]:
        console.print(f"note: {note}", highlight=False, markup=False)
    for trouble in report["troubles"]:
        console.print(f"trouble: {trouble}", highlight=False, markup=False, style="bold red")


if __name__ == "__main__":
    main()
