"""`record`: what a running job wants kept, fenced by its token."""

from typing import Any

import pytest

from packhorse.job import JobState
from packhorse.stores import Store
from packhorse.stores.contract import Act, Entry
from packhorse.testing.contract.helpers import (
    Worker,
    failed,
    id_of,
    insert,
    move,
    new_nonce,
    released,
    retried,
    state,
    succeeded,
)


def test_entries_are_kept(store: Store, worker: Worker):
    """Entries come back sorted by kind and name, byte for byte."""
    insert(store, "a", "b")
    claim = worker.claim_one()
    entries = [Entry("step", "two", b"\0\xff"), Entry("log", "1", b""), Entry("step", "one", b"x")]
    assert store.record(claim.token, entries) is True
    assert store.entries(id_of("a")) == [entries[1], entries[2], entries[0]]
    assert store.entries(id_of("b")) == []


def test_the_next_of_a_name_overwrites(store: Store, worker: Worker):
    """Kind and name together are written once; the last data counts, also within one batch."""
    insert(store, "a")
    token = worker.claim_one().token
    store.record(token, [Entry("progress", "", b"1"), Entry("step", "x", b"1"), Entry("progress", "", b"2")])
    store.record(token, [Entry("progress", "", b"3")])
    assert store.entries(id_of("a")) == [Entry("progress", "", b"3"), Entry("step", "x", b"1")]


def test_recording_nothing(store: Store, worker: Worker):
    """No entries is a question: is this claim still mine?"""
    insert(store, "a")
    claim = worker.claim_one()
    assert store.record(claim.token, []) is True
    worker.finish(released(claim))
    assert store.record(claim.token, []) is False


@pytest.mark.parametrize("field", ["process", "nonce", "epoch", "id"])
def test_an_invented_token_records_nothing(store: Store, worker: Worker, field: str):
    """A token that is wrong in one point is told so, and nothing is kept."""
    insert(store, "a", "b")
    token = worker.claim_one().token
    wrong: dict[str, Any] = {
        "process": id_of("other"),
        "nonce": new_nonce(),
        "epoch": token.epoch + 1,
        "id": id_of("b"),
    }
    assert store.record(token._replace(**{field: wrong[field]}), [Entry("step", "x", b"1")]) is False
    assert store.entries(id_of("a")) == store.entries(id_of("b")) == []


@pytest.mark.parametrize("ending", [succeeded, failed, retried, released])
def test_an_old_token_records_nothing(store: Store, worker: Worker, ending):
    """Once an attempt has ended, it can add nothing."""
    insert(store, "a")
    claim = worker.claim_one(nonce=7)
    worker.finish(ending(claim))
    assert store.record(claim.token, [Entry("step", "x", b"1")]) is False
    worker.claim(nonce=7)
    assert store.record(claim.token, [Entry("step", "x", b"1")]) is False
    assert store.entries(id_of("a")) == []


def test_a_late_worker_may_record(store: Store, worker: Worker, clock):
    """A claim that nobody took over is good, with or without a lease."""
    insert(store, "a")
    claim = worker.claim_one()
    clock.advance(100)
    assert store.record(claim.token, [Entry("step", "x", b"1")]) is True


def test_entries_outlive_the_attempt(store: Store, worker: Worker):
    """What one attempt kept the next one finds, through retries by the task and by an operator."""
    insert(store, "a")
    claim = worker.claim_one()
    store.record(claim.token, [Entry("step", "x", b"1")])
    worker.finish(retried(claim))
    assert store.entries(id_of("a")) == [Entry("step", "x", b"1")]
    worker.finish(failed(worker.claim_one()))
    move(store, Act.RETRY, "a")
    assert state(store, "a") is JobState.READY
    assert store.entries(id_of("a")) == [Entry("step", "x", b"1")]


def test_entries_go_with_the_job(store: Store, worker: Worker):
    """A job that is deleted and inserted again has no old entries."""
    insert(store, "a")
    claim = worker.claim_one()
    store.record(claim.token, [Entry("step", "x", b"1")])
    worker.finish(succeeded(claim))
    move(store, Act.DISCARD, "a")
    insert(store, "a")
    assert store.entries(id_of("a")) == []
