"""Events: told after something happened, to subscribers that nobody ever feels."""

import asyncio
import functools
import logging
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from packhorse import (
    Cancel,
    ConfigError,
    Context,
    Embedded,
    EnqueueError,
    Event,
    EventKind,
    FailureKind,
    Fixed,
    JobCancelled,
    JobFailed,
    JobNotFound,
    JobState,
    Packhorse,
    Retry,
    Snooze,
    StoreError,
)
from packhorse import events as events_module
from packhorse.events import Events, known_kinds
from packhorse.ids import new_id, to_text
from packhorse.job import NewJob
from packhorse.outcome import release
from packhorse.queues import EVERYTHING, parse_queues
from packhorse.runtime.orphans import Judge
from packhorse.runtime.process import Process
from packhorse.runtime.worker import Worker
from packhorse.stores.contract import ProcessInfo
from tests.waiting import wait_until

SOON = 60.0
JOB_KINDS = [kind for kind in EventKind if not kind.startswith("process")]
KINDS = pytest.mark.parametrize("coroutine", [False, True], ids=["thread", "coroutine"])


class Told:
    """A subscriber that remembers."""

    def __init__(self, app: Packhorse, *kinds: str) -> None:
        self.app = app
        self.events: list[Event] = []
        app.subscribe(*kinds)(self)

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    def of(self, job: Any) -> list[Event]:
        """What was told of a job so far. That it was enqueued comes first: a worker may be quicker than the telling."""
        assert self.app.events.flush()
        found = [event for event in self.events if event.job_id == job.id]
        return sorted(found, key=lambda event: event.kind != "enqueued")

    def kinds_of(self, job: Any) -> list[str]:
        return [str(event.kind) for event in self.of(job)]

    def wait_for(self, job: Any, kind: str) -> Event:
        """The store has an outcome a moment before it is told."""
        wait_until(lambda: kind in self.kinds_of(job), f"{kind} is told")
        [found] = [event for event in self.of(job) if event.kind == kind]
        return found


@contextmanager
def worker_of(app: Packhorse, concurrency: int = 2) -> Iterator[Process]:
    process = Process(app, Worker(app, parse_queues("*"), concurrency))
    thread = threading.Thread(target=process.run, daemon=True)
    thread.start()
    try:
        yield process
    finally:
        process.stop()
        thread.join(SOON)


def declared(app: Packhorse, function: Callable[..., Any], coroutine: bool, **options: Any) -> Any:
    @functools.wraps(function)
    async def afunction(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return app.task(**{"name": "shop.work", **options})(afunction if coroutine else function)


def lose_its_worker(app: Packhorse) -> None:
    """Somebody claims all that is ready, and is never heard of again."""
    doomed = ProcessInfo(new_id(), "worker", "elsewhere", 7)
    app.store.enroll(doomed, 60_000_000)
    assert app.store.exchange(doomed.id, 1, [], EVERYTHING, 100, starting=100).claims
    app.store.enroll(doomed, 1)
    wait_until(lambda: all(it.lease_left <= 0 for it in app.store.processes()), "the lease ends")


def finished(job: Any) -> Any:
    wait_until(lambda: job.state.finished)
    return job


# What is told.


@KINDS
def test_a_job_that_succeeds_is_enqueued_started_and_succeeded(app: Packhorse, coroutine: bool):
    """Each once, in that order, with what is known by then."""
    told = Told(app)
    task = declared(app, lambda: time.sleep(0.01), coroutine, queue_name="slow")
    with Embedded(app):
        job = finished(task.enqueue())
    enqueued, started, succeeded = told.of(job)
    assert [event.kind for event in (enqueued, started, succeeded)] == ["enqueued", "started", "succeeded"]
    for event, attempt in ((enqueued, 0), (started, 1), (succeeded, 1)):
        assert (event.task, event.queue_name, event.attempt) == ("shop.work", "slow", attempt)
        assert (event.failure, event.process_id, event.role) == (None, None, None)
        assert abs(datetime.now(UTC) - event.at) < timedelta(minutes=1)
    assert (enqueued.duration, started.duration) == (None, None)
    assert succeeded.duration is not None
    assert 0.01 <= succeeded.duration < SOON


@KINDS
def test_every_failed_attempt_is_told_and_the_last_one_as_failed(app: Packhorse, coroutine: bool):
    """With its failure, as everybody may see it."""
    told = Told(app)

    def work(password: str) -> None:
        raise ValueError(f"bad password {password}")

    task = declared(app, work, coroutine, retries=2, backoff=Fixed(0))
    with Embedded(app):
        job = finished(task.enqueue(password="unspeakable"))
    expected = ["enqueued", *["started", "retrying"] * 2, "started", "failed"]
    wait_until(lambda: told.kinds_of(job) == expected)
    seen = told.of(job)
    assert [event.attempt for event in seen] == [0, 1, 1, 2, 2, 3, 3]
    for event in seen[2::2]:
        assert event.failure is not None
        assert (event.failure.kind, event.failure.type) == (FailureKind.EXCEPTION, "ValueError")
        assert event.failure.message == "bad password •••"
        assert event.duration is not None
    assert seen[-1].failure == job.look().failure


@KINDS
def test_a_retry_that_the_task_asks_for_is_told_as_one(app: Packhorse, coroutine: bool):
    told = Told(app, "retrying", "succeeded")
    runs: list[int] = []

    def work() -> None:
        runs.append(1)
        if len(runs) == 1:
            raise Retry("not yet", after=0)

    task = declared(app, work, coroutine, retries=1)
    with Embedded(app):
        job = finished(task.enqueue())
        told.wait_for(job, "succeeded")
    retrying, _ = told.of(job)
    assert retrying.failure is not None
    assert retrying.failure.message == "not yet"


@KINDS
def test_a_snooze_is_told_without_a_failure(app: Packhorse, coroutine: bool):
    told = Told(app)
    runs: list[int] = []

    def work() -> None:
        runs.append(1)
        if len(runs) == 1:
            raise Snooze(0.01)

    task = declared(app, work, coroutine)
    with Embedded(app):
        job = finished(task.enqueue())
        told.wait_for(job, "succeeded")
    assert told.kinds_of(job) == ["enqueued", "started", "snoozed", "started", "succeeded"]
    assert [event.attempt for event in told.of(job)] == [0, 1, 1, 1, 1]
    assert told.wait_for(job, "snoozed").failure is None


@KINDS
def test_a_task_that_cancels_itself_is_told_as_cancelled(app: Packhorse, coroutine: bool):
    told = Told(app)

    def work() -> None:
        raise Cancel("enough")

    task = declared(app, work, coroutine, retries=3)
    with Embedded(app):
        job = finished(task.enqueue())
        told.wait_for(job, "cancelled")
    assert told.kinds_of(job) == ["enqueued", "started", "cancelled"]


def test_a_job_that_an_operator_ends_while_it_runs_is_told_as_cancelled(app: Packhorse):
    told = Told(app)
    running = threading.Event()

    @app.task
    async def work() -> None:
        running.set()
        await asyncio.sleep(SOON)

    with Embedded(app):
        job = work.enqueue()
        assert running.wait(SOON)
        job.cancel()
        told.wait_for(job, "cancelled")
    assert told.kinds_of(job) == ["enqueued", "started", "cancelled"]


def test_a_job_that_cannot_be_read_is_told_as_failed(app: Packhorse):
    """It never started."""
    told = Told(app)

    @app.task(name="shop.work")
    def work() -> None: ...

    _ = app.seals  # with a key: what is planted in a store without one stops every worker
    [id] = app.store.insert([NewJob(new_id(), "shop.work", b"nonsense")])
    job = app.job(to_text(id))
    with Embedded(app):
        failed = told.wait_for(job, "failed")
    assert told.kinds_of(job) == ["failed"]
    assert failed.failure is not None
    assert failed.failure.kind is FailureKind.UNDECODABLE
    assert failed.duration is None


def test_a_job_of_an_unknown_task_is_told_as_failed_when_it_is_given_up(
    app: Packhorse, make_app: Callable[..., Packhorse]
):
    """As long as it is put back, nothing happened that anybody watches."""

    @app.task(name="shop.novel")
    def novel() -> None: ...

    patient, hasty = make_app(), make_app(unknown_task_timeout=0)
    seen = [Told(patient), Told(hasty)]
    job = novel.enqueue()
    with Embedded(patient):
        wait_until(lambda: job.state is JobState.SCHEDULED)
    assert seen[0].kinds_of(job) == []
    app.control.run_now([job.id])
    with Embedded(hasty):
        failed = seen[1].wait_for(job, "failed")
    assert seen[1].kinds_of(job) == ["failed"]
    assert failed.failure is not None
    assert failed.failure.kind is FailureKind.UNKNOWN_TASK


def test_a_job_that_has_expired_is_told_as_cancelled(app: Packhorse):
    told = Told(app)

    @app.task(expires=0.01)
    def work() -> None: ...

    job = work.enqueue()
    wait_until(lambda: datetime.now(UTC) > (job.look().expires_at or datetime.now(UTC)))
    with Embedded(app):
        told.wait_for(job, "cancelled")
    assert told.kinds_of(job) == ["enqueued", "cancelled"]


def test_a_lost_job_is_told_and_then_performed(app: Packhorse):
    told = Told(app)

    @app.task
    def work() -> None: ...

    job = work.enqueue()
    lose_its_worker(app)
    with Embedded(app):
        finished(job)
        told.wait_for(job, "succeeded")
    assert told.kinds_of(job) == ["enqueued", "lost", "started", "succeeded"]
    lost = told.wait_for(job, "lost")
    assert (lost.task, lost.queue_name, lost.attempt) == (work.name, "default", 1)


def test_a_lost_job_that_is_given_up_is_told_as_failed_too(app: Packhorse):
    told = Told(app)

    @app.task(on_worker_lost="fail")
    def work() -> None: ...

    job = work.enqueue()
    lose_its_worker(app)
    with Embedded(app):
        failed = told.wait_for(job, "failed")
    assert told.kinds_of(job) == ["enqueued", "lost", "failed"]
    assert failed.failure is not None
    assert failed.failure.kind is FailureKind.WORKER_LOST


def test_a_verdict_is_told_once_the_store_has_it(app: Packhorse, monkeypatch: pytest.MonkeyPatch):
    """Nothing while the store is away, once when it takes it, and nothing where it refuses."""
    told = Told(app, "lost")

    @app.task
    def work() -> None: ...

    jobs = [work.enqueue(), work.enqueue()]
    lose_its_worker(app)
    adopter = new_id()
    app.store.enroll(ProcessInfo(adopter, "dispatcher", "here", 8), 60_000_000)
    real = app.store.exchange

    def away(*args: Any, **kwargs: Any) -> Any:
        raise StoreError("away")

    judge = Judge(app)
    monkeypatch.setattr(app.store, "exchange", away)
    with pytest.raises(StoreError):
        judge.judge(adopter)
    assert app.events.flush()
    assert told.events == []
    [first, second] = app.store.held(adopter)
    real(adopter, 5, [release(first)], EVERYTHING, 0)  # it has moved on meanwhile
    monkeypatch.setattr(app.store, "exchange", real)
    judge.judge(adopter)
    judge.judge(adopter)
    assert app.events.flush()
    assert [event.job_id for event in told.events] == [to_text(second.id)]
    assert {job.state for job in jobs} == {JobState.READY}


def test_processes_are_told_when_they_come_and_go(app: Packhorse):
    told = Told(app, "process_started", "process_stopped")
    with Embedded(app):
        wait_until(lambda: len(told.events) == 3)
        living = {view.id: view.role for view in app.inspection.processes()}
    assert app.events.flush()
    assert {event.process_id: event.role for event in told.events[:3]} == living
    assert {event.process_id: event.role for event in told.events[3:]} == living
    assert [event.kind for event in told.events] == ["process_started"] * 3 + ["process_stopped"] * 3
    assert all((event.job_id, event.task, event.attempt) == (None, None, None) for event in told.events)


def test_all_ways_of_enqueueing_are_told(app: Packhorse):
    told = Told(app, "enqueued")

    @app.task
    def work() -> None: ...

    jobs = [work.enqueue(), *app.enqueue_many([work.call(), work.call()]), asyncio.run(work.aenqueue())]
    jobs.append(work.using(run_after=60, queue_name="later").enqueue())
    assert app.events.flush()
    assert [event.job_id for event in told.events] == [job.id for job in jobs]
    assert told.events[-1].queue_name == "later"


def test_only_the_kinds_asked_for_are_told(app: Packhorse):
    """Given as text or as kinds; by decorator, which leaves the function as it is."""
    seen: list[str] = []

    @app.subscribe("succeeded", EventKind.FAILED)
    def note(event: Event) -> None:
        seen.append(event.kind)

    note(Event(kind=EventKind.LOST, at=datetime.now(UTC)))

    @app.task
    def work(fail: bool) -> None:
        if fail:
            raise ValueError

    with Embedded(app):
        finished(work.enqueue(False))
        finished(work.enqueue(True))
        wait_until(lambda: len(seen) == 3)
    assert app.events.flush()
    assert seen == ["lost", "succeeded", "failed"]


def test_an_unknown_kind_is_refused(app: Packhorse):
    with pytest.raises(ConfigError, match=r"'finished' is not a valid EventKind\. There are enqueued, started"):
        app.subscribe("finished")(print)
    assert not app.events


@pytest.mark.parametrize("keep", ["keep_succeeded", "keep_failed", "keep_cancelled"])
def test_a_job_that_is_dropped_at_once_is_told_all_the_same(make_app: Callable[..., Packhorse], keep: str):
    """It happened, though nothing is kept of it."""
    app = make_app(**{keep: 0})
    told = Told(app)

    @app.task
    def work() -> None:
        if keep == "keep_failed":
            raise ValueError
        if keep == "keep_cancelled":
            raise Cancel

    with Embedded(app):
        job = work.enqueue()
        told.wait_for(job, keep.removeprefix("keep_"))
        with pytest.raises(JobNotFound):
            job.look()


# When it is told.


@KINDS
def test_an_event_is_told_once_the_store_has_it(app: Packhorse, coroutine: bool):
    """A subscriber who looks sees what it was told of."""
    seen: list[tuple[str, JobState, int]] = []

    @app.subscribe(*JOB_KINDS)
    def look(event: Event) -> None:
        assert event.job_id is not None
        job = app.job(event.job_id).look()
        seen.append((event.kind, job.state, len(job.failures)))

    def work(context: Context, end: str) -> None:
        match end:
            case "failed":
                raise ValueError
            case "cancelled":
                raise Cancel
            case "retrying" if context.attempt == 1:
                raise ValueError

    task = declared(app, work, coroutine, takes_context=True, retries=1, backoff=Fixed(3600), give_up_on=KeyError)
    with Embedded(app):
        for end in ("succeeded", "cancelled"):
            finished(task.enqueue(end))
        job = task.enqueue("retrying")
        wait_until(lambda: job.state is JobState.SCHEDULED)
        wait_until(lambda: "retrying" in {kind for kind, *_ in seen})
    ends = {kind: (state, failures) for kind, state, failures in seen}
    assert ends["succeeded"] == (JobState.SUCCEEDED, 0)
    assert ends["cancelled"] == (JobState.CANCELLED, 0)
    assert ends["retrying"] == (JobState.SCHEDULED, 1)


def test_what_was_not_enqueued_is_not_told(app: Packhorse, monkeypatch: pytest.MonkeyPatch):
    told = Told(app)

    @app.task
    def work() -> None: ...

    def refuse(jobs: Sequence[NewJob]) -> list[bytes]:
        raise StoreError("full")

    with monkeypatch.context() as patch:
        patch.setattr(app.store, "insert", refuse)
        with pytest.raises(EnqueueError):
            work.enqueue()
    assert app.events.flush()
    assert told.events == []


@KINDS
def test_an_outcome_that_the_store_refuses_tells_nothing(app: Packhorse, coroutine: bool):
    """The job had moved on; whoever has it now tells how it ended."""
    told = Told(app)
    attempts: list[str] = []
    first, second, go_on = threading.Event(), threading.Event(), threading.Event()

    def work(context: Context) -> None:
        attempts.append(context.job_id)
        if len(attempts) == 1:
            first.set()
            assert second.wait(SOON)
            raise ValueError("nobody may hear of it")
        second.set()
        assert go_on.wait(SOON)

    async def awork(context: Context) -> None:
        await asyncio.to_thread(work, context)

    task: Any = app.task(takes_context=True, name="shop.work")(awork if coroutine else work)
    with worker_of(app) as process:
        job = task.enqueue()
        assert first.wait(SOON)
        app.store.leave(process.id)
        assert second.wait(SOON)
        go_on.set()
        finished(job)
    assert told.kinds_of(job) == ["enqueued", "started", "started", "succeeded"]


def test_an_outcome_that_reaches_the_store_at_the_second_try_is_told_once(
    app: Packhorse, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """However often the store fails."""
    told = Told(app)
    trouble = [StoreError("away"), StoreError("still away")]
    real = app.store.exchange

    def flaky(process: bytes, nonce: int, outcomes: Any, *args: Any, **kwargs: Any) -> Any:
        if outcomes and trouble:
            raise trouble.pop()
        return real(process, nonce, outcomes, *args, **kwargs)

    monkeypatch.setattr(app.store, "exchange", flaky)

    @app.task
    def work() -> None: ...

    with Embedded(app):
        job = finished(work.enqueue())
        told.wait_for(job, "succeeded")
    assert not trouble
    assert told.kinds_of(job) == ["enqueued", "started", "succeeded"]


# Subscribers are never felt.


def test_a_failing_subscriber_is_logged_and_felt_by_nobody(app: Packhorse, caplog: pytest.LogCaptureFixture):
    """Neither by jobs nor by the other subscribers, whatever it raises."""
    before = Told(app)

    @app.subscribe()
    def broken(event: Event) -> None:
        raise ValueError("I am broken")

    @app.subscribe()
    def leaving(event: Event) -> None:
        raise SystemExit(3)

    after = Told(app)

    @app.task
    def work() -> str:
        return "fine"

    with Embedded(app):
        job = work.enqueue()
        assert job.result(SOON) == "fine"
        for told in (before, after):
            told.wait_for(job, "succeeded")
    assert before.kinds_of(job) == after.kinds_of(job) == ["enqueued", "started", "succeeded"]
    messages = [record.getMessage() for record in caplog.records if record.name == "packhorse.events"]
    assert any("broken failed at enqueued: ValueError" in message for message in messages)
    assert any("leaving failed at succeeded: SystemExit" in message for message in messages)


def test_a_subscriber_without_a_name_is_logged_by_its_class(app: Packhorse, caplog: pytest.LogCaptureFixture):
    class Exporter:
        def __call__(self, event: Event) -> None:
            raise ValueError

    app.subscribe()(Exporter())
    app.events.tell(Event(kind=EventKind.LOST, at=datetime.now(UTC)))
    assert app.events.flush()
    assert "subscriber Exporter failed at lost: ValueError" in caplog.text


def test_a_slow_subscriber_slows_nothing(app: Packhorse):
    """Jobs are enqueued, performed and finished while it still thinks about the first event."""
    go = threading.Event()
    seen: list[Event] = []

    @app.subscribe()
    def slow(event: Event) -> None:
        assert go.wait(SOON)
        seen.append(event)

    @app.task
    def work(number: int) -> int:
        return number

    with Embedded(app):
        jobs = [work.enqueue(number) for number in range(100)]
        assert [job.result(SOON) for job in jobs] == list(range(100))
        assert seen == []
        assert not app.events.flush(within=0.01)
        go.set()
        wait_until(lambda: sum(event.kind == "succeeded" for event in seen) == 100)
    assert app.events.flush()
    assert {event.job_id for event in seen if event.job_id} == {job.id for job in jobs}


def test_too_many_events_drop_the_oldest_and_say_so(
    app: Packhorse, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """Memory is bounded, and the newest matter most."""
    monkeypatch.setattr(events_module, "WAITING_CAP", 3)
    go, busy = threading.Event(), threading.Event()
    seen: list[Any] = []

    @app.subscribe()
    def slow(event: Event) -> None:
        busy.set()
        assert go.wait(SOON)
        seen.append(event.attempt)

    def tell(number: int) -> None:
        app.events.tell(Event(kind=EventKind.STARTED, at=datetime.now(UTC), attempt=number))

    tell(0)
    assert busy.wait(SOON)
    for number in range(1, 11):
        tell(number)
    go.set()
    assert app.events.flush()
    assert seen == [0, 8, 9, 10]
    warnings = [record for record in caplog.records if record.name == "packhorse.events"]
    assert [record.getMessage() for record in warnings] == [
        "7 events were dropped: subscribers are too slow, or had no thread to run in"
    ]
    assert warnings[0].levelno == logging.WARNING


def test_kinds_that_nobody_wants_push_nothing_out(app: Packhorse, monkeypatch: pytest.MonkeyPatch):
    """However many there are, and however slow the subscriber is."""
    monkeypatch.setattr(events_module, "WAITING_CAP", 3)
    go, busy = threading.Event(), threading.Event()
    seen: list[Any] = []

    @app.subscribe("failed")
    def slow(event: Event) -> None:
        busy.set()
        assert go.wait(SOON)
        seen.append(event.attempt)

    def tell(kind: EventKind, number: int) -> None:
        app.events.tell(Event(kind=kind, at=datetime.now(UTC), attempt=number))

    tell(EventKind.FAILED, 0)
    assert busy.wait(SOON)
    for number in range(1, 4):
        tell(EventKind.FAILED, number)
        for _ in range(10):
            tell(EventKind.SUCCEEDED, number)
    go.set()
    assert app.events.flush()
    assert seen == [0, 1, 2, 3]


def test_it_is_known_which_kinds_anybody_wants(app: Packhorse):
    """So that nothing is made for nobody."""
    assert not any(map(app.events.wants, EventKind))
    app.subscribe("failed")(print)
    app.subscribe("lost", "failed")(print)
    assert set(filter(app.events.wants, EventKind)) == {EventKind.FAILED, EventKind.LOST}
    app.subscribe()(print)
    assert all(map(app.events.wants, EventKind))


def test_a_verdict_that_nobody_wants_makes_no_event(app: Packhorse, monkeypatch: pytest.MonkeyPatch):
    """Nor is its failure opened."""
    app.subscribe("succeeded")(print)

    @app.task
    def work() -> None: ...

    work.enqueue()
    lose_its_worker(app)
    monkeypatch.setattr(app, "open_failure", lambda *args: pytest.fail("a failure was opened for nobody"))
    adopter = new_id()
    app.store.enroll(ProcessInfo(adopter, "dispatcher", "here", 8), 60_000_000)
    app.subscribe("cancelled")(print)
    Judge(app).judge(adopter)
    assert app.inspection.counts()[JobState.READY] == 1


def test_telling_never_raises(app: Packhorse, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    """Where no thread can be started, as when the interpreter ends; what was dropped is told when one can be again."""
    told = Told(app, "lost")

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        for _ in range(3):
            app.events.tell(Event(kind=EventKind.LOST, at=datetime.now(UTC)))
        assert app.events.flush(within=0)
    app.events.tell(Event(kind=EventKind.LOST, at=datetime.now(UTC)))
    assert app.events.flush()
    assert len(told.events) == 1
    assert "3 events were dropped" in caplog.text


def test_a_function_in_place_of_a_kind_is_refused(app: Packhorse):
    """As when the parentheses of the decorator are forgotten."""
    function: Any = print
    with pytest.raises(ConfigError, match=r'@app\.subscribe\("failed"\) or @app\.subscribe\(\)'):
        app.events.subscribe(print, function)
    with pytest.raises(ConfigError, match=r"@app\.subscribe\(\)"):
        known_kinds(function)
    assert not app.events


@KINDS
def test_who_subscribes_while_a_worker_runs_is_told_from_then_on(app: Packhorse, coroutine: bool):
    """Also of the end of a job that had begun before."""
    running, go = threading.Event(), threading.Event()

    def work() -> None:
        running.set()
        assert go.wait(SOON)

    async def awork() -> None:
        await asyncio.to_thread(work)

    task: Any = app.task(name="shop.work")(awork if coroutine else work)
    with Embedded(app):
        job = task.enqueue()
        assert running.wait(SOON)
        told = Told(app)
        go.set()
        ended = told.wait_for(job, "succeeded")
        other = finished(task.enqueue())
        told.wait_for(other, "succeeded")
    assert told.kinds_of(job) == ["succeeded"]
    assert ended.duration is not None
    assert told.kinds_of(other) == ["enqueued", "started", "succeeded"]


def test_while_nobody_watches_no_event_is_made(app: Packhorse, monkeypatch: pytest.MonkeyPatch):
    def never(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("an event was made for nobody")

    monkeypatch.setattr(Event, "__init__", never)
    assert not app.events

    @app.task
    def work() -> str:
        return "fine"

    with Embedded(app):
        assert work.enqueue().result(SOON) == "fine"
    assert app.events._thread is None


async def coroutine_subscriber(event: Event) -> None: ...


class AsyncCallable:
    async def __call__(self, event: Event) -> None: ...

    async def method(self, event: Event) -> None: ...


@pytest.mark.parametrize(
    "subscriber",
    [coroutine_subscriber, functools.partial(coroutine_subscriber), AsyncCallable(), AsyncCallable().method],
    ids=["function", "partial", "object", "method"],
)
def test_a_coroutine_subscriber_is_refused(app: Packhorse, subscriber: Any):
    """It would never be awaited."""
    with pytest.raises(ConfigError, match="A subscriber is a plain function"):
        app.subscribe()(subscriber)
    assert not app.events


@pytest.mark.parametrize("wrong", [None, "name", 7])
def test_what_cannot_be_called_is_refused(app: Packhorse, wrong: Any):
    with pytest.raises(ConfigError, match="A subscriber is a plain function"):
        app.subscribe()(wrong)


# Flushing.


def test_flush_waits_until_everything_was_passed_on(app: Packhorse):
    """Also for the event that a subscriber is busy with."""
    told = Told(app)
    assert app.events.flush()
    for _ in range(100):
        app.events.tell(Event(kind=EventKind.LOST, at=datetime.now(UTC)))
    assert app.events.flush()
    assert len(told.events) == 100


def test_a_subscriber_that_flushes_does_not_wait_for_itself(app: Packhorse):
    answers: list[bool] = []

    @app.subscribe()
    def closing(event: Event) -> None:
        answers.append(app.events.flush())

    began = time.monotonic()
    app.events.tell(Event(kind=EventKind.LOST, at=datetime.now(UTC)))
    assert app.events.flush()
    assert answers == [False]
    assert time.monotonic() - began < events_module.FLUSH_AT_MOST


def test_what_a_subscriber_tells_itself_is_told(app: Packhorse):
    """A subscriber may enqueue."""
    told = Told(app, "enqueued")

    @app.task
    def report(id: str) -> None: ...

    @app.task
    def work() -> None: ...

    @app.subscribe("succeeded")
    def follow(event: Event) -> None:
        if event.task == work.name:
            report.enqueue(event.job_id or "")

    with Embedded(app):
        job = finished(work.enqueue())
        wait_until(lambda: len(told.events) == 2)
    assert told.events[1].task == report.name
    assert told.events[0].job_id == job.id


def test_a_program_that_ends_has_told_everything(tmp_path: Path):
    """Its last events are passed on before it goes, and many subscribers do not make it wait many times."""
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            """
            import time
            from packhorse import Packhorse
            app = Packhorse("shop", "memory://")
            @app.subscribe("enqueued")
            def slow(event):
                time.sleep(0.2)
                print("told", flush=True)
            for _ in range(20):
                app.subscribe("lost")(lambda event: None)
            @app.task
            def work(): ...
            work.enqueue()
            """
        )
    )
    ended = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=60)
    assert (ended.stdout, ended.stderr, ended.returncode) == ("told\n", "", 0)


def test_one_flush_is_registered_for_the_end_of_the_program(monkeypatch: pytest.MonkeyPatch):
    """A subscriber that hangs would otherwise hold up the end once for each of them."""
    registered: list[Any] = []
    monkeypatch.setattr("packhorse.events.atexit.register", registered.append)
    events = Events()
    for _ in range(3):
        events.subscribe(print)
    assert len(registered) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_tells_its_own_events_and_none_of_its_parents(tmp_path: Path):
    """The child inherits what its parent had not passed on yet, and maybe a lock that nobody will ever release."""
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            """
            import os, sys, threading, warnings
            from datetime import UTC, datetime
            from packhorse import Event, EventKind
            from packhorse.events import Events
            warnings.simplefilter("ignore")
            events, go, busy = Events(), threading.Event(), threading.Event()
            def note(event):
                busy.set()
                go.wait(20)
                os.write(1, f"{event.task} told by the {'parent' if os.getpid() == parent else 'child'}\\n".encode())
            parent = os.getpid()
            events.subscribe(note)
            def tell(name):
                events.tell(Event(kind=EventKind.LOST, at=datetime.now(UTC), task=name))
            tell("first")
            busy.wait(20)
            tell("second")
            with events._changed if len(sys.argv) > 1 else threading.Lock():
                child = os.fork()
            if child == 0:
                go.set()
                assert events.flush()
                tell("third")
                assert events.flush()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            go.set()
            assert events.flush()
            """
        )
    )
    for arguments in ([], ["locked"]):
        ended = subprocess.run(
            [sys.executable, program, *arguments], capture_output=True, text=True, timeout=60, check=False
        )
        assert ended.stderr == ""
        assert sorted(ended.stdout.splitlines()) == [
            "first told by the parent",
            "second told by the parent",
            "third told by the child",
        ]


def test_a_failed_job_of_many_kinds_is_told_once(app: Packhorse):
    """However a job ends, its last event is one of three, and there is one of it."""
    told = Told(app, "succeeded", "failed", "cancelled")

    @app.task(takes_context=True, retries=3, backoff=Fixed(0))
    def work(context: Context, number: int) -> None:
        match number % 5:
            case 1:
                raise ValueError
            case 2:
                raise Cancel
            case 3 if context.attempt < 2:
                raise Retry(after=0)
            case 4 if context.attempt < 3:
                raise KeyError

    with Embedded(app):
        jobs = [work.enqueue(number) for number in range(50)]
        for job in jobs:
            finished(job)
        wait_until(lambda: len(told.events) >= 50)
    for number, job in enumerate(jobs):
        expected = {1: "failed", 2: "cancelled"}.get(number % 5, "succeeded")
        assert told.kinds_of(job) == [expected]
        with pytest.raises((JobFailed, JobCancelled)) if number % 5 in (1, 2) else _nothing():
            job.result(0)


@contextmanager
def _nothing() -> Iterator[None]:
    yield


def test_forgotten_parentheses_are_named(app: Packhorse):
    with pytest.raises(ConfigError, match=r"app\.subscribe"):

        @app.subscribe  # type: ignore[arg-type]
        def watch(event: Event) -> None: ...
