"""Figures as tables for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.table import Table


def number(value: float) -> str:
    return f"{value:,.0f}"


def times(value: float | None) -> str:
    """A ratio."""
    return "–" if value is None else f"{value:.2f} ×"


def times_spread(value: dict[str, float] | None) -> str:
    return "–" if value is None else with_spread(value) + " ×"


def with_spread(value: dict[str, float] | None) -> str:
    """The median, and least to most where they differ."""
    if value is None:
        return "–"
    text = _short(value["median"])
    if value["min"] == value["max"]:
        return text
    return f"{text} ({_short(value['min'])}–{_short(value['max'])})"


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def settings_table(settings: dict[str, Any]) -> Table:
    table = Table("setting", "value")
    for name, value in settings.items():
        text = ", ".join(f"{key} {item}" for key, item in value.items()) if isinstance(value, dict) else str(value)
        table.add_row(name.replace("_", " "), text)
    return table


def show(console: Console, title: str, tables: Iterable[Table]) -> None:
    console.print(f"\n[bold]{title}[/]", highlight=False)
    for table in tables:
        for column in table.columns[1:]:
            column.overflow = "fold"
        console.print(table)
