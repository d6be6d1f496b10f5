"""Enqueues a mixture of jobs and writes down what the store acknowledged: `python -m chaos.producer NAME SEED RATE`.

An acknowledgement is one appending write after `enqueue` has returned, so what stands there had been promised. Ends
with TERM, or when its parent does.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from chaos import jobs
from chaos.history import APART, FATAL, STRICT, Ack
from chaos.ledger import now
from packhorse import EnqueueError, Flow, Packhorse
from packhorse.errors import StoreError

BACK_OFF = 0.2  # seconds after an enqueue that failed


class Producer:
    def __init__(self, app: Packhorse, acks: Path, name: str, seed: int) -> None:
        self._app = app
        self._tasks = app.tasks
        self._acks = os.open(acks, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._name = name
        self._dice = random.Random(seed)
        self._flows = 0
        longest, share = float(os.environ["CHAOS_LONGEST"]), float(os.environ["CHAOS_LONG_SHARE"])
        self._kinds: list[tuple[float, Callable[[], int]]] = [
            (22, self._one("quick")),
            (14, self._many),
            (8, self._one("along", 0.6)),
            (share / 2, self._one("along", longest)),
            (13, self._one("plain")),
            (6, self._one("busy", 0.5)),
            (share / 2, self._one("busy", longest)),
            (3, self._one(APART, 1.0)),
            (2, lambda: self._many(STRICT)),
            (0.05, self._one(FATAL)),
            (5, self._one("flaky", attempts=jobs.FLAKY_FAILURES + 1)),
            (6, self._one("narrow", 0.05)),
            (3, self._one("paced")),
            (3, self._sole),
            (4, self._delayed),
            (4, self._chain),
            (2, self._fan),
            (2, self._one("stepwise", 3)),
            (2, self._forking),
        ]
        self._first = [enqueue for _, enqueue in self._kinds]  # each once, before chance decides
        self._dice.shuffle(self._first)

    def turn(self) -> int:
        """Enqueue something; how many jobs that were."""
        weights = [weight for weight, _ in self._kinds]
        [(_, enqueue)] = self._dice.choices(self._kinds, weights)
        if self._first:
            enqueue = self._first.pop()
        try:
            return enqueue()
        except (EnqueueError, StoreError):
            time.sleep(BACK_OFF)
            return 0

    def _acknowledge(self, *acks: Ack) -> int:
        text = "".join(json.dumps(ack) + "\n" for ack in acks)
        os.write(self._acks, text.encode())
        return len(acks)

    def _one(self, kind: str, seconds: float | None = None, attempts: int = 1) -> Callable[[], int]:
        arguments = () if seconds is None else (seconds,)

        def enqueue() -> int:
            at = now()
            id = self._tasks[kind].enqueue(*arguments).id
            return self._acknowledge(Ack(id, kind, at, attempts))

        return enqueue

    def _many(self, kind: str = "quick") -> int:
        """So that workers claim ahead."""
        at = now()
        handles = self._app.enqueue_many(self._tasks[kind].call() for _ in range(10))
        return self._acknowledge(*(Ack(handle.id, kind, at) for handle in handles))

    def _sole(self) -> int:
        at = now()
        id = self._tasks["sole"].enqueue(self._dice.randrange(jobs.UNIQUE_KEYS)).id
        return self._acknowledge(Ack(id, "sole", at))

    def _delayed(self) -> int:
        at = now()
        task = self._tasks["plain"].using(run_after=self._dice.uniform(0.1, 3.0))
        return self._acknowledge(Ack(task.enqueue().id, "delayed", at))

    def _forking(self) -> int:
        at = now()
        kind, how = self._dice.choice(("split", "asplit", APART)), self._dice.choice(jobs.WAYS_OUT)
        id = self._tasks[kind].enqueue(*([0.05] if kind == APART else []), how).id
        return self._acknowledge(Ack(id, kind, at))

    def _chain(self) -> int:
        flow, link = Flow(), self._tasks["link"]
        first = flow.add(link.call(self._place(0)))
        second = flow.add(link.call(self._place(1), first.result))
        flow.add(link.call(self._place(2), second.result))
        return self._enqueue(flow)

    def _fan(self) -> int:
        """Some side by side, and one that gets their results."""
        flow, link = Flow(), self._tasks["link"]
        sides = flow.group([link.call(self._place(n)) for n in range(4)])
        flow.add(link.call(self._place(4), sides.results))
        return self._enqueue(flow)

    def _place(self, n: int) -> str:
        return f"{self._name}-{os.getpid()}-{self._flows}@{n}"

    def _enqueue(self, flow: Flow) -> int:
        self._flows += 1
        at = now()
        handles = flow.enqueue().jobs()  # in the order of the nodes
        ids = {node.id: handle.id for node, handle in zip(flow.nodes, handles, strict=True)}
        parents = ((node, tuple(ids[parent.id] for parent in node.parents)) for node in flow.nodes)
        return self._acknowledge(*(Ack(ids[node.id], "link", at, 1, after) for node, after in parents))


def paced(per_second: float, going: Callable[[], bool]) -> Iterator[float]:
    """So often, as long as it goes on; what was missed is made up for within a second or not at all."""
    due = time.monotonic()
    while going():
        due = max(due + 1 / per_second, time.monotonic() - 1)
        time.sleep(max(0.0, due - time.monotonic()))
        yield due


def main() -> None:
    name, seed, per_second = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stopping.append(number))
    parent = os.getppid()
    acks = Path(os.environ["CHAOS_FOLDER"]) / f"acks-{name}"
    producer = Producer(jobs.from_environment(), acks, name, seed)
    budget = 0.0
    for _ in paced(per_second / 2, lambda: not stopping and os.getppid() == parent):
        budget += 2  # a turn may make ten jobs
        while budget > 0 and not stopping:
            budget -= max(1, producer.turn())


if __name__ == "__main__":
    main()
