"""`insert`: all or none, and as often as you like."""

import pytest

from packhorse.clock import SECOND, ManualClock
from packhorse.errors import StoreDataError
from packhorse.job import JobState, StoredJob
from packhorse.stores import Store
from packhorse.stores.contract import Act, Selection
from packhorse.testing.contract.helpers import (
    Worker,
    everything,
    failed,
    id_of,
    insert,
    job,
    look,
    move,
    name_of,
    names,
    now,
    released,
    state,
    states,
    succeeded,
)


def test_a_job_is_ready_at_once(store: Store, clock: ManualClock):
    """A job that asks for nothing special stands ready, and shows what it was given."""
    new = job("a", queue="mail", priority=7, tags=("x", "y"))
    assert store.insert([new]) == [id_of("a")]
    found = look(store, "a")
    assert found == StoredJob(
        id=found.id,
        task="birds.count",
        state=JobState.READY,
        queue="mail",
        priority=7,
        attempts=0,
        losses=0,
        created_at=now(clock),
        tags=("x", "y"),
        payload=b"payload of a",
    )


def test_nothing_to_insert(store: Store):
    """An empty batch is a batch."""
    assert store.insert([]) == []
    assert states(store) == {}


def test_answers_keep_the_order_of_the_batch(store: Store):
    """The n-th answer stands for the n-th job."""
    assert names(insert(store, "c", "a", "b")) == ["c", "a", "b"]


@pytest.mark.parametrize("size", [1, 3, 4, 5, 16, 63, 64, 65, 257, 1_000])
def test_batches_of_any_size(store: Store, worker: Worker, size: int):
    """All jobs of a batch are there with their own payload and tags, however many there are."""
    wanted = [f"{number:04}" for number in range(size)]
    store.insert([job(name, tags=(f"tag {name}",)) for name in wanted])
    assert names(store.jobs(Selection(), limit=2_000)) == wanted
    assert names(store.jobs(Selection(tags=["tag 0000"]))) == ["0000"]
    assert [claim.payload for claim in worker.claim(2_000)] == [f"payload of {name}".encode() for name in wanted]


def test_a_delay_counts_from_the_stores_clock(store: Store, clock: ManualClock):
    """A delayed job is scheduled for the store's now plus the delay."""
    insert(store, job("a", delay=5 * SECOND))
    assert state(store, "a") is JobState.SCHEDULED
    assert look(store, "a").run_at == now(clock, plus=5)


def test_a_run_time_is_kept_as_given(store: Store, clock: ManualClock):
    """A job for a later moment is scheduled for exactly that moment."""
    insert(store, job("a", run_at=clock.now() + 60 * SECOND))
    assert state(store, "a") is JobState.SCHEDULED
    assert look(store, "a").run_at == now(clock, plus=60)


@pytest.mark.parametrize("when", [{"delay": 0}, {"delay": -SECOND}, {"run_at": 5}], ids=str)
def test_a_moment_that_is_not_ahead_is_now(store: Store, worker: Worker, when: dict):
    """A run time in the past makes no one wait, and gives no place ahead of those already there."""
    insert(store, "b")
    insert(store, job("c", **when))
    assert names(worker.claim()) == ["b", "c"]


def test_a_run_time_of_this_very_moment_is_now(store: Store, clock: ManualClock):
    """A job is due when its moment has come, not after it."""
    insert(store, job("a", run_at=clock.now()))
    assert state(store, "a") is JobState.READY


def test_a_lifetime_counts_from_the_stores_clock(store: Store, worker: Worker, clock: ManualClock):
    """Expiry comes with the claim, in the store's time; a store drops nothing by itself."""
    insert(store, job("a", lifetime=5 * SECOND), job("b", expires_at=12_345), job("c"))
    assert look(store, "a").expires_at == now(clock, plus=5)
    assert [claim.expires_at for claim in worker.claim()] == [clock.now() + 5 * SECOND, 12_345, None]


def test_an_insert_may_be_repeated(store: Store, clock: ManualClock):
    """Whoever does not know whether an insert arrived sends it again, and nothing changes."""
    batch = [job("a", tags=("x",)), job("b", delay=SECOND)]
    first = store.insert(batch)
    before = everything(store)
    clock.advance(0)
    assert store.insert(batch) == first
    assert everything(store) == before


def test_a_known_id_is_left_as_it_is(store: Store, clock: ManualClock):
    """The job that stands under an id stays, whatever the second insert says."""
    insert(store, job("a", queue="mail", tags=("x",)))
    before = everything(store)
    clock.step(9)
    insert(store, job("a", queue="other", priority=9, task="else", payload=b"else", tags=("y", "z"), delay=SECOND))
    assert everything(store) == before
    assert store.jobs(Selection(tags=["y"])) == []


def test_a_known_id_is_left_wherever_it_stands(store: Store, worker: Worker):
    """A repeated insert does not bring back a job that runs or has finished."""
    insert(store, "a", "b", "c")
    a, b, _c = worker.claim()
    worker.finish(succeeded(a, b"42"), failed(b))
    before = everything(store)
    insert(store, "a", "b", "c")
    assert everything(store) == before


def test_known_and_new_ids_in_one_batch(store: Store, worker: Worker):
    """The new ones are written, the known ones left, and all are answered."""
    insert(store, job("b", queue="old"), job("d", queue="old"))
    mixed = [job(name, queue="new", tags=(name,)) for name in "abcde"]
    assert names(store.insert(mixed)) == ["a", "b", "c", "d", "e"]
    assert {name_of(one.id): one.queue for one in store.jobs(Selection())} == {
        "a": "new",
        "b": "old",
        "c": "new",
        "d": "old",
        "e": "new",
    }
    assert names(store.jobs(Selection(tags=["a", "b", "e"]))) == ["a", "e"]
    assert names(worker.claim()) == ["a", "b", "c", "d", "e"]


def test_the_same_id_twice_in_one_batch(store: Store, worker: Worker):
    """The first of them is the job; the second is a repetition."""
    batch = [job("b"), job("a", payload=b"first"), job("a", payload=b"second", priority=5), job("c"), job("b")]
    assert names(store.insert(batch)) == ["b", "a", "a", "c", "b"]
    assert [(claim.payload, claim.priority) for claim in worker.claim()] == [
        (b"first", 0),
        (b"payload of b", 0),
        (b"payload of c", 0),
    ]


def test_duplicates_and_known_ids_in_one_large_batch(store: Store):
    """Neither the size of a batch nor where the repetitions stand in it makes a difference."""
    insert(store, *(f"{number:04}" for number in range(0, 600, 7)))
    wanted = [f"{number:04}" for number in range(600)]
    assert names(insert(store, *wanted, *wanted)) == wanted + wanted
    assert names(store.jobs(Selection(), limit=2_000)) == wanted


@pytest.mark.parametrize(
    "bad",
    [
        {"task": "lone surrogate \ud800"},
        {"queue": "\ud800"},
        {"delay": "soon"},
        {"run_at": 1 << 70},
        {"tags": ("\ud800",)},
    ],
    ids=str,
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_all_or_none(store: Store, bad: dict, place: int):
    """Where a store cannot take one job of a batch, it takes none of them."""
    batch = [job("a"), job("b")]
    batch.insert(place, job("bad", **bad))
    try:
        store.insert(batch)
    except (StoreDataError, TypeError):
        assert store.queues() == []
        assert [store.job(new.id) for new in batch] == [None, None, None]
    else:
        assert sum(queue.of(state) for queue in store.queues() for state in JobState) == 3


def test_what_is_not_taken_leaves_no_trace(store: Store):
    """After a refused batch the same ids can be inserted properly."""
    try:
        insert(store, "a", job("b", delay="soon"))
    except (StoreDataError, TypeError):
        pass
    insert(store, "a", "b")
    assert states(store) == {"a": JobState.READY, "b": JobState.READY}


def test_a_discarded_id_may_come_again(store: Store, worker: Worker):
    """A job that was deleted is unknown, so its id is new."""
    insert(store, job("a", tags=("old",)))
    worker.finish(released(worker.claim_one()))
    move(store, Act.DISCARD, "a")
    insert(store, job("a", payload=b"again", tags=("new",)))
    assert look(store, "a").payload == b"again"
    assert store.jobs(Selection(tags=["old"])) == []
