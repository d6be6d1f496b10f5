"""The job being performed, seen from inside."""

import asyncio
import contextvars
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from packhorse import (
    Cancel,
    ConfigError,
    Context,
    Embedded,
    Fixed,
    JobCancelled,
    JobFailed,
    JobState,
    NoJob,
    Packhorse,
    PayloadError,
    Progress,
    Secret,
    Snooze,
    current_context,
)
from packhorse.errors import Interrupted
from packhorse.ids import new_id
from packhorse.inspection import PROGRESS, decode_progress, encode_progress
from packhorse.job import Token
from packhorse.queues import EVERYTHING, parse_queues
from packhorse.runtime.process import Process
from packhorse.runtime.progress import EVERY
from packhorse.runtime.worker import Worker
from packhorse.stores.contract import Entry, ProcessInfo
from tests.waiting import wait_until

SOON = 60.0
WRITER = "packhorse-progress"


@contextmanager
def worker_of(app: Packhorse, concurrency: int = 2) -> Iterator[Process]:
    """A worker whose process the test can reach."""
    process = Process(app, Worker(app, parse_queues("*"), concurrency))
    thread = threading.Thread(target=process.run, name="worker-of-a-test", daemon=True)
    thread.start()
    try:
        yield process
    finally:
        process.stop()
        thread.join(SOON)
        assert not thread.is_alive()


def deep_down() -> str:
    """Library code that nobody handed a context to."""
    return (lambda: current_context())().job_id


# What it tells.


@pytest.mark.parametrize("coroutine", [False, True])
def test_a_task_that_takes_a_context_gets_it_first(app: Packhorse, coroutine: bool):
    """The caller leaves it out, by place and by name alike."""
    seen: list[tuple[Any, ...]] = []

    def note(context: Context, number: int, scale: int) -> int:
        seen.append((context.job_id, context.task, context.queue_name, context.attempt, context.losses))
        return number * scale

    if coroutine:

        @app.task(takes_context=True, name="shop.scale", queue_name="slow")
        async def ascale(context: Context, number: int, *, scale: int = 2) -> int:
            return note(context, number, scale)

        scale: Any = ascale
    else:

        @app.task(takes_context=True, name="shop.scale", queue_name="slow")
        def sscale(context: Context, number: int, *, scale: int = 2) -> int:
            return note(context, number, scale)

        scale = sscale
    with Embedded(app):
        jobs = [scale.enqueue(1), scale.enqueue(2, scale=5), scale.enqueue(number=3)]
        assert [job.result(SOON) for job in jobs] == [2, 10, 6]
    assert sorted(seen) == sorted((job.id, "shop.scale", "slow", 1, 0) for job in jobs)


def test_a_context_cannot_be_passed_by_the_caller(app: Packhorse):
    """Its place is not an argument at all."""

    @app.task(takes_context=True)
    def count(context: Context, number: int) -> int:
        return number

    task: Any = count
    for args, kwargs in (((1, 2), {}), ((), {}), ((1,), {"context": 2})):
        with pytest.raises(TypeError, match="cannot be called like this"):
            task.enqueue(*args, **kwargs)


def test_a_function_without_a_place_for_the_context_is_refused(app: Packhorse):
    """Where it is declared, not where it is performed."""
    for function in (lambda: None, lambda *args: None, lambda *, context: None):
        with pytest.raises(ConfigError, match="takes no first argument for the context"):
            app.task(takes_context=True, name="none")(function)  # type: ignore[arg-type]
    assert app.tasks == {}


def test_created_at_is_when_the_job_was_enqueued(app: Packhorse):
    """However long ago that was."""

    @app.task(takes_context=True)
    def age(context: Context) -> datetime:
        return context.created_at

    job = age.enqueue()
    with Embedded(app):
        assert job.result(SOON) == job.look().created_at
    assert job.look().created_at.tzinfo is UTC


def test_the_attempt_counts_failures_and_no_snoozes(app: Packhorse):
    """As everybody else counts them."""
    attempts: list[int] = []

    @app.task(takes_context=True, retries=2, backoff=Fixed(0))
    def flaky(context: Context) -> int:
        attempts.append(context.attempt)
        if len(attempts) == 2:
            raise Snooze(0.01)
        if len(attempts) < 4:
            raise ValueError
        return context.attempt

    with Embedded(app):
        assert flaky.enqueue().result(SOON) == 3
    assert attempts == [1, 2, 2, 3]


def test_losses_are_told(app: Packhorse):
    """A task may be more careful the second time."""

    @app.task(takes_context=True)
    def careful(context: Context) -> tuple[int, int]:
        return context.losses, context.attempt

    job = careful.enqueue()
    doomed = ProcessInfo(new_id(), "worker", "elsewhere", 7)
    app.store.enroll(doomed, 60_000_000)
    assert len(app.store.exchange(doomed.id, 1, [], EVERYTHING, 1, starting=1).claims) == 1
    app.store.enroll(doomed, 1)
    wait_until(lambda: all(it.lease_left <= 0 for it in app.store.processes()), "the lease ends")
    with Embedded(app):
        assert job.result(SOON) == (1, 1)


# Where it is found.


def test_library_code_finds_the_context_in_threads(app: Packhorse):
    """Jobs that run at the same time each find their own."""
    together = threading.Barrier(4)

    @app.task
    def look() -> str:
        together.wait(SOON)
        found = deep_down()
        together.wait(SOON)
        assert deep_down() == found
        return found

    with Embedded(app, concurrency=4):
        jobs = [look.enqueue() for _ in range(4)]
        assert [job.result(SOON) for job in jobs] == [job.id for job in jobs]


def test_library_code_finds_the_context_in_coroutines(app: Packhorse):
    """Across awaits, in the tasks they start and in the threads they ask."""
    arrived: list[str] = []

    @app.task
    async def look() -> list[str]:
        arrived.append(deep_down())
        while len(arrived) < 4:
            await asyncio.sleep(0.001)

        async def inner() -> str:
            await asyncio.sleep(0)
            return deep_down()

        return [deep_down(), await asyncio.create_task(inner()), await asyncio.to_thread(deep_down)]

    with Embedded(app, concurrency=4):
        jobs = [look.enqueue() for _ in range(4)]
        assert [job.result(SOON) for job in jobs] == [[job.id] * 3 for job in jobs]


def test_a_task_that_takes_no_context_finds_the_same_one(app: Packhorse):
    """The argument is a convenience, not another object."""

    @app.task(takes_context=True)
    def same(context: Context) -> bool:
        return current_context() is context

    with Embedded(app):
        assert same.enqueue().result(SOON) is True


def test_outside_a_job_there_is_no_context(app: Packhorse):
    """NoJob says what to do, or the default is given."""
    with pytest.raises(NoJob, match="Ask inside a task"):
        current_context()
    with pytest.raises(LookupError):
        current_context()
    assert current_context(None) is None
    assert current_context("nobody") == "nobody"


@pytest.mark.parametrize("coroutine", [False, True])
def test_a_context_does_not_outlive_its_job(app: Packhorse, make_app: Callable[..., Packhorse], coroutine: bool):
    """What runs between two jobs of one slot, such as the upgrade of an old payload, belongs to neither of them."""
    found: list[Any] = []

    def upgrade(version: int, args: list[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        found.append(current_context(None))
        return args, kwargs

    old = make_app()

    @old.task(name="shop.second")
    def second_before() -> None: ...

    async def afirst() -> str:
        return deep_down()

    app.task(name="shop.first")(afirst if coroutine else deep_down)

    @app.task(name="shop.second", version=2, upgrade=upgrade)
    def second() -> None: ...

    @old.task(name="shop.first")
    def first() -> Any: ...

    with Embedded(app, concurrency=1):
        for _ in range(3):
            job = first.enqueue()
            assert job.result(SOON) == job.id
            assert second_before.enqueue().result(SOON) is None
    assert found == [None, None, None]


def test_a_variable_set_by_one_job_is_not_seen_by_the_next(app: Packhorse):
    """Each has a context of Python's own, too."""
    tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="none")

    @app.task
    def work(name: str) -> str:
        before = tenant.get()
        tenant.set(name)
        return before

    @app.task
    async def awork(name: str) -> str:
        before = tenant.get()
        tenant.set(name)
        return before

    with Embedded(app, concurrency=1):
        assert {task.enqueue(name).result(SOON) for task in (work, awork) for name in "abc"} == {"none"}


# Called in place.


def test_a_task_that_takes_a_context_can_be_called_in_place(app: Packhorse):
    """Nobody stops it, nobody watches its progress, and it says so itself."""

    @app.task(takes_context=True, queue_name="slow", metadata={"tenant": 7})
    def count(context: Context, number: int) -> dict[str, Any]:
        context.progress(1, 2, "half")
        context.log.info("counting")
        return {
            "number": number,
            "queue": context.queue_name,
            "attempt": context.attempt,
            "losses": context.losses,
            "stop": context.stop_requested,
            "remaining": context.remaining,
            "metadata": context.metadata,
            "id": context.job_id,
            "recent": datetime.now(UTC) - context.created_at < timedelta(minutes=5),
        }

    @app.task(takes_context=True)
    async def acount(context: Context, number: int) -> int:
        context.progress(number)
        return number

    assert count(3) == {
        "number": 3,
        "queue": "slow",
        "attempt": 1,
        "losses": 0,
        "stop": False,
        "remaining": None,
        "metadata": {"tenant": 7},
        "id": str(UUID(int=0)),
        "recent": True,
    }
    assert count.using(metadata={"tenant": 8}, queue_name="fast")(1)["metadata"] == {"tenant": 8}
    assert asyncio.run(acount(4)) == 4


def test_library_code_finds_the_context_of_a_call_in_place(app: Packhorse):
    """While it lasts."""

    @app.task(takes_context=True)
    def look(context: Context) -> bool:
        return current_context() is context

    @app.task(takes_context=True)
    async def alook(context: Context) -> bool:
        await asyncio.sleep(0)
        return current_context() is context

    assert look()
    assert asyncio.run(alook())
    assert current_context(None) is None


def test_a_call_in_place_within_a_job_is_part_of_that_job(app: Packhorse):
    """It sees that job's context, and speaks for it."""

    @app.task(takes_context=True)
    def inner(context: Context) -> str:
        context.progress(1, note="from inside")
        return context.job_id

    @app.task
    def outer() -> str:
        return inner()

    @app.task
    async def aouter() -> str:
        return inner()

    with Embedded(app):
        for task in (outer, aouter):
            job = task.enqueue()
            assert job.result(SOON) == job.id
            progress = job.progress()
            assert progress is not None
            assert progress.note == "from inside"


# Being stopped.


def test_a_thread_sees_that_an_operator_wants_it_to_stop(app: Packhorse):
    """And may end in its own way."""
    running = threading.Event()
    before: list[bool] = []

    @app.task(takes_context=True)
    def patient(context: Context) -> None:
        before.append(context.stop_requested)
        running.set()
        wait_until(lambda: context.stop_requested, "the order arrives")
        raise Cancel(f"stopped politely, {context.remaining}")

    with Embedded(app):
        job = patient.enqueue()
        assert running.wait(SOON)
        assert job.cancel("no longer needed")
        with pytest.raises(JobCancelled, match=r"stopped politely, \d"):
            job.result(SOON)
    assert before == [False]


def test_only_the_job_that_is_cancelled_is_asked_to_stop(app: Packhorse):
    """Its neighbour goes on."""
    running = threading.Barrier(3)
    done = threading.Event()

    @app.task(takes_context=True)
    def patient(context: Context, named: bool) -> bool:
        running.wait(SOON)
        if named:
            wait_until(lambda: context.stop_requested, "the order arrives")
        else:
            assert done.wait(SOON)
        return context.stop_requested

    with Embedded(app):
        asked, other = patient.enqueue(True), patient.enqueue(False)
        running.wait(SOON)
        asked.cancel()
        assert asked.result(SOON) is True
        done.set()
        assert other.result(SOON) is False


def test_a_job_that_ends_well_though_cancelled_has_ended_well(app: Packhorse):
    """It came too late."""
    running = threading.Event()

    @app.task(takes_context=True)
    def stubborn(context: Context) -> str:
        running.set()
        wait_until(lambda: context.stop_requested, "the order arrives")
        return "done anyway"

    with Embedded(app):
        job = stubborn.enqueue()
        assert running.wait(SOON)
        job.cancel()
        assert job.result(SOON) == "done anyway"
        assert stubborn.app.inspection.counts()[JobState.SUCCEEDED] == 1


@pytest.mark.parametrize("coroutine", [False, True])
def test_a_leaving_worker_asks_its_jobs_to_stop(app: Packhorse, coroutine: bool):
    """`remaining` says how long they have, and it runs down."""
    running = threading.Event()
    seen: list[float | None] = []

    def note(context: Context) -> None:
        seen.append(context.remaining)

    @app.task(takes_context=True)
    def patient(context: Context) -> None:
        note(context)
        running.set()
        wait_until(lambda: context.stop_requested, "the worker leaves")
        note(context)
        wait_until(lambda: context.remaining is not None and context.remaining < 49.9)
        note(context)

    @app.task(takes_context=True)
    async def apatient(context: Context) -> None:
        note(context)
        running.set()
        while not context.stop_requested:
            await asyncio.sleep(0.001)
        note(context)
        await asyncio.sleep(0.1)
        note(context)

    with worker_of(app) as process:
        job = (apatient if coroutine else patient).enqueue()
        assert running.wait(SOON)
        process.stop(within=50)
        assert job.result(SOON) is None
    first, second, third = seen
    assert first is None
    assert second is not None
    assert third is not None
    assert 50 >= second > third > 20


def test_nothing_threatens_a_job_of_an_embedded_worker(app: Packhorse):
    """It is asked to stop, and may take its time."""
    running = threading.Event()
    seen: list[float | None] = []

    @app.task(takes_context=True)
    def patient(context: Context) -> None:
        running.set()
        wait_until(lambda: context.stop_requested, "the program leaves")
        seen.append(context.remaining)

    with Embedded(app):
        job = patient.enqueue()
        assert running.wait(SOON)
    assert job.result(SOON) is None
    assert seen == [None]


# Progress.


class Recording:
    """Counts what is recorded in a store, and lets a test stand in its way."""

    def __init__(self, app: Packhorse, monkeypatch: pytest.MonkeyPatch) -> None:
        self.app = app
        self.answers: list[bool] = []
        self.before: Callable[[str], None] = lambda thread: None
        self.after: Callable[[str], None] = lambda thread: None
        self._record = app.store.record
        monkeypatch.setattr(app.store, "record", self)

    def __call__(self, token: Token, entries: Sequence[Entry]) -> bool:
        thread = threading.current_thread().name
        self.before(thread)
        self.answers.append(self._record(token, entries))
        self.after(thread)
        return self.answers[-1]


@pytest.fixture
def recording(app: Packhorse, monkeypatch: pytest.MonkeyPatch) -> Recording:
    return Recording(app, monkeypatch)


def tried(condition: Callable[[], object], seconds: float = 0.5) -> None:
    """Give something that must not happen the time to happen."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.002)


@pytest.mark.parametrize("coroutine", [False, True])
async def test_progress_is_seen_while_the_job_runs(app: Packhorse, coroutine: bool):
    """The newest, with the moment it was written."""
    go = threading.Event()

    @app.task(takes_context=True)
    def bake(context: Context) -> None:
        for sheet in range(4):
            context.progress(sheet, 10, f"sheet {sheet}")
        assert go.wait(SOON)

    @app.task(takes_context=True)
    async def abake(context: Context) -> None:
        for sheet in range(4):
            context.progress(sheet, 10, f"sheet {sheet}")
        while not go.is_set():
            await asyncio.sleep(0.001)

    with Embedded(app):
        job = (abake if coroutine else bake).enqueue()

        def newest() -> bool:
            progress = job.progress()
            return progress is not None and progress.done == 3

        await asyncio.to_thread(wait_until, newest)
        seen = await job.aprogress()
        assert seen is not None
        assert (seen.done, seen.total, seen.note, seen.percent) == (3, 10, "sheet 3", 30)
        assert seen.at is not None
        assert abs(datetime.now(UTC) - seen.at) < timedelta(minutes=1)
        assert job.state is JobState.RUNNING
        go.set()
        await job.aresult(SOON)
    assert (await job.aprogress()) == seen


def test_a_job_that_said_nothing_has_no_progress(app: Packhorse):
    @app.task
    def quiet() -> None: ...

    with Embedded(app):
        job = quiet.enqueue()
        assert job.progress() is None
        job.result(SOON)
    assert job.progress() is None


@pytest.mark.parametrize("coroutine", [False, True])
def test_the_last_progress_is_kept_however_quickly_a_job_ends(app: Packhorse, coroutine: bool):
    """Also that of a job that fails, and of one that is tried again."""

    def work(context: Context, number: int) -> None:
        for step in range(number + 1):
            context.progress(step, number, str(step))
        if number % 3 == 1:
            raise ValueError
        if number % 3 == 2:
            raise Cancel("enough")

    async def awork(context: Context, number: int) -> None:
        work(context, number)

    task: Any = app.task(takes_context=True, name="work")(awork if coroutine else work)
    with Embedded(app):
        jobs = [task.enqueue(number) for number in range(30)]
        wait_until(lambda: all(job.state.finished for job in jobs))
    assert [job.progress().done for job in jobs] == list(range(30))
    assert [job.progress().note for job in jobs] == [str(number) for number in range(30)]


@pytest.mark.parametrize("coroutine", [False, True])
def test_the_last_progress_is_not_lost_while_it_is_being_written(app: Packhorse, recording: Recording, coroutine: bool):
    """The job ends between the moment it is taken to be written and the moment it is."""
    taken = threading.Event()

    def work(context: Context) -> None:
        context.progress(1, 1, "all done")
        assert taken.wait(SOON)

    async def awork(context: Context) -> None:
        context.progress(1, 1, "all done")
        while not taken.is_set():
            await asyncio.sleep(0.001)

    task: Any = app.task(takes_context=True, name="work")(awork if coroutine else work)

    def slowly(thread: str) -> None:
        if thread == WRITER:
            taken.set()
            tried(lambda: job.state.finished)

    recording.before = slowly
    with Embedded(app):
        job = task.enqueue()
        assert job.result(SOON) is None
    assert job.progress() is not None
    assert job.progress().note == "all done"


def test_an_older_progress_never_replaces_a_newer_one(app: Packhorse, recording: Recording):
    """Both are on their way at the same time, written by two threads."""
    taken, newer_written, older_written = threading.Event(), threading.Event(), threading.Event()

    @app.task(takes_context=True)
    def work(context: Context) -> None:
        context.progress(1, 2, "older")
        assert taken.wait(SOON)
        context.progress(2, 2, "newer")

    def before(thread: str) -> None:
        if thread == WRITER and not taken.is_set():
            taken.set()
            tried(newer_written.is_set)

    def after(thread: str) -> None:
        if thread == WRITER:
            older_written.set()
        else:
            newer_written.set()
            tried(older_written.is_set)

    recording.before, recording.after = before, after
    with Embedded(app):
        job = work.enqueue()
        job.result(SOON)
    progress = job.progress()
    assert progress is not None
    assert progress.note == "newer"


def test_saying_it_very_often_costs_few_writes(app: Packhorse, recording: Recording):
    """A loop may call it for every row."""

    @app.task(takes_context=True)
    def work(context: Context) -> float:
        began = time.monotonic()
        for row in range(100_000):
            context.progress(row + 1, 100_000)
        return time.monotonic() - began

    with Embedded(app):
        job = work.enqueue()
        took = job.result(SOON)
    assert 1 <= len(recording.answers) <= took / EVERY + 3
    progress = job.progress()
    assert progress is not None
    assert progress.percent == 100


def test_many_jobs_share_the_few_writes(app: Packhorse, recording: Recording):
    """Each of them writes what it says last, and not much more."""

    @app.task(takes_context=True)
    def work(context: Context) -> None:
        for row in range(100):
            context.progress(row)

    with Embedded(app):
        jobs = [work.enqueue() for _ in range(50)]
        for job in jobs:
            job.result(SOON)
    assert len(recording.answers) < 150
    assert [progress.done if (progress := job.progress()) else None for job in jobs] == [99] * 50


def test_the_progress_of_a_lost_claim_is_not_written(app: Packhorse, recording: Recording):
    """Whoever performs the job now is the one who speaks of it."""
    attempts: list[str] = []
    first, second, go_on = threading.Event(), threading.Event(), threading.Event()

    @app.task(takes_context=True)
    def work(context: Context) -> None:
        attempts.append(context.job_id)
        if len(attempts) == 1:
            first.set()
            with pytest.raises(Interrupted):
                wait_until(lambda: False, "it is told to stop")
            assert second.wait(SOON)
            context.progress(99, 100, "from the grave")
            wait_until(lambda: False in recording.answers, "it was refused")
            go_on.set()
        else:
            second.set()
            assert go_on.wait(SOON)

    with worker_of(app) as process:
        job = work.enqueue()
        assert first.wait(SOON)
        with worker_of(app):  # the first one claims nothing as long as it performs what others may have
            app.store.leave(process.id)
            job.result(SOON)
            assert job.progress() is None
        wait_until(lambda: not app.store.held(process.id))
    assert True not in recording.answers
    assert attempts == [job.id, job.id]


def test_progress_takes_any_number_and_any_text(app: Packhorse):
    """What it is told is stored as plain numbers and text."""

    class Lazy:
        def __str__(self) -> str:
            return "lazily"

    @app.task(takes_context=True)
    def work(context: Context, case: int) -> None:
        values: list[tuple[Any, Any, Any]] = [
            (Decimal("1.5"), 3, "decimal"),
            (True, 10**30, "bool \ud800 \0"),
            (2, None, Lazy()),
            (2, 3.5, "x" * 100_000),
        ]
        context.progress(*values[case])

    with Embedded(app):
        jobs = [work.enqueue(case) for case in range(4)]
        for job in jobs:
            job.result(SOON)
        seen = [job.progress() for job in jobs]
    one, two, three, four = [progress for progress in seen if progress is not None]
    assert (one.done, one.total, one.note, one.percent) == (1.5, 3, "decimal", 50)
    assert (two.done, two.total, two.note) == (1, 1e30, "bool \\ud800 \\x00")
    assert (three.total, three.percent, three.note) == (None, None, "lazily")
    assert len(four.note) < 5_000


@pytest.mark.parametrize(
    "wrong",
    [("half",), (None,), (1, "ten"), (10**400,), (object(),)],
    ids=["text", "none", "total", "huge", "object"],
)
def test_progress_that_is_no_number_fails_where_it_is_said(app: Packhorse, wrong: tuple[Any, ...]):
    """And the progress of every other job is still written."""

    @app.task(takes_context=True)
    def bad(context: Context) -> None:
        context.progress(*wrong)

    @app.task(takes_context=True)
    def good(context: Context, go: bool = False) -> None:
        context.progress(7)

    with Embedded(app):
        with pytest.raises(JobFailed, match=r"ValueError|TypeError|OverflowError"):
            bad.enqueue().result(SOON)
        job = good.enqueue()
        job.result(SOON)
    progress = job.progress()
    assert progress is not None
    assert progress.done == 7


def test_a_store_that_fails_at_the_progress_costs_nothing_else(
    app: Packhorse, recording: Recording, caplog: pytest.LogCaptureFixture
):
    """The job ends well, and the next progress is written."""
    trouble: list[Exception] = [RuntimeError("not even an error of the store")]

    def fail(thread: str) -> None:
        if trouble:
            raise trouble.pop()

    recording.before = fail

    @app.task(takes_context=True)
    def work(context: Context) -> str:
        context.progress(1, note="lost")
        wait_until(lambda: not trouble, "the writer fails")
        context.progress(2, note="kept")
        return "fine"

    with Embedded(app):
        job = work.enqueue()
        assert job.result(SOON) == "fine"
    progress = job.progress()
    assert progress is not None
    assert progress.note == "kept"
    assert "progress could not be written" in caplog.text


@pytest.mark.parametrize("at_the_end", [False, True])
def test_an_operator_who_cancels_while_the_last_progress_is_written_comes_too_late(
    app: Packhorse, recording: Recording, at_the_end: bool
):
    """A coroutine that has returned has ended well, whatever reaches its slot afterwards."""
    writing = threading.Event()

    @app.task(takes_context=True)
    async def work(context: Context) -> str:
        context.progress(1, note="last")
        if at_the_end:
            wait_until(writing.is_set)  # not even an await between the order and the end
        return "done"

    def slowly(thread: str) -> None:
        writing.set()
        job.cancel("too late")
        tried(lambda: job.state.finished)

    recording.before = slowly
    with Embedded(app):
        job = work.enqueue()
        assert job.result(SOON) == "done"
    progress = job.progress()
    assert progress is not None
    assert progress.note == "last"


def test_progress_that_was_changed_in_the_store_is_not_believed(app: Packhorse):
    """It is sealed, and bound to its job."""

    @app.task(takes_context=True)
    def work(context: Context, note: str) -> None:
        context.progress(1, note=note)

    with Embedded(app):
        one, other = work.enqueue("one"), work.enqueue("other")
        one.result(SOON)
        other.result(SOON)
    theirs = app.store.entries(other._raw_id)
    forged = [Entry(*PROGRESS, encode_progress(Progress(1), 0)), theirs[0]]
    for entry in forged:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(app.store, "entries", lambda id, entry=entry: [entry])
            with pytest.raises(PayloadError):
                one.progress()
    for data in (b"", b"[]", b"[1,2]", b'["a",null,"",1]', b"[1,null,3,1e400]", b"[1,2,null,null]", b"{}"):
        with pytest.raises(PayloadError):
            decode_progress(data)


# Logging.


@pytest.mark.parametrize("coroutine", [False, True])
def test_what_a_task_logs_carries_the_ids(app: Packhorse, caplog: pytest.LogCaptureFixture, coroutine: bool):
    """The task's own extras are kept beside them."""

    def work(context: Context) -> None:
        context.log.info("sent %d mails", 3, extra={"mailbox": "in"})

    async def awork(context: Context) -> None:
        work(context)

    task: Any = app.task(takes_context=True, name="shop.mail", queue_name="slow")(awork if coroutine else work)
    with caplog.at_level(logging.INFO), Embedded(app):
        job = task.enqueue()
        job.result(SOON)
    [record] = [record for record in caplog.records if record.name == "packhorse.task.shop.mail"]
    carried = {name: getattr(record, name) for name in ("job_id", "task", "queue", "attempt", "mailbox")}
    assert carried == {"job_id": job.id, "task": "shop.mail", "queue": "slow", "attempt": 1, "mailbox": "in"}
    assert record.getMessage() == "sent 3 mails"


# Metadata.

TYPED: dict[str, Any] = {
    "tenant": 7,
    "at": datetime(2026, 5, 1, 12, tzinfo=UTC),
    "price": Decimal("9.90"),
    "id": UUID(int=5),
    "pair": (1, "two"),
    "deep": {"list": [1, {"x": None}], "!": "mark"},
    "key": Secret("s3cret-in-metadata"),
}


@pytest.mark.parametrize("coroutine", [False, True])
def test_metadata_travels_beside_the_arguments(app: Packhorse, coroutine: bool):
    """Declared with the task or given with `using`; values come back equal, and typed."""
    seen: dict[str, dict[str, Any]] = {}

    def work(context: Context) -> None:
        seen[context.job_id] = context.metadata

    async def awork(context: Context) -> None:
        work(context)

    declare = partial(app.task, takes_context=True)
    function: Any = awork if coroutine else work
    plain: Any = declare(name="plain")(function)
    declared: Any = declare(name="declared", metadata=TYPED)(function)
    with Embedded(app):
        jobs = [
            plain.enqueue(),
            plain.using(metadata=TYPED).enqueue(),
            declared.enqueue(),
            declared.using(metadata={"tenant": 8}).enqueue(),
            declared.using(metadata={}).enqueue(),
            declared.using(priority=3).enqueue(),
        ]
        for job in jobs:
            job.result(SOON)
    assert [seen[job.id] for job in jobs] == [{}, TYPED, TYPED, {"tenant": 8}, {}, TYPED]
    assert all(type(seen[jobs[1].id][name]) is type(value) for name, value in TYPED.items())


def test_metadata_that_a_job_changes_is_its_own(app: Packhorse):
    """The next attempt and the next job see what was enqueued."""
    seen: list[dict[str, Any]] = []

    @app.task(takes_context=True, retries=1, backoff=0, metadata={"list": [1]})
    def work(context: Context) -> None:
        seen.append({name: list(value) for name, value in context.metadata.items()})
        context.metadata["list"].append(2)
        if len(seen) == 1:
            raise ValueError

    with Embedded(app):
        work.enqueue().result(SOON)
        work.enqueue().result(SOON)
    assert seen == [{"list": [1]}] * 3
    assert work.options.metadata == {"list": [1]}


@pytest.mark.parametrize(
    ("metadata", "complaint"),
    [
        ({"x": object()}, r"Cannot store the metadata\['x'\]"),
        ({1: 2}, "a key is a int"),
        ({"x": "y" * 300_000}, "bytes"),
    ],
)
def test_metadata_that_cannot_travel_is_refused_by_enqueue(app: Packhorse, metadata: Any, complaint: str):
    @app.task
    def work() -> None: ...

    with pytest.raises(PayloadError, match=complaint):
        work.using(metadata=metadata).enqueue()
    with pytest.raises(ConfigError, match="metadata must be a dictionary"):
        work.using(metadata=[1])  # type: ignore[arg-type]
    assert app.inspection.counts()[JobState.READY] == 0


def test_a_context_introduces_itself_without_what_the_job_carries(app: Packhorse):
    @app.task(takes_context=True, name="shop.work", metadata={"token": "unspeakable"})
    def work(context: Context, password: str) -> str:
        return repr(context)

    with Embedded(app):
        job = work.enqueue("unspeakable")
        assert job.result(SOON) == f"<Context of shop.work {job.id}, attempt 1>"
