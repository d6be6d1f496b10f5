"""Processes under stress: leases hold while tasks starve them, and nobody outlives his right to perform."""

import os
import shutil
import signal
import subprocess
import sys

import pytest

from tests.faults.harness import ROOT, Place, Workers
from tests.waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("task", "arguments"),
    [("grip", ()), ("block", (5.0,)), ("nap", (5.0,))],
    ids=["the interpreter lock is held", "the loop is blocked", "it takes longer than every lease"],
)
def test_a_job_that_outlasts_its_lease_runs_once(place: Place, task: str, arguments: tuple[float, ...]):
    """The supervisor beats for its worker, so that one that cannot does not look dead."""
    place.settings["lease"] = 2.0
    id = place.enqueue(task, "long", *arguments)
    workers = place.workers("--processes", "2")
    place.wait_started("long")
    job = place.wait_state(id, "succeeded")
    assert (job.attempts, job.losses) == (1, 0)
    assert len(place.lines("long", "start")) == 1
    assert len(workers.pids("worker")) == 2
    assert workers.stop() == 0
    place.check([id])


def test_a_blocked_loop_claims_nothing_and_is_told(place: Place):
    """Other workers perform what it would have swallowed."""
    blocking = place.enqueue("block_and_hold", "blocking")
    workers = place.workers("--processes", "2")
    blocked = place.wait_started("blocking").pid
    others = place.enqueue_many("anote", *[(f"other-{n}",) for n in range(40)])
    wait_until(lambda: len(place.lines(what="finish")) >= 40, "the others have run", 60)
    workers.wait_log("the event loop is blocked")
    assert place.lines("blocking", "finish") == []
    assert {line.pid for line in place.lines(what="finish")}.isdisjoint({blocked})
    place.let_go("blocking")
    place.wait_state(blocking, "succeeded")
    after = place.enqueue("anote", "after")
    place.wait_state(after, "succeeded")
    assert workers.stop() == 0
    place.check([blocking, *others, after])


def test_a_tree_that_wakes_up_after_its_lease_stops_what_others_perform(place: Place):
    """Its task ends soon after, without an outcome; the other attempt is the only one that counts."""
    id = place.enqueue("beating", "held")
    first = place.workers()
    old = place.wait_started("held").pid
    first.wait_pid("dispatcher")
    first.freeze()
    place.end_leases()
    second = place.workers()
    new = place.wait_started("held", 2)
    assert new.pid != old
    first.thaw()
    wait_until(lambda: _silent(place, old), "the old attempt has ended", 60)
    assert place.job(id).state == "running"
    place.let_go("held")
    job = place.wait_state(id, "succeeded")
    assert (job.attempts, job.losses) == (1, 1)
    assert [line.pid for line in place.lines("held", "finish")] == [new.pid]
    assert second.stop() == 0
    assert first.stop() == 0
    place.check([id])


def _silent(place: Place, pid: int) -> bool:
    """It said nothing while another one said ten words."""
    said = [line.pid for line in place.lines("held", "beat")]
    return len(said) > 20 and pid not in said[-10:]


def test_storms_of_signals_are_one_stop(place: Place):
    ids = place.enqueue_many("nap", *[(f"nap-{n}", 0.05) for n in range(60)])
    workers = place.workers()
    place.wait_started("nap-0")
    for number in [signal.SIGTERM, signal.SIGUSR1, signal.SIGTERM] * 30:
        workers.process.send_signal(number)
    assert workers.wait() == 0
    rows = place.rows().values()
    assert {row.state for row in rows} <= {"succeeded", "ready"}
    assert {row.losses for row in rows} == {0}
    again = place.workers()
    place.wait_all_finished()
    assert again.stop() == 0
    assert all(len(place.lines(f"nap-{n}", "start")) == 1 for n in range(60))
    place.check(ids)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_a_stop_while_it_starts(place: Place, number: signal.Signals):
    id = place.enqueue("note", "noted")
    workers = place.workers()
    workers.wait_log("started worker")
    assert workers.stop(number) == 0
    workers.wait_children_gone()
    again = place.workers()
    place.wait_state(id, "succeeded")
    assert again.stop() == 0
    place.check([id])


def test_what_a_task_leaves_behind_holds_up_nothing(place: Place):
    """A process of its own that lives on has none of our files open."""
    id = place.enqueue("daemon", "left")
    workers = place.workers()
    place.wait_state(id, "succeeded")
    try:
        assert workers.stop() == 0
        inherited = (place.folder / "go-left-files").read_text()
        assert "jobs.db" not in inherited
        assert "socket:" not in inherited
    finally:
        place.let_go("left")
    place.check([id])


def test_as_the_first_process_of_a_container(place: Place):
    """It passes signals on and looks after everybody's orphans."""
    if os.getuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("needs root and unshare to make a container")
    id, orphan = place.enqueue("note", "noted"), place.enqueue("daemon", "orphaned")
    command = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child=SIGKILL"]
    command += [sys.executable, "-m", "packhorse", "worker", "tests.faults.apps:app", "--processes", "1"]
    log = place.folder / "log-container"
    with log.open("wb") as output:
        container = subprocess.Popen(command, cwd=ROOT, env=place.environment(), stdout=output, stderr=output)
    try:
        place.wait_state(id, "succeeded")
        place.wait_state(orphan, "succeeded")
        [first] = _children(container.pid)
        place.let_go("orphaned")
        wait_until(lambda: not _zombies(first), "orphans are buried", 60)
        os.kill(first, signal.SIGTERM)
        assert container.wait(60) == 0, log.read_text()
    finally:
        container.kill()
        container.wait()
    place.check([id, orphan])


def _children(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(word) for word in file.read().split()]


def _zombies(pid: int) -> list[int]:
    found = []
    for child in _children(pid):
        try:
            with open(f"/proc/{child}/stat") as file:
                state = file.read().rpartition(") ")[2][0]
        except OSError:
            continue
        if state == "Z":
            found.append(child)
    return found


def test_few_descriptors_are_enough(place: Place):
    """Where there are too few for more, it backs off and goes on."""
    ids = place.enqueue_many("note", *[(f"note-{n}",) for n in range(200)])
    workers = place.workers(wrapper=("prlimit", "--nofile=40:40"))
    place.wait_all_finished()
    assert workers.stop() == 0
    place.check(ids)


def test_a_log_that_nobody_reads_stops_nothing(place: Place):
    """The other end of the pipe is gone."""
    ids = place.enqueue_many("note", *[(f"note-{n}",) for n in range(20)])
    reading, writing = os.pipe()
    command = [sys.executable, "-m", "packhorse", "worker", "tests.faults.apps:app", "--processes", "1"]
    process = subprocess.Popen(
        [*command, "--log-level", "DEBUG"], cwd=ROOT, env=place.environment(), stdout=writing, stderr=writing
    )
    os.close(writing)
    os.close(reading)
    try:
        place.wait_all_finished()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
    place.check(ids)


def test_two_supervisors_on_one_host_are_two(place: Place):
    ids = place.enqueue_many("nap", *[(f"nap-{n}", 0.02) for n in range(100)])
    both = [place.workers(), place.workers()]
    wait_until(lambda: len({view.id for view in place.app.inspection.processes()}) == 8, "all are there", 60)
    place.app.close()
    place.wait_all_finished()
    assert [workers.stop() for workers in both] == [0, 0]
    assert {(row.attempts, row.losses) for row in place.rows().values()} == {(1, 0)}
    place.check(ids)


def lose_leases(place: Place, workers: Workers) -> int:
    """All its processes go on under new names; the pid of the worker."""
    pid = workers.wait_pid("worker")
    wait_until(lambda: len(place.sql("select 1 from process")) == 4, "all are enrolled", 60)
    workers.freeze()
    place.end_leases()
    workers.thaw()
    wait_until(lambda: workers.log.count("lost its lease; it goes on under a new id") == 4, "they noticed", 60)
    return pid


def test_a_worker_under_a_new_name_is_buried_at_once(place: Place):
    """Its supervisor has heard of the name."""
    workers = place.workers()
    pid = lose_leases(place, workers)
    id = place.enqueue("hold", "held")
    assert place.wait_started("held").pid == pid
    workers.kill_child(pid)
    place.wait_started("held", times=2)
    place.let_go("held")
    job = place.wait_state(id, "succeeded")
    assert job.failures[0].failure.type == "packhorse.errors.ProcessExitError"
    assert workers.stop() == 0
    place.check([id])


def test_quit_hands_back_also_under_a_new_name(place: Place):
    workers = place.workers()
    lose_leases(place, workers)
    id = place.enqueue("hold", "held")
    place.wait_started("held")
    assert workers.stop(signal.SIGQUIT) == 0
    job = place.job(id)
    assert (job.state, job.attempts, job.losses) == ("ready", 0, 0)
