"""`prune`: what retention no longer keeps is deleted, with all that belongs to it."""

from collections.abc import Callable

import pytest

from packhorse.clock import SECOND, ManualClock
from packhorse.job import Claim, JobState
from packhorse.outcome import FOREVER, Outcome
from packhorse.stores import Store
from packhorse.stores.contract import RESULT_PRUNED, Act, Change, Entry, Retention, Selection
from packhorse.testing.contract.behind import leftovers
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
    retried,
    states,
    succeeded,
)

NOTHING_KEPT = Retention(0, 0, 0)
ALL_KEPT = Retention(None, None, None)


def test_nothing_to_prune(store: Store):
    """An empty store is a pruned one."""
    assert store.prune(NOTHING_KEPT, 10) == 0


@pytest.mark.parametrize(
    ("retention", "left"),
    [
        (Retention(10 * SECOND, None, None), ["b", "c"]),
        (Retention(None, 10 * SECOND, None), ["a", "c"]),
        (Retention(None, None, 10 * SECOND), ["a", "b"]),
        (Retention(11 * SECOND, 10 * SECOND, 9 * SECOND), ["a"]),
        (ALL_KEPT, ["a", "b", "c"]),
    ],
)
def test_each_state_has_its_own_time(
    store: Store, worker: Worker, clock: ManualClock, retention: Retention, left: list[str]
):
    """Succeeded, failed and cancelled jobs are kept for their own time, counted from their end; None keeps them."""
    insert(store, *"abc")
    clock.advance(5)
    a, b, c = worker.claim()
    worker.finish(succeeded(a), failed(b), cancelled(c))
    clock.advance(10)
    assert store.prune(retention, 10) == 3 - len(left)
    assert list(states(store)) == left


def test_unfinished_jobs_are_kept(store: Store, worker: Worker, clock: ManualClock):
    """However old, a job that has not finished stays."""
    insert(store, "a", "b", job("c", delay=SECOND))
    worker.claim_one()
    clock.advance(1_000_000)
    before = everything(store)
    assert store.prune(NOTHING_KEPT, 10) == 0
    assert everything(store) == before


def test_a_moment_before_its_time_a_job_is_kept(store: Store, worker: Worker, clock: ManualClock):
    """A job goes when its time is up, not sooner."""
    insert(store, "a")
    worker.finish(succeeded(worker.claim_one()))
    clock.advance(9.999_999)
    assert store.prune(Retention(10 * SECOND, None, None), 10) == 0
    clock.advance(0.000_001)
    assert store.prune(Retention(10 * SECOND, None, None), 10) == 1


def test_the_limit_takes_the_oldest(store: Store, worker: Worker, clock: ManualClock):
    """With more to delete than asked for, those that finished first go first, whatever their state."""
    insert(store, *"abcd")
    a, b, c, d = worker.claim()
    for outcome in (succeeded(c), failed(a), cancelled(d), succeeded(b)):
        worker.finish(outcome)
        clock.advance(1)
    assert store.prune(NOTHING_KEPT, 2) == 2
    assert list(states(store)) == ["b", "d"]
    assert store.prune(NOTHING_KEPT, 1) == 1
    assert list(states(store)) == ["b"]
    assert store.prune(NOTHING_KEPT, 5) == 1


def test_all_that_belongs_to_a_job_goes_with_it(store: Store, worker: Worker):
    """Result, attempts, tags and entries of a pruned job are gone, those of others stay."""
    insert(store, job("a", tags=("x",)), job("b", tags=("x",)))
    for claim in worker.claim():
        store.record(claim.token, [Entry("step", "x", b"1")])
        worker.finish(retried(claim))
    worker.finish(succeeded(worker.claim_one(), b"42"))
    assert store.prune(NOTHING_KEPT, 10) == 1
    assert store.job(id_of("a")) is None
    assert store.entries(id_of("a")) == []
    assert names(store.jobs(Selection(tags=["x"]))) == ["b"]
    assert store.entries(id_of("b")) == [Entry("step", "x", b"1")]
    assert leftovers(store) == []


def test_many_old_jobs(store: Store, worker: Worker):
    """Batch after batch until nothing is left."""
    insert(store, *(f"{number:04}" for number in range(700)))
    worker.finish(*map(succeeded, worker.claim(700)))
    assert [store.prune(NOTHING_KEPT, 300) for _ in range(4)] == [300, 300, 100, 0]
    assert store.queues() == []


def test_the_limit_takes_what_was_due_first(store: Store, worker: Worker, clock: ManualClock):
    """Those whose time was up first go first: when they finished counts only together with how long they are kept."""
    insert(store, *"abcd")
    a, b, c, d = worker.claim()
    for outcome in (failed(a), succeeded(b), cancelled(c), succeeded(d)._replace(keep=2 * SECOND)):
        worker.finish(outcome)
        clock.advance(1)
    clock.advance(6)
    rule = Retention(4 * SECOND, 8 * SECOND, SECOND)  # a is due at 8, b at 5, c at 3 and d at 5
    gone: list[str] = []
    for _ in range(4):
        left = set(states(store))
        assert store.prune(rule, 1) == 1
        gone += left - set(states(store))
    assert gone == ["c", "b", "d", "a"]


def test_equals_go_in_the_order_of_their_ids(store: Store, worker: Worker):
    """Of jobs that were due and finished at the same moment the id decides, whatever their state."""
    insert(store, *"dbca")
    a, b, c, d = worker.claim()
    worker.finish(cancelled(d), succeeded(c), failed(b), succeeded(a)._replace(keep=1))
    assert store.prune(NOTHING_KEPT, 2) == 2
    assert list(states(store)) == ["a", "d"]


def test_a_job_that_is_due_with_others_goes_in_the_order_of_their_ends(
    store: Store, worker: Worker, clock: ManualClock
):
    """Of jobs due at the same moment the one that finished first goes first."""
    insert(store, *"ab")
    a, b = worker.claim()
    worker.finish(succeeded(b)._replace(keep=5 * SECOND))
    clock.advance(1)
    worker.finish(succeeded(a)._replace(keep=4 * SECOND))
    clock.advance(4)
    assert store.prune(ALL_KEPT, 1) == 1
    assert list(states(store)) == ["a"]


# Jobs that have their own time.

each_finished = pytest.mark.parametrize("ending", [succeeded, failed, cancelled])


@each_finished
@pytest.mark.parametrize("retention", [NOTHING_KEPT, ALL_KEPT, Retention(*[20 * SECOND] * 3)])
def test_a_jobs_own_time_counts_alone(
    store: Store,
    worker: Worker,
    clock: ManualClock,
    ending: Callable[[Claim], Outcome],
    retention: Retention,
):
    """Shorter or longer than the rule of its state: what the outcome said counts, from the end of the job on."""
    insert(store, "a")
    clock.advance(3)
    worker.finish(ending(worker.claim_one())._replace(keep=10 * SECOND))
    clock.advance(9.999_999)
    assert store.prune(retention, 10) == 0
    clock.advance(0.000_001)
    assert store.prune(retention, 10) == 1
    assert states(store) == {}


@each_finished
def test_a_job_that_is_kept_for_good(
    store: Store, worker: Worker, clock: ManualClock, ending: Callable[[Claim], Outcome]
):
    """No rule takes it away."""
    insert(store, "a")
    worker.finish(ending(worker.claim_one())._replace(keep=FOREVER))
    clock.advance(100 * 365 * 86_400)
    assert store.prune(NOTHING_KEPT, 10) == 0
    assert list(states(store)) == ["a"]


@pytest.mark.parametrize("ending", [failed, cancelled])
def test_an_operators_retry_forgets_the_jobs_own_time(
    store: Store, worker: Worker, clock: ManualClock, ending: Callable[[Claim], Outcome]
):
    """The job begins anew: its old time neither takes it away while it waits nor counts for its next end."""
    insert(store, "a")
    worker.finish(ending(worker.claim_one())._replace(keep=5 * SECOND))
    move(store, Act.RETRY, "a")
    clock.advance(10)
    assert store.prune(NOTHING_KEPT, 10) == 0
    worker.enroll()
    worker.finish(succeeded(worker.claim_one()))
    assert store.prune(ALL_KEPT, 10) == 0
    assert store.prune(NOTHING_KEPT, 10) == 1


def test_a_cancelled_jobs_old_time_does_not_count(store: Store, worker: Worker, clock: ManualClock):
    """Failed for a while, retried, then cancelled by an operator: the rule counts."""
    insert(store, "a")
    worker.finish(failed(worker.claim_one())._replace(keep=5 * SECOND))
    move(store, Act.RETRY, "a")
    move(store, Act.CANCEL, "a")
    clock.advance(10)
    assert store.prune(ALL_KEPT, 10) == 0
    assert store.prune(NOTHING_KEPT, 10) == 1


def test_an_asked_job_that_does_not_come_back_is_kept_as_its_outcome_says(
    store: Store, worker: Worker, clock: ManualClock
):
    """A retry that became a cancellation, because an operator asked, ends as any other."""
    insert(store, "a", "b")
    a, b = worker.claim()
    store.move(Selection(), Change(Act.CANCEL), "ann", "")
    worker.finish(retried(a)._replace(keep=5 * SECOND), retried(b))
    clock.advance(5)
    assert store.prune(ALL_KEPT, 10) == 1
    assert states(store) == {"b": JobState.CANCELLED}


# Results that are forgotten before their job.


def test_a_result_is_forgotten_when_its_time_is_up(store: Store, worker: Worker, clock: ManualClock):
    """The job stays and says why the result is gone; a result is counted as a job is."""
    insert(store, "a", "b")
    clock.advance(3)
    a, b = worker.claim()
    worker.finish(succeeded(a, b"42")._replace(result_ttl=10 * SECOND), succeeded(b, b"43"))
    before = look(store, "a")
    clock.advance(9.999_999)
    assert store.prune(ALL_KEPT, 10) == 0
    assert look(store, "a") == before
    clock.advance(0.000_001)
    assert store.prune(ALL_KEPT, 10) == 1
    found = look(store, "a")
    assert (found.state, found.result, found.result_error) == (JobState.SUCCEEDED, None, RESULT_PRUNED)
    assert (found.finished_at, found.attempts) == (before.finished_at, 1)
    assert store.jobs(Selection(ids=[id_of("a")]))[0].result_error == RESULT_PRUNED
    assert look(store, "b").result == b"43"
    assert store.prune(ALL_KEPT, 10) == 0


def test_pruning_a_result_that_nobody_sees_any_more_changes_nothing_to_be_seen(
    store: Store, worker: Worker, clock: ManualClock
):
    """Its time was over before, whenever it is pruned."""
    insert(store, "a")
    worker.finish(succeeded(worker.claim_one(), b"42")._replace(result_ttl=0))
    clock.advance(10)
    before = everything(store)
    assert store.prune(ALL_KEPT, 10) == 1
    assert everything(store) == before


def test_no_result_is_nothing_to_forget(store: Store, worker: Worker, clock: ManualClock):
    """Where there was none, or it could not be kept, nothing is said of its time."""
    insert(store, "a", "b")
    a, b = worker.claim()
    worker.finish(
        succeeded(a)._replace(result_ttl=SECOND), succeeded(b)._replace(result_error="too large", result_ttl=SECOND)
    )
    clock.advance(5)
    assert store.prune(ALL_KEPT, 10) == 0
    assert [look(store, name).result_error for name in "ab"] == [None, "too large"]


def test_an_empty_result_is_one(store: Store, worker: Worker, clock: ManualClock):
    """No bytes are a result too, and forgotten like any other."""
    insert(store, "a")
    worker.finish(succeeded(worker.claim_one(), b"")._replace(result_ttl=SECOND))
    clock.advance(1)
    assert store.prune(ALL_KEPT, 10) == 1
    assert (look(store, "a").result, look(store, "a").result_error) == (None, RESULT_PRUNED)


def test_a_job_that_goes_takes_its_result_along(store: Store, worker: Worker, clock: ManualClock):
    """Where both are due the job is counted, and nothing is left to forget."""
    insert(store, "a")
    worker.finish(succeeded(worker.claim_one(), b"42")._replace(keep=SECOND, result_ttl=SECOND))
    clock.advance(1)
    assert store.prune(ALL_KEPT, 10) == 1
    assert store.prune(ALL_KEPT, 10) == 0
    assert (states(store), leftovers(store)) == ({}, [])


def test_the_limit_is_for_jobs_and_for_results(store: Store, worker: Worker, clock: ManualClock):
    """Up to so many of each in one stroke, the results that were due first before the others."""
    insert(store, *"abcdef")
    a, b, c, d, e, f = worker.claim()
    worker.finish(succeeded(e), succeeded(f))
    ages = zip((a, b, c, d), (4, 2, 3, 1), strict=True)
    worker.finish(*(succeeded(claim, b"42")._replace(keep=FOREVER, result_ttl=age * SECOND) for claim, age in ages))
    clock.advance(10)
    assert store.prune(NOTHING_KEPT, 1) == 2
    assert list(states(store)) == list("abcdf")
    clock.step(-10)  # so that those that were not forgotten can be seen
    assert [look(store, name).result for name in "abcd"] == [b"42", b"42", b"42", None]
    clock.step(10)
    assert store.prune(NOTHING_KEPT, 2) == 3
    clock.step(-10)
    assert [look(store, name).result for name in "abcd"] == [b"42", None, None, None]
    clock.step(10)
    assert store.prune(NOTHING_KEPT, 2) == 1


def test_results_due_together_go_in_the_order_of_their_ids(store: Store, worker: Worker, clock: ManualClock):
    """Whichever job was inserted or ended first."""
    for name in "bca":
        insert(store, name)
        clock.advance(1)
    b, c, a = worker.claim()
    for claim in (c, a, b):
        worker.finish(succeeded(claim, b"42")._replace(result_ttl=SECOND))
    clock.advance(1)
    assert store.prune(ALL_KEPT, 2) == 2
    clock.step(-1)
    assert [look(store, name).result for name in "abc"] == [None, None, b"42"]


def test_an_operators_retry_forgets_the_results_time(store: Store, worker: Worker, clock: ManualClock):
    """The next result is kept as its own outcome says."""
    insert(store, "a")
    half = cancelled(worker.claim_one())._replace(result=b"21", result_ttl=SECOND)
    worker.finish(half)
    move(store, Act.RETRY, "a")
    clock.advance(5)
    assert store.prune(ALL_KEPT, 10) == 0
    worker.finish(succeeded(worker.claim_one(), b"42"))
    clock.advance(5)
    assert store.prune(ALL_KEPT, 10) == 0
    assert look(store, "a").result == b"42"


def test_pruning_nothing(store: Store, worker: Worker, clock: ManualClock):
    """Pruning nothing deletes and forgets nothing."""
    insert(store, "a", "b")
    a, b = worker.claim()
    worker.finish(succeeded(a), succeeded(b, b"42")._replace(keep=FOREVER, result_ttl=SECOND))
    clock.advance(5)
    before = everything(store)
    assert store.prune(NOTHING_KEPT, 0) == 0
    assert everything(store) == before


def test_many_old_results(store: Store, worker: Worker, clock: ManualClock):
    """Batch after batch until all are forgotten."""
    insert(store, *(f"{number:04}" for number in range(700)))
    worker.finish(*(succeeded(claim, b"42")._replace(result_ttl=SECOND) for claim in worker.claim(700)))
    clock.advance(1)
    assert [store.prune(ALL_KEPT, 300) for _ in range(4)] == [300, 300, 100, 0]
    assert {one.result_error for one in store.jobs(Selection(), limit=1_000)} == {RESULT_PRUNED}
