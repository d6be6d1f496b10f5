"""`reseal`: another payload for a job that failed or was cancelled."""

import pytest

from packhorse.clock import SECOND, ManualClock
from packhorse.job import JobState
from packhorse.stores import Store
from packhorse.stores.contract import Act
from packhorse.testing.contract.behind import epochs
from packhorse.testing.contract.helpers import (
    Worker,
    cancelled,
    everything,
    failed,
    id_of,
    insert,
    job,
    look,
    move,
    retried,
    state,
    succeeded,
)

SEALED = b"\0\xff sealed anew"


def reseal(store: Store, name: str) -> bool:
    return store.reseal(id_of(name), SEALED, "ann", "its expiry is lifted")


@pytest.mark.parametrize("ending", [failed, cancelled])
def test_the_next_claim_brings_the_new_payload(store: Store, worker: Worker, ending):
    """What an operator sealed anew is what runs after a retry."""
    insert(store, "a", "b")
    worker.finish(ending(worker.claim_one()))
    assert reseal(store, "a") is True
    assert (look(store, "a").payload, look(store, "b").payload) == (SEALED, b"payload of b")
    move(store, Act.RETRY, "a")
    assert {claim.token.id: claim.payload for claim in worker.claim()} == {
        id_of("a"): SEALED,
        id_of("b"): b"payload of b",
    }


def test_nothing_else_changes(store: Store, worker: Worker):
    """State, ending, attempts, times and epoch stay as they are."""
    insert(store, job("a", tags=("x",), queue="mail", priority=3, expires_at=5))
    worker.finish(retried(worker.claim_one()))
    worker.finish(failed(worker.claim_one()))
    found, seen = look(store, "a"), epochs(store)
    reseal(store, "a")
    again = look(store, "a")
    assert {field: getattr(again, field) for field in again.__slots__} == {
        field: getattr(found, field) for field in found.__slots__
    } | {"payload": SEALED}
    assert (again.state, again.failures, epochs(store)) == (JobState.FAILED, found.failures, seen)


def test_a_job_that_an_operator_cancelled(store: Store):
    """It never ran, and may be sealed anew all the same."""
    insert(store, "a")
    move(store, Act.CANCEL, "a")
    assert reseal(store, "a") is True
    assert (state(store, "a"), look(store, "a").payload) == (JobState.CANCELLED, SEALED)


def test_it_is_audited(store: Store, worker: Worker, clock: ManualClock):
    """In the same stroke, with who and why; what was refused is no act."""
    insert(store, "a", "b")
    worker.finish(failed(worker.claim_one()))
    clock.advance(5)
    reseal(store, "a")
    reseal(store, "b")
    assert store.audit() == [(clock.now(), "ann", "reseal", "its expiry is lifted", 1)]


@pytest.mark.parametrize("place", ["ready", "scheduled", "running", "succeeded", "retried", "unknown"])
def test_other_jobs_keep_theirs(store: Store, worker: Worker, place: str):
    """A payload is not changed under a job that waits, runs or has succeeded."""
    if place != "unknown":
        insert(store, job("a", delay=SECOND) if place == "scheduled" else "a")
    match place:
        case "running":
            worker.claim_one()
        case "succeeded":
            worker.finish(succeeded(worker.claim_one()))
        case "retried":
            worker.finish(failed(worker.claim_one()))
            move(store, Act.RETRY, "a")
    before = everything(store)
    assert reseal(store, "a") is False
    assert everything(store) == before
