"""`starting` and `started`: which of the claimed jobs have begun."""

from typing import Any

import pytest

from packhorse.clock import ManualClock
from packhorse.job import StoredJob
from packhorse.stores import Store
from packhorse.stores.contract import Selection
from packhorse.testing.contract.helpers import (
    Worker,
    everything,
    insert,
    job,
    look,
    names,
    new_nonce,
    now,
    released,
    succeeded,
)


def begun(store: Store) -> list[str]:
    return names(one for one in store.jobs(Selection()) if _started(one))


def _started(one: StoredJob) -> bool:
    return one.started_at is not None


@pytest.mark.parametrize("starting", [0, 1, 2, 3, 4, 9])
def test_the_first_ones_start(store: Store, worker: Worker, starting: int):
    """Only the first of the claimed jobs are marked as started, in the order they are claimed."""
    insert(store, "c", job("a", priority=-1), job("b", priority=1), "d")
    assert names(worker.claim(4, starting=starting)) == ["b", "c", "d", "a"]
    assert begun(store) == sorted(["b", "c", "d", "a"][:starting])


@pytest.mark.parametrize("starting", [0, 1, 2, 3, 4])
def test_the_first_ones_start_over_many_entries(store: Store, worker: Worker, starting: int):
    """What starts is counted along the queue list, not for each of its entries."""
    insert(store, job("a", queue="z"), job("b", queue="y"), job("c", queue="x"), job("d", queue="z", priority=1))
    assert names(worker.claim(4, queues="z,y,*", starting=starting)) == ["d", "a", "b", "c"]
    assert begun(store) == sorted(["d", "a", "b", "c"][:starting])


def test_starting_ends_at_the_limit(store: Store, worker: Worker):
    """What is not claimed does not start."""
    insert(store, "a", "b")
    worker.claim(1, starting=5)
    assert begun(store) == ["a"]


def test_started_at_is_the_moment_of_the_exchange(store: Store, worker: Worker, clock: ManualClock):
    """A job that starts with its claim began at the store's now."""
    insert(store, "a")
    clock.advance(3)
    worker.claim(starting=1)
    assert look(store, "a").started_at == now(clock)


def test_a_later_start_is_told_later(store: Store, worker: Worker, clock: ManualClock):
    """A job claimed ahead is marked once its worker says that it began."""
    insert(store, "a", "b")
    a, _b = worker.claim()
    clock.advance(1)
    worker.exchange(started=[a.token])
    assert look(store, "a").started_at == now(clock)
    assert begun(store) == ["a"]


def test_a_start_is_told_once(store: Store, worker: Worker, clock: ManualClock):
    """Telling it again does not change when a job began."""
    insert(store, "a")
    claim = worker.claim_one(starting=1)
    began = now(clock)
    clock.advance(1)
    worker.exchange(started=[claim.token])
    assert look(store, "a").started_at == began


@pytest.mark.parametrize("field", ["process", "nonce", "epoch"])
def test_only_the_owner_can_tell_a_start(store: Store, worker: Worker, field: str):
    """A token that is not the claim's starts nothing."""
    insert(store, "a")
    token = worker.claim_one().token
    wrong: dict[str, Any] = {"process": b"somebody else 16", "nonce": new_nonce(), "epoch": token.epoch + 1}
    before = everything(store)
    assert worker.exchange(started=[token._replace(**{field: wrong[field]})]).refused == []
    assert everything(store) == before


def test_a_start_of_what_has_ended_is_nothing(store: Store, worker: Worker):
    """An exchange may say of a job that it started and that it ended; the ending counts."""
    insert(store, "a", "b")
    a, b = worker.claim()
    assert worker.exchange(released(a), succeeded(b, duration=None), started=[a.token, b.token]).refused == []
    assert begun(store) == []


def test_a_job_put_back_has_not_started(store: Store, worker: Worker):
    """The next claim of a job that once started begins without a start."""
    insert(store, "a")
    worker.finish(released(worker.claim_one(starting=1)))
    assert begun(store) == []
    worker.claim_one()
    assert begun(store) == []
