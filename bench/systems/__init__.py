"""The systems that are measured side by side, behind one small face; peers and bare loops belong to a store."""

from __future__ import annotations

from bench.systems.base import Running, System
from bench.systems.ours import (
    BurnSystem,
    FairSystem,
    FlowSystem,
    GroupSystem,
    IsolatedSystem,
    LanesSystem,
    LayersSystem,
    LimitedSystem,
    ManySharesSystem,
    MoreLimitedSystem,
    OneAtATimeSystem,
    PackhorseSystem,
    RatedSystem,
    TypedSystem,
    UnsignedSystem,
    WatchedSystem,
)

__all__ = [
    "BurnSystem",
    "FairSystem",
    "FlowSystem",
    "GroupSystem",
    "IsolatedSystem",
    "LanesSystem",
    "LayersSystem",
    "LimitedSystem",
    "ManySharesSystem",
    "MoreLimitedSystem",
    "OneAtATimeSystem",
    "PackhorseSystem",
    "RatedSystem",
    "Running",
    "System",
    "TypedSystem",
    "UnsignedSystem",
    "WatchedSystem",
]
