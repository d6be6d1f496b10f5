"""Tasks and callers that misbehave: the slot lives, the job ends, the neighbours do not notice."""

import functools
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from packhorse import ConfigError, Embedded, FailureKind, JobFailed, JobNotFound, JobState, Packhorse, Snooze
from packhorse.ids import to_text
from packhorse.job import Claim, Token
from packhorse.outcome import Outcome
from packhorse.queues import parse_queues
from packhorse.runtime.perform import Performer
from packhorse.runtime.seats import Seat
from packhorse.runtime.slots import Slots
from packhorse.runtime.worker import Worker
from packhorse.stores.contract import Exchanged
from tests.waiting import wait_until

SOON = 60.0


def test_a_result_that_fights_back_costs_the_result_alone(app: Packhorse):
    """Looking at a value runs its own code, which may raise anything."""

    class Bad(datetime):
        pass

    def look(value: Bad) -> str:
        raise RuntimeError("not for you")

    app.register_type(Bad, name="bad", encode=look, decode=Bad.fromisoformat)

    @app.task
    def bad() -> Any:
        return Bad(2026, 1, 1)

    @app.task
    def good() -> str:
        return "fine"

    with Embedded(app, concurrency=1):
        first, second = bad.enqueue(), good.enqueue()
        assert second.result(SOON) == "fine"
        seen = first.look()
    assert seen.state is JobState.SUCCEEDED
    assert seen.result_error == "Cannot store the result: a bad cannot be encoded: RuntimeError."


def test_whatever_breaks_around_a_task_the_slot_lives(app: Packhorse, monkeypatch: pytest.MonkeyPatch):
    """The job fails, and the next one is performed in the same slot."""

    @app.task
    def task() -> None: ...

    real = Performer.in_thread
    calls: list[Claim] = []

    def flaky(self: Performer, claim: Claim, seat: Seat) -> Outcome:
        calls.append(claim)
        if len(calls) == 1:
            raise MemoryError
        return real(self, claim, seat)

    monkeypatch.setattr(Performer, "in_thread", flaky)
    with Embedded(app, concurrency=1):
        first = task.enqueue()
        with pytest.raises(JobFailed, match="MemoryError outside the task itself"):
            first.result(SOON)
        assert task.enqueue().result(SOON) is None


def test_a_wait_without_end_is_bounded(app: Packhorse):
    """No store holds such a number, and one job must not stop a worker."""

    @app.task
    def sleeper() -> None:
        raise Snooze(timedelta.max)

    @app.task(retries=None, backoff=lambda attempt, error: 10.0**30)
    def patient() -> None:
        raise ValueError

    @app.task
    def other() -> str:
        return "fine"

    with Embedded(app, concurrency=1):
        jobs = [sleeper.enqueue(), patient.enqueue()]
        assert other.enqueue().result(SOON) == "fine"
        for job in jobs:
            wait_until(lambda job=job: job.state is JobState.SCHEDULED)  # type: ignore[misc]
    assert all(job.run_at is not None and job.run_at.year < 2200 for job in app.inspection.jobs() if not job.finished)


def test_a_hidden_coroutine_function_fails_and_says_why(app: Packhorse):
    """It would never be awaited, and look as if it had succeeded."""

    async def inner() -> None: ...

    @functools.wraps(inner)
    def outer() -> Any:
        return inner()

    task = app.task(name="hidden")(outer)
    with Embedded(app), pytest.raises(JobFailed, match="returned a coroutine instead of doing its work") as caught:
        task.enqueue().result(SOON)
    assert caught.value.failure.kind is FailureKind.EXCEPTION


def test_a_job_claimed_again_while_its_old_attempt_runs(app: Packhorse):
    """After a lost lease a worker may hold one job twice: each claim is kept apart by its token."""
    first, second = (Token(b"p" * 16, nonce, b"i" * 16, nonce) for nonce in (1, 2))
    release = threading.Event()
    ended: list[Outcome] = []

    @app.task(name="wait")
    def wait() -> None:
        release.wait(SOON)

    slots = Slots(2, Performer(app), ended.append)
    new = app.tasks["wait"].call().new_job()
    first, second = first._replace(id=new.id), second._replace(id=new.id)
    slots.put([Claim(token, "wait", new.payload, "default", 0, 0, 0, 0, None) for token in (first, second)])
    wait_until(lambda: len(slots.running_for(0)) == 2)
    release.set()
    wait_until(lambda: len(ended) == 2)
    assert {outcome.token for outcome in ended} == {first, second}
    assert slots.running_for(0) == []
    slots.close()


def test_a_burst_needs_to_have_asked(app: Packhorse):
    """A reply without claims ends a burst only where jobs were asked for under a living lease."""
    worker = Worker(app, parse_queues("*"), 1, burst=True)
    nothing = Exchanged([], [], True, 0)
    assert worker._finished_its_part(1, nothing)
    assert not worker._finished_its_part(0, nothing)
    assert not worker._finished_its_part(1, nothing._replace(alive=False))


def test_a_cancel_wins_over_a_retry(app: Packhorse):
    """Also where the attempt ends before the order arrives."""
    begun, go_on = threading.Event(), threading.Event()

    @app.task(retries=3, backoff=0)
    def stubborn() -> None:
        begun.set()
        go_on.wait(SOON)
        raise ValueError

    with Embedded(app, concurrency=1):
        job = stubborn.enqueue()
        assert begun.wait(SOON)
        assert job.cancel("enough")
        go_on.set()
        wait_until(lambda: job.look().finished)
    seen = job.look()
    assert (seen.state, seen.reason, seen.attempts) == (JobState.CANCELLED, "enough", 1)


def test_a_job_that_outlasts_the_stop_ends_once(make_app: Callable[..., Packhorse]):
    """It keeps its lease as long as the program lives."""
    app = make_app(shutdown_timeout=0.05, heartbeat=0.1)
    begun, go_on = threading.Event(), threading.Event()

    @app.task
    def long() -> str:
        begun.set()
        go_on.wait(SOON)
        return "done"

    with Embedded(app) as first:
        job = long.enqueue()
        assert begun.wait(SOON)
    assert job.state is JobState.RUNNING
    owner = first._processes[0].id
    left = [lease_left(app, owner)]
    wait_until(lambda: renewed(left, lease_left(app, owner)), "it beats on")
    with Embedded(app):  # whose dispatcher would adopt an orphan
        go_on.set()
        assert job.result(SOON) == "done"
    for thread in first._threads:
        thread.join(SOON)
    assert (job.look().attempts, job.look().losses) == (1, 0)


def renewed(left: list[float], now: float) -> bool:
    """Less and less is left of a lease, until it is renewed."""
    left.append(now)
    return left[-1] > left[-2]


def lease_left(app: Packhorse, process: bytes) -> float:
    [view] = [view for view in app.inspection.processes() if view.id == to_text(process)]
    return view.lease_left


def test_operators_acts_are_checked(app: Packhorse):
    """A list of ids, a known priority, a queue name."""

    @app.task
    def task() -> None: ...

    job = task.enqueue()
    with pytest.raises(ConfigError, match="list of job ids"):
        app.control.cancel(job.id)
    for nonsense in (5, None):
        with pytest.raises(JobNotFound):
            app.job(nonsense)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="priority"):
        app.control.change([job.id], priority=-2000)
    with pytest.raises(ConfigError, match="queue name"):
        app.control.change([job.id], queue_name="no spaces")
    assert app.control.change([job.id], queue_name="mail", priority=7) == 1
    assert (job.look().queue, job.look().priority) == ("mail", 7)


def test_a_bad_call_in_bulk_tells_what_was_enqueued(make_app: Callable[..., Packhorse]):
    """So that trying again need not double the others."""
    app = make_app(batch_size=10)

    @app.task
    def task(what: Any) -> None: ...

    values: list[Any] = [*range(25), object(), 26]
    with pytest.raises(ValueError, match="Cannot store argument 'what'") as caught:
        app.enqueue_many(task.call(value) for value in values)
    assert caught.value.__notes__ == ["20 jobs before it were enqueued; the others of its batch were not."]
    assert app.inspection.counts()[JobState.READY] == 20
