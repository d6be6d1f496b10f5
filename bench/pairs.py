"""`python -m bench.pairs`: is a change slower? Drains of plain jobs, before and after it, one after the other.

Two single drains differ by a fifth on a small machine. So the two versions alternate, each drain in processes of its
own, and the median of the ratios decides; where its interval is wide, CPU per job does.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import psutil
from rich.console import Console
from rich.progress import track
from rich.table import Table

ROOT = Path(__file__).parents[1]
WITHIN = 0.03  # how much slower is as fast
RESAMPLES = 10_000


def once(store: str, jobs: int) -> dict[str, float]:
    """One drain by the version that is on the import path."""
    from bench.drains import drain
    from bench.lab import Lab
    from bench.sizes import FULL
    from bench.stores import STORES
    from bench.systems import PackhorseSystem

    with Lab(replace(FULL, repetitions=1), STORES[store], 1, quiet=True) as lab:
        source = PackhorseSystem(lab)
        source.fill(range(1, jobs + 1))
        source.close()
        lab.store.settle(source.database)
        system = source.copy()
        server = _server_cpu()
        figures = drain(system, jobs)
        server = _server_cpu() - server
        system.close()
        if lab.troubles:
            raise click.ClickException("; ".join(lab.troubles))
    cpu = figures["cpu_us_per_job"] + server / jobs * 1e6
    return {"rate": figures["rate"], "cpu_us_per_job": cpu}


def _server_cpu() -> float:
    """Seconds that servers below this process have used, with those of their processes that have ended."""
    seconds = 0.0
    for process in psutil.Process().children(recursive=True):
        try:
            if process.name() in ("postgres", "mysqld", "mariadbd", "redis-server"):
                times = process.cpu_times()
                seconds += times.user + times.system + times.children_user + times.children_system
        except psutil.Error:
            continue
    return seconds


@contextmanager
def checked_out(revision: str) -> Iterator[Path]:
    """Another version of this repository, in a folder that is gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="packhorse-bench-"))
    git = ["git", "-C", str(ROOT)]
    try:
        subprocess.run([*git, "worktree", "add", "--quiet", "--detach", str(folder / "tree"), revision], check=True)
        yield folder / "tree"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([*git, "worktree", "prune"], check=False)


def measured(tree: Path, store: str, jobs: int) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.pairs", "--store", store, "--jobs", str(jobs), "--once"]
    env = os.environ | {"PYTHONPATH": str(tree / "src")}
    ended = subprocess.run(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True, check=False)
    if ended.returncode:
        raise click.ClickException(f"a drain of {tree} failed")
    figures: dict[str, float] = json.loads(ended.stdout)
    return figures


def compared(before: Sequence[float], after: Sequence[float]) -> dict[str, float]:
    """The median of the ratios after/before, and its 95 % interval, by drawing pairs again and again."""
    ratios = [late / early for early, late in zip(before, after, strict=True)]
    dice = random.Random(1)
    medians = sorted(statistics.median(dice.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
    low, high = medians[RESAMPLES // 40], medians[-RESAMPLES // 40]
    return {"ratio": statistics.median(ratios), "low": low, "high": high}


def verdict(rate: dict[str, float], cpu: dict[str, float]) -> str:
    """By the rate, where it is known well enough; else by CPU per job."""
    if rate["low"] > 1 - WITHIN:
        return "unchanged" if rate["high"] < 1 + WITHIN else "not slower"
    if rate["high"] < 1 - WITHIN:
        return "slower"
    return "unchanged, by CPU per job" if cpu["ratio"] < 1 + WITHIN else "slower, by CPU per job"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--before", default="HEAD", show_default=True, metavar="REVISION", help="What to compare with.")
@click.option("--store", default="sqlite", show_default=True, help="sqlite or postgres.")
@click.option("--pairs", default=15, show_default=True, help="Drains of each version.")
@click.option("--jobs", default=20_000, show_default=True, help="Plain jobs in each drain.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON, and nothing else.")
@click.option("--once", "only_once", is_flag=True, hidden=True)
def main(before: str, store: str, pairs: int, jobs: int, as_json: bool, only_once: bool) -> None:
    """Compare drains of plain jobs before and after a change.

    \b
    Examples:
      python -m bench.pairs                        uncommitted changes against HEAD
      python -m bench.pairs --before main~3 --store postgres
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if only_once:
        click.echo(json.dumps(once(store, jobs)))
        return
    taken: dict[str, list[dict[str, float]]] = {"before": [], "after": []}
    with checked_out(before) as tree:
        trees = {"before": tree, "after": ROOT}
        for number in track(range(pairs), "drains", console=Console(stderr=True), disable=as_json):
            for side in ("before", "after") if number % 2 else ("after", "before"):
                taken[side].append(measured(trees[side], store, jobs))

    def of(name: str) -> dict[str, Any]:
        values = {side: [run[name] for run in runs] for side, runs in taken.items()}
        medians = {side: statistics.median(its) for side, its in values.items()}
        return compared(values["before"], values["after"]) | medians

    report = {name: of(name) for name in ("rate", "cpu_us_per_job")}
    ruling = verdict(report["rate"], report["cpu_us_per_job"])
    if as_json:
        click.echo(json.dumps({"store": store, "pairs": pairs, "jobs": jobs, "verdict": ruling, **report}, indent=2))
        return
    table = Table("", "before", "after", "after/before", "95 %")
    shown: dict[str, Callable[[float], str]] = {"rate": "{:,.0f}/s".format, "cpu_us_per_job": "{:.1f} µs".format}
    for name, show in shown.items():
        row = report[name]
        spread = f"{row['low']:.3f}-{row['high']:.3f}"
        table.add_row(name.replace("_", " "), show(row["before"]), show(row["after"]), f"{row['ratio']:.3f}", spread)
    console = Console()
    console.print(table)
    console.print(f"{store}, {pairs} pairs of {jobs:,} jobs: {ruling}", highlight=False)


if __name__ == "__main__":
    main()
