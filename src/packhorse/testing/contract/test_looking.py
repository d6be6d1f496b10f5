"""What anyone can see: jobs, queues, processes, the audit."""

from dataclasses import replace
from typing import Any

import pytest

from packhorse.clock import SECOND, ManualClock
from packhorse.ids import to_text
from packhorse.job import JobState
from packhorse.stores import Store
from packhorse.stores.contract import Act, Change, Moved, ProcessInfo, ProcessView, QueueCounts, Selection
from packhorse.testing.contract.helpers import (
    FAILURE,
    Worker,
    cancelled,
    failed,
    id_of,
    insert,
    job,
    look,
    move,
    names,
    now,
    retried,
    succeeded,
)

# Jobs.


def test_an_unknown_job(store: Store):
    """There is nothing to see of a job that is not there."""
    assert store.job(id_of("a")) is None
    assert store.entries(id_of("a")) == []
    assert store.jobs(Selection()) == []


def test_jobs_come_in_the_order_of_their_ids(store: Store):
    """A list of jobs is sorted by id, whenever they were inserted."""
    insert(store, *"cadb")
    assert names(store.jobs(Selection())) == ["a", "b", "c", "d"]


def test_pages_of_jobs(store: Store):
    """Page by page, behind the last one seen, each job is listed once."""
    insert(store, *"abcde")
    assert names(store.jobs(Selection(), limit=2)) == ["a", "b"]
    assert names(store.jobs(Selection(), id_of("b"), 2)) == ["c", "d"]
    assert names(store.jobs(Selection(), id_of("d"), 2)) == ["e"]
    assert names(store.jobs(Selection(), id_of("e"), 2)) == []


def test_a_page_begins_behind_any_id(store: Store):
    """The id to go on from need not be there any more."""
    insert(store, *"ace")
    assert names(store.jobs(Selection(), id_of("b"))) == ["c", "e"]
    assert names(store.jobs(Selection(), id_of("d"), newest_first=True)) == ["c", "a"]


def test_pages_of_jobs_with_the_newest_first(store: Store):
    """The same pages the other way round."""
    insert(store, *"cadbe")
    assert names(store.jobs(Selection(), newest_first=True)) == ["e", "d", "c", "b", "a"]
    assert names(store.jobs(Selection(), limit=2, newest_first=True)) == ["e", "d"]
    assert names(store.jobs(Selection(), id_of("d"), 2, newest_first=True)) == ["c", "b"]
    assert names(store.jobs(Selection(), id_of("b"), 2, newest_first=True)) == ["a"]
    assert names(store.jobs(Selection(), id_of("a"), 2, newest_first=True)) == []


def test_a_hundred_jobs_unless_told_otherwise(store: Store):
    """A page has a hundred jobs by default."""
    insert(store, *(f"{number:03}" for number in range(120)))
    assert len(store.jobs(Selection())) == 100


@pytest.fixture
def many(store: Store, worker: Worker) -> None:
    """Jobs that differ in state, queue, task and tags."""
    insert(
        store,
        job("a", queue="mail", tags=("x", "y")),
        job("b", queue="mail", task="birds.feed", tags=("y",)),
        job("c", queue="report", tags=("z",)),
        job("d", queue="report", task="birds.feed"),
        job("e", queue="mail.bulk", delay=SECOND),
        job("f", queue="mail", priority=1, tags=("x",)),
    )
    worker.finish(*map(failed, worker.claim(1, queues="mail")))
    worker.claim(1, queues="report")


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize(
    ("selection", "found"),
    [
        (Selection(), "abcdef"),
        (Selection(ids=[id_of("a"), id_of("f"), id_of("nobody")]), "af"),
        (Selection(states=[JobState.READY]), "abd"),
        (Selection(states=[JobState.RUNNING, JobState.FAILED]), "cf"),
        (Selection(states=[JobState.WAITING]), ""),
        (Selection(queues=["mail"]), "abf"),
        (Selection(queues=["mail", "report"]), "abcdf"),
        (Selection(tasks=["birds.feed"]), "bd"),
        (Selection(tags=["x"]), "af"),
        (Selection(tags=["x", "y"]), "abf"),
        (Selection(tags=["nothing"]), ""),
        (Selection(queues=["mail"], tags=["y"], tasks=["birds.feed"]), "b"),
        (Selection(states=[JobState.READY], queues=["mail"], ids=[id_of("a"), id_of("f")]), "a"),
        (Selection(ids=[]), ""),
        (Selection(tags=[]), ""),
        (Selection(ids={id_of("a")}, states=frozenset({JobState.READY})), "a"),
    ],
    ids=str,
)
def test_every_given_field_must_match(store: Store, selection: Selection, found: str):
    """A selection narrows by state, queue, task, tag and id; of several values in a field one must fit."""
    assert names(store.jobs(selection)) == list(found)


@pytest.fixture
def over_time(store: Store, worker: Worker, clock: ManualClock) -> int:
    """Jobs created at seconds 0, 2 and 4, of which two finished at 5 and 7; d has not. When it began."""
    began = clock.now()
    for name in "abd":
        insert(store, name)
        clock.advance(2)
    a, b = worker.claim(2)
    clock.advance(-1)
    worker.finish(failed(a))
    clock.advance(2)
    worker.finish(succeeded(b))
    return began


@pytest.mark.parametrize(
    ("bounds", "found"),
    [
        ({"created_from": 2}, "bd"),
        ({"created_from": 2.000_001}, "d"),
        ({"created_before": 2}, "a"),
        ({"created_before": 2.000_001}, "ab"),
        ({"created_from": 2, "created_before": 4}, "b"),
        ({"created_from": 4, "created_before": 4}, ""),
        ({"created_from": 4, "created_before": 2}, ""),
        ({"created_from": -100, "created_before": 100}, "abd"),
        ({"finished_from": 5}, "ab"),
        ({"finished_from": 5.000_001}, "b"),
        ({"finished_before": 7}, "a"),
        ({"finished_before": 7.000_001}, "ab"),
        ({"finished_from": 5, "finished_before": 7}, "a"),
        ({"finished_from": -100}, "ab"),
        ({"finished_before": 100}, "ab"),
        ({"created_from": 1, "finished_before": 100}, "b"),
        ({"created_before": 1, "finished_from": 6}, ""),
    ],
    ids=str,
)
def test_a_selection_by_time(store: Store, over_time: int, bounds: dict[str, float], found: str):
    """From a moment on, before a moment, or both; what has not finished has no such moment and is never between."""
    times: dict[str, Any] = {bound: over_time + round(seconds * SECOND) for bound, seconds in bounds.items()}
    assert names(store.jobs(Selection(**times))) == list(found)


def test_times_narrow_like_any_field(store: Store, over_time: int):
    """Together with ids, states, queues and a place to go on from."""
    finished = Selection(finished_from=over_time)
    assert names(store.jobs(finished, id_of("a"))) == ["b"]
    assert names(store.jobs(finished, limit=1)) == ["a"]
    assert names(store.jobs(finished, limit=1, newest_first=True)) == ["b"]
    assert names(store.jobs(finished, id_of("b"), newest_first=True)) == ["a"]
    for state, found in {JobState.FAILED: ["a"], JobState.SUCCEEDED: ["b"], JobState.READY: []}.items():
        assert names(store.jobs(replace(finished, states=[state]))) == found
    assert names(store.jobs(Selection(ids=[id_of("b"), id_of("d")], created_from=over_time + 3 * SECOND))) == ["d"]
    assert names(store.jobs(Selection(queues=["mail"], created_from=over_time))) == []


def test_an_act_on_a_selection_by_time(store: Store, over_time: int):
    """Acts reach what pages show, in pages of their own."""
    long_ago = Selection(created_before=over_time + 3 * SECOND)
    moved = store.move(long_ago, Change(Act.DISCARD), "ann", "", limit=1)
    assert moved == Moved(1, 0, id_of("a"))
    assert store.move(long_ago, Change(Act.DISCARD), "ann", "", after=moved.after) == Moved(1, 0, None)
    assert names(store.jobs(Selection())) == ["d"]


def test_a_retried_job_has_not_finished(store: Store, over_time: int):
    """Its old end is no moment any more."""
    move(store, Act.RETRY, "a")
    assert names(store.jobs(Selection(finished_from=0))) == ["b"]


@pytest.mark.usefixtures("many")
def test_acts_and_pages_select_alike(store: Store):
    """What a page shows for a selection is what an act on it moves."""
    selection = Selection(queues=["mail"], tags=["y"])
    assert store.move(selection, Change(Act.CANCEL), "ann", "").jobs == len(store.jobs(selection))


def test_a_list_leaves_out_what_is_wide(store: Store, worker: Worker, clock: ManualClock):
    """Payload, result and attempts come with a single job only; the failure is on the list."""
    insert(store, job("a", tags=("x",)), "b")
    claim = worker.claim_one()
    clock.advance(1)
    worker.finish(retried(claim))
    b, a = worker.claim()
    worker.finish(succeeded(a, b"42"), failed(b))
    listed = store.jobs(Selection())
    assert [(one.payload, one.result, one.failures) for one in listed] == [(b"", None, ())] * 2
    assert (listed[0].tags, listed[1].failure) == (("x",), FAILURE)
    single = look(store, "a")
    assert (single.payload, single.result, len(single.failures)) == (b"payload of a", b"42", 1)


def test_tags_come_back_as_they_went(store: Store):
    """Order and repetition of tags are kept, and any text can be one."""
    tags = ("b", "a", "b", "ä ö", '"quoted", too', "")
    insert(store, job("a", tags=tags))
    assert look(store, "a").tags == tags
    assert names(store.jobs(Selection(tags=["ä ö"]))) == ["a"]
    assert names(store.jobs(Selection(tags=[""]))) == ["a"]


def test_share_is_kept(store: Store):
    """The share a job belongs to is shown, and an empty one is not none."""
    insert(store, job("a", share="ann"), job("b", share=""), "c")
    assert [look(store, name).share for name in "abc"] == ["ann", "", None]


# Queues.


def test_counts_by_queue_and_state(store: Store, worker: Worker):
    """Each queue tells how many jobs stand where; states without jobs are left out."""
    insert(store, *(job(name, queue="mail") for name in "abcde"), job("z", queue="report", delay=SECOND))
    a, b, c, _d = worker.claim(4)
    worker.finish(succeeded(a), succeeded(b), cancelled(c))
    mail, report = store.queues()
    assert mail == QueueCounts(
        "mail", {JobState.SUCCEEDED: 2, JobState.CANCELLED: 1, JobState.RUNNING: 1, JobState.READY: 1}
    )
    assert report == QueueCounts("report", {JobState.SCHEDULED: 1})
    assert (mail.of(JobState.SUCCEEDED), mail.of(JobState.FAILED)) == (2, 0)


def test_queues_are_sorted_and_vanish_with_their_last_job(store: Store):
    """A queue exists as long as a job stands in it."""
    insert(store, job("a", queue="z"), job("b", queue="y"), job("c", queue="Y"))
    assert [counts.queue for counts in store.queues()] == ["Y", "y", "z"]
    move(store, Act.DISCARD, "a")
    move(store, Act.CHANGE, "b", queue="Y")
    assert store.queues() == [QueueCounts("Y", {JobState.READY: 2})]


# Processes.


def test_processes_as_others_see_them(store: Store, clock: ManualClock):
    """A process shows who it is, since when, how long its lease is and how much it holds; sorted by id."""
    started = now(clock)
    busy = Worker(store, "busy", 10 * SECOND)
    store.enroll(ProcessInfo(id_of("alone"), "dispatcher", "far", 1), 60 * SECOND)
    insert(store, *"abc")
    busy.claim(2)
    clock.advance(4)
    assert store.processes() == [
        ProcessView(to_text(id_of("alone")), "dispatcher", "far", 1, "", started, 56.0, 0),
        ProcessView(to_text(id_of("busy")), "worker", "host of busy", 4711, "*", started, 6.0, 2),
    ]


def test_a_dead_process_has_no_lease_left(store: Store, worker: Worker, clock: ManualClock):
    """Until somebody buries it, a dead process is listed without a lease."""
    clock.advance(31)
    [view] = store.processes()
    assert view.lease_left <= 0


# Audit.


def test_the_newest_acts_come_first(store: Store, clock: ManualClock):
    """The audit is read backwards, as far as asked."""
    assert store.audit() == []
    for number in range(5):
        store.pause(f"q{number}", None, "ann", str(number))
    assert [entry.reason for entry in store.audit()] == ["4", "3", "2", "1", "0"]
    assert [entry.reason for entry in store.audit(2)] == ["4", "3"]


def test_only_operators_are_audited(store: Store, worker: Worker, clock: ManualClock):
    """The daily work of processes leaves no line."""
    insert(store, "a")
    worker.finish(retried(worker.claim_one(), SECOND))
    clock.advance(1)
    store.promote(1)
    store.leave(worker.id)
    assert store.audit() == []
