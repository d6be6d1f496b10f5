"""Stops, kills and losses of whole worker processes (mission test 1; F01, F03, F07)."""

import signal

import pytest

from packhorse.job import FailureKind
from tests.faults.harness import Place
from tests.waiting import wait_until


def test_term_lets_a_running_job_end_once(place: Place):
    id = place.enqueue("nap", "long", 2.0)
    workers = place.workers()
    place.wait_started("long")
    assert workers.stop() == 0
    assert [line.what for line in place.lines("long")] == ["start", "finish"]
    assert place.states() == {"succeeded": 1}
    assert place.sql("select role from process") == []
    assert "Traceback" not in workers.log
    place.check([id])


@pytest.mark.slow
def test_term_leaves_the_rest_in_place_and_unspent(place: Place):
    held = place.enqueue("hold", "held")
    workers = place.workers("--concurrency", "1")
    place.wait_started("held")
    ids = place.enqueue_many("note", *[(f"later-{n}",) for n in range(20)])
    workers.process.send_signal(signal.SIGTERM)
    place.let_go("held")
    assert workers.wait() == 0
    # Until the signal has come through, a few more may be taken; they are finished like the first.
    states = place.states()
    assert set(states) <= {"succeeded", "ready"}
    assert states.total() == 21
    assert place.sql("select distinct attempts + losses from job where state = 3") in ([], [(0,)])
    assert len(place.lines(what="start")) == len(place.lines(what="finish")) == states["succeeded"]
    again = place.workers()
    place.wait_all_finished()
    assert again.stop() == 0
    place.check([held, *ids])


def test_a_killed_worker_has_its_job_run_again_at_once(place: Place):
    place.settings["lease"] = 300.0  # what brings it back is the supervisor's eye, not the lease
    id = place.enqueue("hold", "held")
    workers = place.workers()
    first = place.wait_started("held")
    assert first.pid == workers.wait_pid("worker")
    workers.kill_child(first.pid)
    second = place.wait_started("held", times=2)
    assert second.pid == workers.wait_pid("worker", 2)
    place.let_go("held")
    job = place.wait_state(id, "succeeded")
    assert (job.attempts, job.losses) == (1, 1)
    [attempt] = job.failures
    assert attempt.failure.kind is FailureKind.WORKER_LOST
    assert attempt.failure.type == "packhorse.errors.ProcessExitError"
    assert "SIGKILL" in attempt.failure.message
    assert f"pid {first.pid} " in attempt.failure.message
    assert not attempt.spent
    assert workers.stop() == 0
    place.check([id])


@pytest.mark.slow
def test_a_job_that_kills_every_worker_fails_after_three_losses(place: Place):
    id = place.enqueue("die", "deadly", 99)
    innocent = place.enqueue_many("note", *[(f"innocent-{n}",) for n in range(20)])
    workers = place.workers("--concurrency", "1")
    job = place.wait_state(id, "failed")
    place.wait_all_finished()
    assert (job.attempts, job.losses) == (0, 3)
    assert job.failure is not None
    assert job.failure.type == "packhorse.errors.ProcessExitError"
    assert len(place.lines("deadly", "start")) == 3
    assert workers.stop() == 0
    place.check([id, *innocent], others=[id])


@pytest.mark.slow
def test_a_job_that_kills_its_worker_twice_still_succeeds(place: Place):
    id = place.enqueue("die", "rough", 2)
    workers = place.workers()
    job = place.wait_state(id, "succeeded")
    assert (job.attempts, job.losses) == (1, 2)
    assert workers.stop() == 0
    place.check([id])


@pytest.mark.slow
def test_on_worker_lost_fail_is_the_stricter_rule(place: Place):
    id = place.enqueue("die_strictly", "deadly")
    workers = place.workers()
    job = place.wait_state(id, "failed")
    assert (job.attempts, job.losses) == (0, 1)
    assert job.failure is not None
    assert "SIGKILL" in job.failure.message
    assert len(place.lines("deadly", "start")) == 1
    assert workers.stop() == 0
    place.check([id], others=[id])


@pytest.mark.slow
def test_quit_ends_at_once_and_hands_back_unspent(place: Place):
    place.settings["shutdown_timeout"] = 300.0
    id = place.enqueue("hold", "held")
    workers = place.workers()
    pid = place.wait_started("held").pid
    assert pid == workers.wait_pid("worker")
    assert workers.stop(signal.SIGQUIT) == 0
    assert workers.child_ended(pid)
    job = place.job(id)
    assert (job.state, job.attempts, job.losses) == ("ready", 0, 0)
    assert place.lines("held", "finish") == []
    place.let_go("held")
    again = place.workers()
    place.wait_state(id, "succeeded")
    assert again.stop() == 0
    assert len(place.lines("held", "start")) == 2
    place.check([id])


@pytest.mark.slow
def test_a_second_interrupt_ends_at_once(place: Place):
    place.settings["shutdown_timeout"] = 300.0
    id = place.enqueue("hold", "held")
    workers = place.workers()
    pid = place.wait_started("held").pid
    workers.wait_pid("worker")
    workers.process.send_signal(signal.SIGINT)
    workers.wait_log("stopping")  # the kernel makes one of two signals that come before the first is seen
    later = place.enqueue("note", "later")
    assert not workers.child_ended(pid)
    assert workers.stop(signal.SIGINT) == 0
    assert workers.child_ended(pid)
    assert place.job(id).state == "ready"
    place.let_go("held")
    again = place.workers()
    place.wait_all_finished()
    assert again.stop() == 0
    place.check([id, later])


@pytest.mark.slow
def test_children_of_a_killed_supervisor_finish_and_leave(place: Place):
    place.settings |= {"shutdown_timeout": 120.0, "lease": 3.0}
    id = place.enqueue("hold", "held")
    workers = place.workers()
    pid = place.wait_started("held").pid
    workers.wait_pid("worker")
    workers.wait_pid("dispatcher")
    workers.kill()
    # Another supervisor comes; for well over a lease it must not take the job from a worker that still performs it.
    others = place.workers()
    later = place.enqueue("note", "two-leases-later", run_after=2 * place.settings["lease"])
    place.wait_ran("two-leases-later")
    place.let_go("held")
    workers.wait_children_gone()
    job = place.wait_state(id, "succeeded")
    assert (job.attempts, job.losses) == (1, 0)
    assert [(line.pid, line.what) for line in place.lines("held")] == [(pid, "start"), (pid, "finish")]
    assert others.stop() == 0
    place.check([id, later])


@pytest.mark.slow
def test_idle_children_of_a_killed_supervisor_leave_within_a_second_or_two(place: Place):
    place.settings["lease"] = 300.0  # nobody clears away the supervisor
    workers = place.workers()
    for role in ("worker", "dispatcher", "scheduler"):
        workers.wait_pid(role)
    wait_until(lambda: len(place.sql("select 1 from process")) == 4, "all four are enrolled")
    workers.kill()
    workers.wait_children_gone(within=20)  # a busy machine needs a while for three of them
    roles = {role for (role,) in place.sql("select role from process")}
    assert roles == {"supervisor"}  # the children signed off


@pytest.mark.slow
def test_a_job_past_the_grace_goes_back_only_when_its_process_is_gone(place: Place):
    place.settings |= {"shutdown_timeout": 0.3, "ending_timeout": 0.3}
    id = place.enqueue("stubborn", "held")
    workers = place.workers()
    pid = place.wait_started("held").pid
    workers.wait_pid("worker")
    workers.process.send_signal(signal.SIGTERM)

    def gone_or_held() -> bool:
        """True at the end; until then the job may be ready only where its process is gone (looked at in that order)."""
        state = place.job(id).state
        ended = workers.child_ended(pid)
        assert state == "running" or ended
        return workers.process.poll() is not None

    wait_until(gone_or_held, "the supervisor ended")
    assert workers.process.returncode == 0
    job = place.job(id)
    assert (job.state, job.attempts, job.losses) == ("ready", 0, 0)
    place.let_go("held")
    again = place.workers()
    place.wait_state(id, "succeeded")
    assert again.stop() == 0
    assert len(place.lines("held", "start")) == 2
    place.check([id])


@pytest.mark.slow
@pytest.mark.parametrize("role", ["worker", "dispatcher", "scheduler"])
def test_a_child_that_somebody_else_stopped_is_replaced(place: Place, role: str):
    """Leaving cleanly is no reason to be missed for good."""
    workers = place.workers("--processes", "1")
    first = workers.wait_pid(role)
    wait_until(lambda: place.sql("select 1 from process where role = ?", role), f"the {role} minds signals")
    id = place.enqueue("hold", "first")
    place.let_go("first")
    place.wait_state(id, "succeeded")
    workers.stop_child(first)
    assert workers.wait_pid(role, 2) != first
    later = place.enqueue("hold", "second", run_after=0.1)
    place.let_go("second")
    place.wait_state(later, "succeeded")
    assert workers.stop() == 0
    place.check([id, later])


@pytest.mark.slow
@pytest.mark.parametrize("role", ["dispatcher", "scheduler"])
def test_a_child_that_is_stopped_before_it_minds_signals_is_no_matter(place: Place, role: str):
    """The work of a quick burst may be done while others still import the application."""
    id = place.enqueue("note", "done")
    place.boot = f"hang {role}"
    workers = place.workers("--burst")
    assert workers.wait() == 0
    assert "was stopped before it had begun" in workers.log
    assert "WARNING" not in workers.log
    assert "ERROR" not in workers.log
    place.check([id])
