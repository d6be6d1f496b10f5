"""One running job, from outside: stopped, restarted, reloaded; and how soon it hears of it."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from packhorse import (
    ConfigError,
    Context,
    Embedded,
    JobCancelled,
    JobHandle,
    JobNotFound,
    JobState,
    Packhorse,
    limit,
)
from packhorse.events import Event
from packhorse.ids import from_text, new_id, to_text
from packhorse.job import Token
from packhorse.runtime import worker as worker_module
from packhorse.stores.contract import Act, Change, Order, OrderKind, Selection
from tests.waiting import wait_until

SOON = 60.0
DEAF: dict[str, Any] = {"heartbeat": 60.0, "lease": 300.0, "polling_interval": 60.0}  # who waits for these is too late
Start = Callable[[], JobHandle[Any]]


class Loops:
    """Tasks without an end, and what they did."""

    def __init__(self, app: Packhorse) -> None:
        self.begun: list[tuple[int, int]] = []  # the argument and the attempt

        @app.task(takes_context=True, name="looking")
        def looking(context: Context, number: int = 1) -> None:
            self.begin(context, number)
            while not context.stop_requested:
                time.sleep(0.001)
            context.checkpoint()

        @app.task(takes_context=True, name="awaiting")
        async def awaiting(context: Context, number: int = 1) -> None:
            self.begin(context, number)
            await asyncio.Event().wait()

        @app.task(takes_context=True, name="deaf")
        def deaf(context: Context, number: int = 1) -> None:
            self.begin(context, number)
            while True:
                time.sleep(0.001)

        @app.task(takes_context=True, name="sulking", retries=1)
        def sulking(context: Context, number: int = 1) -> None:
            self.begin(context, number)
            wait_until(lambda: context.stop_requested)
            raise ValueError("do not disturb")

    def begin(self, context: Context, number: int) -> None:
        self.begun.append((number, context.attempt))

    def wait(self, times: int) -> None:
        wait_until(lambda: len(self.begun) >= times, f"it began {times} times")


ENDLESS = ["looking", "awaiting", "deaf"]


@pytest.fixture
def app(make_app: Callable[..., Packhorse]) -> Packhorse:
    return make_app(**DEAF | {"ending_timeout": 0.1})


@pytest.mark.parametrize("task", ENDLESS)
def test_a_job_is_stopped_and_restarted(app: Packhorse, task: str):
    """Whether it looks, awaits, or has to be interrupted."""
    loops = Loops(app)
    with Embedded(app, concurrency=1):
        job = app.tasks[task].enqueue(7)
        loops.wait(1)
        assert job.stop("for the night")
        with pytest.raises(JobCancelled, match="stopped: for the night"):
            job.result(SOON)
        seen = job.look()
        assert (seen.state, seen.stopped, seen.reason) == (JobState.CANCELLED, True, "stopped: for the night")
        assert job.restart("morning")
        loops.wait(2)
        assert not job.look().stopped
        job.cancel()
        with pytest.raises(JobCancelled):
            job.result(SOON)
        assert not job.look().stopped
    assert loops.begun == [(7, 1), (7, 1)]
    acts = [(audit.act, audit.reason) for audit in app.inspection.audit()]
    assert acts[1:] == [("restart", "morning"), ("stop", "for the night")]


@pytest.mark.parametrize("task", [*ENDLESS, "sulking"])
def test_a_running_job_is_restarted(app: Packhorse, task: str):
    """Under the same id, unspent, whatever it makes of it."""
    loops = Loops(app)
    told: list[Event] = []
    app.subscribe("cancelled", "failed", "retrying")(told.append)
    with Embedded(app, concurrency=1):
        job = app.tasks[task].enqueue()
        for times in (1, 2):
            loops.wait(times)
            assert job.restart()
        loops.wait(3)
        assert (job.state, job.look().attempts) == (JobState.RUNNING, 0)
        assert told == []
        job.stop()
        with pytest.raises(JobCancelled):
            job.result(SOON)
    assert loops.begun == [(1, 1)] * 3


def test_a_restarted_job_goes_on_from_its_checkpoint(app: Packhorse):
    begun: list[int] = []
    kept = threading.Event()

    @app.task(takes_context=True)
    def count(context: Context) -> int:
        begun.append(context.cursor(0))
        for number in range(begun[-1], 1_000_000):
            context.checkpoint(number + 1)
            kept.set()
            if len(begun) == 2:
                return number
        return 0

    with Embedded(app):
        job = count.enqueue()
        assert kept.wait(SOON)
        job.restart()
        assert job.result(SOON) == begun[1]
    assert begun[0] == 0 < begun[1]


def test_a_job_that_succeeds_first_is_not_restarted(app: Packhorse):
    running = threading.Event()

    @app.task(takes_context=True)
    def done_anyway(context: Context) -> str:
        running.set()
        wait_until(lambda: context.stop_requested)
        return "done anyway"

    with Embedded(app):
        job = done_anyway.enqueue()
        assert running.wait(SOON)
        assert job.restart()
        assert job.result(SOON) == "done anyway"


@pytest.mark.parametrize("task", ENDLESS)
def test_a_running_job_is_reloaded(app: Packhorse, task: str):
    loops = Loops(app)
    with Embedded(app, concurrency=1):
        job = app.tasks[task].using(metadata={"tenant": "acme"}, expires=3600).enqueue(1)
        loops.wait(1)
        assert job.reload(number=2)
        loops.wait(2)
        assert app.inspection.shown_arguments(app.inspection.stored(job.id)) == {"number": 2}
        assert job.look().expires_at is None
        job.stop()
        with pytest.raises(JobCancelled):
            job.result(SOON)
        assert job.reload(3)
        loops.wait(3)
        job.stop()
        with pytest.raises(JobCancelled):
            job.result(SOON)
    assert loops.begun == [(1, 1), (2, 1), (3, 1)]


def test_what_was_enqueued_beside_the_arguments_stays(app: Packhorse):
    @app.task(takes_context=True, aliases=("older",))
    def tell(context: Context, number: int) -> tuple[int, Any]:
        return number, context.metadata

    job = tell.using(metadata={"tenant": "acme"}, run_after=3600).enqueue(1)
    assert job.reload(2)
    assert job.state is JobState.SCHEDULED
    app.control.run_now([job.id])
    with Embedded(app):
        assert job.result(SOON) == (2, {"tenant": "acme"})
        assert not job.reload(3)
        assert job.result() == (2, {"tenant": "acme"})


def test_what_cannot_be_reloaded(app: Packhorse):
    @app.task(limit=limit("{room}"))
    def visit(room: str, hours: int = 1) -> str:
        return f"{room} {hours}"

    job = visit.enqueue("blue")
    with pytest.raises(TypeError, match="cannot be called like this"):
        job.reload("blue", 2, 3)
    with pytest.raises(ConfigError, match="other keys"):
        job.reload("red")
    with pytest.raises(JobNotFound):
        app.control.reload(to_text(new_id()))
    assert job.reload("blue", 2)
    with Embedded(app):
        assert job.result(SOON) == "blue 2"
    del app.known_tasks[visit.name]
    with pytest.raises(ConfigError, match="no task"):
        job.reload("blue")


def test_twins_for_coroutines(app: Packhorse):
    loops = Loops(app)

    async def steer() -> None:
        job = app.tasks["awaiting"].enqueue()
        await asyncio.to_thread(loops.wait, 1)
        assert await job.arestart()
        await asyncio.to_thread(loops.wait, 2)
        assert await job.areload(2)
        await asyncio.to_thread(loops.wait, 3)
        assert await job.astop("enough")
        with pytest.raises(JobCancelled, match="stopped: enough"):
            await job.aresult(SOON)
        assert await app.control.arestart([job.id]) == 1
        assert await app.control.astop([job.id]) == 1

    with Embedded(app):
        asyncio.run(steer())


def test_an_order_of_one_kind_is_none_of_the_other(app: Packhorse):
    """Whoever can write to the store cannot make a restart of a cancel, nor the other way round."""
    token = Token(new_id(), 1, new_id(), 1)
    for kind, other in ((OrderKind.CANCEL, OrderKind.RESTART), (OrderKind.RESTART, OrderKind.CANCEL)):
        seal = app.seals.order(kind, "why")
        good, forged = Order(kind, token, "why", seal), Order(other, token, "why", seal)
        assert app.control.trusted([good, forged]) == [good]


def test_orders_that_nobody_gave_are_not_obeyed(app: Packhorse):
    """A restart without a seal: the job runs on, and succeeds."""
    go, running = threading.Event(), threading.Event()

    @app.task(takes_context=True)
    def steadfast(context: Context) -> bool:
        running.set()
        assert go.wait(SOON)
        return context.stop_requested

    with Embedded(app):
        job = steadfast.enqueue()
        assert running.wait(SOON)
        app.store.move(Selection(ids=[from_text(job.id)]), Change(Act.RESTART), "mallory", "")
        wait_until(lambda: app.control.forged_orders, "the order was seen")
        go.set()
        assert job.result(SOON) is False


def test_a_worker_without_room_is_woken(app: Packhorse, monkeypatch: pytest.MonkeyPatch):
    """Also when it has come to rest: after its second look nothing but a change wakes it."""
    loops, looks = Loops(app), []
    look = app.store.orders

    def orders(processes: Any) -> list[Order]:
        looks.append(processes)
        return look(processes)

    monkeypatch.setattr(app.store, "orders", orders)
    with Embedded(app, concurrency=1):
        job = app.tasks["looking"].enqueue()
        loops.wait(1)
        wait_until(lambda: len(looks) >= 2, "it has looked")
        job.stop()
        with pytest.raises(JobCancelled):
            job.result(SOON)


def test_quick_jobs_pay_nothing(app: Packhorse, monkeypatch: pytest.MonkeyPatch):
    """As long as none has run for a while, nobody looks for orders."""
    monkeypatch.setattr(worker_module, "LONG", 3600.0)
    looks: list[Any] = []

    def orders(processes: Any) -> list[Order]:
        looks.append(processes)
        return []

    monkeypatch.setattr(app.store, "orders", orders)

    @app.task
    def quick(number: int) -> int:
        return number

    with Embedded(app):
        jobs = app.enqueue_many(quick.call(number) for number in range(50))
        assert [job.result(SOON) for job in jobs] == list(range(50))
    assert looks == []
