"""Jobs that take too long, in the threads and on the loop of one process; those in processes are among the faults."""

import asyncio
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from packhorse import ConfigError, Context, Embedded, FailureKind, Interrupted, JobFailed, Packhorse, TimedOut
from packhorse.ids import new_id
from packhorse.job import Token
from packhorse.runtime.deadlines import Deadlines
from packhorse.runtime.seats import Seat, Why
from tests.waiting import wait_until

SOON = 60.0


def busy() -> None:
    while True:
        time.sleep(0.001)


def test_a_thread_and_a_coroutine_past_their_timeout(app: Packhorse):
    """The failure says where they were."""

    @app.task(timeout=0.5)
    def late() -> None:
        busy()

    @app.task(timeout=timedelta(milliseconds=500))
    async def alate() -> None:
        await asyncio.sleep(SOON)

    with Embedded(app):
        for task, where in ((late, "in busy"), (alate, "in alate")):
            job = task.enqueue()
            with pytest.raises(JobFailed, match=r"longer than its timeout of 0\.5 s"):
                job.result(SOON)
            failure = job.look().failure
            assert failure is not None
            assert failure.kind is FailureKind.TIMEOUT
            assert where in failure.traceback
            assert "seats.py" not in failure.traceback


def test_a_task_may_end_in_its_own_way(app: Packhorse):
    @app.task(timeout=0.5)
    def late() -> str:
        try:
            busy()
        except TimedOut:
            return "what there was"
        return ""

    with Embedded(app):
        assert late.enqueue().result(SOON) == "what there was"


def test_timeouts_by_setting_by_task_and_by_job(make_app: Callable[..., Packhorse]):
    app = make_app(timeout=0.05)

    @app.task
    def by_setting() -> None:
        busy()

    @app.task(timeout=None, takes_context=True)
    def by_job(context: Context) -> float | None:
        return context.remaining

    with Embedded(app):
        with pytest.raises(JobFailed, match="timeout"):
            by_setting.enqueue().result(SOON)
        assert by_job.enqueue().result(SOON) is None
        remaining = by_job.using(timeout=30).enqueue().result(SOON)
        assert remaining is not None
        assert 0 < remaining <= 30


def test_a_timeout_of_another_is_none_of_ours(app: Packhorse):
    """A task's own TimeoutError and a cancellation from within are failures like others."""

    @app.task(timeout=SOON)
    def own() -> None:
        raise TimeoutError("the printer did not answer")

    @app.task(timeout=SOON)
    async def within() -> None:
        raise asyncio.CancelledError

    with Embedded(app):
        for task in (own, within):
            job = task.enqueue()
            with pytest.raises(JobFailed):
                job.result(SOON)
            failure = job.look().failure
            assert failure is not None
            assert failure.kind is FailureKind.EXCEPTION


def test_without_a_supervisor_another_thread_takes_the_slot(make_app: Callable[..., Packhorse]):
    """A thread cannot be ended, and its job stays its own; but no slot is lost."""
    app = make_app(ending_timeout=0.05)
    go = threading.Event()

    @app.task(timeout=0.05)
    def stuck() -> str:
        while not go.is_set():
            try:
                go.wait(SOON)
            except TimedOut:
                pass
        return "after all"

    @app.task
    def other() -> str:
        return "done"

    with Embedded(app, concurrency=1):
        first = stuck.enqueue()
        assert other.enqueue().result(SOON) == "done"
        assert first.look().state == "running"
        go.set()
        assert first.result(SOON) == "after all"
        assert [other.enqueue().result(SOON) for _ in range(3)] == ["done"] * 3


def test_a_slot_that_was_given_up_in_vain_is_not_lost(make_app: Callable[..., Packhorse]):
    """The thread ends with the job that would not, before another was needed: the next job gets a new one."""
    app = make_app(ending_timeout=0.05)
    go = threading.Event()

    @app.task(timeout=0.05)
    def stuck() -> str:
        while not go.is_set():
            try:
                go.wait(SOON)
            except TimedOut:
                pass
        return "after all"

    embedded = Embedded(app, concurrency=1)
    worker: Any = embedded._processes[0].role
    with embedded:
        first = stuck.enqueue()
        wait_until(lambda: worker._slots._given_up)
        go.set()
        assert first.result(SOON) == "after all"
        assert stuck.enqueue().result(SOON) == "after all"


def test_many_quick_jobs_with_a_timeout_leave_nothing_behind(app: Packhorse):
    @app.task(timeout=60)
    def quick() -> None: ...

    embedded = Embedded(app)
    worker: Any = embedded._processes[0].role
    with embedded:
        jobs = app.enqueue_many(quick.call() for _ in range(200))
        for job in jobs:
            job.result(SOON)
        assert worker._performer.deadlines._kept == {}
        assert worker._performer.interrupted == {}


@pytest.mark.parametrize("timeout", [0, -1, True, "5", float("inf"), float("nan"), timedelta(0)])
def test_what_is_no_timeout(app: Packhorse, timeout: Any):
    with pytest.raises(ConfigError, match="timeout must be"):
        app.task(timeout=timeout)(busy)
    with pytest.raises(ConfigError, match="timeout must be"):
        app.task(busy).using(timeout=timeout)


def token() -> Token:
    return Token(new_id(), 1, new_id(), 1)


def test_an_interruption_meets_the_task_or_nobody():
    """However close to its end it comes: the code around the task never sees it."""
    seats: list[Seat] = []
    tokens = [token() for _ in range(3_000)]
    outcomes: list[str] = []
    over = threading.Event()

    def sit() -> None:
        seat = Seat()
        seats.append(seat)
        for its in tokens:
            try:
                seat.call(its, sum, range(50))
                outcomes.append("returned")
            except Interrupted:
                seat.rise()
                outcomes.append("interrupted")
        over.set()

    thread = threading.Thread(target=sit)
    thread.start()
    wait_until(lambda: seats)
    struck = 0
    while not over.is_set():
        if (current := seats[0].token) is not None:
            struck += seats[0].interrupt(current, Interrupted)
    thread.join(SOON)
    assert len(outcomes) == len(tokens)
    assert outcomes.count("interrupted") <= struck
    assert not seats[0].interrupt(tokens[-1], Interrupted)


def test_deadlines_ask_and_then_force():
    said: list[tuple[str, Token, Why]] = []

    def ask(*it: Any) -> bool:
        """The first time it has not begun."""
        said.append(("ask", *it))
        return len(said) > 1

    deadlines = Deadlines(0.05, ask, lambda *it: said.append(("force", *it)))
    first, second = token(), token()
    deadlines.set(first, 0.01, Why.TIMEOUT)
    deadlines.set(second, SOON, Why.TIMEOUT)
    deadlines.set(second, SOON * 2, Why.LEAVING)
    left = deadlines.left(second)
    assert left is not None
    assert left <= SOON
    wait_until(lambda: len(said) == 3)
    assert said == [("ask", first, Why.TIMEOUT)] * 2 + [("force", first, Why.TIMEOUT)]
    deadlines.drop(second)
    assert deadlines.left(second) is None
    deadlines.close()
