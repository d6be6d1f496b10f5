"""Drain rates as a picture: `python -m bench.plot REPORT.json docs/drain-postgres.svg`, from what `--json` printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import click


class Bar(NamedTuple):
    name: str
    median: float
    least: float
    most: float


def bars(figures: dict[str, Any]) -> list[Bar]:
    """Slowest first. Recorded finishes count, where they were seen: a body that ran is not yet a job that is done."""
    found = []
    for name, row in figures["systems"].items():
        rate = row.get("rate_with_finish", row["rate"])
        found.append(Bar(name, rate["median"], rate["min"], rate["max"]))
    return sorted(found, key=lambda bar: bar.median)


def draw(report: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    # So that the same figures give the same file, and text stays text.
    matplotlib.rcParams |= {"svg.hashsalt": "packhorse", "svg.fonttype": "none"}
    from matplotlib import pyplot

    scenarios = {"drain": "after ANALYZE", "unanalyzed": "tables never analyzed"}
    if report["settings"]["store"] == "sqlite":
        scenarios = {"drain": ""}
    shown = {name: words for name, words in scenarios.items() if name in report["figures"]}
    figure, axes = pyplot.subplots(1, len(shown), figsize=(6 * len(shown), 4.2), squeeze=False)
    for axis, (name, words) in zip(axes[0], shown.items(), strict=True):
        drawn = bars(report["figures"][name])
        colours = ["#b5651d" if bar.name == "packhorse" else "#9aa5b1" for bar in drawn]
        spread = [[bar.median - bar.least for bar in drawn], [bar.most - bar.median for bar in drawn]]
        axis.barh([bar.name for bar in drawn], [bar.median for bar in drawn], xerr=spread, color=colours)
        axis.set_xlabel("jobs per second, finish recorded: median, least and most")
        axis.set_title(words)
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    settings = report["settings"]
    figure.suptitle(f"Draining no-op jobs, two worker processes, {settings['store']}, {settings['cpus']} CPUs")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


@click.command()
@click.argument("report", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("picture", type=click.Path(dir_okay=False, path_type=Path))
def main(report: Path, picture: Path) -> None:
    """Draw the drain rates of a REPORT that --json printed; the ending of PICTURE says in which format."""
    found = json.loads(report.read_text())
    if not {"drain", "unanalyzed"} & found["figures"].keys():
        raise click.UsageError("the report holds no drain; take one with --only drain,unanalyzed")
    draw(found, picture)


if __name__ == "__main__":
    main()
