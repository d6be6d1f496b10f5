"""`prune`: what retention no longer keeps is deleted, with all that belongs to it."""

import pytest

from packhorse.clock import SECOND, ManualClock
from packhorse.stores import Store
from packhorse.stores.contract import Entry, Retention, Selection
from tests.contract.helpers import (
    Worker,
    cancelled,
    everything,
    failed,
    id_of,
    insert,
    job,
    names,
    retried,
    states,
    succeeded,
)
from tests.contract.stores import leftovers

NOTHING_KEPT = Retention(0, 0, 0)
ALL_KEPT = Retention(None, None, None)


def test_nothing_to_prune(store: Store):
    """An empty store is a pruned one."""
    assert store.prune(NOTHING_KEPT, 10) == 0


@pytest.mark.parametrize(
    ("retention", "left"),
    [
        (Retention(10 * SECOND, None, None), ["b", "c"]),
        (Retention(None, 10 * SECOND, None), ["a", "c"]),
        (Retention(None, None, 10 * SECOND), ["a", "b"]),
        (Retention(11 * SECOND, 10 * SECOND, 9 * SECOND), ["a"]),
        (ALL_KEPT, ["a", "b", "c"]),
    ],
)
def test_each_state_has_its_own_time(
    store: Store, worker: Worker, clock: ManualClock, retention: Retention, left: list[str]
):
    """Succeeded, failed and cancelled jobs are kept for their own time, counted from their end; None keeps them."""
    insert(store, *"abc")
    clock.advance(5)
    a, b, c = worker.claim()
    worker.finish(succeeded(a), failed(b), cancelled(c))
    clock.advance(10)
    assert store.prune(retention, 10) == 3 - len(left)
    assert list(states(store)) == left


def test_unfinished_jobs_are_kept(store: Store, worker: Worker, clock: ManualClock):
    """However old, a job that has not finished stays."""
    insert(store, "a", "b", job("c", delay=SECOND))
    worker.claim_one()
    clock.advance(1_000_000)
    before = everything(store)
    assert store.prune(NOTHING_KEPT, 10) == 0
    assert everything(store) == before


def test_a_moment_before_its_time_a_job_is_kept(store: Store, worker: Worker, clock: ManualClock):
    """A job goes when its time is up, not sooner."""
    insert(store, "a")
    worker.finish(succeeded(worker.claim_one()))
    clock.advance(9.999_999)
    assert store.prune(Retention(10 * SECOND, None, None), 10) == 0
    clock.advance(0.000_001)
    assert store.prune(Retention(10 * SECOND, None, None), 10) == 1


def test_the_limit_takes_the_oldest(store: Store, worker: Worker, clock: ManualClock):
    """With more to delete than asked for, those that finished first go first, whatever their state."""
    insert(store, *"abcd")
    a, b, c, d = worker.claim()
    for outcome in (succeeded(c), failed(a), cancelled(d), succeeded(b)):
        worker.finish(outcome)
        clock.advance(1)
    assert store.prune(NOTHING_KEPT, 2) == 2
    assert list(states(store)) == ["b", "d"]
    assert store.prune(NOTHING_KEPT, 1) == 1
    assert list(states(store)) == ["b"]
    assert store.prune(NOTHING_KEPT, 5) == 1


def test_all_that_belongs_to_a_job_goes_with_it(store: Store, worker: Worker):
    """Result, attempts, tags and entries of a pruned job are gone, those of others stay."""
    insert(store, job("a", tags=("x",)), job("b", tags=("x",)))
    for claim in worker.claim():
        store.record(claim.token, [Entry("step", "x", b"1")])
        worker.finish(retried(claim))
    worker.finish(succeeded(worker.claim_one(), b"42"))
    assert store.prune(NOTHING_KEPT, 10) == 1
    assert store.job(id_of("a")) is None
    assert store.entries(id_of("a")) == []
    assert names(store.jobs(Selection(tags=["x"]))) == ["b"]
    assert store.entries(id_of("b")) == [Entry("step", "x", b"1")]
    assert leftovers(store) == []


def test_many_old_jobs(store: Store, worker: Worker):
    """Batch after batch until nothing is left."""
    insert(store, *(f"{number:04}" for number in range(700)))
    worker.finish(*map(succeeded, worker.claim(700)))
    assert [store.prune(NOTHING_KEPT, 300) for _ in range(4)] == [300, 300, 100, 0]
    assert store.queues() == []
