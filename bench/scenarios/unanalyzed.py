"""The same drain on tables just filled, of which the planner knows nothing yet."""

from __future__ import annotations

from typing import Any

from bench.lab import Lab
from bench.scenarios.drain import every, measure, tables

TITLE = "Drain: tables never analyzed, two worker processes, jobs per second"
STORES = ("postgres",)

__all__ = ["STORES", "TITLE", "run", "tables"]


def run(lab: Lab) -> dict[str, Any]:
    return measure(lab, "unanalyzed", every(lab), settled=False)
