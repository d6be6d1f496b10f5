"""`promote`: due jobs become ready."""

from packhorse.clock import SECOND, ManualClock
from packhorse.job import JobState
from packhorse.stores import Store
from packhorse.stores.contract import Promoted
from packhorse.testing.contract.helpers import Worker, everything, insert, job, names, state, states


def test_nothing_scheduled(store: Store):
    """Where nothing is scheduled nothing is due."""
    insert(store, "a")
    assert store.promote(10) == Promoted(0, None)


def test_nothing_due(store: Store, clock: ManualClock):
    """It says when the next job is due, and changes nothing."""
    insert(store, job("a", delay=5 * SECOND), job("b", delay=2 * SECOND))
    clock.advance(0.5)
    before = everything(store)
    assert store.promote(10) == Promoted(0, 1_500_000)
    assert everything(store) == before


def test_due_jobs_become_ready(store: Store, clock: ManualClock):
    """All that are due become ready, the one due at this very moment too, and the others stay."""
    insert(store, *(job(name, delay=seconds * SECOND) for name, seconds in {"a": 3, "b": 1, "c": 4, "d": 2}.items()))
    clock.advance(3)
    assert store.promote(10) == Promoted(3, SECOND)
    assert states(store) == {
        "a": JobState.READY,
        "b": JobState.READY,
        "c": JobState.SCHEDULED,
        "d": JobState.READY,
    }
    assert store.promote(10) == Promoted(0, SECOND)


def test_the_limit_takes_the_earliest(store: Store, clock: ManualClock):
    """With more due than asked for, those due first become ready, and the next is due at once."""
    insert(store, *(job(name, delay=seconds * SECOND) for name, seconds in {"a": 3, "b": 1, "c": 4, "d": 2}.items()))
    clock.advance(10)
    assert store.promote(1) == Promoted(1, 0)
    assert state(store, "b") is JobState.READY
    assert store.promote(2) == Promoted(2, 0)
    assert state(store, "c") is JobState.SCHEDULED
    assert store.promote(2) == Promoted(1, None)


def test_promoting_nothing(store: Store, clock: ManualClock):
    """Promoting nothing changes nothing, and still says that something is due."""
    insert(store, job("a", delay=SECOND), job("b", delay=9 * SECOND))
    assert store.promote(0) == Promoted(0, SECOND)
    clock.advance(5)
    before = everything(store)
    assert store.promote(0) == Promoted(0, 0)
    assert everything(store) == before


def test_the_id_decides_among_those_of_one_moment(store: Store, clock: ManualClock):
    """Jobs due at the same moment are promoted in the order of their ids, exactly as many as asked for."""
    insert(store, *(job(name, delay=SECOND) for name in "dbca"))
    clock.advance(1)
    assert store.promote(2) == Promoted(2, 0)
    assert [state(store, name) for name in "abcd"] == [JobState.READY] * 2 + [JobState.SCHEDULED] * 2


def test_promoted_jobs_stand_at_their_due_moment(store: Store, worker: Worker, clock: ManualClock):
    """However late they are promoted, their place is the moment they were due."""
    insert(store, job("b", delay=2 * SECOND), job("a", delay=4 * SECOND))
    clock.advance(3)
    insert(store, "x")
    clock.advance(3)
    insert(store, "0")
    store.promote(10)
    assert names(worker.claim()) == ["b", "x", "a", "0"]


def test_a_job_that_is_due_is_not_claimed_before_it_is_promoted(store: Store, worker: Worker, clock: ManualClock):
    """A job stands in one place: scheduled until somebody promotes it."""
    insert(store, job("a", delay=SECOND))
    clock.advance(5)
    assert worker.claim() == []
    store.promote(1)
    assert names(worker.claim()) == ["a"]


def test_wall_time_decides(store: Store, clock: ManualClock):
    """Run times are wall times: setting the clock makes a job due, or not due any more."""
    insert(store, job("a", delay=60 * SECOND))
    clock.step(-30)
    assert store.promote(10) == Promoted(0, 90 * SECOND)
    clock.step(90)
    assert store.promote(10) == Promoted(1, None)


def test_promoting_does_not_depend_on_pauses(store: Store, worker: Worker, clock: ManualClock):
    """A due job of a paused queue is ready and waits there."""
    insert(store, job("a", delay=SECOND))
    store.pause("default", None, "ann", "")
    clock.advance(1)
    assert store.promote(10).jobs == 1
    assert worker.claim() == []


def test_many_due_jobs(store: Store, clock: ManualClock):
    """Batch after batch, every job becomes ready once."""
    insert(store, *(job(f"{number:04}", delay=SECOND + number % 3) for number in range(500)))
    clock.advance(2)
    assert [store.promote(200).jobs for _ in range(4)] == [200, 200, 100, 0]
