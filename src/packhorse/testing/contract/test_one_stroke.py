"""An exchange is one stroke: what cannot be written as a whole is not written at all."""

from typing import Any

import pytest

from packhorse.clock import SECOND, ManualClock
from packhorse.errors import StoreDataError
from packhorse.job import JobState
from packhorse.outcome import Awaits, Outcome
from packhorse.stores import Store
from packhorse.stores.contract import ProcessInfo
from packhorse.testing.contract.helpers import (
    LEASE,
    Worker,
    cancelled,
    everything,
    id_of,
    insert,
    job,
    names,
    retried,
    succeeded,
)


@pytest.fixture
def busy(store: Store, worker: Worker, clock: ManualClock) -> Store:
    """Something for every stroke to do."""
    store.enroll(ProcessInfo(id_of("heir"), "dispatcher", "here", 1), 10 * LEASE)
    insert(store, *"abcdefgh", job("later", delay=SECOND), job("over", priority=1))
    worker.finish(cancelled(worker.claim_one()))
    worker.finish(succeeded(worker.claim_one(), b"1")._replace(result_ttl=SECOND))
    insert(store, job("asleep", priority=1))
    wait = Awaits("go")
    worker.finish(Outcome(worker.claim_one().token, JobState.SCHEDULED, spent=False, delay=LEASE, awaits=wait))
    worker.claim(4)
    store.pause("asleep", None, "ann", "")
    clock.advance(2)
    return store


@pytest.mark.parametrize("bad", [{"reason": "\ud800"}, {"result_error": "\ud800"}, {"duration": 1 << 70}], ids=str)
def test_an_outcome_the_store_cannot_take_spoils_the_whole_exchange(busy: Store, worker: Worker, bad: dict[str, Any]):
    """Nothing of the batch is written and nothing is claimed, so that it can be offered again in halves."""
    first, second, third, fourth = busy.held(worker.id)
    before = everything(busy)
    good = [succeeded(first), retried(third), succeeded(fourth)._replace(keep=0)]
    try:
        worker.exchange(good[0], Outcome(second, JobState.CANCELLED)._replace(**bad), *good[1:], limit=2)
    except StoreDataError:
        assert everything(busy) == before
        assert worker.finish(*good) == []
    else:
        assert not {first, second, third, fourth} & set(busy.held(worker.id))


def test_an_exchange_writes_and_takes(busy: Store, worker: Worker):
    """What ended is gone and what is next has come, and nothing else has happened."""
    first, *others = busy.held(worker.id)
    reply = worker.exchange(succeeded(first)._replace(keep=0), limit=1)
    assert (names(reply.claims), reply.refused) == (["f"], [])
    assert busy.job(first.id) is None
    assert busy.held(worker.id) == sorted([*others, reply.claims[0].token])
