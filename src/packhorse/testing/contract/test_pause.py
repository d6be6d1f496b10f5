"""`pause` and `resume`: a queue that serves nobody for a while."""

import pytest

from packhorse.clock import SECOND, ManualClock, to_datetime
from packhorse.job import JobState
from packhorse.stores import Store
from packhorse.stores.contract import Pause, QueueCounts
from packhorse.testing.contract.helpers import Worker, insert, job, names, state, succeeded

each_way_to_ask = pytest.mark.parametrize("queues", ["mail", "mail*", "*", "x,mail", "mail,*"])


@each_way_to_ask
def test_a_paused_queue_serves_nobody(store: Store, worker: Worker, queues: str):
    """However a worker asks for it, a paused queue gives nothing until it is resumed."""
    insert(store, job("a", queue="mail"))
    store.pause("mail", None, "ann", "broken")
    assert worker.claim(queues=queues) == []
    assert state(store, "a") is JobState.READY
    assert store.resume("mail", "ann", "mended") is True
    assert names(worker.claim(queues=queues)) == ["a"]


@each_way_to_ask
def test_a_pause_until_a_moment(store: Store, worker: Worker, clock: ManualClock, queues: str):
    """A pause ends by itself when its moment has come."""
    insert(store, job("a", queue="mail"))
    store.pause("mail", clock.now() + 5 * SECOND, "ann", "")
    clock.advance(4.999_999)
    assert worker.claim(queues=queues) == []
    clock.advance(0.000_001)
    assert names(worker.claim(queues=queues)) == ["a"]


def test_others_go_on(store: Store, worker: Worker):
    """A pause is about one queue by its exact name."""
    insert(store, job("a", queue="mail"), job("b", queue="mail.bulk"), job("c", queue="mai"))
    store.pause("mail", None, "ann", "")
    assert names(worker.claim()) == ["b", "c"]


def test_pausing_a_prefix_pauses_only_that_name(store: Store, worker: Worker):
    """A star is nothing special in a pause."""
    insert(store, job("a", queue="mail"))
    store.pause("mail*", None, "ann", "")
    assert names(worker.claim()) == ["a"]


def test_running_jobs_go_on(store: Store, worker: Worker):
    """What was claimed before the pause may finish."""
    insert(store, job("a", queue="mail"))
    claim = worker.claim_one()
    store.pause("mail", None, "ann", "")
    assert worker.finish(succeeded(claim)) == []


def test_jobs_may_be_inserted_meanwhile(store: Store, worker: Worker):
    """A paused queue collects jobs."""
    store.pause("mail", None, "ann", "")
    insert(store, job("a", queue="mail"))
    assert worker.claim() == []
    store.resume("mail", "ann", "")
    assert names(worker.claim()) == ["a"]


def test_a_pause_is_shown(store: Store, clock: ManualClock):
    """Whoever looks at the queues sees who paused which and why, also where no job is."""
    until = clock.now() + 5 * SECOND
    insert(store, job("a", queue="mail"))
    store.pause("mail", None, "ann", "broken")
    store.pause("empty", until, "bob", "")
    assert store.queues() == [
        QueueCounts("empty", {}, Pause("empty", to_datetime(until), "", "bob")),
        QueueCounts("mail", {JobState.READY: 1}, Pause("mail", None, "broken", "ann")),
    ]
    clock.advance(5)
    assert store.queues() == [
        QueueCounts("mail", {JobState.READY: 1}, Pause("mail", None, "broken", "ann")),
    ]


def test_the_last_pause_counts(store: Store, worker: Worker, clock: ManualClock):
    """Pausing a paused queue replaces when it ends and why."""
    insert(store, job("a", queue="mail"))
    store.pause("mail", None, "ann", "first")
    store.pause("mail", clock.now() + SECOND, "bob", "second")
    assert [counts.pause and counts.pause.reason for counts in store.queues()] == ["second"]
    clock.advance(1)
    assert names(worker.claim()) == ["a"]


def test_resuming_what_runs(store: Store):
    """Resuming a queue that was not paused says so."""
    assert store.resume("mail", "ann", "") is False
    store.pause("mail", None, "ann", "")
    assert store.resume("mail", "ann", "") is True
    assert store.resume("mail", "ann", "") is False


def test_pauses_are_audited(store: Store, clock: ManualClock):
    """Both acts leave a line, the newest first."""
    store.pause("mail", None, "ann", "broken")
    clock.advance(1)
    store.resume("mail", "bob", "mended")
    assert store.audit() == [
        (clock.now(), "bob", "resume", "mended", 0),
        (clock.now() - SECOND, "ann", "pause", "broken", 0),
    ]


def test_a_pause_in_an_earlier_entry_is_not_served_by_a_later_one(store: Store, worker: Worker):
    """A queue list cannot reach a paused queue by naming it twice."""
    insert(store, job("a", queue="mail"), job("b", queue="report"))
    store.pause("mail", None, "ann", "")
    assert names(worker.claim(queues="mail,mail*,*")) == ["b"]


def test_a_pause_may_last_a_length_of_the_stores_time(store: Store, worker: Worker, clock: ManualClock):
    """So that nobody's clock but the store's counts."""
    insert(store, "a")
    store.pause("default", None, "ann", "", length=5 * SECOND)
    assert worker.claim() == []
    clock.advance(6)
    assert names(worker.claim()) == ["a"]
