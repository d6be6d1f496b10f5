"""Tasks of Django, performed by Packhorse's backend and by others; beside the same jobs without Django."""

from __future__ import annotations

from typing import Any

from bench.lab import Lab
from bench.scenarios.drain import measure, tables
from bench.systems import System
from bench.systems.peers import PeerSystem, available
from bench.systems.sites import (
    DjangoTasksDbSystem,
    DjQueueSystem,
    NativeSystem,
    PackhorseDjangoSystem,
    PackhorseSite,
    SteadyQueueSystem,
)

TITLE = "Drain: no-op tasks of Django, two worker processes, jobs per second"
STORES = ("postgres",)

__all__ = ["STORES", "TITLE", "run", "tables"]


PEERS: tuple[type[PeerSystem], ...] = (DjQueueSystem, DjangoTasksDbSystem, SteadyQueueSystem)


def run(lab: Lab) -> dict[str, Any]:
    sites = available(lab, (PackhorseSite, *PEERS))
    if PackhorseSite not in sites:
        return {"systems": {}, "ratios": {}}
    makes: list[type[System]] = [PackhorseDjangoSystem, NativeSystem, *(peer for peer in PEERS if peer in sites)]
    figures = measure(lab, "django", makes, settled=True)
    return figures | {"sites": {site.name: site.describe() for site in sites}}
