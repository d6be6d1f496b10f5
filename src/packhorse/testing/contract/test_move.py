"""`move`: what an operator does to selected jobs."""

import pytest

from packhorse.clock import SECOND, ManualClock
from packhorse.job import JobState
from packhorse.stores import Store
from packhorse.stores.contract import ORDERS, Act, Change, Moved, Selection
from packhorse.testing.contract.behind import epochs, leftovers
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
    names,
    now,
    state,
    states,
    succeeded,
)


@pytest.fixture
def one_of_each(store: Store, worker: Worker) -> dict[str, JobState]:
    """One job in each state, named after it."""
    insert(store, *(job(name, queue="q") for name in ("cancelled", "failed", "running", "succeeded")))
    a, b, _running, d = worker.claim()
    worker.finish(cancelled(a), failed(b), succeeded(d))
    insert(store, job("ready", queue="q"), job("scheduled", queue="q", delay=60 * SECOND))
    return states(store)


MOVED: dict[Act, dict[str, JobState | None]] = {
    Act.CANCEL: {"ready": JobState.CANCELLED, "scheduled": JobState.CANCELLED},
    Act.STOP: {"ready": JobState.CANCELLED, "scheduled": JobState.CANCELLED},
    Act.RESTART: {"failed": JobState.READY, "cancelled": JobState.READY},
    Act.RELOAD: {
        "failed": JobState.READY,
        "cancelled": JobState.READY,
        "ready": JobState.READY,
        "scheduled": JobState.SCHEDULED,
    },
    Act.RETRY: {"failed": JobState.READY, "cancelled": JobState.READY},
    Act.RUN_NOW: {"scheduled": JobState.READY},
    Act.DISCARD: dict.fromkeys(("cancelled", "failed", "succeeded", "ready", "scheduled"), None),
    Act.CHANGE: {"ready": JobState.READY, "scheduled": JobState.SCHEDULED},
}


@pytest.mark.parametrize("act", list(Act))
def test_each_act_moves_what_it_is_for(store: Store, one_of_each: dict[str, JobState], act: Act):
    """An act moves the jobs of its states, asks the owners of running ones to end them, and leaves all others."""
    before = epochs(store)
    moved = store.move(Selection(), Change(act, queue="z", priority=9), "ann", "because")
    assert moved == Moved(len(MOVED[act]), 1 if act in ORDERS else 0, None)
    expected = one_of_each | MOVED[act]
    assert states(store) == {name: state for name, state in expected.items() if state is not None}
    if before is not None and (after := epochs(store)) is not None:
        raised = {id for id, epoch in after.items() if epoch > before[id]}
        assert raised == {id_of(name) for name in MOVED[act] if act is not Act.DISCARD}
    assert leftovers(store) == []


@pytest.mark.parametrize("act", list(Act))
def test_an_act_on_nothing(store: Store, one_of_each: dict[str, JobState], act: Act):
    """A selection that matches no job moves none, and is audited as such."""
    assert move(store, act, "nobody", queue="z") == Moved(0, 0, None)
    assert states(store) == one_of_each
    assert store.audit(1)[0][1:] == ("ann", act, "because", 0)


@pytest.mark.parametrize("act", list(Act))
@pytest.mark.parametrize("limit", [1, 2, 3, 4, 7])
def test_pages(store: Store, worker: Worker, act: Act, limit: int):
    """Page by page, behind the last id seen, an act reaches each selected job once and no other."""
    wanted = list("bdfhjl")
    insert(store, *(job(name, queue="q") for name in wanted), *(job(name, queue="other") for name in "aceg"))
    if act in (Act.RETRY, Act.RESTART):
        worker.finish(*map(failed, worker.claim()))
    if act is Act.RUN_NOW:
        move(store, Act.DISCARD, *"abcdefghjl")
        insert(store, *(job(name, queue="q", delay=SECOND) for name in wanted))
    selection = Selection(ids=[id_of(name) for name in wanted])
    sizes, after = [], None
    while True:
        moved = store.move(selection, Change(act, priority=5), "ann", "", after=after, limit=limit)
        sizes.append(moved.jobs)
        if moved.after is None:
            break
        assert after is None or moved.after > after
        after = moved.after
    assert sum(sizes) == 6
    assert all(size == limit for size in sizes[:-1])
    assert [entry.jobs for entry in reversed(store.audit())][-len(sizes) :] == sizes
    touched = {Act.CANCEL: JobState.CANCELLED, Act.STOP: JobState.CANCELLED, Act.DISCARD: None}.get(act, JobState.READY)
    assert [states(store).get(name) for name in wanted] == [touched] * 6


def test_a_page_ends_with_the_last_job_seen_not_moved(store: Store, worker: Worker):
    """Jobs that an act does not move count towards a page, so that paging always gets on."""
    insert(store, *"abcd")
    worker.finish(*map(succeeded, worker.claim(3)))
    moved = store.move(Selection(), Change(Act.CANCEL), "ann", "", limit=2)
    assert moved == Moved(0, 0, id_of("b"))
    assert store.move(Selection(), Change(Act.CANCEL), "ann", "", after=moved.after, limit=10) == Moved(1, 0, None)


def test_paging_begins_behind_after(store: Store):
    """The job named by `after` is not touched again."""
    insert(store, *"abc")
    store.move(Selection(), Change(Act.CANCEL), "ann", "", after=id_of("b"))
    assert [state(store, name) for name in "abc"] == [JobState.READY, JobState.READY, JobState.CANCELLED]


# Cancel.


def test_cancel_ends_a_job_at_once(store: Store, worker: Worker, clock: ManualClock):
    """A job that does not run ends cancelled now, with the reason, and is never claimed."""
    insert(store, "a")
    clock.advance(5)
    move(store, Act.CANCEL, "a")
    found = look(store, "a")
    assert (found.state, found.reason, found.finished_at) == (JobState.CANCELLED, "because", now(clock))
    assert (found.attempts, found.process, found.started_at) == (0, None, None)
    assert worker.claim() == []


def test_cancel_without_a_reason_gives_one(store: Store):
    """A cancelled job always says why."""
    insert(store, "a")
    store.move(Selection(), Change(Act.CANCEL), "ann", "")
    assert look(store, "a").reason == "cancelled"


def test_a_scheduled_job_that_was_cancelled_is_not_promoted(store: Store, clock: ManualClock):
    """Its moment passes without it."""
    insert(store, job("a", delay=SECOND))
    move(store, Act.CANCEL, "a")
    clock.advance(5)
    assert store.promote(10) == (0, None)


# Retry.


def test_retry_begins_anew(store: Store, worker: Worker, clock: ManualClock):
    """Attempts, losses, expiry and the old ending are gone, and the place is now."""
    insert(store, job("a", expires_at=1))
    worker.finish(failed(worker.claim_one()))
    clock.advance(5)
    insert(store, "b")
    clock.advance(5)
    move(store, Act.RETRY, "a")
    found = look(store, "a")
    assert (found.attempts, found.losses, found.expires_at, found.finished_at) == (0, 0, None, None)
    assert (found.failure, found.reason, found.process, found.started_at) == (None, None, None, None)
    assert (found.result, found.result_error) == (None, None)
    assert names(worker.claim()) == ["b", "a"]


def test_retry_of_a_cancelled_job(store: Store, worker: Worker):
    """A stopped job may be restarted; its reason is gone and no attempt row stands for it."""
    insert(store, "a")
    move(store, Act.CANCEL, "a")
    move(store, Act.RETRY, "a")
    assert (look(store, "a").reason, look(store, "a").failures) == (None, ())
    assert worker.finish(succeeded(worker.claim_one(), b"42")) == []
    assert look(store, "a").result == b"42"


def test_retry_again_and_again(store: Store, worker: Worker):
    """Each round ends and begins as the first one did."""
    insert(store, "a")
    for number in range(1, 5):
        worker.finish(failed(worker.claim_one()))
        move(store, Act.RETRY, "a")
        assert [row.number for row in look(store, "a").failures] == [1] * number


# Run now.


def test_run_now_stands_behind_those_already_ready(store: Store, worker: Worker, clock: ManualClock):
    """A scheduled job made ready takes its place now."""
    insert(store, job("a", delay=60 * SECOND))
    clock.advance(1)
    insert(store, "b")
    clock.advance(1)
    move(store, Act.RUN_NOW, "a")
    clock.advance(1)
    insert(store, "0")
    assert names(worker.claim()) == ["b", "a", "0"]


# Discard.


def test_discard_deletes_the_record(store: Store, worker: Worker):
    """Nothing is left of a discarded job, while a running one stays with its owner."""
    insert(store, job("a", tags=("x",)), "b")
    worker.finish(failed(worker.claim_one()))
    claim = worker.claim_one()
    assert move(store, Act.DISCARD, "a", "b") == Moved(1, 0, None)
    assert store.job(id_of("a")) is None
    assert store.jobs(Selection(tags=["x"])) == []
    assert worker.finish(succeeded(claim)) == []


# Change.


def test_change_of_queue_or_priority(store: Store):
    """What is not given stays as it was; zero and minus are priorities like any other."""
    insert(store, job("a", queue="mail", priority=5), job("b", queue="mail", priority=5))
    move(store, Act.CHANGE, "a", queue="report")
    move(store, Act.CHANGE, "b", priority=0)
    assert [(look(store, name).queue, look(store, name).priority) for name in "ab"] == [("report", 5), ("mail", 0)]
    move(store, Act.CHANGE, "b", priority=-7)
    assert look(store, "b").priority == -7


def test_a_changed_job_keeps_its_moment(store: Store, worker: Worker, clock: ManualClock):
    """Another queue gives no better place among equals."""
    for name in "cba":
        insert(store, job(name, queue="report" if name == "b" else "mail"))
        clock.advance(1)
    move(store, Act.CHANGE, "c", queue="report")
    assert names(worker.claim(queues="report")) == ["c", "b"]


# Audit.


@pytest.mark.parametrize("act", list(Act))
def test_acts_are_audited(store: Store, one_of_each: dict[str, JobState], act: Act, clock: ManualClock):
    """Who did what, when, why and to how many, those whose owner was asked included."""
    moved = store.move(Selection(), Change(act, priority=1), "ann", "because")
    assert store.audit(1) == [(clock.now(), "ann", act, "because", moved.jobs + moved.asked)]


def test_an_empty_selection_list_is_nobody(store: Store, one_of_each: dict[str, JobState]):
    """A list without ids, states, queues, tasks or tags selects no job, never all of them."""
    for empty in (
        Selection(ids=[]),
        Selection(states=[]),
        Selection(queues=[]),
        Selection(tasks=[]),
        Selection(tags=[]),
        Selection(states=[JobState.READY], ids=()),
    ):
        assert store.move(empty, Change(Act.DISCARD), "ann", "") == Moved(0, 0, None)
    assert states(store) == one_of_each


def test_a_repeated_act_does_nothing_more(store: Store, one_of_each: dict[str, JobState]):
    """Cancelling the cancelled changes nothing but the audit."""
    store.move(Selection(), Change(Act.CANCEL), "ann", "because")
    before = states(store), epochs(store), look(store, "ready")
    assert store.move(Selection(), Change(Act.CANCEL), "ann", "again") == Moved(0, 1, None)
    assert (states(store), epochs(store), look(store, "ready")) == before


def test_looking_at_a_page_moves_nothing(store: Store, one_of_each: dict[str, JobState]):
    """Reading is free."""
    before = everything(store)
    store.jobs(Selection(), limit=3)
    assert everything(store) == before
