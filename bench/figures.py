"""Small sums over figures."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any


def spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def paired(ours: Sequence[float], others: Sequence[float]) -> dict[str, float]:
    """Ours by theirs, repetition by repetition: both sides of a pair met the same noise."""
    return spread([one / other if other else 0.0 for one, other in zip(ours, others, strict=True)])


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that so large a share of them does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def ratio(one: float, other: float) -> float | None:
    return one / other if other else None


def rounded(value: Any) -> Any:
    """Figures as people want them in JSON: four significant digits, whole from 1,000 on."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    if isinstance(value, float):
        return round(value) if abs(value) >= 1000 else float(f"{value:.4g}")
    return value
