"""`held`, and how it keeps a lost reply from stranding anything."""

from packhorse.job import JobState
from packhorse.stores import Store
from packhorse.testing.contract.helpers import (
    Worker,
    everything,
    failed,
    id_of,
    insert,
    job,
    look,
    names,
    released,
    states,
    succeeded,
)


def test_held_is_what_runs_for_a_process(store: Store, worker: Worker, other: Worker):
    """The store lists the tokens of each process, sorted, and forgets them when their jobs end."""
    insert(store, *"abcd")
    a, b = worker.claim(2)
    c, _d = other.claim(2)
    assert store.held(worker.id) == [a.token, b.token]
    other.finish(succeeded(c))
    assert other.holds == ["d"]
    assert store.held(id_of("nobody")) == []


def test_held_keeps_claims_of_different_exchanges_apart(store: Store, worker: Worker):
    """Each token carries the nonce of the exchange that claimed it."""
    insert(store, *"abc")
    worker.claim(2, nonce=5)
    worker.claim(2, nonce=3)
    assert [(token.nonce, names([token])) for token in store.held(worker.id)] == [(3, ["c"]), (5, ["a"]), (5, ["b"])]


def test_a_dead_process_still_holds(store: Store, worker: Worker, clock):
    """What a process held is known until somebody takes it over."""
    insert(store, "a")
    worker.claim_one()
    clock.advance(100)
    assert worker.holds == ["a"]


def test_a_lost_reply_strands_nothing(store: Store, worker: Worker):
    """Claims that were never answered are found by their unknown nonce and go back in place, unspent."""
    insert(store, job("a", priority=1), "b", "c", "d")
    known = worker.claim(1)
    worker.claim(2)  # the reply is lost
    unanswered = [token for token in store.held(worker.id) if token not in [claim.token for claim in known]]
    assert names(unanswered) == ["b", "c"]
    assert worker.finish(*map(released, unanswered)) == []
    assert worker.holds == ["a"]
    assert names(worker.claim()) == ["b", "c", "d"]
    assert look(store, "b").attempts == 0


def test_outcomes_of_a_lost_reply_are_offered_again(store: Store, worker: Worker):
    """Written the first time, they are refused the second time, and nothing is counted twice."""
    insert(store, *"abc")
    a, b, c = worker.claim()
    outcomes = [succeeded(a, b"42"), failed(b), released(c)]
    worker.exchange(*outcomes, limit=2)  # the reply is lost
    unanswered = store.held(worker.id)
    assert names(unanswered) == ["c"]
    refused = worker.finish(*outcomes, *map(released, unanswered))
    assert refused == [a.token, b.token, c.token]
    assert states(store) == {"a": JobState.SUCCEEDED, "b": JobState.FAILED, "c": JobState.READY}
    assert (look(store, "a").attempts, look(store, "a").result) == (1, b"42")


def test_outcomes_of_a_request_that_never_arrived_are_offered_again(store: Store, worker: Worker):
    """Where the store had not heard them, they are written then."""
    insert(store, "a")
    claim = worker.claim_one()
    assert store.held(worker.id) == [claim.token]
    assert worker.finish(succeeded(claim)) == []


def test_looking_at_what_is_held_changes_nothing(store: Store, worker: Worker):
    """Asking is free."""
    insert(store, "a")
    worker.claim_one()
    before = everything(store)
    store.held(worker.id)
    assert everything(store) == before
