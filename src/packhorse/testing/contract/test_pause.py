"""`pause` and `resume`: a queue or a task that serves nobody for a while."""

import pytest

from packhorse.clock import SECOND, ManualClock, to_datetime
from packhorse.job import JobState
from packhorse.stores import Store
from packhorse.stores.contract import Act, Pause, Paused, QueueCounts
from packhorse.testing.contract.helpers import (
    Worker,
    insert,
    job,
    look,
    move,
    name_of,
    names,
    new_nonce,
    released,
    retried,
    state,
    states,
    succeeded,
)

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


# Tasks.

FEED = "birds.feed"


def pause_task(store: Store, task: str = FEED, *, length: int | None = None) -> None:
    store.pause(task, None, "ann", "no seeds", length=length, kind=Paused.TASK)


def resume_task(store: Store, task: str = FEED) -> bool:
    return store.resume(task, "ann", "seeds", kind=Paused.TASK)


def test_a_paused_task_serves_nobody(store: Store, worker: Worker):
    """Its jobs wait, whatever their queue and priority; those of other tasks go on."""
    pause_task(store)
    insert(store, job("a", task=FEED, priority=9), job("b"), job("c", task=FEED, queue="mail"), job("d", queue="mail"))
    assert sorted(names(worker.claim())) == ["b", "d"]
    assert states(store)["a"] is states(store)["c"] is JobState.WAITING
    assert resume_task(store) is True
    assert sorted(names(worker.claim())) == ["a", "c"]


def test_jobs_of_a_paused_task_do_not_use_up_the_limit(store: Store, worker: Worker):
    """A worker that asks for three gets three, however many of a paused task stand before them."""
    insert(store, *(job(f"a{number}", task=FEED) for number in range(20)), "b", "c", "d", "e")
    pause_task(store)
    assert names(worker.claim(3)) == ["b", "c", "d"]
    assert names(worker.claim(3)) == ["e"]


def test_each_entry_is_served_beside_a_paused_task(store: Store, worker: Worker):
    """The order of the queue list stays what it is."""
    insert(store, job("a", queue="x", task=FEED), job("b", queue="x"), job("c", queue="y", priority=9))
    pause_task(store)
    assert names(worker.claim(2, queues="x,y")) == ["b", "c"]


def test_the_first_ones_start_beside_a_paused_task(store: Store, worker: Worker):
    """Those that begin at once are said to, in the order of claims, whatever is paused."""
    insert(store, "d", job("a", task=FEED, priority=9), job("c", priority=1), "b", job("e", queue="zzz"))
    pause_task(store)
    assert names(worker.claim(4, starting=2, queues="default,zzz")) == ["c", "b", "d", "e"]
    assert [name for name in "abcde" if look(store, name).started_at is not None] == ["b", "c"]


def test_all_entries_count_for_those_that_start_beside_a_paused_task(store: Store, worker: Worker):
    """The second queue of the list goes on where the first left off."""
    insert(store, job("a", queue="x"), job("b", queue="y"), job("c", queue="y"))
    pause_task(store)
    assert names(worker.claim(5, starting=2, queues="x,y")) == ["a", "b", "c"]
    assert [name for name in "abc" if look(store, name).started_at is not None] == ["a", "b"]


def test_jobs_of_a_paused_task_keep_their_place(store: Store, worker: Worker, clock: ManualClock):
    """Resumed, they stand where they would have stood."""
    insert(store, job("a", task=FEED), job("b", task=FEED))
    pause_task(store)
    assert worker.claim() == []
    clock.advance(1)
    insert(store, "c")
    resume_task(store)
    assert names(worker.claim()) == ["a", "b", "c"]


def test_a_pause_of_a_task_ends_by_itself(store: Store, worker: Worker, clock: ManualClock):
    """When its time is over, a promotion lets those go on that were held back."""
    insert(store, job("a", task=FEED))
    pause_task(store, length=5 * SECOND)
    assert worker.claim() == []
    clock.advance(4.999_999)
    store.promote(10)
    assert worker.claim() == []
    clock.advance(0.000_001)
    store.promote(10)
    assert names(worker.claim()) == ["a"]
    assert store.pauses() == []


def test_running_jobs_of_a_paused_task_go_on(store: Store, worker: Worker):
    """And what comes back from them is held back."""
    insert(store, job("a", task=FEED), job("b", task=FEED), job("c", task=FEED))
    a, b, c = worker.claim()
    pause_task(store)
    assert worker.finish(succeeded(a), released(b), retried(c)) == []
    assert worker.claim() == []
    assert states(store) == {"a": JobState.SUCCEEDED, "b": JobState.WAITING, "c": JobState.WAITING}


def test_a_job_of_a_paused_task_is_never_claimed(store: Store, worker: Worker):
    """No token was given out for it: its epoch is what it was, and nobody holds it."""
    insert(store, job("a", task=FEED))
    pause_task(store)
    worker.claim()
    assert worker.holds == []
    assert (look(store, "a").process, look(store, "a").claimed_at) == (None, None)
    resume_task(store)
    assert worker.claim_one().token.epoch == 1


def test_operators_act_on_jobs_of_a_paused_task(store: Store, worker: Worker):
    """They can be cancelled, discarded, and given another queue and priority."""
    insert(store, *(job(name, task=FEED) for name in "abcd"))
    pause_task(store)
    worker.claim()
    assert move(store, Act.CANCEL, "a").jobs == 1
    assert move(store, Act.DISCARD, "b").jobs == 1
    assert move(store, Act.CHANGE, "d", priority=5, queue="mail").jobs == 1
    resume_task(store)
    assert names(worker.claim()) == ["d", "c"]


def test_a_task_and_a_queue_of_one_name_are_paused_apart(store: Store, worker: Worker):
    """Resuming one leaves the other."""
    insert(store, job("a", queue="mail", task="mail"), job("b", queue="mail"), job("c", task="mail"))
    store.pause("mail", None, "ann", "")
    pause_task(store, "mail")
    assert worker.claim() == []
    assert [(pause.kind, pause.name) for pause in store.pauses()] == [(Paused.QUEUE, "mail"), (Paused.TASK, "mail")]
    assert [counts.pause is not None for counts in store.queues()] == [False, True]
    store.resume("mail", "ann", "")
    assert names(worker.claim()) == ["b"]
    resume_task(store, "mail")
    assert names(worker.claim()) == ["a", "c"]


def test_resuming_a_task_that_runs(store: Store):
    """Says so."""
    assert resume_task(store) is False
    pause_task(store)
    assert resume_task(store) is True
    assert store.pauses() == []


def test_pauses_are_listed_by_kind_and_name(store: Store, clock: ManualClock):
    """With their end, reason and actor; those that have ended are not."""
    until = clock.now() + 5 * SECOND
    store.pause("b", None, "ann", "why", kind=Paused.TASK)
    store.pause("a", until, "bob", "", kind=Paused.TASK)
    store.pause("z", None, "eve", "")
    assert store.pauses() == [
        Pause("z", None, "", "eve"),
        Pause("a", to_datetime(until), "", "bob", Paused.TASK),
        Pause("b", None, "why", "ann", Paused.TASK),
    ]
    clock.advance(5)
    assert [pause.name for pause in store.pauses()] == ["z", "b"]


def test_who_dies_with_a_job_of_a_paused_task(store: Store, worker: Worker, other: Worker):
    """It is adopted like every other, and held back when it comes again."""
    insert(store, job("a", task=FEED))
    worker.claim_one()
    pause_task(store)
    [orphan] = store.adopt(other.id, new_nonce(), 5, dead=[worker.id])
    other.finish(released(orphan.claim))
    assert other.claim() == []
    resume_task(store)
    assert [name_of(claim.token.id) for claim in other.claim()] == ["a"]
