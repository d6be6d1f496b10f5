"""How tasks end that do not end by themselves: in time or by force, in threads, on the loop and in processes."""

import os
import signal
import time

import pytest

from packhorse.job import FailureKind
from tests.faults.harness import Place
from tests.waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def soon(place: Place) -> None:
    place.settings |= {"ending_timeout": 0.5}


@pytest.mark.parametrize("task", ["late", "alate", "isolated_late", "isolated_alate"])
def test_a_task_past_its_timeout_is_interrupted(place: Place, task: str):
    """In a thread, on the loop, and in a process; the worker goes on as if nothing had been."""
    place.settings["ending_timeout"] = 60.0
    id = place.enqueue(task, "late")
    workers = place.workers()
    job = place.wait_state(id, "failed")
    assert job.failure is not None
    assert (job.failure.kind, job.failure.type) == (FailureKind.TIMEOUT, "packhorse.errors.TimedOut")
    assert "longer than its timeout of 0.5 s" in job.failure.message
    assert "apps.py" in job.failure.traceback
    after = place.enqueue("note", "after")
    place.wait_state(after, "succeeded")
    assert len(workers.pids("worker")) == 1
    assert workers.stop() == 0
    place.check([id, after], others=[id])


@pytest.mark.parametrize("task", ["late_in_store", "isolated_late_in_store"])
def test_a_timeout_inside_a_step_comes_when_that_is_written(place: Place, task: str):
    """The task meets it once, and the store holds nobody up: not the task itself, while it cleans up, and no other."""
    place.settings["ending_timeout"] = 60.0
    id = place.enqueue(task, "late")
    workers = place.workers(failpoints="record.before_commit=sleep(1.5)")
    job = place.wait_state(id, "failed")
    assert job.failure is not None
    assert job.failure.kind is FailureKind.TIMEOUT
    assert {step.name for step in place.app.inspection.steps(id)} == {"one", "two"}
    place.app.close()
    after = [place.enqueue(name, f"after-{name}") for name in ("note", "isolated_note")]
    for one in after:
        place.wait_state(one, "succeeded")
    assert len(workers.pids("worker")) == 1
    assert workers.stop() == 0
    place.check([id, *after], others=[id])


@pytest.mark.parametrize("task", ["late_once", "isolated_late_once"])
def test_a_timeout_follows_the_retry_policy(place: Place, task: str):
    place.settings["ending_timeout"] = 60.0
    id = place.enqueue(task, "late")
    workers = place.workers()
    job = place.wait_state(id, "succeeded")
    assert (job.attempts, job.losses) == (2, 0)
    assert [attempt.failure.kind for attempt in job.failures] == [FailureKind.TIMEOUT]
    assert workers.stop() == 0
    place.check([id])


@pytest.mark.parametrize("task", ["isolated_stubborn_late", "isolated_blocking_late"])
def test_a_process_that_does_not_end_is_killed(place: Place, task: str):
    """Whatever it does, the worker and its other jobs do not feel it."""
    neighbour = place.enqueue("hold", "neighbour")
    id = place.enqueue(task, "late")
    workers = place.workers()
    job = place.wait_state(id, "failed")
    assert job.failure is not None
    assert job.failure.kind is FailureKind.TIMEOUT
    assert job.losses == 0
    place.let_go("neighbour")
    assert place.wait_state(neighbour, "succeeded").attempts == 1
    assert len(workers.pids("worker")) == 1
    assert len(place.lines("neighbour", "start")) == 1
    assert workers.stop() == 0
    place.check([id, neighbour], others=[id])


@pytest.mark.parametrize("task", ["asleep_late", "blocking_late"])
def test_a_worker_whose_task_does_not_end_is_replaced(place: Place, task: str):
    """The neighbour in the same process loses no attempt and counts no loss; nobody runs it meanwhile."""
    place.settings["shutdown_timeout"] = 1.0
    neighbour = place.enqueue("hold", "neighbour")
    id = place.enqueue(task, "late")
    workers = place.workers()
    first = place.wait_started("neighbour")
    assert first.pid == workers.wait_pid("worker")
    job = place.wait_state(id, "failed")
    assert job.failure is not None
    assert job.failure.kind is FailureKind.TIMEOUT
    assert job.losses == 0
    second = place.wait_started("neighbour", 2)
    assert second.pid != first.pid
    assert workers.child_ended(first.pid)
    place.let_go("neighbour")
    again = place.wait_state(neighbour, "succeeded")
    assert (again.attempts, again.losses, again.failures) == (1, 0, ())
    assert workers.stop() == 0
    place.check([id, neighbour], others=[id])


@pytest.mark.parametrize(
    ("how", "said"), [("signal", "was killed by SIGSEGV"), ("exit", "exited with status 7"), ("memory", "")]
)
def test_a_process_that_dies_takes_nobody_along(place: Place, how: str, said: str):
    place.settings["isolated_memory_limit"] = 1 << 32
    id = place.enqueue("isolated_die", "deadly", how)
    others = place.enqueue_many("isolated_note", *[(f"other-{n}",) for n in range(8)])
    workers = place.workers()
    job = place.wait_state(id, "failed")
    assert job.failure is not None
    if how == "memory":
        assert job.failure.type == "MemoryError"
    else:
        assert (job.attempts, job.losses) == (0, 3)
        assert job.failure.type == "packhorse.errors.ProcessExitError"
        assert said in job.failure.message
    place.wait_all_finished()
    assert len(workers.pids("worker")) == 1
    assert workers.stop() == 0
    place.check([id, *others], others=[id])


def test_isolated_jobs_run_in_processes_that_are_used_again_and_recycled(place: Place):
    place.settings["isolated_max_jobs"] = 5
    ids = place.enqueue_many("isolated_note", *[(f"note-{n}",) for n in range(30)])
    ids += place.enqueue_many("isolated_anote", *[(f"anote-{n}",) for n in range(10)])
    workers = place.workers("--concurrency", "2")
    place.wait_all_finished()
    pids = [line.pid for line in place.lines(what="start")]
    assert workers.wait_pid("worker") not in pids
    assert 8 <= len(set(pids)) <= 12
    assert max(map(pids.count, pids)) == 5
    assert workers.stop() == 0
    wait_until(lambda: not any(map(_lives, set(pids))), "the isolated processes are gone")
    place.check(ids)


def test_isolated_processes_die_with_their_worker(place: Place):
    id = place.enqueue("isolated_stubborn_late", "late")
    workers = place.workers()
    pid = place.wait_started("late").pid
    workers.kill_child(workers.wait_pid("worker"))
    wait_until(lambda: not _lives(pid), "the isolated process is gone")
    place.wait_state(id, "failed")
    assert workers.stop() == 0
    place.check([id], others=[id])


@pytest.mark.parametrize("task", ["hold", "isolated_hold", "ahold"])
def test_what_outlasts_the_grace_is_interrupted_and_goes_back_unspent(place: Place, task: str):
    place.settings["shutdown_timeout"] = 0.2
    id = place.enqueue(task, "held")
    workers = place.workers()
    place.wait_started("held")
    assert workers.stop() == 0
    job = place.job(id)
    assert (job.state, job.attempts, job.losses, job.failures) == ("ready", 0, 0, ())


def test_a_job_that_loses_workers_runs_alone(place: Place):
    """From the second loss on, so that it takes nobody else along, and nobody else takes it along."""
    id = place.enqueue("die", "deadly", 2)
    workers = place.workers()
    job = place.wait_state(id, "succeeded")
    assert job.losses == 2
    pids = [line.pid for line in place.lines("deadly", "start")]
    assert pids[:2] == workers.pids("worker")[:2]
    assert pids[2] not in workers.pids("worker")
    assert workers.stop() == 0
    place.check([id])


def test_usr1_claims_no_more(place: Place):
    held = place.enqueue("hold", "held")
    workers = place.workers()
    place.wait_started("held")
    workers.process.send_signal(signal.SIGUSR1)
    workers.wait_log("claims no more jobs")
    later = place.enqueue("note", "later")
    place.let_go("held")
    place.wait_state(held, "succeeded")
    assert place.job(later).state == "ready"
    assert workers.stop() == 0
    assert place.job(later).state == "ready"


def test_a_frozen_worker_is_killed_and_its_job_runs_again(place: Place):
    place.constants |= {"packhorse.runtime.supervisor.FROZEN": 0.3}
    place.settings |= {"lease": 60.0}
    id = place.enqueue("hold", "held")
    workers = place.workers()
    pid = place.wait_started("held").pid
    assert pid == workers.wait_pid("worker")
    workers.freeze_child(pid)
    second = place.wait_started("held", 2)
    assert workers.child_ended(pid)
    assert second.pid != pid
    place.let_go("held")
    assert place.wait_state(id, "succeeded").losses == 1
    assert workers.stop() == 0
    place.check([id])


@pytest.mark.parametrize("how", ["crash", "hang"])
def test_workers_that_never_get_ready_are_bounded(place: Place, how: str):
    """A supervisor that cannot start anything says so with its exit status."""
    place.settings |= {"boot_timeout": 2.0 if how == "hang" else 60.0, "max_restarts": 1}
    place.boot = f"{how} worker"
    workers = place.workers()
    assert workers.wait(60) == 70
    assert "giving up" in workers.log
    assert ("was not ready in time" in workers.log) == (how == "hang")


def test_recycled_workers_cost_nobody_anything(place: Place):
    ids = place.enqueue_many("note", *[(f"note-{n}",) for n in range(50)])
    workers = place.workers("--recycle-jobs", "10", "--concurrency", "1")
    place.wait_all_finished()
    more = place.enqueue_many("note", *[(f"more-{n}",) for n in range(50)])
    place.wait_all_finished()
    wait_until(lambda: len(workers.pids("worker")) >= 3, "workers were replaced")
    assert workers.stop() == 0
    assert {(row.attempts, row.losses) for row in place.rows().values()} == {(1, 0)}
    place.check([*ids, *more])


def test_a_worker_cut_off_stops_its_tasks_before_its_lease_is_over(place: Place):
    """And carries on when the store is back, under a new name if it took too long."""
    lease = 6.0
    place.settings |= {"heartbeat": 0.3, "lease": lease, "ending_timeout": 0.2}
    place.constants |= {"packhorse.stores.sqlite_connections.DEADLINE": 0.3}
    id = place.enqueue("beating", "cut")
    workers = place.workers()
    place.wait_started("cut")
    other = place.enqueue("hold", "other")
    place.wait_started("other")
    with place.cut_off() as since:
        workers.wait_log("its lease is about to end")
        wait_until(lambda: time.time() - since > lease + 1, "the lease is over")
        beats = [line.at / 1e6 for line in place.lines("cut", "beat")]
        assert max(beats) < since + lease
    place.wait_started("cut", 2)
    place.let_go("cut")
    place.let_go("other")
    place.wait_state(id, "succeeded")
    place.wait_state(other, "succeeded")
    assert workers.stop() == 0
    place.check([id, other])


def test_a_worker_that_reaches_the_store_outlives_a_supervisor_that_does_not(place: Place):
    """It beats for itself, and says that all is well."""
    lease = 3.0
    place.settings |= {"heartbeat": 0.3, "lease": lease}
    id = place.enqueue("hold", "held")
    workers = place.workers(failpoints="beat.before_commit=raise", armed="supervisor")
    began = place.wait_started("held").at / 1e6
    wait_until(lambda: time.time() - began > 2 * lease, "the lease would be over by now")
    place.let_go("held")
    place.wait_state(id, "succeeded")
    assert workers.stop() == 0
    place.check([id])
    assert len(place.lines("held", "start")) == 1
    assert "could not beat" in workers.log


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_single_job_in_a_process_of_its_own(place: Place):
    """Though others of its task run in the worker: what it asks for travels with it, as does what a loss means."""
    id = place.enqueue("die", "victim", 9, isolate=True, on_worker_lost="fail")
    neighbour = place.enqueue("hold", "neighbour")
    workers = place.workers()
    job = place.wait_state(id, "failed")
    assert job.failure is not None
    assert "isolated process" in job.failure.message
    place.let_go("neighbour")
    assert place.wait_state(neighbour, "succeeded").losses == 0
    assert workers.stop() == 0
