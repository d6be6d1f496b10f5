"""What an operator asks of the owner of a running job, who looks for it."""

from collections.abc import Callable

import pytest

from packhorse.clock import SECOND, ManualClock
from packhorse.job import Claim, JobState
from packhorse.outcome import Outcome
from packhorse.stores import Store
from packhorse.stores.contract import Act, Change, Entry, Moved, Order, OrderKind, Selection
from packhorse.testing.contract.behind import leftovers
from packhorse.testing.contract.helpers import (
    Worker,
    cancelled,
    failed,
    holders,
    id_of,
    insert,
    job,
    limited,
    look,
    lost,
    move,
    names,
    new_nonce,
    released,
    retried,
    snoozed,
    state,
    strayed,
    succeeded,
)


def test_the_owner_is_asked(store: Store, worker: Worker, other: Worker):
    """The owner of a running job hears what is asked, and nobody else does."""
    insert(store, "a")
    claim = worker.claim_one()
    assert move(store, Act.CANCEL, "a") == (0, 1, None)
    assert other.orders == []
    assert worker.orders == [Order(OrderKind.CANCEL, claim.token, "because", b"")]


def test_an_order_is_repeated(store: Store, worker: Worker, clock: ManualClock):
    """It is told until the job has moved on, for an answer may be lost."""
    insert(store, "a")
    claim = worker.claim_one()
    move(store, Act.CANCEL, "a")
    for _ in range(3):
        clock.advance(5)
        assert [order.token for order in worker.orders] == [claim.token]
    worker.finish(cancelled(claim))
    assert worker.orders == []


def test_asking_is_not_taking(store: Store, worker: Worker):
    """Until the owner answers, the job runs under its token; it may even succeed."""
    insert(store, "a")
    claim = worker.claim_one()
    move(store, Act.CANCEL, "a")
    assert (state(store, "a"), worker.holds) == (JobState.RUNNING, ["a"])
    assert worker.finish(succeeded(claim)) == []
    assert state(store, "a") is JobState.SUCCEEDED


def test_one_look_brings_the_orders_of_all(store: Store, worker: Worker, other: Worker):
    """Whoever looks for many hears the orders of each, sorted by their tokens."""
    insert(store, *"abcd")
    tokens = sorted(claim.token for claim in [*worker.claim(2), *other.claim(2)])
    move(store, Act.CANCEL, *"abcd")
    assert [order.token for order in store.orders([worker.id, other.id])] == tokens


def test_an_order_without_a_reason_says_something(store: Store, worker: Worker):
    """An order always carries a reason."""
    insert(store, "a")
    worker.claim_one()
    store.move(Selection(), Change(Act.CANCEL), "ann", "")
    assert [order.reason for order in worker.orders] == ["cancelled"]


def test_the_last_reason_counts(store: Store, worker: Worker):
    """Asking twice is one order, with the reason and the seal of the second."""
    insert(store, "a")
    worker.claim_one()
    for reason, seal in (("first", b"sealed"), ("second", b"sealed anew"), ("third", b"")):
        store.move(Selection(ids=[id_of("a")]), Change(Act.CANCEL, seal=seal), "ann", reason)
        assert [(order.reason, order.seal) for order in worker.orders] == [(reason, seal)]


def test_the_owner_sees_the_seal(store: Store, worker: Worker):
    """Byte for byte, with the order of each job that was asked for in one act, and every time."""
    insert(store, "a", "b")
    worker.claim()
    seal = bytes(range(256))
    store.move(Selection(), Change(Act.CANCEL, seal=seal), "ann", "")
    for _ in range(2):
        assert [order.seal for order in worker.orders] == [seal, seal]


def test_a_seal_ends_with_its_order(store: Store, worker: Worker):
    """A job that was retried and is asked for again, by somebody without a seal, has none."""
    insert(store, "a")
    worker.claim_one()
    store.move(Selection(), Change(Act.CANCEL, seal=b"sealed"), "ann", "")
    store.leave(worker.id)
    assert leftovers(store) == []
    worker.enroll()
    move(store, Act.RETRY, "a")
    worker.claim_one()
    assert worker.orders == []
    move(store, Act.CANCEL, "a")
    assert [order.seal for order in worker.orders] == [b""]


@pytest.mark.parametrize("delay", [None, 0, SECOND])
def test_an_order_outlives_its_claim(store: Store, worker: Worker, delay: int | None):
    """A job whose end was asked for does not come back, by a release, a retry or a snooze."""
    insert(store, "a")
    claim = worker.claim_one()
    move(store, Act.CANCEL, "a")
    worker.finish(released(claim) if delay is None else retried(claim, delay))
    assert state(store, "a") is JobState.CANCELLED
    assert look(store, "a").reason == "because"
    assert worker.orders == []
    assert names(worker.claim()) == []


def test_a_job_that_ends_by_itself_needs_no_order(store: Store, worker: Worker):
    """Its own ending stands."""
    insert(store, "a")
    claim = worker.claim_one()
    move(store, Act.CANCEL, "a")
    worker.finish(succeeded(claim))
    assert state(store, "a") is JobState.SUCCEEDED


def test_an_order_goes_with_an_adopted_job(store: Store, worker: Worker, other: Worker):
    """Whoever takes a running job over hears what was asked of its owner."""
    insert(store, "a")
    worker.claim_one()
    store.move(Selection(), Change(Act.CANCEL, seal=b"sealed"), "ann", "because")
    [orphan] = store.adopt(other.id, new_nonce(), 10, dead=[worker.id])
    assert other.orders == [Order(OrderKind.CANCEL, orphan.claim.token, "because", b"sealed")]
    other.finish(cancelled(orphan.claim))
    assert names(other.claim()) == []


# Stopping, restarting, reloading.


def test_a_job_that_was_stopped_says_so(store: Store, worker: Worker):
    """Before it runs and while it does; with a reason or without. Otherwise it is a cancel."""
    insert(store, "a", "b", "c")
    store.move(Selection(ids=[id_of("a")]), Change(Act.STOP), "ann", "")
    claims = worker.claim()
    assert move(store, Act.STOP, "b") == (0, 1, None)
    assert [(order.kind, order.reason) for order in worker.orders] == [(OrderKind.CANCEL, "stopped: because")]
    move(store, Act.CANCEL, "c")
    worker.finish(*(released(claim) for claim in claims))
    assert [state(store, name) for name in "abc"] == [JobState.CANCELLED] * 3
    assert [look(store, name).reason for name in "abc"] == ["stopped", "stopped: because", "because"]
    assert [look(store, name).stopped for name in "abc"] == [True, True, False]
    assert [act.act for act in store.audit()] == ["cancel", "stop", "stop"]


ENDINGS: dict[str, Callable[[Claim], Outcome]] = {
    "released": released,
    "cancelled": cancelled,
    "failed": failed,
    "retried": lambda claim: retried(claim, 60 * SECOND),
    "retried at once": retried,
    "snoozed": lambda claim: snoozed(claim, 60 * SECOND),
    "strayed": lambda claim: strayed(claim, 60 * SECOND),
    "lost": lost,
    "lost for good": lambda claim: lost(claim, JobState.FAILED),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_restarted_job_goes_back_however_it_ends(store: Store, worker: Worker, other: Worker, ending: str):
    """In its place, unspent, with what it has kept; and another worker may have it."""
    insert(store, "a", "b")
    claim = worker.claim_one()
    store.record(claim.token, [Entry("cursor", "", b"7")])
    assert move(store, Act.RESTART, "a") == (0, 1, None)
    assert worker.orders == [Order(OrderKind.RESTART, claim.token, "because", b"")]
    assert worker.finish(ENDINGS[ending](claim)) == []
    assert leftovers(store) == []
    found = look(store, "a")
    assert (found.state, found.attempts, found.finished_at, found.reason) == (JobState.READY, 0, None, None)
    again = other.claim_one()
    assert (names([again]), again.attempts) == (["a"], 0)
    assert store.entries(id_of("a")) == [Entry("cursor", "", b"7")]
    assert other.orders == []
    other.finish(succeeded(again))
    assert state(store, "a") is JobState.SUCCEEDED


def test_the_failure_of_a_restarted_attempt_is_kept(store: Store, worker: Worker):
    """It happened, though it does not count."""
    insert(store, "a")
    claim = worker.claim_one()
    move(store, Act.RESTART, "a")
    worker.finish(failed(claim))
    [attempt] = look(store, "a").failures
    assert (attempt.number, attempt.spent) == (1, False)


def test_a_job_that_succeeds_is_not_restarted(store: Store, worker: Worker):
    """It has done its work."""
    insert(store, "a")
    claim = worker.claim_one()
    move(store, Act.RESTART, "a")
    worker.finish(succeeded(claim, b"42"))
    assert (state(store, "a"), look(store, "a").result) == (JobState.SUCCEEDED, b"42")


@pytest.mark.parametrize(("act", "ends"), [(Act.STOP, JobState.CANCELLED), (Act.RESTART, JobState.READY)])
@pytest.mark.parametrize("how", ["leave", "verdict"])
def test_an_order_outlives_its_owner(store: Store, worker: Worker, other: Worker, how: str, act: Act, ends: JobState):
    """Whether it signs off or dies."""
    insert(store, "a")
    worker.claim_one()
    move(store, act, "a")
    if how == "leave":
        store.leave(worker.id)
    else:
        [orphan] = store.adopt(other.id, new_nonce(), 10, dead=[worker.id])
        other.finish(lost(orphan.claim, JobState.FAILED if act is Act.RESTART else JobState.READY))
    assert (state(store, "a"), leftovers(store)) == (ends, [])


def test_the_last_order_counts(store: Store, worker: Worker):
    insert(store, "a", "b")
    claims = worker.claim()
    move(store, Act.STOP, "a")
    move(store, Act.RESTART, "a", "b")
    move(store, Act.STOP, "b")
    assert [order.kind for order in worker.orders] == [OrderKind.RESTART, OrderKind.CANCEL]
    worker.finish(*(cancelled(claim) for claim in claims))
    assert [state(store, name) for name in "ab"] == [JobState.READY, JobState.CANCELLED]


def test_jobs_that_ended_badly_are_restarted_as_they_are_retried(store: Store, worker: Worker):
    insert(store, *"abcd")
    claims = worker.claim(3)
    worker.finish(failed(claims[0]), cancelled(claims[1]), succeeded(claims[2]))
    assert move(store, Act.RESTART, *"abcd") == (2, 0, None)
    assert [state(store, name) for name in "abcd"] == [
        JobState.READY,
        JobState.READY,
        JobState.SUCCEEDED,
        JobState.READY,
    ]
    assert (look(store, "a").attempts, len(look(store, "a").failures)) == (0, 1)


def test_a_restarted_job_keeps_its_permit(store: Store, worker: Worker):
    """It stands where it stood; nobody overtakes it."""
    insert(store, limited("a"), limited("b"))
    claim = worker.claim_one()
    move(store, Act.RESTART, "a")
    assert names(worker.exchange(cancelled(claim), limit=5).claims) == ["a"]
    assert holders(store) == 1


def reload(store: Store, name: str, payload: bytes) -> Moved:
    return store.move(Selection(ids=[id_of(name)]), Change(Act.RELOAD, payload=payload), "ann", "because")


def test_a_running_job_is_reloaded_when_it_goes_back(store: Store, worker: Worker):
    """Until then it has the payload that its owner performs."""
    insert(store, job("a", lifetime=60 * SECOND))
    claim = worker.claim_one()
    assert reload(store, "a", b"other") == (0, 1, None)
    assert (look(store, "a").payload, worker.orders[0].kind) == (b"payload of a", OrderKind.RESTART)
    worker.finish(released(claim))
    assert store.entries(id_of("a")) == []
    assert (look(store, "a").payload, look(store, "a").expires_at) == (b"other", None)
    assert worker.claim_one().payload == b"other"


@pytest.mark.parametrize("act", [Act.STOP, Act.RESTART])
def test_a_later_order_undoes_a_reload(store: Store, worker: Worker, act: Act):
    insert(store, "a")
    claim = worker.claim_one()
    reload(store, "a", b"other")
    move(store, act, "a")
    worker.finish(released(claim))
    move(store, Act.RETRY, "a")
    assert (look(store, "a").payload, store.entries(id_of("a"))) == (b"payload of a", [])


def test_a_job_that_succeeds_is_not_reloaded(store: Store, worker: Worker):
    """Neither then nor later."""
    insert(store, "a")
    claim = worker.claim_one()
    reload(store, "a", b"other")
    worker.finish(succeeded(claim))
    assert look(store, "a").payload == b"payload of a"
    assert reload(store, "a", b"another") == (0, 0, None)
    assert look(store, "a").payload == b"payload of a"


def test_an_outcome_that_is_refused_reloads_nothing(store: Store, worker: Worker):
    """The same token twice: the first outcome counts, and what was asked for is left as it leaves it."""
    insert(store, "a")
    claim = worker.claim_one()
    reload(store, "a", b"new")
    before = store.entries(id_of("a"))
    assert worker.finish(succeeded(claim), released(claim)) == [claim.token]
    assert (state(store, "a"), store.entries(id_of("a"))) == (JobState.SUCCEEDED, before)


@pytest.mark.parametrize("end", [failed, cancelled])
def test_a_job_that_ended_badly_is_reloaded_and_retried(store: Store, worker: Worker, end: Callable[[Claim], Outcome]):
    insert(store, job("a", lifetime=60 * SECOND))
    worker.finish(end(worker.claim_one()))
    assert reload(store, "a", b"other") == (1, 0, None)
    found = look(store, "a")
    assert (found.state, found.attempts, found.payload) == (JobState.READY, 0, b"other")
    assert found.expires_at is None


def test_a_job_that_is_to_come_is_reloaded_where_it_stands(store: Store):
    insert(store, "a", job("b", delay=60 * SECOND, lifetime=90 * SECOND))
    assert [reload(store, name, b"other") for name in "ab"] == [(1, 0, None)] * 2
    assert [state(store, name) for name in "ab"] == [JobState.READY, JobState.SCHEDULED]
    assert {look(store, name).payload for name in "ab"} == {b"other"}
    assert look(store, "b").expires_at is None
