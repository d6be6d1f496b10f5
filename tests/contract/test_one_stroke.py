"""A stroke that fails half-way has not happened; one that fails behind its commit has, as a whole."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from packhorse import failpoints
from packhorse.clock import SECOND, ManualClock
from packhorse.errors import StoreDataError
from packhorse.job import JobState
from packhorse.outcome import Outcome
from packhorse.stores import Store
from packhorse.stores.contract import Act, Change, Entry, ProcessInfo, Retention, Selection
from tests.contract.helpers import (
    LEASE,
    Worker,
    everything,
    failed,
    id_of,
    insert,
    job,
    new_nonce,
    retried,
    succeeded,
)
from tests.contract.stores import KINDS

Stroke = Callable[[Store, Worker], object]

STROKES: dict[str, Stroke] = {
    "insert": lambda store, worker: insert(store, job("x", tags=("x",)), job("y")),
    "exchange": lambda store, worker: worker.exchange(*endings(store, worker), limit=2),
    "beat": lambda store, worker: worker.beat(),
    "record": lambda store, worker: store.record(store.held(worker.id)[0], [Entry("step", "x", b"1")]),
    "promote": lambda store, worker: store.promote(10),
    "adopt": lambda store, worker: store.adopt(id_of("heir"), new_nonce(), 10, dead=[worker.id]),
    "prune": lambda store, worker: store.prune(Retention(0, 0, 0), 10),
    "move": lambda store, worker: store.move(Selection(), Change(Act.CANCEL), "ann", ""),
    "pause": lambda store, worker: store.pause("default", None, "ann", ""),
    "enroll": lambda store, worker: store.enroll(ProcessInfo(id_of("new"), "worker", "here", 1), LEASE),
    "leave": lambda store, worker: store.leave(worker.id),
}


that_commit = pytest.mark.parametrize("new_store", [kind for kind in KINDS if kind != "memory"], indirect=True)


def places(*kinds: str) -> list[str]:
    """The failpoints of all strokes that lie there."""
    return [f"{stroke}.{kind}" for stroke in STROKES for kind in kinds if f"{stroke}.{kind}" in failpoints.POINTS]


def endings(store: Store, worker: Worker) -> list[Outcome]:
    a, b, c = store.held(worker.id)
    return [succeeded(a, b"42"), failed(b), retried(c)]


@contextmanager
def failing_at(point: str) -> Iterator[None]:
    """The place raises once it is reached, as it must be."""
    failpoints.arm(f"{point}=raise")
    try:
        yield
    except failpoints.FailpointError:
        return
    finally:
        failpoints.arm("")
    pytest.fail(f"the store did not pass {point}")


@pytest.fixture
def busy(store: Store, worker: Worker, clock: ManualClock) -> Store:
    """Something for every stroke to do."""
    store.enroll(ProcessInfo(id_of("heir"), "dispatcher", "here", 1), 10 * LEASE)
    insert(store, *"abcdefg", job("later", delay=SECOND))
    worker.finish(succeeded(worker.claim_one(), b"1"))
    worker.claim(3)
    clock.advance(2)
    return store


@that_commit
@pytest.mark.parametrize("point", places("before_write", "between", "before_commit"))
def test_a_stroke_that_fails_has_not_happened(busy: Store, worker: Worker, point: str):
    """Whatever goes wrong before the commit, nothing of the stroke is there, and it can be done again."""
    stroke = point.partition(".")[0]
    before = everything(busy)
    with failing_at(point):
        STROKES[stroke](busy, worker)
    assert everything(busy) == before
    STROKES[stroke](busy, worker)
    assert everything(busy) != before


@that_commit
@pytest.mark.parametrize("point", places("after_commit"))
def test_a_stroke_whose_answer_is_lost_has_happened(busy: Store, worker: Worker, point: str):
    """What goes wrong behind the commit takes nothing back."""
    stroke = point.partition(".")[0]
    before = everything(busy)
    with failing_at(point):
        STROKES[stroke](busy, worker)
    assert everything(busy) != before


@pytest.mark.parametrize("bad", [{"reason": "\ud800"}, {"result_error": "\ud800"}, {"duration": 1 << 70}], ids=str)
def test_an_outcome_the_store_cannot_take_spoils_the_whole_exchange(busy: Store, worker: Worker, bad: dict):
    """Nothing of the batch is written and nothing is claimed, so that it can be offered again in halves."""
    first, second, third = busy.held(worker.id)
    before = everything(busy)
    batch = [succeeded(first), Outcome(second, JobState.CANCELLED)._replace(**bad), retried(third)]
    try:
        worker.exchange(*batch, limit=2)
    except StoreDataError:
        assert everything(busy) == before
        assert worker.finish(batch[0], batch[2]) == []
    else:
        assert busy.held(worker.id) != [first, second, third]
