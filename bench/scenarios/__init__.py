"""The scenarios in the order they are taken. Each has `TITLE`, `run(lab) -> figures` and `tables(figures)`."""

from __future__ import annotations

from types import ModuleType

from bench.scenarios import backlog, client, drain, enqueue, idle, latency, limits, mixed, profile, sustained

SCENARIOS: dict[str, ModuleType] = {
    "enqueue": enqueue,
    "drain": drain,
    "client": client,
    "limits": limits,
    "backlog": backlog,
    "latency": latency,
    "sustained": sustained,
    "idle": idle,
    "mixed": mixed,
    "profile": profile,
}
