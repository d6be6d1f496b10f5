"""What an operator asks of the owner of a running job, told with the beat."""

import pytest

from packhorse.clock import SECOND, ManualClock
from packhorse.job import JobState
from packhorse.stores import Store
from packhorse.stores.contract import Act, Beaten, Change, Order, OrderKind, Selection
from packhorse.testing.contract.behind import leftovers
from packhorse.testing.contract.helpers import (
    Worker,
    cancelled,
    id_of,
    insert,
    look,
    move,
    names,
    new_nonce,
    released,
    retried,
    state,
    succeeded,
)


def test_the_owner_is_asked(store: Store, worker: Worker, other: Worker):
    """The owner of a running job hears with its next beat what is asked, and nobody else does."""
    insert(store, "a")
    claim = worker.claim_one()
    assert move(store, Act.CANCEL, "a") == (0, 1, None)
    assert other.beat() == Beaten([], [])
    assert worker.beat() == Beaten([], [Order(OrderKind.CANCEL, claim.token, "because", b"")])


def test_an_order_is_repeated(store: Store, worker: Worker, clock: ManualClock):
    """It is told at every beat until the job has moved on, for a beat may be lost."""
    insert(store, "a")
    claim = worker.claim_one()
    move(store, Act.CANCEL, "a")
    for _ in range(3):
        clock.advance(5)
        assert [order.token for order in worker.beat().orders] == [claim.token]
    worker.finish(cancelled(claim))
    assert worker.beat().orders == []


def test_asking_is_not_taking(store: Store, worker: Worker):
    """Until the owner answers, the job runs under its token; it may even succeed."""
    insert(store, "a")
    claim = worker.claim_one()
    move(store, Act.CANCEL, "a")
    assert (state(store, "a"), worker.holds) == (JobState.RUNNING, ["a"])
    assert worker.finish(succeeded(claim)) == []
    assert state(store, "a") is JobState.SUCCEEDED


def test_one_beat_brings_the_orders_of_all(store: Store, worker: Worker, other: Worker):
    """Whoever beats for many hears the orders of each, sorted by their tokens."""
    insert(store, *"abcd")
    tokens = sorted(claim.token for claim in [*worker.claim(2), *other.claim(2)])
    move(store, Act.CANCEL, *"abcd")
    assert [order.token for order in store.beat([worker.id, other.id]).orders] == tokens


def test_an_order_without_a_reason_says_something(store: Store, worker: Worker):
    """An order always carries a reason."""
    insert(store, "a")
    worker.claim_one()
    store.move(Selection(), Change(Act.CANCEL), "ann", "")
    assert [order.reason for order in worker.beat().orders] == ["cancelled"]


def test_the_last_reason_counts(store: Store, worker: Worker):
    """Asking twice is one order, with the reason and the seal of the second."""
    insert(store, "a")
    worker.claim_one()
    for reason, seal in (("first", b"sealed"), ("second", b"sealed anew"), ("third", b"")):
        store.move(Selection(ids=[id_of("a")]), Change(Act.CANCEL, seal=seal), "ann", reason)
        assert [(order.reason, order.seal) for order in worker.beat().orders] == [(reason, seal)]


def test_the_owner_sees_the_seal(store: Store, worker: Worker):
    """Byte for byte, with the order of each job that was asked for in one act, and at every beat."""
    insert(store, "a", "b")
    worker.claim()
    seal = bytes(range(256))
    store.move(Selection(), Change(Act.CANCEL, seal=seal), "ann", "")
    for _ in range(2):
        assert [order.seal for order in worker.beat().orders] == [seal, seal]


def test_a_seal_ends_with_its_order(store: Store, worker: Worker):
    """A job that was retried and is asked for again, by somebody without a seal, has none."""
    insert(store, "a")
    worker.claim_one()
    store.move(Selection(), Change(Act.CANCEL, seal=b"sealed"), "ann", "")
    store.leave(worker.id)
    assert leftovers(store) == []
    worker.enroll()
    move(store, Act.RETRY, "a")
    worker.claim_one()
    assert worker.beat().orders == []
    move(store, Act.CANCEL, "a")
    assert [order.seal for order in worker.beat().orders] == [b""]


@pytest.mark.parametrize("delay", [None, 0, SECOND])
def test_an_order_outlives_its_claim(store: Store, worker: Worker, delay: int | None):
    """A job whose end was asked for does not come back, by a release, a retry or a snooze."""
    insert(store, "a")
    claim = worker.claim_one()
    move(store, Act.CANCEL, "a")
    worker.finish(released(claim) if delay is None else retried(claim, delay))
    assert state(store, "a") is JobState.CANCELLED
    assert look(store, "a").reason == "because"
    assert worker.beat().orders == []
    assert names(worker.claim()) == []


def test_a_job_that_ends_by_itself_needs_no_order(store: Store, worker: Worker):
    """Its own ending stands."""
    insert(store, "a")
    claim = worker.claim_one()
    move(store, Act.CANCEL, "a")
    worker.finish(succeeded(claim))
    assert state(store, "a") is JobState.SUCCEEDED


def test_an_order_goes_with_an_adopted_job(store: Store, worker: Worker, other: Worker):
    """Whoever takes a running job over hears what was asked of its owner."""
    insert(store, "a")
    worker.claim_one()
    store.move(Selection(), Change(Act.CANCEL, seal=b"sealed"), "ann", "because")
    [orphan] = store.adopt(other.id, new_nonce(), 10, dead=[worker.id])
    assert other.beat().orders == [Order(OrderKind.CANCEL, orphan.claim.token, "because", b"sealed")]
    other.finish(cancelled(orphan.claim))
    assert names(other.claim()) == []
