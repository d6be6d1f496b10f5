"""`enroll` and `leave`: a process begins and signs off."""

from packhorse.clock import ManualClock
from packhorse.job import JobState
from packhorse.stores import Store
from packhorse.stores.contract import Act
from packhorse.testing.contract.helpers import (
    Worker,
    id_of,
    insert,
    look,
    move,
    name_of,
    names,
    now,
    retried,
    state,
    succeeded,
)


def test_what_it_holds_goes_back(store: Store, worker: Worker, clock: ManualClock):
    """Jobs of a process that leaves are ready again, in place and unspent."""
    insert(store, "b", "c")
    worker.claim(starting=1)
    clock.advance(1)
    insert(store, "a")
    store.leave(worker.id)
    assert store.held(worker.id) == []
    found = look(store, "b")
    assert (found.state, found.attempts, found.losses, found.failures) == (JobState.READY, 0, 0, ())
    assert (found.claimed_at, found.started_at, found.process) == (None, None, None)
    assert names(Worker(store, "next").claim()) == ["b", "c", "a"]


def test_it_is_no_longer_a_member(store: Store, worker: Worker, other: Worker):
    """Whoever left is not listed, has no lease, and nobody else is touched."""
    insert(store, "a")
    other.claim_one()
    store.leave(worker.id)
    assert [name_of(view.id) for view in store.processes()] == ["other"]
    assert worker.beat() == [worker.id]
    assert other.holds == ["a"]


def test_what_it_finished_stays(store: Store, worker: Worker):
    """A clean stop takes nothing back."""
    insert(store, "a", "b")
    a, b = worker.claim()
    worker.finish(succeeded(a), retried(b))
    store.leave(worker.id)
    assert (state(store, "a"), state(store, "b")) == (JobState.SUCCEEDED, JobState.READY)
    assert name_of(look(store, "a").process or "") == "worker"


def test_leaving_twice(store: Store, worker: Worker):
    """Signing off again, or without ever having enrolled, does nothing."""
    store.leave(worker.id)
    store.leave(worker.id)
    store.leave(id_of("nobody"))
    assert store.processes() == []


def test_orders_are_heeded_on_leaving(store: Store, worker: Worker, other: Worker):
    """A job whose end was asked for is not put back."""
    insert(store, "a")
    worker.claim_one()
    move(store, Act.CANCEL, "a")
    store.leave(worker.id)
    assert state(store, "a") is JobState.CANCELLED
    assert other.claim() == []


def test_the_dead_can_leave(store: Store, worker: Worker, clock: ManualClock):
    """A late process that signs off gives back what it still held."""
    insert(store, "a")
    worker.claim_one()
    clock.advance(100)
    store.leave(worker.id)
    assert state(store, "a") is JobState.READY


def test_enrolling_again_begins_anew(store: Store, worker: Worker, clock: ManualClock):
    """The second enrolment replaces the first and keeps what the process holds."""
    insert(store, "a")
    worker.claim_one()
    clock.advance(20)
    worker.info = worker.info._replace(role="dispatcher")
    worker.enroll()
    [view] = store.processes()
    assert (view.role, view.started_at, view.lease_left, view.running) == ("dispatcher", now(clock), 30, 1)
