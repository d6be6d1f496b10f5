"""The test kit, as the author of a program uses it."""

import asyncio
import contextlib
import os
import pickle
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from packhorse import (
    Cancel,
    ConfigError,
    Context,
    Draft,
    Event,
    FailureKind,
    JobCancelled,
    JobFailed,
    JobNotFound,
    JobState,
    Middleware,
    NotFinished,
    Packhorse,
    PayloadError,
    Retry,
    Snooze,
    current_context,
    limit,
    rate,
    unique,
)
from packhorse.stores.contract import Store
from packhorse.testing import NotPerformed, RecordedJob, TooManyJobs, inline, recorded
from packhorse.waiting import gather, wait_jobs

KEY = "an example key of thirty-two signs"
HOUR = timedelta(hours=1)
MIDNIGHT = datetime(2030, 1, 1, tzinfo=UTC)


class Shop:
    """An application with a few tasks, and what they have done."""

    def __init__(self, store: str, **settings: Any) -> None:
        self.app = app = Packhorse("shop", store, **settings)
        self.done: list[Any] = []
        self.trouble: list[BaseException] = []

        @app.task
        def resize(photo: int, width: int = 100, *, queue_name: str = "") -> str:
            self.done.append(photo)
            return f"{photo} is {width} wide"

        @app.task(queue_name="mail")
        async def mail(to: str) -> str:
            await asyncio.sleep(0)
            self.done.append(to)
            return f"hello {to}"

        @app.task(retries=2, backoff=timedelta(minutes=1))
        def flaky(number: int) -> int:
            self.done.append(number)
            if self.trouble:
                raise self.trouble.pop(0)
            return number

        @app.task
        def order(number: int) -> None:
            self.done.append(f"order {number}")
            resize.enqueue(number)
            self.done.append(f"ordered {number}")

        self.resize, self.mail, self.flaky, self.order = resize, mail, flaky, order


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


@pytest.fixture
def shop(place: Path) -> Iterator[Shop]:
    shop = Shop(f"sqlite:///{place}")
    yield shop
    shop.app.close()


# The block.


def test_the_applications_own_store_is_not_touched(shop: Shop, place: Path):
    """Not even created; afterwards it is the application's again, with the clock and the keys."""
    before = shop.app.store, shop.app.clock
    with recorded(shop.app) as jobs:
        shop.resize.enqueue(1)
        jobs.drain()
        assert shop.app.store is not before[0]
    assert (shop.app.store, shop.app.clock) == before
    assert not list(place.parent.iterdir())
    handle = shop.resize.enqueue(2)
    assert handle.state is JobState.READY
    assert [job.id for job in shop.app.inspection.jobs()] == [handle.id]


def test_everything_is_restored_where_the_block_raises(shop: Shop):
    """The keys too: a handle from before can still be read."""
    early = shop.resize.enqueue(1)
    seals, store = shop.app.seals, shop.app.store
    inside = []

    def block() -> None:
        with recorded(shop.app):
            inside.append(shop.app.seals)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        block()
    assert inside[0] is not seals
    assert shop.app.seals is seals
    assert shop.app.store is store
    assert shop.app.error_reporters == []
    assert shop.app.inspection.arguments(shop.app.inspection.stored(early.id)).args == [1]


def test_everything_is_restored_where_the_block_cannot_begin(place: Path):
    """Such as with encryption and without keys."""
    app = Packhorse("shop", f"sqlite:///{place}", signing=False)
    object.__setattr__(app.settings, "encryption", True)
    store = app.store
    with pytest.raises(ConfigError, match="Encryption needs"), recorded(app):
        pytest.fail("it began")
    assert app.store is store
    assert app._seals is None


def test_each_block_begins_empty(shop: Shop):
    """Also within another, which then goes on."""
    with recorded(shop.app) as outer:
        shop.resize.enqueue(1)
        with recorded(shop.app) as inner:
            shop.resize.enqueue(2)
            assert [job.args for job in inner.enqueued] == [(2,)]
        assert [job.args for job in outer.enqueued] == [(1,)]
        outer.drain()
    assert shop.done == [1]


def test_a_block_is_entered_once(shop: Shop):
    jobs = recorded(shop.app)
    with jobs:
        pass
    with pytest.raises(ConfigError, match="Make another"), jobs:
        pass


def test_what_was_recorded_can_be_looked_at_after_the_block(shop: Shop):
    """But time is over, and nothing is performed any more."""
    with recorded(shop.app) as jobs:
        shop.resize.enqueue(1)
        jobs.drain()
    [job] = jobs.assert_enqueued(shop.resize, 1)
    assert job.state is JobState.SUCCEEDED
    for act in (jobs.drain, jobs.turn, lambda: jobs.travel(1), lambda: jobs.lose_worker(job)):
        with pytest.raises(ConfigError, match="only inside the block"):
            act()


@pytest.mark.parametrize(
    "settings",
    [{"keys": [KEY]}, {"keys": [KEY], "encryption": True}, {"signing": False}, {"compress_above": 1}],
    ids=["keys", "encryption", "unsigned", "compressed"],
)
def test_signing_is_the_applications_own(settings: dict[str, Any]):
    """With its own keys, where it has some."""
    shop = Shop("memory://", **settings)
    with recorded(shop.app) as jobs:
        handle = shop.resize.enqueue(1)
        assert shop.app.seals.signed == settings.get("signing", True)
        assert shop.app.seals.encrypted == settings.get("encryption", False)
        jobs.drain()
        assert handle.result(0) == "1 is 100 wide"


def test_arguments_are_really_encoded(shop: Shop):
    """What a store would not take is refused in a test, too."""
    with recorded(shop.app) as jobs, pytest.raises(PayloadError, match="photo"):
        shop.resize.enqueue(object())  # type: ignore[arg-type]
    assert jobs.enqueued == []


# What was enqueued.


def test_records_tell_what_was_enqueued(shop: Shop):
    """Oldest first, with what was asked for."""
    with recorded(shop.app, at=MIDNIGHT) as jobs:
        first = shop.resize.enqueue(1, width=20)
        other = shop.mail.using(
            queue_name="post", priority=5, run_after=HOUR, expires=2 * HOUR, share="ann", tags=("a", "b")
        )
        second = other.using(metadata={"tenant": 7}).enqueue("ann")
        one, two = jobs.enqueued
    assert (one.id, one.task, one.args, one.kwargs) == (first.id, shop.resize.name, (1,), {"width": 20})
    assert (one.queue_name, one.priority, one.run_at, one.tags, one.state) == ("default", 0, None, (), JobState.READY)
    assert (two.id, two.args, two.queue_name, two.priority) == (second.id, ("ann",), "post", 5)
    assert (two.created_at, two.run_at, two.expires_at) == (MIDNIGHT, MIDNIGHT + HOUR, MIDNIGHT + 2 * HOUR)
    assert (two.share, two.tags, two.metadata, two.state) == ("ann", ("a", "b"), {"tenant": 7}, JobState.SCHEDULED)
    assert repr(one) == f"<{shop.resize.name}(1, width=20) on 'default': ready>"
    assert repr(two) == f"<{shop.mail.name}('ann') on 'post', priority 5, after 1:00:00, tags a, b: scheduled>"


def test_records_show_priorities_as_they_were_given():
    """Where smaller runs sooner, too."""
    shop = Shop("memory://", priority_order="lower_first")
    with recorded(shop.app) as jobs:
        shop.resize.using(priority=5).enqueue(1)
        shop.resize.using(priority=-5).enqueue(2)
        assert [job.priority for job in jobs.enqueued] == [5, -5]
        jobs.where(priority=5).assert_enqueued(shop.resize, 1)
        jobs.drain()
    assert shop.done == [2, 1]


def test_assert_enqueued_compares_the_arguments(shop: Shop):
    """By place or by name makes no difference; defaults count only where they were passed."""
    with recorded(shop.app) as jobs:
        shop.resize.enqueue(42, width=100)
        [job] = jobs.assert_enqueued(shop.resize, 42, width=100)
        assert job.handle.state is JobState.READY
        jobs.assert_enqueued(shop.resize, 42, 100)
        jobs.assert_enqueued(shop.resize, photo=42, width=100)
        jobs.assert_enqueued(shop.resize, ANY, width=100)
        jobs.assert_enqueued(shop.resize, 42, width=ANY)
        jobs.assert_enqueued(shop.resize)
        jobs.refute_enqueued(shop.resize, 42)
        jobs.refute_enqueued(shop.resize, 43, width=ANY)
        jobs.refute_enqueued(shop.mail)


def test_a_failed_assertion_shows_what_was_enqueued(shop: Shop):
    """The whole list, also where only some were looked at."""
    with recorded(shop.app) as jobs:
        with pytest.raises(AssertionError, match=r"resize\(…\) was not enqueued\. No job was\."):
            jobs.assert_enqueued(shop.resize)
        shop.resize.enqueue(42, width=100)
        with pytest.raises(AssertionError) as caught:
            jobs.where(queue_name="slow", priority=3).assert_enqueued(shop.resize, 42, width=100)
    name = shop.resize.name
    assert str(caught.value) == (
        f"{name}(42, width=100) with queue_name='slow', priority=3 was not enqueued. Jobs enqueued:"
        f"\n  <{name}(42, width=100) on 'default': ready>"
    )


def test_refute_enqueued_fails_where_there_is_one(shop: Shop):
    """With these arguments, or with any."""
    with recorded(shop.app) as jobs:
        shop.resize.enqueue(42)
        for args in ((), (42,), (ANY,)):
            with pytest.raises(AssertionError, match=r"was enqueued\. Jobs enqueued:"):
                jobs.refute_enqueued(shop.resize, *args)
        jobs.where(queue_name="slow").refute_enqueued(shop.resize)


def test_a_misspelt_argument_is_an_error(shop: Shop):
    """Else it would refute everything."""
    with recorded(shop.app) as jobs:
        shop.resize.enqueue(42)
        with pytest.raises(TypeError, match="wdth"):
            jobs.refute_enqueued(shop.resize, 42, wdth=100)


def test_options_do_not_clash_with_a_tasks_own_arguments(shop: Shop):
    """This task has a parameter named like an option."""
    with recorded(shop.app) as jobs:
        shop.resize.using(queue_name="slow").enqueue(1, queue_name="an argument")
        jobs.where(queue_name="slow").assert_enqueued(shop.resize, 1, queue_name="an argument")
        jobs.where(queue_name="an argument").refute_enqueued(shop.resize)


def test_jobs_are_found_by_their_options(shop: Shop):
    """Written as in `using`; all of them must fit."""
    with recorded(shop.app, at=MIDNIGHT) as jobs:
        slow = shop.resize.using(queue_name="slow", priority=-1, run_after=HOUR, expires=2 * HOUR, tags=("a",))
        slow.enqueue(1)
        shop.resize.using(run_after=MIDNIGHT + HOUR).enqueue(2)
        shop.resize.enqueue(3)
        assert jobs.where(queue_name="slow", priority=-1, tags=("a",)).count(shop.resize, 1) == 1
        assert jobs.where(queue_name="slow", priority=0).count(shop.resize) == 0
        for wanted in (HOUR, 3600, 3600.0, MIDNIGHT + HOUR):
            assert [job.args for job in jobs.where(run_after=wanted).enqueued] == [(1,), (2,)]
        assert [job.args for job in jobs.where(run_after=None).enqueued] == [(3,)]
        assert [job.args for job in jobs.where(expires=2 * HOUR, run_after=ANY).enqueued] == [(1,)]
        assert [job.args for job in jobs.where(state="ready").where(queue_name="default").enqueued] == [(3,)]
        with pytest.raises(ConfigError, match="no 'queue' to be found by"):
            jobs.where(queue="slow")


def test_jobs_can_be_counted(shop: Shop):
    with recorded(shop.app) as jobs:
        for photo in (1, 1, 2):
            shop.resize.enqueue(photo)
        assert (jobs.count(shop.resize, 1), jobs.count(shop.resize), jobs.count(shop.mail)) == (2, 3, 0)


def test_assertions_take_tasks_of_the_application_as_they_were_declared(shop: Shop):
    """Options of a copy would be ignored, and nobody would notice."""
    stranger = Shop("memory://").resize
    stranger.name = "elsewhere.resize"
    with recorded(shop.app) as jobs:
        with pytest.raises(ConfigError, match="options apart"):
            jobs.assert_enqueued(shop.resize.using(queue_name="slow"), 1)
        for wrong in (stranger, shop.resize.function, "resize"):
            with pytest.raises(ConfigError, match="is no task of application 'shop'"):
                jobs.refute_enqueued(wrong)  # type: ignore[arg-type]


class Size(Enum):
    SMALL = "s"


@dataclass
class Picture:
    size: Size
    price: Decimal


def test_arguments_are_compared_as_the_task_gets_them():
    """Dataclasses and enums come back as such; an annotation may make a list of a tuple."""
    app = Packhorse("shop", "memory://")

    @app.task
    def show(pictures: Sequence[Picture], moment: datetime) -> None: ...

    picture = Picture(Size.SMALL, Decimal("1.50"))
    with recorded(app) as jobs:
        show.enqueue((picture,), MIDNIGHT)
        [job] = jobs.assert_enqueued(show, (picture,), MIDNIGHT)
        jobs.assert_enqueued(show, [picture], MIDNIGHT)
        jobs.assert_enqueued(show, [Picture(ANY, ANY)], moment=MIDNIGHT)
        jobs.refute_enqueued(show, [replace(picture, price=Decimal(2))], MIDNIGHT)
        assert job.args == ([picture], MIDNIGHT)


class Pickles:
    def encode(self, value: Any) -> bytes:
        return pickle.dumps(value)

    def decode(self, data: bytes) -> Any:
        return pickle.loads(data)


def test_a_codec_of_the_tasks_own_is_used():
    """For the records and for the task."""
    app = Packhorse("shop", "memory://")

    @app.task(codec=Pickles())
    def add(number: complex, other: complex) -> complex:
        return number + other

    with recorded(app) as jobs:
        handle = add.enqueue(1j, other=2j)
        jobs.assert_enqueued(add, 1j, 2j)
        jobs.assert_enqueued(add, ANY, 2j)
        jobs.refute_enqueued(add, 1j, 1j)
        jobs.drain()
        assert handle.result(0) == 3j


def test_a_job_whose_task_is_gone_is_still_listed(shop: Shop):
    """Only its arguments cannot be read; others can be asserted."""
    with recorded(shop.app) as jobs:
        shop.resize.enqueue(1)
        shop.mail.enqueue("ann")
        del shop.app.known_tasks[shop.mail.name]
        jobs.assert_enqueued(shop.resize, 1)
        _, job = jobs.enqueued
        assert "There is no task" in repr(job)
        with pytest.raises(PayloadError, match="There is no task"):
            assert job.args


def test_a_record_is_the_same_job_whenever_it_was_made(shop: Shop):
    with recorded(shop.app) as jobs:
        shop.resize.enqueue(1)
        shop.resize.enqueue(2)
        early = jobs.enqueued
        assert jobs.drain() == early
        assert len({*early, *jobs.enqueued}) == 2
        assert early[0] != early[1]
        assert early[0].state is JobState.READY


# Performing.


def test_drain_performs_until_nothing_is_ready(shop: Shop):
    """In order, with what those jobs enqueue; each record is as its attempt left it."""
    with recorded(shop.app) as jobs:
        shop.order.enqueue(1)
        shop.mail.using(priority=5).enqueue("ann")
        performed = jobs.drain()
    assert shop.done == ["ann", "order 1", "ordered 1", 1]
    assert [job.task for job in performed] == [shop.mail.name, shop.order.name, shop.resize.name]
    assert {job.state for job in performed} == {JobState.SUCCEEDED}
    assert {job.attempts for job in performed} == {1}
    assert jobs.enqueued[1].state is JobState.SUCCEEDED


def test_nothing_runs_before(shop: Shop):
    with recorded(shop.app):
        handle = shop.resize.enqueue(1)
        assert handle.state is JobState.READY
    assert shop.done == []


def test_turn_performs_one_job(shop: Shop):
    """The next one that is ready, or none."""
    with recorded(shop.app) as jobs:
        shop.resize.enqueue(1)
        shop.mail.enqueue("ann")
        job = jobs.turn()
        assert job is not None
        assert (job.args, job.state) == ((1,), JobState.SUCCEEDED)
        assert shop.done == [1]
        assert jobs.turn() == jobs.enqueued[1]
        assert jobs.turn() is None


def test_jobs_are_performed_in_this_thread(shop: Shop):
    """Coroutines too: what the test holds in this thread is theirs."""
    seen: list[threading.Thread] = []

    @shop.app.task
    def plain() -> None:
        seen.append(threading.current_thread())

    @shop.app.task
    async def coroutine() -> None:
        seen.append(threading.current_thread())

    with recorded(shop.app) as jobs:
        plain.enqueue()
        coroutine.enqueue()
        jobs.drain()
    assert set(seen) == {threading.current_thread()}
    assert len(seen) == 2


def test_coroutines_share_a_loop(shop: Shop):
    """As in a worker: what one of them opened the next may use. The test's own loop stays what it was."""
    loops: list[asyncio.AbstractEventLoop] = []

    @shop.app.task
    async def coroutine() -> None:
        loops.append(asyncio.get_running_loop())

    with recorded(shop.app) as jobs:
        coroutine.enqueue()
        coroutine.enqueue()
        jobs.drain()
        assert loops[0] is loops[1]
        assert not loops[0].is_closed()
    assert loops[0].is_closed()


def test_tasks_see_nothing_of_the_program_that_enqueues(shop: Shop):
    """A context variable set here is not set in a worker."""
    user: ContextVar[str] = ContextVar("user", default="nobody")
    seen: list[str] = []

    @shop.app.task
    def plain() -> None:
        seen.append(user.get())
        user.set("bob")

    @shop.app.task
    async def coroutine() -> None:
        seen.append(user.get())

    with recorded(shop.app) as jobs:
        user.set("ann")
        plain.enqueue()
        coroutine.enqueue()
        jobs.drain()
        assert seen == ["nobody", "nobody"]
        assert user.get() == "ann"
        assert current_context(None) is None


def test_tasks_get_their_context(shop: Shop):
    """With the real ids, and progress that can be read."""
    seen: list[tuple[Any, ...]] = []

    @shop.app.task(takes_context=True)
    def work(context: Context, number: int) -> None:
        assert current_context() is context
        seen.append((context.job_id, context.attempt, context.metadata, number))
        context.progress(1, 4, "a quarter")

    with recorded(shop.app) as jobs:
        handle = work.using(metadata={"tenant": 7}).enqueue(3)
        jobs.drain(raise_errors=True)
        progress = handle.progress()
    assert seen == [(handle.id, 1, {"tenant": 7}, 3)]
    assert progress is not None
    assert (progress.percent, progress.note) == (25, "a quarter")


def test_a_task_can_be_asked_to_stop(shop: Shop):
    """It sees the order when it looks, though nobody beats here."""
    handles: list[Any] = []

    @shop.app.task(takes_context=True)
    def work(context: Context) -> None:
        assert not context.stop_requested
        handles[0].cancel("enough")
        assert context.stop_requested
        raise Cancel("stopped when asked")

    with recorded(shop.app) as jobs:
        handles.append(work.enqueue())
        jobs.drain()
        with pytest.raises(JobCancelled, match="stopped when asked"):
            handles[0].result(0)


def test_middleware_is_the_applications_own(shop: Shop):
    """Around enqueueing and around performing."""

    class Tenant(Middleware):
        def enqueue(self, draft: Draft) -> Draft:
            return replace(draft, metadata={"tenant": 7}, options=replace(draft.options, queue_name="tenant-7"))

        @contextlib.contextmanager
        def perform(self, context: Context) -> Iterator[None]:
            shop.done.append(context.metadata)
            yield

    shop.app.use(Tenant())
    with recorded(shop.app) as jobs:
        shop.resize.enqueue(1)
        jobs.where(queue_name="tenant-7", metadata={"tenant": 7}).assert_enqueued(shop.resize, 1)
        jobs.drain()
    assert shop.done == [{"tenant": 7}, 1]


def test_subscribers_have_heard_all_after_a_drain(shop: Shop):
    """In order, without waiting; those of a later block too."""
    heard: list[str] = []

    @shop.app.subscribe()
    def hear(event: Event) -> None:
        heard.append(event.kind)

    with recorded(shop.app) as jobs:
        shop.resize.enqueue(1)
        jobs.drain()
        assert heard == ["enqueued", "started", "succeeded"]
        handle = shop.flaky.enqueue(1)
        shop.trouble.append(ValueError())
        jobs.turn()
        assert heard[3:] == ["enqueued", "started", "retrying"]
        jobs.travel(60)
        jobs.lose_worker(handle)
        assert heard[6:] == ["lost"]
        handle.cancel()
    with inline(shop.app):
        shop.resize.enqueue(2)
    assert sorted(heard[7:]) == ["enqueued", "started", "succeeded"]


def test_what_subscribers_enqueue_is_drained_too(shop: Shop):
    """A drain ends when nothing is ready, whoever enqueued it."""

    @shop.app.subscribe("succeeded")
    def follow(event: Event) -> None:
        if event.task == shop.order.name:
            shop.mail.enqueue("ann")

    with recorded(shop.app) as jobs:
        shop.order.enqueue(1)
        jobs.drain()
        assert shop.done[-1] == "ann"
    with inline(shop.app):
        shop.order.enqueue(2)
        shop.app.events.flush()
        assert shop.done[-1] == "ann"


def test_error_reporters_are_the_applications_own(shop: Shop):
    told: list[BaseException] = []
    shop.app.error_reporters.append(lambda report: told.append(report.error))
    error = ValueError("no")
    shop.trouble.append(error)
    with recorded(shop.app) as jobs:
        shop.flaky.enqueue(1)
        jobs.drain()
    assert told == [error]
    assert len(shop.app.error_reporters) == 1


def test_a_task_that_enqueues_itself_does_not_hang_the_test(shop: Shop):
    """It is stopped after so many, and the next one stays ready."""

    @shop.app.task
    def again(number: int) -> None:
        again.enqueue(number + 1)

    with recorded(shop.app) as jobs:
        again.enqueue(0)
        with pytest.raises(TooManyJobs, match="1,000 jobs were performed"):
            jobs.drain()
        with pytest.raises(TooManyJobs, match="5 jobs were performed"):
            jobs.drain(max_jobs=5)
        assert jobs.where(state="succeeded").count(again) == 1005
        assert [job.args for job in jobs.where(state="ready").enqueued] == [(1005,)]


def test_as_many_jobs_as_allowed_are_not_too_many(shop: Shop):
    with recorded(shop.app) as jobs:
        for photo in range(3):
            shop.resize.enqueue(photo)
        assert len(jobs.drain(max_jobs=3)) == 3


def test_paused_queues_rest(shop: Shop):
    with recorded(shop.app) as jobs:
        shop.app.control.pause("mail", until=HOUR)
        shop.mail.enqueue("ann")
        assert jobs.drain() == []
        jobs.travel(HOUR)
        assert len(jobs.drain()) == 1


def test_operators_act_as_usual(shop: Shop):
    with recorded(shop.app) as jobs:
        cancelled, later, failed = shop.resize.enqueue(1), shop.resize.using(run_after=HOUR), shop.flaky.enqueue(3)
        shop.trouble += [ValueError()] * 3
        cancelled.cancel("no need")
        soon = later.enqueue(2)
        shop.app.control.run_now([soon.id])
        jobs.drain()
        for _ in range(2):
            jobs.travel(60)
            jobs.drain()
        assert (cancelled.state, soon.state, failed.state) == ("cancelled", "succeeded", "failed")
        failed.retry()
        jobs.drain()
        assert failed.result(0) == 3


# Errors.


def test_an_error_stays_in_its_job(shop: Shop):
    """The others go on; the record holds the exception itself, the handle what is stored of it."""

    @shop.app.task
    def fail() -> None:
        raise ValueError("no")

    with recorded(shop.app) as jobs:
        handle = fail.enqueue()
        shop.resize.enqueue(1)
        failed, succeeded = jobs.drain()
        assert (failed.state, succeeded.state) == (JobState.FAILED, JobState.SUCCEEDED)
        assert isinstance(failed.error, ValueError)
        assert succeeded.error is None
        with pytest.raises(JobFailed, match="ValueError: no") as caught:
            handle.result(0)
        assert caught.value.failure.kind is FailureKind.EXCEPTION
        assert "raise ValueError" in caught.value.failure.traceback


@pytest.mark.parametrize("act", ["drain", "turn"])
def test_errors_can_be_raised(shop: Shop, act: str):
    """The task's own exception, with a note which job it was; what came before is done, the rest stays ready."""

    @shop.app.task
    async def fail() -> None:
        raise ValueError("no")

    with recorded(shop.app) as jobs:
        handle = fail.using(priority=1).enqueue()
        shop.resize.enqueue(1)
        with pytest.raises(ValueError, match="no") as caught:
            getattr(jobs, act)(raise_errors=True)
        assert caught.value.__notes__ == [f"Raised in attempt 1 of job {handle.id} ({fail.name})."]
        assert handle.state is JobState.FAILED
        assert jobs.where(state="ready").count(shop.resize) == 1


def test_an_error_is_raised_also_where_a_retry_would_follow(shop: Shop):
    """A test that wants to see errors wants to see this one."""
    shop.trouble.append(ValueError("no"))
    with recorded(shop.app) as jobs:
        handle = shop.flaky.enqueue(1)
        with pytest.raises(ValueError, match="no"):
            jobs.drain(raise_errors=True)
        assert handle.state is JobState.SCHEDULED


def test_what_a_task_raises_on_purpose_is_no_error(shop: Shop):
    """Unless it leaves the job failed."""
    with recorded(shop.app) as jobs:
        for deliberate in (Retry("busy"), Snooze(5), Cancel("no need")):
            shop.trouble.append(deliberate)
            shop.flaky.enqueue(1)
        states = [job.state for job in jobs.drain(raise_errors=True)]
        assert states == [JobState.SCHEDULED, JobState.SCHEDULED, JobState.CANCELLED]
        shop.trouble += [Retry("busy")] * 3
        jobs.travel(60)
        jobs.turn(raise_errors=True)
        jobs.turn(raise_errors=True)
        jobs.travel(60)
        with pytest.raises(Retry, match="busy"):
            jobs.drain(raise_errors=True)


def test_a_job_that_could_not_begin_is_raised_as_failed(shop: Shop):
    """There is no exception of the task's own, for it was never called."""

    @shop.app.task(version=2)
    def work(number: int) -> None: ...

    with recorded(shop.app) as jobs:
        work.enqueue(1)
        work.stored = replace(work.stored, version=3)
        with pytest.raises(JobFailed, match="no upgrade function"):
            jobs.drain(raise_errors=True)


@pytest.mark.parametrize("kind", ["plain", "coroutine"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, pytest.fail.Exception, pytest.skip.Exception])
def test_what_is_meant_for_the_test_comes_out(shop: Shop, kind: str, error: type[BaseException]):
    """Somebody interrupts, or the test's time is over: the job has failed, and the test ends."""

    @shop.app.task
    def plain() -> None:
        raise error("enough")

    @shop.app.task
    async def coroutine() -> None:
        raise error("enough")

    with recorded(shop.app) as jobs:
        handle = (plain if kind == "plain" else coroutine).enqueue()
        with pytest.raises(error):
            jobs.drain()
        assert handle.state is JobState.FAILED


def test_an_exit_is_the_jobs_own(shop: Shop):
    """As in a worker, which lives on."""

    @shop.app.task
    def leave() -> None:
        sys.exit(3)

    with recorded(shop.app) as jobs:
        leave.enqueue()
        [job] = jobs.drain()
    assert job.state is JobState.FAILED
    assert isinstance(job.error, SystemExit)


# Waiting.


def test_waiting_for_a_job_that_has_not_run_ends_at_once(shop: Shop):
    """It says what to do, whatever the timeout."""
    with recorded(shop.app) as jobs:
        handle = shop.resize.enqueue(1)
        later = shop.resize.using(run_after=HOUR).enqueue(2)
        for timeout in (None, 1_000):
            with pytest.raises(NotPerformed, match=r"is ready, .*: drain\(\) first"):
                handle.result(timeout)
        with pytest.raises(NotPerformed, match=r"is scheduled, .*travel\(\) to its time"):
            later.result()
        with pytest.raises(NotFinished):
            handle.result(timeout=0)
        with pytest.raises(NotPerformed):
            gather(handle, later)
        assert wait_jobs([handle, later], timeout=0) == ([], [handle, later])
        jobs.drain()
        assert handle.result() == "1 is 100 wide"
        assert wait_jobs([handle, later], timeout=0) == ([handle], [later])


# Time.


def test_time_stands_still(shop: Shop):
    """At this moment, or at another."""
    before = datetime.now(UTC)
    with recorded(shop.app) as jobs:
        now = jobs.now
        assert before <= now <= datetime.now(UTC)
        shop.resize.enqueue(1)
        assert jobs.enqueued[0].created_at == now == jobs.now
    with recorded(shop.app, at=MIDNIGHT) as jobs:
        assert jobs.now == MIDNIGHT
    with pytest.raises(ConfigError, match="no time zone"):
        recorded(shop.app, at=datetime(2030, 1, 1))


def test_travelling_makes_due_jobs_ready(shop: Shop):
    """In the order of their times. They do not run until they are drained."""
    with recorded(shop.app) as jobs:
        for hours in (3, 1, 2):
            shop.resize.using(run_after=hours * HOUR).enqueue(hours)
        assert jobs.drain() == []
        jobs.travel(2 * HOUR)
        assert [job.state for job in jobs.enqueued] == ["scheduled", "ready", "ready"]
        assert shop.done == []
        jobs.drain()
        assert shop.done == [1, 2]
        jobs.travel(3600)
        jobs.drain()
        assert shop.done == [1, 2, 3]


def test_travelling_to_a_moment(shop: Shop):
    """Forwards only."""
    with recorded(shop.app, at=MIDNIGHT) as jobs:
        shop.resize.using(run_after=MIDNIGHT + HOUR).enqueue(1)
        jobs.travel_to(MIDNIGHT + HOUR)
        assert jobs.now == MIDNIGHT + HOUR
        assert len(jobs.drain()) == 1
        jobs.travel_to(MIDNIGHT + HOUR)
        for back in (lambda: jobs.travel_to(MIDNIGHT), lambda: jobs.travel(-1)):
            with pytest.raises(ConfigError, match="not back"):
                back()
        with pytest.raises(ConfigError, match="no time zone"):
            jobs.travel_to(datetime(2031, 1, 1))


def test_retries_wait_for_their_time(shop: Shop):
    """Then they run, and fail for good in the end."""
    shop.trouble += [ValueError(str(number)) for number in range(3)]
    with recorded(shop.app) as jobs:
        handle = shop.flaky.enqueue(1)
        for attempt in (1, 2):
            [job] = jobs.drain()
            assert (job.state, job.attempts) == (JobState.SCHEDULED, attempt)
            assert jobs.drain() == []
            jobs.travel(59)
            assert jobs.drain() == []
            jobs.travel(1)
        [job] = jobs.drain()
        assert (job.state, job.attempts, str(job.error)) == (JobState.FAILED, 3, "2")
        assert len(handle.look().failures) == 2
        assert job.run_at is None  # as it was enqueued


def test_a_record_holds_the_error_of_the_last_attempt_only(shop: Shop):
    """None, once it succeeded."""
    shop.trouble.append(ValueError("no"))
    with recorded(shop.app) as jobs:
        shop.flaky.enqueue(1)
        [first] = jobs.drain()
        jobs.travel(60)
        [second] = jobs.drain()
    assert isinstance(first.error, ValueError)
    assert (second.error, second.attempts) == (None, 2)


def test_a_retry_without_a_wait_is_part_of_the_same_drain(shop: Shop):
    """Once for each attempt."""

    @shop.app.task(retries=2, backoff=0)
    def fail() -> None:
        raise ValueError

    with recorded(shop.app) as jobs:
        fail.enqueue()
        assert [(job.state, job.attempts) for job in jobs.drain()] == [("ready", 1), ("ready", 2), ("failed", 3)]


def test_expired_jobs_are_never_performed(shop: Shop):
    """Nor do they stop a drain."""
    with recorded(shop.app) as jobs:
        stale = shop.resize.using(expires=HOUR, priority=1).enqueue(1)
        shop.resize.enqueue(2)
        jobs.travel(HOUR)
        assert [job.args for job in jobs.drain()] == [(2,)]
        with pytest.raises(JobCancelled, match="expired"):
            stale.result(0)


def test_schedules_come_while_time_passes_where_the_test_wants_them(shop: Shop):
    """Each at its own moment, with the arguments it was declared with; without the word no scheduler is there."""
    shop.app.recurring("0 3 * * *", key="nightly", args=(7,), zone="Europe/Berlin")(shop.resize)
    shop.app.recurring("0 * * * *", key="hourly", args=("ann",))(shop.mail)
    with recorded(shop.app, at=MIDNIGHT + timedelta(minutes=30)) as jobs:
        jobs.travel(timedelta(days=1))
        assert jobs.enqueued == []
        jobs.travel(timedelta(days=1), schedules=True)
        [night] = jobs.where(tags=("schedule:nightly",)).assert_enqueued(shop.resize, 7)
        assert night.run_at == MIDNIGHT + timedelta(days=1, hours=2)
        assert jobs.count(shop.mail, "ann") == 24
        assert len(jobs.drain()) == 25
        jobs.travel_to(MIDNIGHT + timedelta(days=3), schedules=True)
        assert jobs.count(shop.resize) == 2
    assert not list(shop.app.schedules.all()), "the application's own store is not touched"


def test_schedules_made_by_the_code_under_test_come_too(shop: Shop):
    """Under their own rules: one that skips waits for its job to be performed."""
    seen = []

    @shop.app.task(name="poll", takes_context=True)
    def poll(context: Context) -> None:
        seen.append((context.schedule, context.moment))

    with recorded(shop.app, at=MIDNIGHT) as jobs:
        shop.app.schedules.add(poll.call(), "every 60s", key="poll", overlap="skip")
        for _ in range(2):
            jobs.travel(150, schedules=True)
            assert len(jobs.drain()) == 1
        assert seen == [("poll", MIDNIGHT + timedelta(seconds=each)) for each in (0, 180)]


@pytest.mark.parametrize("looping", [False, True])
def test_schedules_inside_inline_are_performed_on_the_way(shop: Shop, looping: bool):
    """At the moment they are for; a task may ask the store, also from another thread."""
    seen = []

    @shop.app.recurring("every 60s", key="poll", overlap="skip")
    @shop.app.task(name="poll")
    async def poll() -> None:
        at = await asyncio.to_thread(lambda: shop.app.inspection.queues() and jobs.now)
        seen.append(at)

    with inline(shop.app, at=MIDNIGHT + timedelta(seconds=1)) as jobs:
        if looping:

            async def travel() -> None:
                jobs.travel(180, schedules=True)

            asyncio.run(travel())
        else:
            jobs.travel(180, schedules=True)
    assert seen == [MIDNIGHT + timedelta(minutes=each) for each in (1, 2, 3)]


def test_a_journey_with_too_many_moments_ends(shop: Shop, monkeypatch: pytest.MonkeyPatch):
    """Instead of never."""
    monkeypatch.setattr("packhorse.testing.in_place.STOPS_CAP", 10)
    shop.app.recurring("every 1s", key="often", args=(1,))(shop.resize)
    with recorded(shop.app) as jobs, pytest.raises(ConfigError, match="Schedules came 10 times"):
        jobs.travel(HOUR, schedules=True)


def test_time_prunes(shop: Shop):
    """The records remember."""
    with recorded(shop.app) as jobs:
        handle = shop.resize.enqueue(1)
        jobs.drain()
        jobs.travel(timedelta(days=8))
        with pytest.raises(JobNotFound):
            handle.look()
        [job] = jobs.assert_enqueued(shop.resize, 1)
        assert (job.state, job.gone) == (JobState.SUCCEEDED, True)
        assert repr(job).endswith(": succeeded, gone>")


def test_time_prunes_everything_that_is_due():
    """In as many batches as it takes."""
    shop = Shop("memory://", batch_size=2)
    with recorded(shop.app) as jobs:
        for photo in range(7):
            shop.resize.using(run_after=HOUR).enqueue(photo)
        jobs.travel(HOUR)
        assert len(jobs.drain()) == 7
        jobs.travel(timedelta(days=8))
        assert all(job.gone for job in jobs.enqueued)


def test_a_job_that_is_not_kept_is_recorded_all_the_same(shop: Shop):
    """The store forgets it when it ends."""

    @shop.app.task(keep_succeeded=0)
    def work(number: int) -> int:
        return number

    with recorded(shop.app) as jobs:
        handle = work.enqueue(1)
        [job] = jobs.drain()
        assert (job.args, job.state, job.attempts, job.gone) == ((1,), JobState.SUCCEEDED, 1, True)
        assert jobs.enqueued == [job]
        with pytest.raises(JobNotFound):
            handle.look()


def test_a_task_may_take_longer_than_a_lease(shop: Shop):
    """Its worker lives, so time alone takes nothing from it."""

    @shop.app.task
    def slow() -> str:
        jobs.travel(HOUR)
        return "done"

    with recorded(shop.app) as jobs:
        handle = slow.enqueue()
        jobs.drain()
        assert handle.result(0) == "done"
        assert handle.look().losses == 0


# Limits, rates, shares, merged jobs.


def test_limited_jobs_are_performed_one_after_the_other(shop: Shop):
    """Each hands its permit on, also where it fails."""

    @shop.app.task(limit=limit("{account}"))
    def visit(account: int, number: int) -> None:
        shop.done.append(number)
        if number == 1:
            raise ValueError("no")

    with recorded(shop.app) as jobs:
        for number in range(4):
            visit.enqueue(number % 2, number)
        assert {job.state for job in jobs.enqueued} == {JobState.WAITING}
        assert [job.state for job in jobs.drain()] == ["succeeded", "failed", "succeeded", "succeeded"]
    assert shop.done == [0, 1, 2, 3]


def test_a_limit_set_by_hand_counts(shop: Shop):
    """Nobody begins until it is taken back."""

    @shop.app.task(limit=limit(group="printer"))
    def page() -> None: ...

    with recorded(shop.app) as jobs:
        page.enqueue()
        shop.app.control.set_limit("printer/", 0)
        assert jobs.drain() == []
        shop.app.control.set_limit("printer/", None)
        assert len(jobs.drain()) == 1


def test_rated_jobs_are_performed_as_time_passes(shop: Shop):
    """A token with each step; a leap is a time in which nobody worked, so it brings no more than a second's worth."""

    @shop.app.task(rate="2/min")
    def ping(number: int) -> int:
        return number

    def drained() -> list[int]:
        return [job.handle.result(0) for job in jobs.drain()]

    with recorded(shop.app) as jobs:
        handles = [ping.enqueue(number) for number in range(7)]
        assert drained() == [0]
        with pytest.raises(NotPerformed, match=r"is waiting.*travel"):
            handles[1].result()
        jobs.travel(29)
        assert drained() == []
        jobs.travel(1)
        assert handles[1].state is JobState.READY
        assert drained() == [1]
        for number in (2, 3, 4):
            jobs.travel(timedelta(seconds=30))
            assert drained() == [number]
        jobs.travel(HOUR)
        assert drained() == [5]
        jobs.travel(30)
        assert drained() == [6]


def test_a_burst_is_performed_at_once(shop: Shop):
    @shop.app.task(rate=rate("1/h", burst=3))
    def ping() -> None: ...

    with recorded(shop.app) as jobs:
        for _ in range(5):
            ping.enqueue()
        assert len(jobs.drain()) == 3
        jobs.travel(HOUR)
        assert len(jobs.drain()) == 1


def test_tokens_taken_inside_a_task_cost_no_time(shop: Shop):
    """Where a task waits with a timeout, it is told as in earnest."""
    slow = rate("1/h", group="site")

    @shop.app.task(takes_context=True)
    def crawl(context: Context) -> list[bool]:
        return [context.take(slow), context.take(slow), context.take(slow, timeout=60)]

    @shop.app.task(takes_context=True)
    async def acrawl(context: Context) -> list[bool]:
        return [await context.atake(slow), await context.atake(slow, timeout=60)]

    with inline(shop.app):
        assert crawl.enqueue().result(0) == [True, True, False]
        assert acrawl.enqueue().result(0) == [True, False]


def test_shares_take_turns(shop: Shop):
    """Also with a weight; and jobs are found by their share."""
    with recorded(shop.app) as jobs:
        shop.app.control.set_weight("bob", 2)
        for number in range(3):
            shop.resize.using(share="ann").enqueue(number)
        jobs.turn()
        for number in range(10, 14):
            shop.resize.using(share="bob").enqueue(number)
        assert jobs.where(share="bob").count(shop.resize) == 4
        assert {job.state for job in jobs.drain()} == {JobState.SUCCEEDED}
    assert shop.done[0] == 0
    assert sorted(shop.done[1:4]) == [1, 10, 11]
    assert sorted(shop.done) == [0, 1, 2, 10, 11, 12, 13]


def test_a_job_of_low_priority_overtakes_in_time():
    """Where the application lets jobs age."""
    shop = Shop("memory://", ageing=60)
    with recorded(shop.app) as jobs:
        shop.resize.using(priority=-5).enqueue(1)
        jobs.travel(timedelta(minutes=6))
        shop.resize.enqueue(2)
        jobs.drain()
    assert shop.done == [1, 2]


@pytest.mark.parametrize("signing", [True, False])
def test_a_merged_job_gets_all_arguments(signing: bool):
    """And so does its record, also when the job is gone."""
    app = Packhorse("shop", "memory://", signing=signing)
    told: list[Any] = []

    @app.task(unique=unique("{user}", on_conflict="merge"), keep_succeeded=0)
    def notify(user: int, lines: list[str], *, colour: str = "red") -> None:
        told.append((user, lines, colour))

    with recorded(app) as jobs:
        first = notify.enqueue(1, ["a"])
        early = jobs.enqueued
        assert notify.enqueue(1, lines=["b"], colour="blue") == first
        notify.enqueue(2, ["z"])
        [job] = jobs.assert_enqueued(notify, 1, ["a", "b"], colour="blue")
        jobs.refute_enqueued(notify, 1, ["b"], colour="blue")
        assert early[0].args == (1, ["a"])
        assert jobs.count(notify) == 2
        assert jobs.drain() == jobs.enqueued
        assert told == [(1, ["a", "b"], "blue"), (2, ["z"], "red")]
        assert jobs.enqueued[0].gone
        jobs.assert_enqueued(notify, 1, ["a", "b"], colour="blue")
        assert notify.enqueue(1, ["c"]) != first
    assert job.args == (1, ["a", "b"])


def test_a_merge_that_raises_is_seen_in_the_test(shop: Shop):
    def broken(earlier: dict[str, Any], later: dict[str, Any]) -> dict[str, Any]:
        raise KeyError("no")

    @shop.app.task(unique=unique("all", on_conflict="merge", merge=broken))
    def count(number: int) -> None: ...

    with recorded(shop.app) as jobs:
        count.enqueue(1)
        count.enqueue(2)
        assert "Merging the arguments raised KeyError" in repr(jobs.enqueued[0])
        with pytest.raises(JobFailed, match="Merging the arguments raised KeyError"):
            jobs.drain(raise_errors=True)


def test_inline_performs_what_finds_room_and_leaves_the_rest(shop: Shop):
    """What a task enqueues under its own limit follows when the task has ended."""
    seen: list[Any] = []

    @shop.app.task(limit=limit(to=1))
    def nested(depth: int) -> None:
        if depth:
            seen.append(nested.enqueue(depth - 1).state)
        seen.append(depth)

    @shop.app.task(rate="1/min")
    def ping(number: int) -> int:
        return number

    @shop.app.task(unique=unique("all", on_conflict="merge"))
    def notify(lines: list[str]) -> list[str]:
        return lines

    with inline(shop.app) as jobs:
        nested.enqueue(2)
        assert seen == ["waiting", 2, "waiting", 1, 0]
        assert ping.enqueue(1).result() == 1
        second = ping.enqueue(2)
        assert second.state is JobState.WAITING
        jobs.travel(60)
        jobs.drain()
        assert second.result() == 2
        assert shop.resize.using(share="ann").enqueue(1).result() == "1 is 100 wide"
        assert notify.enqueue(["a"]).result() == ["a"]
        later = [notify.using(run_after=60).enqueue([line]) for line in "bc"]
        jobs.travel(60)
        jobs.drain()
        assert later[0] == later[1]
        assert later[0].result() == ["b", "c"]


async def test_limited_and_merged_jobs_in_async_tests(shop: Shop):
    @shop.app.task(limit=limit(to=1), rate="1/min", unique=unique("{user}", on_conflict="merge"))
    async def notify(user: int, lines: list[str]) -> list[str]:
        return lines

    async with recorded(shop.app) as jobs:
        ann = await notify.using(share="ann").aenqueue(1, ["a"])
        await notify.using(share="ann").aenqueue(1, ["b"])
        bob = await notify.using(share="bob").aenqueue(2, ["c"])
        assert len(await jobs.adrain()) == 1
        jobs.travel(60)
        assert len(await jobs.adrain()) == 1
        assert [await ann.aresult(0), await bob.aresult(0)] == [["a", "b"], ["c"]]


# Lost workers.


def test_a_job_whose_worker_is_lost_runs_again(shop: Shop):
    """It was started once, and its lease has run out."""
    with recorded(shop.app, at=MIDNIGHT) as jobs:
        shop.resize.using(priority=1).enqueue(0)
        handle = shop.resize.enqueue(1)
        shop.resize.enqueue(2)
        job = jobs.lose_worker(handle)
        assert (job.state, job.losses, job.attempts) == (JobState.READY, 1, 0)
        assert jobs.now == MIDNIGHT + timedelta(seconds=shop.app.settings.lease)
        [attempt] = handle.look().failures
        assert attempt.failure.kind is FailureKind.WORKER_LOST
        assert attempt.failure.type.endswith("ProcessPrunedError")
        assert attempt.started_at == MIDNIGHT
        assert [job.losses for job in jobs.enqueued] == [0, 1, 0]
        jobs.drain()
    assert shop.done == [0, 1, 2]


def test_a_job_that_is_lost_too_often_fails(shop: Shop):
    """At the third loss, or at the first where the task says so."""

    @shop.app.task(on_worker_lost="fail")
    def careful() -> None: ...

    with recorded(shop.app) as jobs:
        handle, once = shop.resize.enqueue(1), careful.enqueue()
        assert [jobs.lose_worker(jobs.enqueued[0]).state for _ in range(3)] == ["ready", "ready", "failed"]
        assert jobs.lose_worker(once.id).state is JobState.FAILED
        for lost in (handle, once):
            with pytest.raises(JobFailed, match="ProcessPrunedError"):
                lost.result(0)
        assert jobs.drain() == []


def test_a_lost_job_keeps_its_permit(shop: Shop):
    """Who waits for it goes on waiting."""

    @shop.app.task(limit=limit(to=1), rate="1/min")
    def visit(number: int) -> None:
        shop.done.append(number)

    with recorded(shop.app) as jobs:
        first, second = visit.using(share="ann").enqueue(1), visit.enqueue(2)
        assert jobs.lose_worker(first).losses == 1
        with pytest.raises(ConfigError, match="not ready"):
            jobs.lose_worker(second)
        jobs.travel(60)
        assert [job.args for job in jobs.drain()] == [(1,), (2,)]


def test_a_worker_can_only_be_lost_with_a_job_that_is_ready(shop: Shop):
    with recorded(shop.app) as jobs:
        later = shop.resize.using(run_after=HOUR).enqueue(1)
        with pytest.raises(ConfigError, match="not ready"):
            jobs.lose_worker(later)
        with pytest.raises(JobNotFound):
            jobs.lose_worker("nonsense")
        with pytest.raises(JobNotFound):
            jobs.lose_worker("01234567-89ab-7def-8123-456789abcdef")


# Inline.


def test_inline_performs_at_once(shop: Shop):
    """Plain functions and coroutines, one or many; the result is there when enqueue returns."""
    with inline(shop.app) as jobs:
        assert shop.resize.enqueue(1, width=20).result(timeout=0) == "1 is 20 wide"
        assert shop.mail.enqueue("ann").result(timeout=0) == "hello ann"
        handles = shop.app.enqueue_many(shop.resize.call(photo) for photo in (2, 3))
        assert [handle.result() for handle in handles] == ["2 is 100 wide", "3 is 100 wide"]
        jobs.assert_enqueued(shop.resize, 1, width=20)
        assert jobs.drain() == []


def test_inline_performs_what_tasks_enqueue_inside_them(shop: Shop):
    """So that they, too, find results at once."""
    with inline(shop.app):
        shop.order.enqueue(1)
    assert shop.done == ["order 1", 1, "ordered 1"]


def test_inline_works_from_coroutines_to_coroutines(shop: Shop):
    """Enqueueing from within a loop, both ways."""

    @shop.app.task
    async def parent() -> list[str]:
        first = shop.mail.enqueue("ann")
        second = await shop.mail.aenqueue("bob")
        return [first.result(0), await second.aresult(0)]

    with inline(shop.app):
        assert parent.enqueue().result(0) == ["hello ann", "hello bob"]


def test_inline_keeps_errors_in_their_jobs(shop: Shop):
    """The caller is not hit, as it would not be."""

    @shop.app.task
    def fail() -> None:
        raise ValueError("no")

    with inline(shop.app):
        handle = fail.enqueue()
        with pytest.raises(JobFailed, match="ValueError: no"):
            handle.result(0)


def test_inline_raises_errors_where_told_to(shop: Shop):
    shop.trouble.append(ValueError("no"))
    with inline(shop.app, raise_errors=True) as jobs:
        with pytest.raises(ValueError, match="no"):
            shop.flaky.enqueue(1)
        jobs.assert_enqueued(shop.flaky, 1)


def test_inline_leaves_what_has_to_wait(shop: Shop):
    """A delayed job and a retry wait for their time, and then for a drain."""
    shop.trouble.append(ValueError("no"))
    with inline(shop.app, at=MIDNIGHT) as jobs:
        later = shop.resize.using(run_after=HOUR).enqueue(1)
        flaky = shop.flaky.enqueue(2)
        assert (later.state, flaky.state) == (JobState.SCHEDULED, JobState.SCHEDULED)
        with pytest.raises(NotPerformed):
            later.result()
        jobs.travel(HOUR)
        assert (later.state, flaky.state) == (JobState.READY, JobState.READY)
        jobs.drain()
        assert (later.result(0), flaky.result(0)) == ("1 is 100 wide", 2)


def test_inline_goes_as_deep_as_it_takes(shop: Shop):
    """Where jobs lie too deep within each other, the rest follows when they have ended."""
    performed: list[int] = []

    @shop.app.task
    def page(number: int) -> None:
        if number < 300:
            page.enqueue(number + 1)
        performed.append(number)

    with inline(shop.app) as jobs:
        page.enqueue(1)
        assert jobs.where(state="succeeded").count(page) == 300
    assert sorted(performed) == list(range(1, 301))
    assert performed[-1] == 1


def test_inline_stops_what_enqueues_itself_for_ever(shop: Shop):
    """The test is told, not the task alone."""

    @shop.app.task
    def again() -> None:
        again.enqueue()
        again.enqueue()

    with inline(shop.app), pytest.raises(TooManyJobs):
        again.enqueue()


def test_inline_serves_several_threads(shop: Shop):
    """Each finds what it enqueued performed, if perhaps by another."""
    results: list[str] = []

    def enqueue(first: int) -> None:
        for photo in range(first, first + 20):
            results.append(shop.resize.enqueue(photo).result(0))

    with inline(shop.app):
        threads = [threading.Thread(target=enqueue, args=(100 * number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    assert len(set(results)) == 80
    assert sorted(shop.done) == [100 * n + m for n in range(4) for m in range(20)]


# In async tests.


async def test_async_tests_drain_on_their_own_loop(shop: Shop):
    """Coroutines run where the test's own fixtures live; plain functions in a thread, where no loop is in their way."""
    seen: list[Any] = []

    @shop.app.task
    async def coroutine() -> None:
        seen.append(asyncio.get_running_loop())

    @shop.app.task
    def plain() -> None:
        seen.append(asyncio.run(asyncio.sleep(0, "a loop of its own")))

    async with recorded(shop.app) as jobs:
        await coroutine.aenqueue()
        handle = await plain.aenqueue()
        assert [job.state for job in await jobs.adrain()] == ["succeeded", "succeeded"]
        assert await handle.alook()
    assert seen == [asyncio.get_running_loop(), "a loop of its own"]


async def test_async_tests_take_turns(shop: Shop):
    async with recorded(shop.app) as jobs:
        await shop.mail.aenqueue("ann")
        shop.trouble.append(ValueError("no"))
        await shop.flaky.aenqueue(1)
        job = await jobs.aturn()
        assert job is not None
        assert job.args == ("ann",)
        with pytest.raises(ValueError, match="no"):
            await jobs.aturn(raise_errors=True)
        assert await jobs.aturn() is None


async def test_drain_works_inside_a_running_loop(shop: Shop):
    """It blocks, but performs: in a thread beside the loop."""
    with recorded(shop.app) as jobs:
        handles = shop.mail.enqueue("ann"), shop.resize.enqueue(1)
        assert len(jobs.drain()) == 2
        assert [handle.result(0) for handle in handles] == ["hello ann", "1 is 100 wide"]
    with inline(shop.app):
        assert shop.mail.enqueue("bob").result(0) == "hello bob"


async def test_async_inline(shop: Shop):
    async with inline(shop.app):
        assert await (await shop.mail.aenqueue("ann")).aresult(0) == "hello ann"


async def test_async_waiting_ends_at_once(shop: Shop):
    async with recorded(shop.app):
        handle = await shop.mail.aenqueue("ann")
        with pytest.raises(NotPerformed):
            await handle.aresult()


async def test_adrain_can_be_cancelled(shop: Shop):
    """A timeout of the test's own is not taken for the job's, which goes back."""
    begun = asyncio.Event()

    @shop.app.task
    async def slow() -> None:
        begun.set()
        await asyncio.Event().wait()

    async with recorded(shop.app) as jobs:
        handle = slow.enqueue()
        draining = asyncio.create_task(jobs.adrain())
        await begun.wait()
        draining.cancel()
        with pytest.raises(asyncio.CancelledError):
            await draining
        assert handle.state is JobState.READY
        assert handle.look().attempts == 0


async def test_errors_come_out_of_adrain(shop: Shop):
    """And so does a task that enqueues itself for ever."""

    @shop.app.task
    async def again(number: int) -> None:
        await again.aenqueue(number + 1)

    async with recorded(shop.app) as jobs:
        again.enqueue(1)
        with pytest.raises(TooManyJobs):
            await jobs.adrain(max_jobs=5)
        shop.trouble.append(ValueError("no"))
        shop.flaky.using(priority=1).enqueue(1)
        with pytest.raises(ValueError, match="no"):
            await jobs.adrain(raise_errors=True)


# The pytest plugin.

SHOP = """
from packhorse import Packhorse

app = Packhorse("shop", "sqlite:///shop.db")

@app.task
def double(number: int) -> int:
    return 2 * number
"""

CONFTEST = """
import pytest
import corner_shop

@pytest.fixture
def packhorse_app():
    return corner_shop.app
"""

TESTS = """
from corner_shop import double

def test_recorded(packhorse_jobs):
    handle = double.enqueue(2)
    packhorse_jobs.assert_enqueued(double, 2)
    packhorse_jobs.drain()
    assert handle.result(0) == 4

def test_each_test_begins_empty(packhorse_jobs):
    assert packhorse_jobs.enqueued == []

def test_inline(packhorse_inline):
    assert double.enqueue(3).result(0) == 6
"""


@pytest.fixture
def run_pytest(tmp_path: Path) -> Callable[..., str]:
    """Runs pytest as the author of a program does, with this plugin alone, found by its entry point."""
    (tmp_path / "corner_shop.py").write_text(SHOP, encoding="utf-8")

    def run(**files: str) -> str:
        for name, text in files.items():
            (tmp_path / name.replace("_ini", ".ini").replace("_py", ".py")).write_text(text, encoding="utf-8")
        ended = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "packhorse", "-q", "-W", "error", "--strict-config", "-rA"],
            cwd=tmp_path,
            env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(tmp_path), "COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=60,
        )
        return ended.stdout + ended.stderr

    return run


def test_the_plugin_is_found():
    [plugin] = entry_points(group="pytest11", name="packhorse")
    assert plugin.value == "packhorse.testing.plugin"


def test_the_plugin_takes_the_application_from_a_fixture(run_pytest: Callable[..., str], tmp_path: Path):
    """One that the program's own tests define."""
    said = run_pytest(conftest_py=CONFTEST, test_shop_py=TESTS)
    assert "3 passed" in said
    assert not (tmp_path / "shop.db").exists()


def test_the_plugin_takes_the_application_from_the_configuration(run_pytest: Callable[..., str]):
    said = run_pytest(pytest_ini="[pytest]\npackhorse_app = corner_shop:app\n", test_shop_py=TESTS)
    assert "3 passed" in said


def test_the_plugin_says_what_it_needs(run_pytest: Callable[..., str]):
    said = run_pytest(test_shop_py=TESTS)
    assert "3 errors" in said
    assert "Which application is under test? Set packhorse_app" in said


def test_assertions_point_at_the_test(run_pytest: Callable[..., str]):
    """Not at the lines of the kit."""
    said = run_pytest(
        conftest_py=CONFTEST,
        test_shop_py="""
from corner_shop import double

def test_wrong(packhorse_jobs):
    double.enqueue(2)
    packhorse_jobs.assert_enqueued(double, 3)
""",
    )
    assert "corner_shop.double(3) was not enqueued. Jobs enqueued:" in said
    assert "<corner_shop.double(2) on 'default': ready>" in said
    assert "records.py" not in said


def test_an_unused_plugin_imports_nothing_of_the_kit():
    """It is loaded in every run of every project that has Packhorse."""
    script = """
        import sys
        import packhorse
        before = set(sys.modules)
        import packhorse.testing.plugin
        print(*sorted(name for name in set(sys.modules) - before if name.startswith("packhorse")))
    """
    said = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["packhorse.testing", "packhorse.testing.plugin"]


def test_the_kit_has_no_other_names():
    import packhorse.testing

    assert packhorse.testing.recorded is recorded
    assert packhorse.testing.RecordedJob is RecordedJob
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = packhorse.testing.nonsense


def test_the_store_in_a_block_is_a_store_like_others(shop: Shop):
    with recorded(shop.app):
        assert isinstance(shop.app.store, Store)
        assert not shop.app.store.shared
