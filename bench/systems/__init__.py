"""The systems that are measured side by side, behind one small face."""

from __future__ import annotations

from bench.systems.bare import BareLargeSystem, BareSystem
from bench.systems.base import Running, System
from bench.systems.huey_peer import HueySystem
from bench.systems.ours import PackhorseSystem, TypedSystem, UnsignedSystem, WatchedSystem

__all__ = [
    "BareLargeSystem",
    "BareSystem",
    "HueySystem",
    "PackhorseSystem",
    "Running",
    "System",
    "TypedSystem",
    "UnsignedSystem",
    "WatchedSystem",
]
