"""Local tasks: each worker's own, beside its slots, from its start to its end."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from packhorse import ConfigError, Context, Embedded, Job, JobState, Packhorse
from packhorse.ids import from_text, new_id
from packhorse.queues import LOCAL
from packhorse.runtime.orphans import Death, Judge
from packhorse.stores.contract import ProcessInfo
from tests.waiting import wait_until

SOON = 60.0


class Pulse:
    """A local task that runs until it should stop, and how often it began."""

    def __init__(self, app: Packhorse, **options: Any) -> None:
        self.app = app
        self.begun = 0
        self.ended = 0

        @app.task(local=True, takes_context=True, name="pulse", **options)
        def pulse(context: Context) -> None:
            self.begun += 1
            self.meet()
            while not context.stop_requested:
                time.sleep(0.001)
            self.ended += 1
            context.checkpoint()

    def meet(self) -> None:
        """To be replaced."""

    def jobs(self) -> list[Job]:
        return [job for job in self.app.inspection.jobs() if job.task == "pulse"]

    def running(self) -> list[Job]:
        return [job for job in self.jobs() if job.state is JobState.RUNNING]

    def wait(self, times: int) -> None:
        wait_until(lambda: self.begun >= times, f"it began {times} times")


def test_it_lives_with_its_worker(app: Packhorse):
    """It takes no slot, is seen as a running job of its own process, and ends when that does."""
    pulse = Pulse(app)

    @app.task
    def double(number: int) -> int:
        return 2 * number

    with Embedded(app, concurrency=1):
        pulse.wait(1)
        assert double.enqueue(21).result(SOON) == 42
        [job] = pulse.running()
        assert job.queue == f"{LOCAL}{job.process}"
        [process] = [it for it in app.inspection.processes() if it.role == "local"]
        assert process.id == job.process
    [job] = pulse.jobs()
    assert (job.state, job.reason, pulse.begun, pulse.ended) == (JobState.CANCELLED, "its worker has left", 1, 1)
    assert [it.role for it in app.inspection.processes()] == []


def test_one_that_does_not_look_is_ended_too(app: Packhorse):
    running = threading.Event()

    @app.task(local=True)
    async def pulse() -> None:
        running.set()
        await asyncio.Event().wait()

    with Embedded(app):
        assert running.wait(SOON)
    [job] = app.inspection.jobs()
    assert (job.state, job.reason) == (JobState.CANCELLED, "its worker has left")


def test_what_is_lost_with_a_lease_does_not_stay_in_a_queue_that_nobody_serves(
    app: Packhorse, monkeypatch: pytest.MonkeyPatch
):
    pulse = Pulse(app)
    exchange = app.store.exchange
    lost: list[bytes] = []

    def lose_once(process: bytes, *args: Any, **how: Any) -> Any:
        answer = exchange(process, *args, **how)
        if lost == [process]:
            lost.append(b"")
            return answer._replace(alive=False)
        return answer

    with Embedded(app):
        pulse.wait(1)
        [first] = pulse.running()
        assert first.process is not None
        lost.append(from_text(first.process))
        monkeypatch.setattr(app.store, "exchange", lose_once)
        pulse.wait(2)
        wait_until(lambda: [job.id for job in pulse.running()] not in ([], [first.id]), "another one runs")
    found = pulse.jobs()
    assert len(found) == 2
    assert {(job.state, job.reason) for job in found} == {(JobState.CANCELLED, "its worker has left")}


def test_it_begins_again_after_an_error_and_not_after_its_end(app: Packhorse):
    pulse = Pulse(app, backoff=0.01)
    done = threading.Event()

    def meet() -> None:
        if pulse.begun < 4:
            raise ValueError("not yet")
        done.set()

    pulse.meet = meet  # type: ignore[method-assign]
    calls: list[int] = []

    @app.task(local=True)
    def once() -> None:
        calls.append(1)

    with Embedded(app):
        assert done.wait(SOON)
        [job] = pulse.running()
        assert job.attempts == 3
        wait_until(lambda: calls, "the other one has run")
    assert calls == [1]


def test_each_worker_has_its_own(make_app: Callable[..., Packhorse]):
    """Nobody else performs it, whatever queues it serves."""
    one, other = Pulse(make_app()), Pulse(make_app())
    with Embedded(one.app):
        one.wait(1)
        with Embedded(other.app):
            other.wait(1)
            assert len({job.process for job in one.running()}) == 2
        assert other.ended == 1
        assert len(one.running()) == 1
    assert (one.begun, other.begun) == (1, 1)


def test_one_that_lost_its_lease_begins_anew(app: Packhorse):
    """Its job is given up, and it has another one under its process's new name."""
    pulse = Pulse(app)
    with Embedded(app):
        pulse.wait(1)
        [old] = pulse.running()
        assert old.process is not None
        me = new_id()
        app.store.enroll(ProcessInfo(me, "dispatcher", "here", 1), 10**9)
        Judge(app).judge(me, {from_text(old.process): Death("was killed")})
        pulse.wait(2)
        wait_until(lambda: [job.id for job in pulse.running()] != [old.id] and pulse.running())
        [new] = pulse.running()
        assert new.process != old.process
        given_up = app.job(old.id).look()
        assert (given_up.state, given_up.reason) == (JobState.CANCELLED, "its worker is gone")
        assert (given_up.losses, given_up.failure) == (0, None)
        app.store.leave(me)


def test_operators_steer_it(app: Packhorse):
    """One that was stopped stays so until it is restarted, or its worker is."""
    pulse = Pulse(app)
    with Embedded(app):
        pulse.wait(1)
        [job] = pulse.running()
        app.control.restart([job.id])
        pulse.wait(2)
        app.control.stop([job.id])
        wait_until(lambda: app.job(job.id).look().stopped)
        app.control.restart([job.id])
        pulse.wait(3)
        assert [it.id for it in pulse.running()] == [job.id]


def test_nobody_enqueues_it(app: Packhorse):
    Pulse(app)
    with pytest.raises(ConfigError, match="each worker performs it by itself"):
        app.tasks["pulse"].enqueue()


@pytest.mark.parametrize("option", [{"queue_name": "mail"}, {"isolate": True}, {"unique": True}, {"expires": 5}])
def test_what_makes_no_sense_for_it(app: Packhorse, option: dict[str, Any]):
    with pytest.raises(ConfigError, match=f"cannot have '{next(iter(option))}'"):
        app.task(local=True, name="odd", **option)(lambda: None)


def test_it_takes_no_arguments(app: Packhorse):
    with pytest.raises(ConfigError, match="nobody gives it arguments"):
        app.task(local=True, name="odd")(lambda number: None)
    with pytest.raises(ConfigError, match="local must be True or False"):
        app.task(local="yes", name="odd")(lambda: None)  # type: ignore[call-overload]
