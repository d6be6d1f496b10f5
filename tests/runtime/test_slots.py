"""Performing several jobs at once, and ending them early."""

import asyncio
import contextvars
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from packhorse import JobCancelled, JobState, Packhorse
from packhorse.ids import to_text
from packhorse.job import Claim, Token
from packhorse.outcome import Outcome
from packhorse.queues import parse_queues
from packhorse.runtime.embedded import Embedded
from packhorse.runtime.perform import Performer
from packhorse.runtime.process import Process
from packhorse.runtime.slots import Slots
from packhorse.runtime.worker import Worker
from packhorse.stores.contract import Exchanged, Order, OrderKind
from tests.waiting import wait_until

SOON = 60.0


class Gauge:
    """Counts who is inside, and the most there ever were."""

    def __init__(self) -> None:
        self.inside = self.most = self.ever = 0
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            self.inside += 1
            self.ever += 1
            self.most = max(self.most, self.inside)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.inside -= 1


@pytest.mark.parametrize("concurrency", [1, 3])
def test_no_more_jobs_run_at_once_than_allowed(app: Packhorse, concurrency: int):
    """Whatever the mix of threads and coroutines, counted from inside the tasks."""
    gauge = Gauge()

    @app.task
    def plain(number: int) -> None:
        with gauge:
            time.sleep(0.001)

    @app.task
    async def coroutine(number: int) -> None:
        with gauge:
            await asyncio.sleep(0.001)

    pattern = (plain, coroutine, coroutine, plain, plain, plain, coroutine, coroutine, coroutine)
    with Embedded(app, concurrency=concurrency):
        jobs = app.enqueue_many(pattern[number % len(pattern)].call(number) for number in range(180))
        for job in jobs:
            job.result(SOON)
    assert gauge.ever == 180
    assert gauge.most <= concurrency


def test_all_slots_are_used_by_either_kind(app: Packhorse):
    """Two threads and two coroutines meet inside: none of them could end if a slot were missing."""
    gauge = Gauge()

    @app.task
    def plain() -> None:
        with gauge:
            wait_until(lambda: gauge.most == 4)

    @app.task
    async def coroutine() -> None:
        with gauge:
            while gauge.most < 4:
                await asyncio.sleep(0.001)

    with Embedded(app, concurrency=4):
        for job in app.enqueue_many([plain.call(), coroutine.call(), plain.call(), coroutine.call()]):
            job.result(SOON)
    assert gauge.most == 4


def test_a_waiting_job_is_cancelled_on_the_spot(app: Packhorse):
    """It never runs, and cannot be cancelled twice."""
    runs = []

    @app.task
    def never() -> None:
        runs.append(1)

    job = never.enqueue()
    assert job.cancel("not needed")
    assert not job.cancel()
    with Embedded(app), pytest.raises(JobCancelled, match="not needed"):
        job.result(SOON)
    assert runs == []
    assert job.look().attempts == 0


def test_a_running_coroutine_is_cancelled_at_its_next_await(app: Packhorse):
    """It may clean up, is asked only once, and the slot goes on."""
    begun, tidied = threading.Event(), threading.Event()

    @app.task(retries=5)
    async def endless() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.2)  # several beats long, each of which tells the order again
            tidied.set()

    @app.task
    async def after() -> str:
        return "next"

    with Embedded(app, concurrency=1):
        job = endless.enqueue()
        assert begun.wait(SOON)
        following = after.enqueue()
        assert job.cancel("enough")
        with pytest.raises(JobCancelled, match="enough"):
            job.result(SOON)
        assert tidied.is_set()
        assert following.result(SOON) == "next"
    assert job.look().attempts == 1


def test_a_cancelled_function_runs_to_its_end_but_not_again(app: Packhorse):
    """A thread cannot be stopped from outside: what it returns stands, but a retry is no longer due."""
    begun, go = threading.Semaphore(0), threading.Event()

    @app.task(retries=None, backoff=0)
    def stubborn(fails: bool) -> str:
        begun.release()
        go.wait(SOON)
        if fails:
            raise ValueError("no")
        return "done"

    with Embedded(app, concurrency=2) as embedded:
        returns, fails = stubborn.enqueue(False), stubborn.enqueue(True)
        assert begun.acquire(timeout=SOON)
        assert begun.acquire(timeout=SOON)
        assert returns.cancel("enough")
        assert fails.cancel("enough")
        orders = embedded._processes[0].role._performer.orders  # type: ignore[attr-defined]
        wait_until(lambda: len(orders) == 2, "the orders to arrive")
        go.set()
        assert returns.result(SOON) == "done"
        with pytest.raises(JobCancelled, match="enough"):
            fails.result(SOON)
        wait_until(lambda: orders == {}, "nothing of them is left")
    assert fails.look().attempts == 1


def make_slots(app: Packhorse, concurrency: int) -> tuple[Slots, list[Outcome]]:
    ended: list[Outcome] = []
    return Slots(concurrency, Performer(app), ended.append), ended


def claim_of(task: Any, number: int) -> Claim:
    new = task.call().new_job()
    token = Token(b"p" * 16, number, new.id, 1)
    return Claim(token, task.name, new.payload, "default", 0, 0, 0, 0, None)


def test_a_coroutine_that_is_cancelled_before_it_begins_gives_its_slot_back(app: Packhorse):
    """The order may arrive between the start and the first step; the job ends and the next one runs."""
    runs = []

    @app.task
    async def quick() -> None:
        runs.append(1)

    slots, ended = make_slots(app, concurrency=1)
    loop = slots._start_loop()
    busy, free = threading.Event(), threading.Event()
    loop.call_soon_threadsafe(busy.set)
    loop.call_soon_threadsafe(free.wait, SOON)
    assert busy.wait(SOON)
    first, second = claim_of(quick, 1), claim_of(quick, 2)
    slots.put([first, second])
    slots.obey(Order(OrderKind.CANCEL, first.token, "enough"))
    free.set()
    wait_until(lambda: len(ended) == 2)
    slots.close()
    assert [outcome.state for outcome in ended] == [JobState.CANCELLED, JobState.SUCCEEDED]
    assert ended[0].reason == "enough"
    assert runs == [1]


def test_a_slot_hands_nothing_from_one_job_to_the_next(app: Packhorse):
    """Context variables and cancellations end with the job they belong to."""
    colour = contextvars.ContextVar("colour", default="none")
    seen = []

    @app.task
    async def leaves_traces() -> None:
        seen.append(colour.get())
        colour.set("red")
        current = asyncio.current_task()
        assert current is not None
        current.cancel()

    @app.task
    def leaves_traces_too() -> None:
        seen.append(colour.get())
        colour.set("blue")

    @app.task
    async def times_out() -> str:
        seen.append(colour.get())
        try:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(SOON)
        except TimeoutError:
            return "in time"
        return "late"

    with Embedded(app, concurrency=1):
        many = [leaves_traces.call(), leaves_traces_too.call(), times_out.call(), leaves_traces.call()] * 3
        jobs = app.enqueue_many(many)
        results = [job.result(SOON) for job in jobs]
    assert results == [None, None, "in time", None] * 3
    assert set(seen) == {"none"}


def test_claims_that_find_no_slot_go_back_to_others(app: Packhorse, monkeypatch: pytest.MonkeyPatch):
    """A worker that expected quick jobs and met slow ones keeps none of the rest for itself."""
    go = threading.Event()

    @app.task
    def quick() -> None: ...

    @app.task
    def slow() -> None:
        go.wait(SOON)

    claims: list[int] = []
    exchange = app.store.exchange

    def counting(*args: Any, **kwargs: Any) -> Exchanged:
        reply = exchange(*args, **kwargs)
        claims.append(len(reply.claims))
        return reply

    monkeypatch.setattr(app.store, "exchange", counting)
    with Embedded(app, concurrency=2) as first:
        worker = first._processes[0].role
        assert isinstance(worker, Worker)
        while worker._pace > 0.001:  # until it believes that jobs are quick
            for job in app.enqueue_many(quick.call() for _ in range(20)):
                job.result(SOON)
        claims.clear()
        first_slow, second_slow, *others = app.enqueue_many(
            [slow.call(), slow.call(), *(quick.call() for _ in range(8))]
        )
        wait_until(lambda: 10 in claims, "the first worker to claim all ten")
        with Embedded(app, concurrency=1) as second:
            for job in others:
                job.result(SOON)
                assert job.look().process == to_text(second._processes[0].id)
                assert job.look().attempts == 1
            assert first_slow.state is second_slow.state is JobState.RUNNING
            go.set()


def test_a_blocked_worker_is_stopped_in_time(app: Packhorse, make_app: Callable[..., Packhorse]):
    """After `shutdown_timeout` the program goes on, although a job still runs; that ends in its own time."""
    go = threading.Event()
    impatient = make_app(shutdown_timeout=0.1)

    @impatient.task
    def slow() -> None:
        go.wait(SOON)

    job = slow.enqueue()
    with Embedded(impatient) as embedded:
        wait_until(lambda: job.state is JobState.RUNNING)
    assert job.state is JobState.RUNNING
    go.set()
    for thread in embedded._threads:
        thread.join(SOON)
    wait_until(lambda: job.state is JobState.SUCCEEDED)


def run_to_the_end(app: Packhorse, **options: Any) -> None:
    Process(app, Worker(app, parse_queues("*"), 2, **options)).run()


def test_a_burst_ends_when_nothing_is_ready(app: Packhorse):
    """Everything ready is performed, what is scheduled is left."""

    @app.task
    def note() -> None: ...

    jobs = app.enqueue_many(note.call() for _ in range(50))
    later = note.using(run_after=3600).enqueue()
    run_to_the_end(app, burst=True)
    assert {job.state for job in jobs} == {JobState.SUCCEEDED}
    assert later.state is JobState.SCHEDULED
    assert app.inspection.processes() == []


def test_a_worker_leaves_after_so_many_jobs(app: Packhorse):
    """Not one more; the rest is left for others."""

    @app.task
    def note() -> None: ...

    app.enqueue_many(note.call() for _ in range(50))
    run_to_the_end(app, max_jobs=7)
    assert app.inspection.counts()[JobState.SUCCEEDED] == 7
    assert app.inspection.counts()[JobState.READY] == 43


def test_a_worker_that_lost_its_lease_goes_on_under_a_new_name(app: Packhorse):
    """What it was at when others gave it up is refused; the next jobs are its own again."""

    @app.task
    def note() -> int:
        return 1

    with Embedded(app) as embedded:
        process = embedded._processes[0]
        note.enqueue().result(SOON)
        before = process.id
        app.store.leave(before)
        assert note.enqueue().result(SOON) == 1
        wait_until(lambda: process.id != before)
