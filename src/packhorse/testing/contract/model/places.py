"""Where jobs stand, and what they hold there."""

from typing import Any

from packhorse.clock import Clock
from packhorse.job import JobState
from packhorse.stores.contract import Audit

Facts = dict[str, Any]
Line = tuple[str, str]  # what for, and of which key, share or task
DOOR: Line = ("door", "")  # where the next look judges it
GATE: Line = ("gate", "")  # it comes after others
FINISHED = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)


class Places:
    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.facts: dict[bytes, Facts] = {}  # what a job is, wherever it stands
        # The places. A job that is known stands in exactly one of them.
        self.scheduled: set[bytes] = set()
        self.waiting: dict[bytes, Line] = {}
        self.ready: set[bytes] = set()
        self.running: dict[bytes, Facts] = {}  # token, claimed_at, started_at, asked, seal
        self.finished: dict[bytes, Facts] = {}  # state, finished_at, started_at, process, result, failure and so on
        # What it may hold there.
        self.permits: dict[str, set[bytes]] = {}
        self.buckets: dict[str, Facts] = {}  # pace, brought_by, since, taken, tickets
        self.keys: dict[str, tuple[bytes, int | None]] = {}
        self.acts: list[Audit] = []

    def place(self, id: bytes) -> JobState:
        places: list[JobState] = [self.finished[id]["state"]] if id in self.finished else []
        places += [JobState.SCHEDULED] * (id in self.scheduled)
        places += [JobState.WAITING] * (id in self.waiting)
        places += [JobState.READY] * (id in self.ready)
        places += [JobState.RUNNING] * (id in self.running)
        [place] = places
        return place

    def _is_there(self, id: bytes) -> bool:
        """Whether it is known, and kept still, whenever it will be pruned."""
        prune_at = self.finished[id]["prune_at"] if id in self.finished else None
        return id in self.facts and (prune_at is None or self.clock.now() < prune_at)

    def has_ended(self, id: bytes) -> bool:
        return id not in self.facts or id in self.finished

    def _take_away(self, id: bytes) -> None:
        self.scheduled.discard(id)
        self.waiting.pop(id, None)
        self.ready.discard(id)
        self.running.pop(id, None)
        self.finished.pop(id, None)

    def _forget(self, id: bytes) -> None:
        self._take_away(id)
        del self.facts[id]

    # Order.

    def _ageing(self, id: bytes) -> int:
        new = self.facts[id]["new"]
        ageing: int = new.ageing if new.share is None else 0
        return ageing

    def _rank(self, id: bytes) -> int:
        return 0 if self._ageing(id) else -self.facts[id]["priority"]

    def _order(self, id: bytes) -> tuple[int, int, bytes]:
        return (self._rank(id), self.facts[id]["order_key"], id)

    # The end of one that did not run.

    def _end_unrun(self, id: bytes, reason: str, now: int) -> None:
        self._take_away(id)
        self._give_back(id)
        self._free_key(id)
        self.facts[id]["epoch"] += 1
        self.facts[id]["awaits"] = None
        unknown = ("started_at", "process", "result", "result_error", "failure", "prune_at", "result_until")
        self.finished[id] = dict.fromkeys(unknown) | {
            "state": JobState.CANCELLED,
            "finished_at": now,
            "reason": reason,
            "spent": False,
        }

    def _give_back(self, id: bytes) -> None:
        """Its permits, and the room that its tickets take up."""
        for taken in self.permits.values():
            taken.discard(id)
        self._drop_tickets(id)

    def _drop_tickets(self, id: bytes) -> None:
        for bucket in self.buckets.values():
            bucket["tickets"].discard(id)

    def _free_key(self, id: bytes) -> None:
        self.keys = {key: (its, until) for key, (its, until) in self.keys.items() if its != id or until is not None}
