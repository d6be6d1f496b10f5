"""What is over is over when somebody looks, whenever it is pruned."""

from collections.abc import Callable

import pytest

from packhorse.clock import SECOND, ManualClock
from packhorse.job import Claim, JobState
from packhorse.limits import UniqueConflict
from packhorse.outcome import Awaits, Outcome
from packhorse.stores import Store
from packhorse.stores.contract import RESULT_PRUNED, SIGNAL, Act, Entry, Retention, Selection
from packhorse.testing.contract.helpers import (
    Worker,
    cancelled,
    failed,
    id_of,
    insert,
    job,
    look,
    move,
    name_of,
    sole,
    state,
    states,
    succeeded,
)

HOUR = 3_600 * SECOND
FLOW = b"flow".ljust(16, b"\0")
NOTHING_KEPT = Retention(0, 0, 0)
ALL_KEPT = Retention(None, None, None)

each_ending = pytest.mark.parametrize("ending", [succeeded, failed, cancelled])
each_conflict = pytest.mark.parametrize("conflict", UniqueConflict)


def awaiting(claim: Claim, signal: str = "go") -> Outcome:
    return Outcome(claim.token, JobState.SCHEDULED, spent=False, delay=HOUR, awaits=Awaits(signal, 0))


# Signals.


@pytest.mark.parametrize("keep", [0, SECOND])
def test_a_signal_whose_time_is_over_reaches_nobody(store: Store, worker: Worker, clock: ManualClock, keep: int):
    """Who comes to await it later waits for the next one, as if it had been pruned."""
    insert(store, "a")
    store.signal("go", b"1", keep)
    clock.advance(keep / SECOND)
    assert store.signals("go") == []
    worker.finish(awaiting(worker.claim_one()))
    assert (state(store, "a"), look(store, "a").awaits) == (JobState.SCHEDULED, "go")
    assert store.entries(id_of("a")) == []
    assert store.signal("go", b"2", HOUR) == 1
    assert [entry.data for entry in store.entries(id_of("a"))] == [b"2"]


def test_a_signal_is_there_until_its_time_is_over(store: Store, worker: Worker, clock: ManualClock):
    """To the last microsecond, and one that is over does not hide the next."""
    insert(store, "a")
    store.signal("go", b"1", 0)
    store.signal("go", b"2", SECOND)
    clock.advance(0.999_999)
    [signal] = store.signals("go")
    assert (signal.data, store.signals("go", limit=1)) == (b"2", [signal])
    worker.finish(awaiting(worker.claim_one()))
    assert state(store, "a") is JobState.READY
    assert [(entry.kind, entry.data) for entry in store.entries(id_of("a"))] == [(SIGNAL, b"2")]


def test_a_signal_that_is_not_kept_reaches_those_who_wait_for_it(store: Store, worker: Worker):
    """Its time begins when it is sent, and they are there."""
    insert(store, "a")
    worker.finish(awaiting(worker.claim_one()))
    assert store.signal("go", b"1", 0) == 1
    assert [entry.data for entry in store.entries(id_of("a"))] == [b"1"]


# Unique keys.


def pruned(store: Store, worker: Worker, clock: ManualClock) -> None:
    worker.finish(succeeded(worker.claim_one()))
    assert store.prune(NOTHING_KEPT, 10) == 1


def discarded(store: Store, worker: Worker, clock: ManualClock) -> None:
    assert move(store, Act.DISCARD, "a").jobs == 1


def not_kept(store: Store, worker: Worker, clock: ManualClock) -> None:
    worker.finish(succeeded(worker.claim_one())._replace(keep=0))


def kept_no_longer(store: Store, worker: Worker, clock: ManualClock) -> None:
    """Nobody has pruned it yet."""
    worker.finish(succeeded(worker.claim_one())._replace(keep=SECOND))
    clock.advance(1)
    assert list(states(store)) == ["a"]


@each_conflict
@pytest.mark.parametrize("goes", [pruned, discarded, not_kept, kept_no_longer])
def test_a_key_whose_job_is_gone_is_free(
    store: Store, worker: Worker, clock: ManualClock, goes: Callable[..., None], conflict: UniqueConflict
):
    """However long it was to be held: whoever gets a handle gets one of a job that is there."""
    insert(store, sole("a", lasting=HOUR))
    goes(store, worker, clock)
    assert store.job(id_of("a")) is None
    for name in "bc":
        [id] = store.insert([sole(name, lasting=HOUR, conflict=conflict)])
        assert store.job(id) is not None
        if name == "b":
            assert name_of(id) == "b"
    assert state(store, "b") in (JobState.READY, JobState.CANCELLED)


def test_a_key_is_held_as_long_as_its_job_is_there(store: Store, worker: Worker, clock: ManualClock):
    """One that has finished and is kept stands for those that come until the time of the key is over."""
    insert(store, sole("a", lasting=2 * SECOND))
    worker.finish(succeeded(worker.claim_one())._replace(keep=HOUR))
    clock.advance(1.999_999)
    assert [name_of(id) for id in store.insert([sole("b", lasting=SECOND)])] == ["a"]
    clock.advance(0.000_001)
    assert [name_of(id) for id in store.insert([sole("c", lasting=SECOND)])] == ["c"]


def test_jobs_of_one_key_in_one_insert(store: Store, worker: Worker):
    """The first takes the key of one that is gone, and stands for the others before it is written."""
    insert(store, sole("a", lasting=HOUR))
    worker.finish(succeeded(worker.claim_one())._replace(keep=0))
    ids = store.insert([sole(name, lasting=HOUR) for name in "bcd"])
    assert [name_of(id) for id in ids] == ["b", "b", "b"]
    assert list(states(store)) == ["b"]


# Results, and jobs that are kept no longer.


@each_ending
def test_a_result_whose_time_is_over_is_not_read(
    store: Store, worker: Worker, clock: ManualClock, ending: Callable[[Claim], Outcome]
):
    """Neither of the job nor among those of its flow, which say why."""
    insert(store, job("a", member=(FLOW, 0)))
    worker.finish(ending(worker.claim_one())._replace(result=b"42", result_ttl=SECOND))
    clock.advance(0.999_999)
    assert look(store, "a").result == b"42"
    clock.advance(0.000_001)
    [(_, member)] = store.members(FLOW)
    [listed] = store.jobs(Selection())
    for found in (look(store, "a"), member):
        assert (found.result, found.result_error) == (None, RESULT_PRUNED)
    assert listed.result_error == RESULT_PRUNED
    assert look(store, "a").state is ending(worker_token(store)).state


def worker_token(store: Store) -> Claim:
    """Something to make an outcome of."""
    insert(store, "z")
    return Worker(store, "beside").claim_one()


@each_ending
def test_a_job_that_is_kept_no_longer_is_not_found(
    store: Store, worker: Worker, clock: ManualClock, ending: Callable[[Claim], Outcome]
):
    """Who looks at it, at its entries or at its flow finds nothing, as if it had been pruned; pages still count it."""
    insert(store, job("a", member=(FLOW, 0)), job("b", member=(FLOW, 1)))
    a, b = worker.claim()
    store.record(a.token, [Entry("step", "x", b"1")])
    worker.finish(ending(a)._replace(keep=SECOND), ending(b))
    clock.advance(0.999_999)
    assert store.job(id_of("a")) is not None
    clock.advance(0.000_001)
    assert store.job(id_of("a")) is None
    assert store.entries(id_of("a")) == []
    assert [name_of(one.id) for _, one in store.members(FLOW, limit=1)] == ["b"]
    assert store.finished(a.token)
    assert store.wait_jobs([id_of("a")], 0) == {id_of("a")}
    assert list(states(store)) == ["a", "b"]
    assert store.prune(ALL_KEPT, 10) == 1
    assert list(states(store)) == ["b"]


@pytest.mark.parametrize("ending", [failed, cancelled])
def test_a_retry_brings_back_what_was_kept_no_longer(
    store: Store, worker: Worker, clock: ManualClock, ending: Callable[[Claim], Outcome]
):
    """Operators act on what their pages show, until it is pruned."""
    insert(store, "a")
    worker.finish(ending(worker.claim_one())._replace(keep=SECOND))
    clock.advance(5)
    assert move(store, Act.RETRY, "a").jobs == 1
    assert state(store, "a") is JobState.READY
    assert store.prune(NOTHING_KEPT, 10) == 0
