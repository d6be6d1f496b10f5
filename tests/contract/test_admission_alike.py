"""What may run now, side by side: the plain dictionaries of memory.py say how SQLite's lines must behave."""

import random
from pathlib import Path

import pytest

from packhorse.clock import SECOND, ManualClock
from packhorse.job import Claim, JobState, NewJob
from packhorse.limits import Claimed, Conflict, Hold, Pace, Terms, UniqueConflict
from packhorse.outcome import Outcome, release, succeed
from packhorse.queues import parse_queues
from packhorse.stores import open_store
from packhorse.stores.contract import Act, Change, Paused, ProcessInfo, Retention, Selection
from tests.contract.stores import quick_folder

KEYS = ("a/1", "a/2", "b/1")
RATES = ("a/1", "r/1")
TASKS = ("one", "two")
SHARES = (None, None, None, "ann", "bob", "eve")
QUEUES = parse_queues("*")


def random_terms(luck: random.Random, mode: str) -> Terms:
    keys = luck.sample(KEYS, luck.choice([0, 0, 1, 1, 2])) if mode == "limits" else []
    rated = luck.sample(RATES, luck.choice([0, 1])) if mode == "rates" else []
    if mode == "rates" and not rated:
        keys = luck.sample(KEYS, luck.choice([0, 0, 1]))
    conflict = luck.choices(list(Conflict), [8, 1, 1])[0] if len(keys + rated) == 1 else Conflict.BLOCK
    holds = tuple(Hold(key, luck.randint(1, 3), conflict) for key in keys)
    paces = tuple(Pace(key, luck.choice([1, 2, 7]), luck.choice([2, 3]) * SECOND, luck.choice([1, 4])) for key in rated)
    unique = None
    if luck.random() < 0.3:
        lasting = luck.choice([None, None, 5 * SECOND])
        unique = Claimed(f"u/{luck.randint(1, 3)}", luck.random() < 0.4, lasting, luck.choice(list(UniqueConflict)))
    return Terms(holds, unique, paces)


class Pair:
    """One history on two stores."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.luck = random.Random(seed)
        # Which of two things a job waits for may differ, and by that, how long a rate was waited for and who of a
        # share stands first. So each history has one or the other.
        self.mode = ("shares", "limits", "rates")[seed % 3]
        self.clock = ManualClock()
        self.stores = [open_store("memory://", self.clock), open_store(f"sqlite:///{folder}/{seed}.db", self.clock)]
        self.process = b"p" * 16
        for store in self.stores:
            store.enroll(ProcessInfo(self.process, "worker", "here", 1), 10_000 * SECOND)
        self.ids: list[bytes] = []
        self.held: list[Claim] = []
        self.nonce = 0

    def both(self, name: str, *args: object, **kwargs: object) -> object:
        answers = [getattr(store, name)(*args, **kwargs) for store in self.stores]
        assert answers[0] == answers[1], name
        return answers[0]

    def step(self) -> None:
        luck = self.luck
        self.last = luck.randrange(14)
        match self.last:
            case 0 | 1 | 2:
                jobs = []
                for _ in range(luck.randint(1, 5)):
                    self.ids.append(luck.randbytes(16))
                    delay = luck.choice([None, None, None, 2 * SECOND])
                    priority = luck.randint(-1, 1)
                    task = luck.choice(TASKS)
                    terms, ageing = random_terms(luck, self.mode), luck.choice([0, 0, SECOND])
                    share = luck.choice(SHARES) if self.mode == "shares" else None
                    queue = luck.choice(["default", "other"])
                    jobs.append(
                        NewJob(
                            self.ids[-1],
                            task,
                            luck.randbytes(3),
                            queue,
                            priority,
                            delay=delay,
                            share=share,
                            terms=terms,
                            ageing=ageing,
                        )
                    )
                self.both("insert", jobs)
            case 3 | 4 | 5 | 6:
                self.exchange()
            case 7:
                self.promote(luck.choice([1, 3, 1_000]))
            case 8:
                act = luck.choice([Act.CANCEL, Act.RETRY, Act.RUN_NOW, Act.DISCARD])
                ids = luck.sample(self.ids, min(len(self.ids), 3))
                self.both("move", Selection(ids=ids), Change(act), "ann", "why")
            case 9:
                self.clock.advance(luck.choice([0.3, 1, 1, 3]))
            case 10:
                task = luck.choice(TASKS)
                if luck.random() < 0.5:
                    self.both("pause", task, None, "ann", "", kind=Paused.TASK, length=luck.choice([None, SECOND]))
                else:
                    self.both("resume", task, "ann", "", kind=Paused.TASK)
            case 11:
                key, to = luck.choice(KEYS), luck.choice([None, 1, 2, 4])
                self.both("set_limit", key, to, "ann", "")
                self.both("prune", Retention(None, None, None), 100)
            case 12:
                if luck.random() < 0.5:
                    self.both("set_weight", luck.choice(SHARES[3:]), luck.choice([None, 2, 5]), "ann", "")
                else:
                    pace = Pace(luck.choice(RATES), luck.choice([1, 5]), 2 * SECOND, luck.choice([1, 2]))
                    self.both("take_token", pace, luck.choice([0, SECOND]))
            case 13:
                ids = luck.sample(self.ids, min(len(self.ids), 3))
                change = Change(Act.CHANGE, luck.choice([None, "default", "other"]), luck.choice([None, -1, 0, 1]))
                self.both("move", Selection(ids=ids), change, "ann", "why")

    def promote(self, limit: int) -> None:
        answers = [store.promote(limit) for store in self.stores]
        assert answers[0].jobs == answers[1].jobs
        if self.mode != "rates":  # a rate may call in vain: who waited for it was cancelled
            assert answers[0] == answers[1]

    def exchange(self) -> None:
        luck = self.luck
        self.nonce += 1
        ended: list[Outcome] = []
        for claim in luck.sample(self.held, luck.randint(0, len(self.held))):
            self.held.remove(claim)
            ended.append(
                luck.choice(
                    [
                        succeed(claim.token, 1, None),
                        succeed(claim.token, 1, None, keep=0),
                        release(claim.token),
                        Outcome(claim.token, JobState.FAILED, failure=b"x"),
                        Outcome(claim.token, JobState.SCHEDULED, delay=luck.choice([0, 2 * SECOND])),
                    ]
                )
            )
        answer = self.both("exchange", self.process, self.nonce, ended, QUEUES, luck.randint(0, 4))
        self.held += answer.claims  # type: ignore[attr-defined]

    def check(self) -> None:
        self.both("jobs", Selection(), None, 10_000)
        self.both("pauses")
        self.both("weights")
        for id in self.ids[-3:]:
            self.both("entries", id)
        rates = [[(view.key, view.pace, view.opens_in) for view in store.rates()] for store in self.stores]
        assert rates[0] == rates[1]
        views = [[view for view in store.limits() if view.holders or view.to] for store in self.stores]
        # Who was called out of a line and not judged yet is in no line; how many stand in one may differ till then.
        seen = [[(view.key, view.to, view.holders) for view in its] for its in views]
        assert seen[0] == seen[1]
        assert all(view.holders <= 4 for view in views[0]), "more permits than any number allowed"


@pytest.mark.parametrize("part", range(8))
def test_both_admit_the_same_jobs_in_the_same_order(part: int):
    with quick_folder() as folder:
        for seed in range(part * 40, part * 40 + 40):
            pair = Pair(seed, folder)
            for _ in range(60):
                pair.step()
                pair.check()
            for store in pair.stores:
                store.close()
