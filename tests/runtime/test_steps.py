"""What outlasts an attempt: steps, checkpoints, sleeps and signals."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any

import pytest

from packhorse import (
    ClaimLost,
    ConfigError,
    Context,
    DuplicateStep,
    Embedded,
    Fixed,
    JobCancelled,
    JobFailed,
    JobHandle,
    JobState,
    Packhorse,
    PayloadError,
    PutBack,
    SignalTimeout,
    current_context,
    limit,
)
from packhorse.ids import from_text, new_id
from packhorse.job import Token
from packhorse.outcome import release
from packhorse.queues import parse_queues
from packhorse.runtime.process import Process
from packhorse.runtime.worker import Worker
from packhorse.stores.contract import Act, Change, Entry, ProcessInfo, Selection
from packhorse.testing import NotPerformed, inline, recorded
from tests.waiting import wait_until

SOON = 60.0
AGAIN: Any = {"retries": 5, "backoff": Fixed(0)}


@contextmanager
def worker_of(app: Packhorse) -> Iterator[Process]:
    """A worker that the test can stop."""
    process = Process(app, Worker(app, parse_queues("*"), 2))
    thread = threading.Thread(target=process.run, daemon=True)
    thread.start()
    try:
        yield process
    finally:
        process.stop()
        thread.join(SOON)
        assert not thread.is_alive()


def wait_awaiting(job: JobHandle[Any], signal: str) -> None:
    wait_until(lambda: job.look().awaits == signal, f"the job awaits {signal}")


def noted(done: list[str], what: str, value: Any = None) -> Any:
    done.append(what)
    return value


# Steps.


@pytest.mark.parametrize("coroutine", [False, True])
def test_a_step_that_was_done_is_not_done_again(app: Packhorse, coroutine: bool):
    """A later attempt gets what it returned, and does what was not reached before."""
    done: list[str] = []

    def charge(order: int, *, currency: str) -> tuple[int, str]:
        done.append("charge")
        return order, currency

    def ship() -> date:
        done.append("ship")
        return date(2026, 12, 24)

    async def aship() -> date:
        return ship()

    @app.task(takes_context=True, name="order", **AGAIN)
    def order(context: Context) -> list[Any]:
        charged = context.step("charge", charge, 42, currency="EUR")
        if context.attempt < 3:
            raise ValueError
        return [charged, context.step("ship", ship), context.attempt]

    @app.task(takes_context=True, name="aorder", **AGAIN)
    async def aorder(context: Context) -> list[Any]:
        charged = await context.astep("charge", charge, 42, currency="EUR")
        if context.attempt < 3:
            raise ValueError
        return [charged, await context.astep("ship", aship), context.attempt]

    with Embedded(app):
        assert (aorder if coroutine else order).enqueue().result(SOON) == [(42, "EUR"), date(2026, 12, 24), 3]
    assert done == ["charge", "ship"]


def test_a_step_runs_where_it_belongs(app: Packhorse):
    """Coroutines on the loop; plain functions, and what makes a coroutine, in a thread; all see the context."""
    seen: dict[str, tuple[int, str]] = {}

    def note(name: str) -> None:
        seen[name] = threading.get_ident(), current_context().job_id

    async def anote(name: str) -> None:
        await asyncio.sleep(0)
        note(name)

    @app.task(takes_context=True)
    async def work(context: Context) -> None:
        note("task")
        await context.astep("coroutine", anote, "coroutine")
        await context.astep("plain", note, "plain")
        await context.astep("partial", partial(anote, "partial"))
        await context.astep("lambda", lambda: anote("lambda"))

    with Embedded(app):
        job = work.enqueue()
        job.result(SOON)
    loop = seen["task"][0]
    assert {name for name, (thread, _) in seen.items() if thread == loop} == {"task", "coroutine", "partial", "lambda"}
    assert {id for _, id in seen.values()} == {job.id}


def test_what_a_step_returns_travels_as_results_do(app: Packhorse):
    """With its type, by the codec and the annotation of the function."""

    @dataclass
    class Paid:
        order: int
        at: datetime

    values: list[Any] = [None, 0, "", (1, {2}), Decimal("1.10"), b"\0", {"a": [timedelta(1)]}]

    def pay() -> Paid:
        return Paid(42, datetime(2026, 1, 1, tzinfo=UTC))

    @app.task(takes_context=True, **AGAIN)
    def work(context: Context) -> bool:
        paid = context.step("pay", pay)
        found = [context.step(f"value {n}", noted, [], "", value) for n, value in enumerate(values)]
        if context.attempt == 1:
            raise ValueError
        return paid == pay() and found == values and [*map(type, found)] == [*map(type, values)]

    with Embedded(app):
        assert work.enqueue().result(SOON) is True


def test_what_cannot_be_kept_is_told(app: Packhorse):
    """And nothing is: neither of that step, nor too much of it."""

    @app.task(takes_context=True)
    def odd(context: Context) -> None:
        context.step("fine", int)
        context.step("odd", object)

    @app.task(takes_context=True)
    def large(context: Context) -> None:
        context.step("large", bytes, 300_000)

    with Embedded(app):
        job = odd.enqueue()
        with pytest.raises(JobFailed, match=r"Cannot store the result of step 'odd': a object cannot travel"):
            job.result(SOON)
        assert [step.name for step in app.inspection.steps(job.id)] == ["fine"]
        with pytest.raises(JobFailed, match=r"The result of step 'large' takes 400,0\d\d bytes"):
            large.enqueue().result(SOON)


def test_a_name_belongs_to_one_step(app: Packhorse):
    """Within one attempt; sleeps have names of their own."""

    @app.task(takes_context=True)
    def twice(context: Context) -> str:
        context.step("a", int)
        context.sleep(0, "a")
        with pytest.raises(DuplicateStep, match="'a' was already used in this attempt"):
            context.sleep(0, "a")
        with pytest.raises(DuplicateStep):
            context.step("a", int)
        return "told"

    with Embedded(app):
        assert twice.enqueue().result(SOON) == "told"


def test_bad_input_is_met_where_it_is_made(app: Packhorse):
    """With one clear error, before anything runs or is stored."""
    never: Any = pytest.fail

    @app.task(takes_context=True)
    def work(context: Context) -> str:
        for name in ("", "a\nb", "\ud800", "x" * 201, 7, None):
            with pytest.raises(ConfigError, match="cannot be the name of a step"):
                context.step(name, never)  # type: ignore[arg-type]
        for length in (-1, timedelta(-1), float("nan"), "soon"):
            with pytest.raises(ConfigError, match="A sleep must be a number of seconds"):
                context.sleep(length)  # type: ignore[arg-type]
            with pytest.raises(ConfigError, match="A timeout must be"):
                context.wait_for("go", length)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="cannot be the name of a sleep"):
            context.sleep(1, "")
        for name in ("", "a b", "*", None):
            with pytest.raises(ConfigError, match="cannot be a signal name"):
                context.wait_for(name)  # type: ignore[arg-type]
        with pytest.raises(PayloadError, match="Cannot store the cursor"):
            context.checkpoint(object())
        return "all told"

    with Embedded(app):
        job = work.enqueue()
        assert job.result(SOON) == "all told"
    assert app.inspection.steps(job.id) == []
    for name in ("", "a b", "*", None):
        with pytest.raises(ConfigError, match="cannot be a signal name"):
            app.signal(name)  # type: ignore[arg-type]
    with pytest.raises(PayloadError, match="Cannot store the data of the signal"):
        app.signal("go", object())
    with pytest.raises(ConfigError, match="keep must not be negative"):
        app.signal("go", keep=-1)
    assert app.store.signals("go") == []


def test_a_plain_task_is_told_of_a_coroutine_step(app: Packhorse):
    async def work() -> None: ...

    @app.task(takes_context=True)
    def order(context: Context) -> None:
        context.step("work", work)  # type: ignore[unused-coroutine]

    with Embedded(app), pytest.raises(JobFailed, match=r"Step 'work' is a coroutine function. Await context\.astep"):
        order.enqueue().result(SOON)


def test_steps_within_steps_and_beside_each_other(app: Packhorse):
    """Each is kept for itself."""
    done: list[str] = []

    @app.task(takes_context=True, **AGAIN)
    async def work(context: Context) -> list[int]:
        async def outer() -> int:
            inner = await context.astep("inner", noted, done, "inner", 1)
            if context.attempt == 1:
                raise ValueError
            return int(inner) + 1

        beside = asyncio.gather(*(context.astep(f"beside {n}", noted, done, f"{n}", n) for n in range(5)))
        return [*await beside, await context.astep("outer", outer)]

    with Embedded(app):
        assert work.enqueue().result(SOON) == [0, 1, 2, 3, 4, 2]
    assert sorted(done) == ["0", "1", "2", "3", "4", "inner"]


def test_steps_outlast_an_operators_retry(app: Packhorse):
    """Which gives fresh attempts, not a fresh start."""
    done: list[str] = []
    broken = True

    @app.task(takes_context=True)
    def order(context: Context) -> Any:
        number = context.step("charge", noted, done, "charge", 7)
        if broken:
            raise ValueError
        return number

    with Embedded(app):
        job = order.enqueue()
        with pytest.raises(JobFailed):
            job.result(SOON)
        broken = False
        job.retry()
        assert job.result(SOON) == 7
    assert done == ["charge"]


def test_a_forged_step_is_not_believed(app: Packhorse):
    """What was signed for another name, or another job, is no result of this step."""

    @app.task(takes_context=True, retries=1, backoff=Fixed(0))
    def order(context: Context) -> None:
        if context.attempt == 2:
            context.step("charge", pytest.fail)
        context.step("other", lambda: 1_000_000)
        [entry] = app.store.entries(from_text(context.job_id))
        assert app.store.record(context._claim.token, [Entry("step", "charge", entry.data)])
        raise ValueError

    with Embedded(app):
        job = order.enqueue()
        with pytest.raises(JobFailed, match="Its signature is wrong"):
            job.result(SOON)
        with pytest.raises(PayloadError, match="Its signature is wrong"):
            app.inspection.steps(job.id)


# A claim that is lost.


def lose(app: Packhorse, token: Token) -> None:
    """Its worker seems dead: somebody adopts the job and puts it back."""
    heir = ProcessInfo(new_id(), "dispatcher", "elsewhere", 7)
    app.store.enroll(heir, 60_000_000)
    [orphan] = app.store.adopt(heir.id, 1, 10, dead=[token.process])
    assert app.store.exchange(heir.id, 2, [release(orphan.claim.token)], (), 0).refused == []


@pytest.mark.parametrize("coroutine", [False, True])
def test_who_lost_the_job_stops(app: Packhorse, coroutine: bool):
    """At the first step that is refused, past the task's own except, and its outcome changes nothing."""
    done: list[str] = []

    def charge(context: Context) -> str:
        done.append("charge")
        if len(done) == 1:
            lose(app, context._claim.token)
        return "charged"

    @app.task(takes_context=True, name="order")
    def order(context: Context) -> str:
        try:
            charged = context.step("charge", charge, context)
        except Exception:
            charged = "swallowed"
        done.append("went on")
        return charged

    @app.task(takes_context=True, name="aorder")
    async def aorder(context: Context) -> str:
        try:
            charged = await context.astep("charge", charge, context)
        except Exception:
            charged = "swallowed"
        done.append("went on")
        return charged

    with Embedded(app):
        job = (aorder if coroutine else order).enqueue()
        assert job.result(SOON) == "charged"
    assert done == ["charge", "charge", "went on"]
    assert (job.look().attempts, job.look().losses, job.look().failures) == (1, 0, ())


def test_a_lost_claim_is_no_error_of_the_task():
    """So that nobody catches it by accident, nor is it reported."""
    assert not issubclass(PutBack, Exception)
    assert issubclass(ClaimLost, PutBack)


# Checkpoints.


@pytest.mark.parametrize("coroutine", [False, True])
def test_a_loop_goes_on_from_its_checkpoint(app: Packhorse, coroutine: bool):
    """Through failures, with any value as the cursor."""
    rows: list[int] = []
    first: list[Any] = []

    def looked(context: Context, row: int) -> None:
        rows.append(row)
        if row == 3 and context.attempt == 1:
            raise ValueError

    @app.task(takes_context=True, name="load", **AGAIN)
    def load(context: Context) -> Any:
        first.append((context.cursor(), context.cursor(default=("from", 0))))
        for row in range(context.cursor(("from", 0))[1], 6):
            looked(context, row)
            context.checkpoint(("from", row + 1))
            assert context.cursor() == ("from", row + 1)
        return context.cursor()

    @app.task(takes_context=True, name="aload", **AGAIN)
    async def aload(context: Context) -> Any:
        first.append((await context.acursor(), await context.acursor(default=("from", 0))))
        for row in range((await context.acursor(("from", 0)))[1], 6):
            looked(context, row)
            await context.acheckpoint(("from", row + 1))
        return await context.acursor()

    with Embedded(app):
        assert (aload if coroutine else load).enqueue().result(SOON) == ("from", 6)
    assert rows == [0, 1, 2, 3, 3, 4, 5]
    assert first == [(None, ("from", 0)), (("from", 3), ("from", 3))]


@pytest.mark.parametrize("coroutine", [False, True])
def test_a_leaving_workers_job_goes_on_elsewhere(app: Packhorse, coroutine: bool):
    """From its checkpoint, at once, with no attempt and no loss counted."""
    rows: list[int] = []
    running, leaving = threading.Event(), threading.Event()

    def looked(row: int) -> None:
        rows.append(row)
        if row == 3:
            running.set()
            assert leaving.wait(SOON)

    @app.task(takes_context=True, name="load")
    def load(context: Context) -> int:
        for row in range(context.cursor(0), 6):
            looked(row)
            context.checkpoint(row + 1)
        return context.attempt

    @app.task(takes_context=True, name="aload")
    async def aload(context: Context) -> int:
        for row in range(await context.acursor(0), 6):
            await asyncio.to_thread(looked, row)
            await context.acheckpoint(row + 1)
        return context.attempt

    with worker_of(app) as process:
        job = (aload if coroutine else load).enqueue()
        assert running.wait(SOON)
        process.stop(within=50)
        leaving.set()
        wait_until(lambda: job.state is JobState.READY, "the job is put back")
    assert rows == [0, 1, 2, 3]
    assert (job.look().attempts, job.look().losses, job.look().failures) == (0, 0, ())
    with Embedded(app):
        assert job.result(SOON) == 1
    assert rows == [0, 1, 2, 3, 4, 5]


def test_a_cancelled_job_ends_at_its_checkpoint(app: Packhorse):
    running = threading.Event()

    @app.task(takes_context=True)
    def endless(context: Context) -> None:
        row = 0
        while True:
            row += 1
            context.checkpoint(row)
            running.set()

    with Embedded(app):
        job = endless.enqueue()
        assert running.wait(SOON)
        job.cancel("enough")
        with pytest.raises(JobCancelled, match="enough"):
            job.result(SOON)


# Sleeping.


@pytest.mark.parametrize("coroutine", [False, True])
def test_a_sleep_gives_the_slot_back(app: Packhorse, coroutine: bool):
    """For so long; the task passes it when the time has come, and its next one begins then."""
    begun: list[datetime] = []

    @app.task(takes_context=True, name="nap", **AGAIN)
    def nap(context: Context) -> int:
        begun.append(jobs.now)
        context.sleep(3600)
        context.sleep(timedelta(minutes=30))
        if context.attempt == 1:
            raise ValueError
        return context.attempt

    @app.task(takes_context=True, name="anap", **AGAIN)
    async def anap(context: Context) -> int:
        begun.append(jobs.now)
        await context.asleep(3600)
        await context.asleep(timedelta(minutes=30))
        if context.attempt == 1:
            raise ValueError
        return context.attempt

    with recorded(app) as jobs:
        start = jobs.now
        job = (anap if coroutine else nap).enqueue()
        jobs.drain()
        for _ in range(6):
            assert job.look().state is JobState.SCHEDULED
            assert (job.look().attempts, job.look().losses) == (0, 0)
            jobs.travel(900)
            jobs.drain()
        assert job.result(0) == 2
    assert [at - start for at in begun] == [timedelta(minutes=m) for m in (0, 60, 90, 90)]


def test_a_sleeper_that_is_woken_sleeps_on(app: Packhorse):
    """By an operator who cannot wait: a sleep ends when its time has come, on whatever attempt."""
    runs: list[int] = []

    @app.task(takes_context=True)
    def nap(context: Context) -> str:
        runs.append(1)
        context.sleep(60, "night")
        return "morning"

    with recorded(app) as jobs:
        job = nap.enqueue()
        jobs.drain()
        jobs.travel(20)
        app.control.run_now([job.id])
        jobs.drain()
        assert job.look().run_at == jobs.now + timedelta(seconds=40)
        jobs.travel(40)
        jobs.drain()
        assert (job.result(0), len(runs)) == ("morning", 3)


def test_a_sleeper_waits_for_no_slot(app: Packhorse):
    """With one slot, others go on meanwhile."""

    @app.task(takes_context=True)
    def nap(context: Context) -> str:
        context.sleep(0.2)
        return "awake"

    @app.task
    def other() -> str:
        return "done"

    with Embedded(app, concurrency=1):
        job = nap.enqueue()
        wait_until(lambda: job.state is JobState.SCHEDULED, "it sleeps")
        assert other.enqueue().result(SOON) == "done"
        assert job.result(SOON) == "awake"


# Signals.


@pytest.mark.parametrize("coroutine", [False, True])
def test_a_job_waits_for_a_signal(app: Packhorse, coroutine: bool):
    """It gives its slot back, and goes on with what the signal brought."""
    runs: list[int] = []

    @app.task(takes_context=True, name="order")
    def order(context: Context, number: int) -> list[Any]:
        runs.append(context.attempt)
        return [context.wait_for(f"approved:{number}"), context.attempt]

    @app.task(takes_context=True, name="aorder")
    async def aorder(context: Context, number: int) -> list[Any]:
        runs.append(context.attempt)
        return [await context.await_for(f"approved:{number}"), context.attempt]

    with Embedded(app, concurrency=1):
        job = (aorder if coroutine else order).enqueue(42)
        wait_awaiting(job, "approved:42")
        assert [*app.inspection.awaited()] == [("approved:42", job.id)]
        assert [*app.inspection.awaited("approved:42")] == [("approved:42", job.id)]
        assert [*app.inspection.awaited("approved:4")] == []
        assert asyncio.run(app.asignal("approved:41")) == 0
        assert app.signal("approved:42", {"by": "ann", "at": date(2026, 1, 1)}) == 1
        assert job.result(SOON) == [{"by": "ann", "at": date(2026, 1, 1)}, 1]
    assert runs == [1, 1]
    assert [step.kind for step in app.inspection.steps(job.id)] == ["signal"]


def test_a_signal_that_came_before(app: Packhorse):
    """Needs no put-back: the job goes straight on."""
    runs: list[int] = []
    app.signal("go", "early")

    @app.task(takes_context=True, **AGAIN)
    def order(context: Context) -> Any:
        runs.append(1)
        return context.wait_for("go")

    with Embedded(app):
        assert order.enqueue().result(SOON) == "early"
    assert runs == [1]


def test_all_who_wait_get_it_and_keep_it(app: Packhorse):
    """Each for itself, also for its retries, when others have come since."""

    @app.task(takes_context=True, **AGAIN)
    def order(context: Context) -> Any:
        got = context.wait_for("go")
        if context.attempt == 1:
            app.signal("go", "later")
            raise ValueError
        return got

    with Embedded(app):
        jobs = [order.enqueue() for _ in range(3)]
        for job in jobs:
            wait_awaiting(job, "go")
        app.signal("go", "first")
        assert [job.result(SOON) for job in jobs] == ["first"] * 3


def test_waits_for_one_name_get_one_signal_after_the_other(app: Packhorse):
    """In their order, none left out, none twice, through every retry."""

    @app.task(takes_context=True, **AGAIN)
    def order(context: Context) -> list[Any]:
        got = [context.wait_for("row") for _ in range(3)]
        if context.attempt == 1:
            raise ValueError
        return got

    app.signal("row", 1)
    with Embedded(app):
        job = order.enqueue()
        for row in (2, 3):
            wait_awaiting(job, "row")
            app.signal("row", row)
        assert job.result(SOON) == [1, 2, 3]


def test_waits_beside_each_other(app: Packhorse):
    """In a group of tasks, until all have come, whichever is first."""

    @app.task(takes_context=True)
    async def order(context: Context) -> list[Any]:
        async with asyncio.TaskGroup() as together:
            waits = [together.create_task(context.await_for(name, timeout=600)) for name in ("one", "other")]
        return [wait.result() for wait in waits]

    with Embedded(app):
        job = order.enqueue()
        wait_until(lambda: job.look().awaits, "it awaits one of them")
        app.signal("other", 2)
        wait_awaiting(job, "one")
        app.signal("one", 1)
        assert job.result(SOON) == [1, 2]
    assert (job.look().attempts, job.look().failures) == (1, ())


def test_a_wait_may_be_in_vain(app: Packhorse):
    """SignalTimeout, now and in every later attempt, though a signal has come since; the next wait gets that."""

    @app.task(takes_context=True, **AGAIN)
    def order(context: Context) -> list[Any]:
        with pytest.raises(SignalTimeout, match="No signal 'go' came in time"):
            context.wait_for("go", timeout=timedelta(hours=1))
        if context.attempt == 1:
            raise ValueError
        return [context.wait_for("go", 60), context.attempt]

    with recorded(app) as jobs:
        job = order.enqueue()
        jobs.drain()
        jobs.travel(1800)
        assert jobs.drain() == []
        jobs.travel(1800)
        jobs.drain()
        assert (job.look().attempts, job.look().awaits) == (1, "go")
        app.signal("go", "late")
        jobs.drain()
        assert job.result(0) == ["late", 2]
    assert issubclass(SignalTimeout, TimeoutError)


def test_a_wait_of_no_time_only_looks(app: Packhorse):
    @app.task(takes_context=True)
    def look(context: Context) -> Any:
        try:
            return context.wait_for("go", timeout=0)
        except TimeoutError:
            return "nothing yet"

    with recorded(app) as jobs:
        first = look.enqueue()
        jobs.drain()
        app.signal("go", "here")
        second = look.enqueue()
        jobs.drain()
        assert [first.result(0), second.result(0)] == ["nothing yet", "here"]


def test_a_signal_is_kept_as_long_as_it_says(app: Packhorse):
    """A week by default; without any time it is for those who wait now."""

    @app.task(takes_context=True)
    def order(context: Context) -> Any:
        return context.wait_for("go", timeout=1)

    with recorded(app) as jobs:
        early = order.enqueue()
        jobs.drain()
        app.signal("go", "now", keep=0)
        app.signal("other", "week")
        jobs.travel(0)
        jobs.drain()
        assert early.result(0) == "now"
        assert app.store.signals("go") == []
        jobs.travel(timedelta(days=7) - timedelta(seconds=1))
        assert len(app.store.signals("other")) == 1
        jobs.travel(1)
        assert app.store.signals("other") == []


def test_who_is_cancelled_waits_no_more(app: Packhorse):
    @app.task(takes_context=True)
    def order(context: Context) -> Any:
        return context.wait_for("go")

    with Embedded(app):
        job = order.enqueue()
        wait_awaiting(job, "go")
        app.control.act(Selection(), Change(Act.CANCEL))
        with pytest.raises(JobCancelled):
            job.result(SOON)
        assert [*app.inspection.awaited()] == []
        assert app.signal("go") == 0


def test_a_waiting_job_holds_no_permit(app: Packhorse):
    """And needs one again to go on."""

    @app.task(takes_context=True, limit=limit(to=1))
    def order(context: Context, number: int) -> Any:
        return context.wait_for(f"go:{number}")

    with Embedded(app):
        jobs = [order.enqueue(number) for number in range(3)]
        for number, job in enumerate(jobs):
            wait_awaiting(job, f"go:{number}")
        for number in (2, 0, 1):
            app.signal(f"go:{number}", number)
        assert [job.result(SOON) for job in jobs] == [0, 1, 2]


def test_a_saga(app: Packhorse):
    """Everything together, through a failure after each of its parts."""
    done: list[str] = []

    @app.task(takes_context=True, retries=None, backoff=Fixed(0))
    def saga(context: Context) -> list[Any]:
        def stumble(place: int) -> None:
            if context.attempt == place:
                raise ValueError(place)

        stumble(1)
        charged = context.step("charge", noted, done, "charge", 1)
        stumble(2)
        context.sleep(0.05)
        stumble(3)
        approved = context.wait_for("approved", timeout=600)
        stumble(4)
        for row in range(context.cursor(0), 3):
            done.append(f"row {row}")
            context.checkpoint(row + 1)
        stumble(5)
        return [charged, approved, context.step("ship", noted, done, "ship", 2), context.attempt]

    with Embedded(app):
        job = saga.enqueue()
        wait_awaiting(job, "approved")
        app.signal("approved", "by ann")
        assert job.result(SOON) == [1, "by ann", 2, 6]
    assert done == ["charge", "row 0", "row 1", "row 2", "ship"]
    kinds = sorted(step.kind for step in app.inspection.steps(job.id))
    assert kinds == ["cursor", "signal", "sleep", "step", "step", "wait"]


# Elsewhere.


def test_called_in_place(app: Packhorse):
    """Steps are done, a cursor is remembered, nobody sleeps, and nobody can wait."""

    @app.task(takes_context=True)
    def work(context: Context) -> list[Any]:
        context.checkpoint(3)
        context.sleep(3600)
        with pytest.raises(DuplicateStep):
            [context.step("a", int) for _ in range(2)]
        with pytest.raises(ConfigError, match="Only a job can wait for signal 'go'"):
            context.wait_for("go")
        return [context.cursor(), context.step("object", lambda: 7)]

    assert work() == [3, 7]


def test_inline(app: Packhorse):
    """Signals let jobs go on at once, as enqueueing does; what sleeps waits for the test to travel."""

    @app.task(takes_context=True)
    def order(context: Context) -> Any:
        got = context.wait_for("go")
        context.sleep(60)
        return got

    with inline(app) as jobs:
        job = order.enqueue()
        with pytest.raises(NotPerformed, match=r"app\.signal\('go', …\) and drain\(\)"):
            job.result(1)
        app.signal("go", "here")
        with pytest.raises(NotPerformed, match=r"travel\(\)"):
            job.result(1)
        jobs.travel(60)
        jobs.drain()
        assert job.result(0) == "here"


def test_a_worker_lost_in_a_test(app: Packhorse):
    """Steps are not done again when the test lets the worker die."""
    done: list[str] = []

    @app.task(takes_context=True)
    def order(context: Context) -> int:
        context.step("charge", noted, done, "charge")
        context.sleep(1)
        return context.losses

    with recorded(app) as jobs:
        job = order.enqueue()
        jobs.drain()
        jobs.travel(1)
        jobs.lose_worker(job)
        jobs.drain()
        assert (job.result(0), done) == (1, ["charge"])


def test_who_uses_no_steps_asks_the_store_for_nothing(app: Packhorse, monkeypatch: pytest.MonkeyPatch):
    """Not even for what it may have kept."""
    never: Callable[..., Any] = pytest.fail
    monkeypatch.setattr(app.store, "entries", never)
    monkeypatch.setattr(app.store, "record", never)
    monkeypatch.setattr(app.store, "signals", never)

    @app.task(takes_context=True)
    def plain(context: Context) -> int:
        return context.attempt

    with Embedded(app):
        assert plain.enqueue().result(SOON) == 1
