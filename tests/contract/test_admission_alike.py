"""What may run now, side by side: the plain dictionaries of memory.py say how SQLite's lines must behave."""

import random

import pytest

from packhorse.clock import SECOND
from packhorse.job import NewJob
from packhorse.limits import Claimed, Conflict, Hold, Pace, Terms, UniqueConflict
from packhorse.stores.contract import Act, Paused, Retention, Selection
from tests.contract.alike import PARTS, Pair, live_alike

KEYS = ("a/1", "a/2", "b/1")
RATES = ("a/1", "r/1")
TASKS = ("one", "two")
SHARES = (None, None, None, "ann", "bob", "eve")


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


class Admission(Pair):
    # Which of two things a job waits for may differ, and by that, how long a rate was waited for and who of a share
    # stands first. So each history has one or the other.
    modes = ("shares", "limits", "rates")

    def step(self) -> None:
        luck = self.luck
        match luck.randrange(14):
            case 0 | 1 | 2:
                self.insert([self.new_job() for _ in range(luck.randint(1, 5))])
            case 3 | 4 | 5 | 6:
                self.exchange(self.processes[0], 4)
            case 7:
                self.promote(luck.choice([1, 3, 1_000]))
            case 8:
                act = luck.choice([Act.CANCEL, Act.RETRY, Act.RUN_NOW, Act.DISCARD])
                self.move(Selection(ids=self.some_ids(3)), act)
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
                queue, priority = luck.choice([None, "default", "other"]), luck.choice([None, -1, 0, 1])
                self.move(Selection(ids=self.some_ids(3)), Act.CHANGE, queue=queue, priority=priority)

    def new_job(self) -> NewJob:
        luck = self.luck
        return NewJob(
            luck.randbytes(16),
            luck.choice(TASKS),
            luck.randbytes(3),
            luck.choice(["default", "other"]),
            luck.randint(-1, 1),
            delay=luck.choice([None, None, None, 2 * SECOND]),
            share=luck.choice(SHARES) if self.mode == "shares" else None,
            terms=random_terms(luck, self.mode),
            ageing=luck.choice([0, 0, SECOND]),
        )

    def promote(self, limit: int) -> None:
        answers = [store.promote(limit) for store in self.stores]
        assert answers[0].jobs == answers[1].jobs
        if self.mode != "rates":  # a rate may call in vain: who waited for it was cancelled
            assert answers[0] == answers[1]

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


@pytest.mark.parametrize("part", PARTS)
def test_both_admit_the_same_jobs_in_the_same_order(part: int):
    live_alike(Admission, part, 40)
