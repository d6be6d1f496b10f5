"""The systems that are measured side by side, behind one small face."""

from __future__ import annotations

from bench.systems.bare import BareLargeSystem, BareOneSystem, BareSystem
from bench.systems.base import Running, System
from bench.systems.huey_peer import HueySystem
from bench.systems.ours import (
    FairSystem,
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
    "BareLargeSystem",
    "BareOneSystem",
    "BareSystem",
    "FairSystem",
    "HueySystem",
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
