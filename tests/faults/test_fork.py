"""Forks after the store was opened (F76)."""

import pytest

from packhorse.ids import from_text
from tests.faults.harness import Place
from tests.waiting import wait_until


def test_a_fork_waits_for_the_threads_that_write(place: Place):
    """A child forked within another thread's transaction would find the database locked for ever."""
    parent = place.client("fork_beside_writers")
    said = parent.succeeded()
    assert said == [*["status 0"] * 20, "survived"]
    assert place.sql("pragma integrity_check") == [("ok",)]


@pytest.mark.slow
def test_a_task_may_fork_and_both_sides_enqueue(place: Place):
    ids = [place.enqueue("fork", f"fork-{n}") for n in range(5)]
    workers = place.workers("--concurrency", "2")
    wait_until(lambda: len(place.rows()) == 15, "both sides of each fork enqueued")
    place.wait_all_finished()
    assert workers.stop() == 0
    place.check(ids)
    assert len(workers.pids("worker")) == 1
    keys = {row.key for row in place.rows().values()}
    assert keys == {f"fork-{n}{side}" for n in range(5) for side in ("", "-child", "-parent")}


def test_what_a_daemon_enqueues_is_kept_though_its_parent_went(place: Place):
    """SQLite would take the parent's locks for the child's own, and others would clear away the log it writes to."""
    daemon = place.client("steps")
    daemon.tell("enqueue before")
    before = daemon.line().split()[1]
    daemon.tell("fork inside")
    inside = daemon.line().split()[1]
    daemon.process.wait(20)
    assert len(place.rows()) == 2  # somebody else opens the file and closes it again
    daemon.tell("enqueue after")
    after = daemon.line().split()[1]
    assert set(place.rows()) == {from_text(id) for id in (before, inside, after)}
    daemon.tell("locks")
    assert daemon.line() == "held"


def test_a_fork_beside_a_busy_thread_is_refused_once_the_parent_is_gone(place: Place):
    place.constants["packhorse.stores.sqlite_connections.DEADLINE"] = 0.5
    daemon = place.client("steps")
    daemon.tell("enqueue before")
    assert daemon.line().startswith("enqueued")
    daemon.tell("busy")
    assert daemon.line() == "busy"
    daemon.tell("fork inside")
    line = daemon.line()
    assert line.startswith("refused EnqueueError Nothing was enqueued: This process was forked while another thread")
    daemon.process.wait(20)
    assert len(place.rows()) == 1


def test_a_fork_leaves_the_parents_store_as_it_was(place: Place):
    parent = place.client("steps")
    for step in ("enqueue before", "watch", "fork_aside child", "wait", "enqueue after", "wait"):
        parent.tell(step)
    said = [parent.line().split()[0] for _ in range(6)]
    assert said == ["enqueued", "watching", "enqueued", "changed", "enqueued", "changed"]
    parent.tell("locks")
    assert parent.line() == "held"
    assert sorted(row.key for row in place.rows().values()) == ["after", "before", "child"]
    assert place.sql("pragma integrity_check") == [("ok",)]
