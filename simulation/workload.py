"""What programs enqueue: jobs of every kind, at any moment, and again where they cannot know that it was done."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from packhorse.app import Packhorse
from packhorse.errors import EnqueueError, StoreError
from packhorse.flow import Flow
from packhorse.ids import from_text, to_text
from simulation.tasks import STRICT

if TYPE_CHECKING:
    from simulation.world import Proc, World


class Workload:
    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = world.rng
        self.acknowledged: set[bytes] = set()
        self._to_signal: set[str] = set()

    def enqueue(self, proc: Proc) -> int:
        """What a program does, from its start to its end."""
        rng, kernel, app = self._rng, self._world.kernel, proc.app
        for n in range(rng.randint(8, 22)):
            kernel.sleep(rng.uniform(0, 2.5))
            self._persist(self._one(app, n))
        for name in sorted(self._to_signal):
            kernel.sleep(rng.uniform(0, 3))
            with suppress(StoreError):
                app.signal(name, "here")
        return 0

    def _persist(self, enqueue: Callable[[], list[str]]) -> None:
        for _ in range(5):
            with suppress(EnqueueError):
                self.acknowledged |= {from_text(id) for id in enqueue()}
                return
            self._world.kernel.sleep(self._rng.uniform(0, 2))

    def _one(self, app: Packhorse, n: int) -> Callable[[], list[str]]:
        rng, tasks = self._rng, cast(Any, app.tasks)
        length = rng.choice((0.0, 0.3, 1.0, 3.0, 8.0))
        kind = rng.choice(KINDS)
        task = tasks.get(kind)
        if kind in ("flaky", "stepped"):
            arguments: tuple[Any, ...] = (n, length, rng.randint(0, 4))
        elif kind == "threaded":
            arguments = (n, length, rng.randint(0, 2))
        elif kind == "limited":
            arguments = (rng.choice("ab"), length, rng.randint(0, 2))
        elif kind in ("single", "only"):
            arguments = (rng.choice("ab"), length)
        elif kind == "merged":
            arguments = (rng.choice("ab"), [n])
        elif kind == "paced":
            arguments = (n,)
        elif kind == "timed":
            arguments = (n, length, rng.random() < 0.4)
        elif kind == "listening":
            self._to_signal.add(f"news-{n}")
            arguments = (f"news-{n}",)
        elif kind == "parent":
            arguments = (rng.randint(1, 3), length)
        elif kind == "flow":
            return self._flow(tasks, length)
        elif kind == "burst":
            return self._burst(app, tasks)
        elif kind == "plain":
            arguments = (n, 35.0 if rng.random() < 0.4 else length)  # longer than a lease
        else:
            arguments = (n, length)
        if rng.random() < 0.2:
            task = task.using(run_after=rng.uniform(1, 10), priority=rng.randint(-2, 2))
        return lambda: [task.enqueue(*arguments).id]

    def _burst(self, app: Packhorse, tasks: Any) -> Callable[[], list[str]]:
        """Jobs so quick that workers claim them ahead."""
        kinds = self._rng.choices(("plain", "threaded", STRICT), k=self._rng.randint(8, 24))
        calls = [tasks[kind].call(n, self._rng.uniform(0, 0.003)) for n, kind in enumerate(kinds)]
        return lambda: [handle.id for handle in app.enqueue_many(calls)]

    def _flow(self, tasks: Any, length: float) -> Callable[[], list[str]]:
        rng, flow = self._rng, Flow()
        first = flow.add(tasks["link"].call(length))
        side = flow.add(tasks["link"].call(length / 2))
        second = flow.add(tasks["link"].call(length, first.result))
        both = flow.group([tasks["link"].call(0.2, second.result), tasks["link"].call(0.2)], after=side)
        flow.add(tasks["total"].call(both.results))
        if rng.random() < 0.5:
            bad = flow.add(tasks["flaky"].call(0, 0.1, rng.randint(2, 5)), after=side)
            flow.add(tasks["plain"].call(1, 0.1), after=bad)
        return lambda: _enqueued(flow)

    def signal_all(self, proc: Proc) -> int:
        """So that nobody waits for ever, whatever became of the first signals."""
        for name in sorted(self._to_signal):
            proc.app.signal(name, "at last")
        return 0


def _enqueued(flow: Flow) -> list[str]:
    flow.enqueue()
    return [to_text(node.id) for node in flow.nodes]


KINDS = [
    *("plain", "plain", "threaded", "flaky", "stepped", "stepped", "limited", "limited", "single", "only", "only"),
    *("merged", "paced", "listening", "parent", "timed", STRICT, "flow", "flow", "burst"),
]
