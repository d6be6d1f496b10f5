"""How much each scenario does: enough to mean something, or just enough to see that it works."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

PROCESSES = 2
CONCURRENCY = 8
BARE_BATCH = 100
BARE_LARGE_BATCH = 300


@dataclass(frozen=True)
class Sizes:
    repetitions: int = 3
    scenario_seconds: float = 120.0  # a new repetition begins only within these, or longer where the store says so
    enqueue_jobs: int = 4_000
    bulk_jobs: int = 30_000
    drain_jobs: Mapping[str, int] = field(  # by a system's pace, so that none takes long: rates are compared
        default_factory=lambda: {"bare": 120_000, "fast": 60_000, "medium": 20_000, "slow": 4_000, "slowest": 1_500}
    )
    client_jobs: int = 40_000
    client_repetitions: int = 9
    limit_jobs: int = 100_000
    limit_one_jobs: int = 10_000  # of the 100,000 that wait, since one after the other takes its time
    rate_seconds: float = 60.0
    crowd_jobs: int = 1_000_000
    group_jobs: int = 100_000
    graph_jobs: int = 10_000
    isolated_jobs: int = 10_000
    burn_jobs: int = 1_000
    burn_seconds: float = 0.05
    backlog_jobs: int = 40_000
    backlog_repetitions: int = 15  # a drain takes under a second, and two of a kind differ by a fifth
    backlog_waiting: int = 1_000_000
    latency_jobs: int = 200
    sustained_seconds: float = 10.0
    idle_seconds: float = 10.0
    mixed_jobs: int = 3_600
    mixed_long: float = 5.0
    mixed_paced_seconds: float = 10.0
    profile_jobs: int = 30_000


FULL = Sizes()
QUICK = Sizes(
    repetitions=1,
    scenario_seconds=10.0,
    enqueue_jobs=500,
    bulk_jobs=5_000,
    drain_jobs={"bare": 30_000, "fast": 10_000, "medium": 2_000, "slow": 400, "slowest": 200},
    client_jobs=10_000,
    client_repetitions=1,
    limit_jobs=10_000,
    limit_one_jobs=1_000,
    rate_seconds=3.0,
    crowd_jobs=20_000,
    group_jobs=5_000,
    graph_jobs=2_000,
    isolated_jobs=1_000,
    burn_jobs=40,
    backlog_jobs=10_000,
    backlog_repetitions=2,
    backlog_waiting=60_000,
    latency_jobs=50,
    sustained_seconds=2.0,
    idle_seconds=2.0,
    mixed_jobs=800,
    mixed_long=1.0,
    mixed_paced_seconds=2.0,
    profile_jobs=10_000,
)
