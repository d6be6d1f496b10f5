"""Running jobs stopped and started again, by deploys, crashes and operators; local tasks; all with real processes."""

import signal
import time

import pytest

from packhorse.errors import PackhorseError
from packhorse.job import Job, JobState
from packhorse.queues import LOCAL
from tests.faults.harness import Line, Place
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

DEAF = {"heartbeat": 60.0, "lease": 300.0, "polling_interval": 60.0}  # who waits for one of these is too late


def begins(place: Place, key: str) -> list[int]:
    """Where each attempt of an endless task went on."""
    lines = [line.key.rpartition("/") for line in place.lines(what="from")]
    return [int(number) for its_key, _, number in lines if its_key == key]


def wait_begins(place: Place, number: int) -> list[int]:
    """A task says where it begins a moment after it has started."""
    return wait_until(lambda: found if len(found := begins(place, "loop")) >= number else [], f"{number} begins")


def progress(place: Place, id: str) -> float:
    found = place.app.job(id).progress()
    place.app.close()
    return 0.0 if found is None else found.done


# Endless tasks.


@pytest.mark.parametrize("task", ["endless", "isolated_endless", "follow", "afollow"])
def test_an_endless_task_goes_on_after_a_deploy(place: Place, task: str):
    """TERM: it leaves at once and by itself, and the next worker has it, unspent."""
    id = place.enqueue(task, "loop")
    first = place.workers()
    place.wait_started("loop")
    if "endless" in task:
        wait_until(lambda: progress(place, id) >= 3, "it gets on")
    assert first.stop() == 0
    job = place.job(id)
    assert (job.state, job.attempts, job.losses, job.failures) == ("ready", 0, 0, ())
    second = place.workers()
    place.wait_started("loop", 2)
    if "endless" in task:
        one, other = wait_begins(place, 2)
        assert one == 0 < 3 <= other
        wait_until(lambda: progress(place, id) > other, "it gets on from there")
    else:
        assert len(place.lines("loop", "cleaned")) == 1
    place.app.job(id).stop("for good")
    job = place.wait_state(id, "cancelled")
    assert (job.stopped, job.losses) == (True, 0)
    assert second.stop() == 0
    place.check([id], others=[id])


def test_an_endless_task_goes_on_after_a_crash(place: Place):
    """KILL: the loss is counted, and what the last checkpoint kept is there."""
    id = place.enqueue("endless", "loop")
    workers = place.workers()
    pid = place.wait_started("loop").pid
    wait_until(lambda: progress(place, id) >= 3, "it gets on")
    workers.kill_child(pid)
    assert place.wait_started("loop", 2).pid != pid
    assert wait_begins(place, 2)[1] >= 3
    job = place.job(id)
    assert (job.attempts, job.losses) == (0, 1)
    place.app.job(id).stop()
    place.wait_state(id, "cancelled")
    assert workers.stop() == 0
    place.check([id], others=[id])


# Orders.


@pytest.mark.parametrize("task", ["endless", "isolated_endless", "follow", "afollow", "hold", "ahold", "isolated_deaf"])
def test_orders_arrive_without_waiting_for_a_beat(place: Place, task: str):
    """Also where every slot is taken. What does not look is interrupted, or killed where it has a process."""
    place.settings |= DEAF | {"ending_timeout": 0.2}
    id = place.enqueue(task, "loop")
    workers = place.workers("--concurrency", "1")
    place.wait_started("loop")
    assert place.app.job(id).restart("again")
    place.wait_started("loop", 2)
    assert (place.job(id).attempts, place.job(id).losses) == (0, 0)
    assert place.app.job(id).stop("enough")
    job = place.wait_state(id, "cancelled")
    assert job.reason == "stopped: enough"
    after = place.enqueue("note", "after")
    place.wait_state(after, "succeeded")
    assert workers.stop() == 0
    place.check([id, after], others=[id])


@pytest.mark.parametrize("act", ["stop", "restart"])
@pytest.mark.parametrize("dies", ["worker", "all"])
def test_an_order_holds_though_its_owner_dies(place: Place, act: str, dies: str):
    """Before it could hear of it."""
    place.constants["packhorse.runtime.supervisor.FROZEN"] = 300.0
    place.settings |= {"ending_timeout": 60.0}
    id = place.enqueue("hold", "held")
    workers = place.workers()
    pid = place.wait_started("held").pid
    workers.freeze_child(pid)
    getattr(place.app.job(id), act)()
    if dies == "all":
        workers.kill()
        workers.kill_child(pid)
        workers.wait_children_gone()
        place.end_leases()
        workers = place.workers()
    else:
        workers.kill_child(pid)
    if act == "stop":
        assert place.wait_state(id, "cancelled").stopped
    else:
        place.wait_started("held", 2)
        place.let_go("held")
        place.wait_state(id, "succeeded")
    assert workers.stop() == 0
    assert len(place.lines("held", "start")) == (1 if act == "stop" else 2)
    place.check([id], others=[id])


def test_a_restart_beats_the_bound_on_losses(place: Place):
    """Where a lost worker would have failed the job, it goes back all the same."""
    place.constants["packhorse.runtime.supervisor.FROZEN"] = 300.0
    id = place.enqueue("hold_alone_strictly", "held")
    workers = place.workers()
    pid = place.wait_started("held").pid
    workers.freeze_child(pid)
    place.app.job(id).restart()
    workers.kill_child(pid)
    place.wait_started("held", 2)
    place.let_go("held")
    place.wait_state(id, "succeeded")
    assert workers.stop() == 0
    place.check([id])


# Local tasks.


def pulses(place: Place) -> list[Job]:
    try:
        return [job for job in place.app.inspection.jobs() if job.task == "pulse"]
    except PackhorseError:  # no worker has made the file yet
        return []
    finally:
        place.app.close()


def running(place: Place) -> list[Job]:
    return [job for job in pulses(place) if job.state is JobState.RUNNING and job.started_at is not None]


def starts(place: Place) -> list[Line]:
    return [line for line in place.lines(what="start") if line.key.startswith("pulse-")]


def test_each_worker_process_performs_its_own_local_task(place: Place):
    """Beside its slots; with the process it begins and ends, and nobody else goes on with it."""
    place.local = "loop"
    place.settings |= {"lease": 60.0}
    workers = place.workers("--processes", "2", "--concurrency", "1")
    wait_until(lambda: len(starts(place)) == 2, "both began")
    pids = {line.pid for line in starts(place)}
    assert pids == {workers.wait_pid("worker", 1), workers.wait_pid("worker", 2)}
    wait_until(lambda: len(running(place)) == 2, "both are shown")
    assert all(job.queue == f"{LOCAL}{job.process}" for job in running(place))
    ids = place.enqueue_many("note", *[(f"note-{n}",) for n in range(20)])
    for id in ids:
        place.wait_state(id, "succeeded")
    victim = min(pids)
    workers.kill_child(victim)
    wait_until(lambda: len(starts(place)) == 3, "a new one began")
    assert starts(place)[2].pid not in pids
    wait_until(lambda: [job.reason for job in pulses(place)].count("its worker is gone") == 1, "the old one ended")
    assert workers.stop() == 0
    found = pulses(place)
    assert sorted((job.state, job.losses) for job in found) == [("cancelled", 0), ("succeeded", 0), ("succeeded", 0)]
    assert sorted(line.key for line in starts(place)) == sorted(f"pulse-{job.id}" for job in found)
    assert place.sql("select role, pid from process") == [], workers.log


def test_a_local_task_that_failed_is_started_again_in_its_process(place: Place):
    place.local = "fail"
    place.settings |= {"lease": 60.0}
    workers = place.workers()
    wait_until(lambda: len(starts(place)) == 2, "it began again")
    assert {line.pid for line in starts(place)} == {workers.wait_pid("worker")}
    wait_until(lambda: [job.attempts for job in running(place)] == [1], "it runs")
    assert workers.stop(signal.SIGTERM) == 0
    [job] = pulses(place)
    assert (job.state, len(place.job(job.id).failures)) == ("succeeded", 1)


def test_local_tasks_of_workers_that_are_all_gone_are_ended_by_the_next(place: Place):
    place.local = "loop"
    place.settings |= {"lease": 60.0}
    workers = place.workers()
    wait_until(lambda: len(starts(place)) == 1, "it began")
    child = workers.wait_pid("worker")
    workers.freeze_child(child)  # else it may notice that its supervisor is gone, and end by itself
    workers.kill()
    workers.kill_child(child)
    workers.wait_children_gone()
    [old] = pulses(place)
    place.end_leases()
    place.local = ""
    workers = place.workers()
    assert place.wait_state(old.id, "cancelled").reason == "its worker is gone"
    assert workers.stop() == 0
    assert len(starts(place)) == 1


def test_a_local_task_begins_anew_after_an_outage(place: Place):
    """It ends when its lease is about to, or with its process; then there is one again."""
    place.local = "loop"
    place.settings |= {"heartbeat": 0.3, "lease": 3.0, "ending_timeout": 0.2}
    place.constants |= {"packhorse.stores.sqlite_connections.DEADLINE": 0.3}
    workers = place.workers()
    wait_until(lambda: len(starts(place)) == 1, "it began")
    with place.cut_off():
        wait_until(lambda: "its lease is about to end" in workers.log, "it noticed")
        wait_until(lambda: time.time() - starts(place)[0].at / 1e6 > 4.0, "the lease is over")
    wait_until(lambda: len(starts(place)) >= 2, "it began again")
    wait_until(lambda: [job.id for job in running(place)] == [starts(place)[-1].key[6:]], "the new one is shown, alone")
    assert workers.stop() == 0
    assert {job.state for job in pulses(place)} <= {"succeeded", "cancelled"}
