"""One random history on two stores: the plain dictionaries of memory.py say how SQLite must behave."""

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from packhorse.clock import SECOND, ManualClock
from packhorse.errors import StoreDataError
from packhorse.job import Claim, JobState, NewJob
from packhorse.outcome import Outcome, release, succeed
from packhorse.queues import EVERYTHING
from packhorse.stores import open_store
from packhorse.stores.contract import Act, Change, ProcessInfo, Selection
from tests.contract.stores import quick_folder

STEPS = 60
REFUSED = "refused"


class Pair(ABC):
    modes: Sequence[str]  # one after the other, so that a history has not all things at once

    def __init__(self, seed: int, folder: Path) -> None:
        self.luck = random.Random(seed)
        self.mode = self.modes[seed % len(self.modes)]
        self.clock = ManualClock()
        self.stores = [open_store("memory://", self.clock), open_store(f"sqlite:///{folder}/{seed}.db", self.clock)]
        self.processes = [b"p" * 16, b"q" * 16]
        for process in self.processes:
            self.both("enroll", ProcessInfo(process, "worker", "here", 1), 10_000 * SECOND)
        self.jobs: list[NewJob] = []
        self.held: list[Claim] = []
        self.nonce = 0

    @abstractmethod
    def step(self) -> None:
        """Something happens to both."""

    @abstractmethod
    def check(self) -> None:
        """Both show the same."""

    @property
    def ids(self) -> list[bytes]:
        return [job.id for job in self.jobs]

    def some_ids(self, number: int) -> list[bytes]:
        return self.luck.sample(self.ids, min(len(self.ids), number))

    def both(self, name: str, *args: object, **kwargs: object) -> Any:
        answers: list[object] = []
        for store in self.stores:
            try:
                answers.append(getattr(store, name)(*args, **kwargs))
            except StoreDataError:
                answers.append(REFUSED)  # which of several reasons it names may differ
        assert answers[0] == answers[1], name
        return answers[0]

    def insert(self, jobs: Sequence[NewJob]) -> None:
        if self.both("insert", jobs) != REFUSED:
            known = set(self.ids)
            self.jobs += [job for job in jobs if job.id not in known]

    def move(self, selection: Selection, act: Act, *, limit: int = 1_000, **how: Any) -> None:
        self.both("move", selection, Change(act, **how), "ann", "why", limit=limit)

    def exchange(self, process: bytes, most: int) -> None:
        """Some of the held end, and up to so many are taken."""
        luck = self.luck
        ended: list[Outcome] = []
        for claim in luck.sample(self.held, luck.randint(0, len(self.held))):
            self.held.remove(claim)
            ended += self.ends(claim)
        self.nonce += 1
        self.held += self.both("exchange", process, self.nonce, ended, EVERYTHING, luck.randint(0, most)).claims

    def ends(self, claim: Claim) -> list[Outcome]:
        """How one ends; in a list, as it may be told twice."""
        token = claim.token
        ways = [
            succeed(token, 1, None),
            succeed(token, 1, b"result"),
            succeed(token, 1, None, keep=0),
            release(token),
            Outcome(token, JobState.FAILED, failure=b"x"),
            Outcome(token, JobState.FAILED, failure=b"x", keep=0),
            Outcome(token, JobState.CANCELLED, reason="enough"),
            Outcome(token, JobState.SCHEDULED, delay=self.luck.choice([0, 2 * SECOND])),
        ]
        return [self.luck.choice(ways)]


PARTS = [*range(4), *(pytest.param(part, marks=pytest.mark.thorough) for part in range(4, 8))]


def live_alike(kind: type[Pair], part: int, histories: int) -> None:
    """The histories of this part, each with a seed of its own."""
    with quick_folder() as folder:
        for seed in range(part * histories, (part + 1) * histories):
            pair = kind(seed, folder)
            for _ in range(STEPS):
                pair.step()
                pair.check()
            for store in pair.stores:
                store.close()
