"""The verdict as tables for people, and as values for scripts."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from bench.figures import rounded
from bench.report import number, settings_table, show
from chaos.checker import Verdict
from chaos.run import Done, settings_of
from chaos.soak import FIELDS

SHOWN = 20  # violations that are printed


def as_values(done: Done, verdict: Verdict) -> dict[str, Any]:
    recoveries = {
        kind: {
            "faults": it.faults,
            "jobs": len(it.seconds),
            "median": it.median,
            "worst": it.worst,
            "bound": it.bound,
        }
        for kind, it in sorted(verdict.recoveries.items())
    }
    values: dict[str, Any] = rounded(
        {
            "settings": settings_of(done.plan) | {"seconds": done.seconds},
            "counts": verdict.counts,
            "recoveries": recoveries,
            "logs": dict(done.warnings),
            "growth": done.growth,
            "broken": {str(kind): times for kind, times in verdict.by_kind.items()},
        }
    )
    values["violations"] = [str(violation) for violation in verdict.violations]
    values["notes"] = done.notes
    values["ok"] = verdict.ok
    return values


def print_report(console: Console, values: dict[str, Any]) -> None:
    show(console, "What ran", [settings_table(values["settings"])])
    counts = Table("jobs", "count")
    for name, count in values["counts"].items():
        counts.add_row(name, number(count))
    show(console, "What became of the jobs", [counts])
    faults = Table("fault", "times", "jobs cut short", "back after, median s", "worst s", "promised s")
    for kind, it in values["recoveries"].items():
        faults.add_row(
            kind, number(it["faults"]), number(it["jobs"]), *map(_seconds, (it["median"], it["worst"], it["bound"]))
        )
    show(console, "Faults, and when what they cut short ran again", [faults])
    logs = Table("the workers' logs tell of", "times")
    for name, count in values["logs"].items():
        logs.add_row(name, number(count))
    show(console, "Logs", [logs])
    if values["growth"]:
        show(console, "Growth, without the first seconds", [_growth(values["growth"])])
    for note in values["notes"]:
        console.print(f"note: {note}", highlight=False, markup=False)
    for text in values["violations"][:SHOWN]:
        console.print(f"broken: {text}", highlight=False, markup=False, style="bold red")
    if len(values["violations"]) > SHOWN:
        console.print(f"… and {len(values['violations']) - SHOWN} more", highlight=False)
    console.print("every promise was kept" if values["ok"] else "promises were broken", highlight=False)


def _growth(rows: list[dict[str, Any]]) -> Table:
    table = Table("process", "minutes", "RSS MB", "per hour", "descriptors", "per hour", "threads", "per hour")
    for row in rows:
        cells = [f"{row['minutes']:.1f}"]
        for name in FIELDS:
            it = row[name]
            cells += [f"{it['first']:.4g} → {it['last']:.4g}", f"{it['per hour']:+.3g}"]
        table.add_row(row["role"], *cells)
    return table


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
