"""A stroke that fails half-way has not happened; one that fails behind its commit has, as a whole."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from packhorse import failpoints
from packhorse.clock import SECOND
from packhorse.outcome import Outcome
from packhorse.stores import Store
from packhorse.stores.contract import Act, Change, Entry, ProcessInfo, Retention, Selection
from packhorse.testing.contract.helpers import (
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
from packhorse.testing.contract.test_one_stroke import busy
from tests.contract.stores import KINDS

__all__ = ["busy"]

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
    "reseal": lambda store, worker: store.reseal(id_of("over"), b"again", "ann", ""),
    "pause": lambda store, worker: store.pause("default", None, "ann", ""),
    "resume": lambda store, worker: store.resume("asleep", "ann", ""),
    "signal": lambda store, worker: store.signal("go", b"1", SECOND),
    "enroll": lambda store, worker: store.enroll(ProcessInfo(id_of("new"), "worker", "here", 1), LEASE),
    "leave": lambda store, worker: store.leave(worker.id),
}
PASSES = {"reseal": "move", "resume": "pause"}  # strokes that pass the places of another

that_commit = pytest.mark.parametrize("new_store", [kind for kind in KINDS if kind != "memory"], indirect=True)


def places(*kinds: str) -> list[tuple[str, str]]:
    """Each stroke with each of its failpoints that lies there."""
    points = [(stroke, f"{PASSES.get(stroke, stroke)}.{kind}") for stroke in STROKES for kind in kinds]
    return [(stroke, point) for stroke, point in points if point in failpoints.POINTS]


def endings(store: Store, worker: Worker) -> list[Outcome]:
    a, b, c, d = store.held(worker.id)
    return [
        succeeded(a, b"42")._replace(keep=60 * SECOND, result_ttl=SECOND),
        failed(b),
        retried(c),
        succeeded(d)._replace(keep=0),
    ]


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


@that_commit
@pytest.mark.parametrize(("stroke", "point"), places("before_write", "between", "before_commit"))
def test_a_stroke_that_fails_has_not_happened(busy: Store, worker: Worker, stroke: str, point: str):
    """Whatever goes wrong before the commit, nothing of the stroke is there, and it can be done again."""
    before = everything(busy)
    with failing_at(point):
        STROKES[stroke](busy, worker)
    assert everything(busy) == before
    STROKES[stroke](busy, worker)
    assert everything(busy) != before


@that_commit
@pytest.mark.parametrize(("stroke", "point"), places("after_commit"))
def test_a_stroke_whose_answer_is_lost_has_happened(busy: Store, worker: Worker, stroke: str, point: str):
    """What goes wrong behind the commit takes nothing back."""
    before = everything(busy)
    with failing_at(point):
        STROKES[stroke](busy, worker)
    assert everything(busy) != before
