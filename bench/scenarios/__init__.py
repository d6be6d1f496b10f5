"""The scenarios in the order they are taken. Each has `TITLE`, `run(lab) -> figures` and `tables(figures)`.

`STORES` names the stores of one that does not fit all of them.
"""

from __future__ import annotations

from types import ModuleType

from bench.scenarios import (
    backlog,
    client,
    django,
    drain,
    enqueue,
    flows,
    idle,
    isolated,
    latency,
    limits,
    mixed,
    profile,
    sustained,
    unanalyzed,
)

SCENARIOS: dict[str, ModuleType] = {
    "enqueue": enqueue,
    "drain": drain,
    "unanalyzed": unanalyzed,
    "client": client,
    "limits": limits,
    "flows": flows,
    "isolated": isolated,
    "backlog": backlog,
    "latency": latency,
    "sustained": sustained,
    "idle": idle,
    "mixed": mixed,
    "django": django,
    "profile": profile,
}
