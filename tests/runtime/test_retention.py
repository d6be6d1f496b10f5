"""How long finished jobs and their results are kept, by settings and by task."""

import asyncio
import functools
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from packhorse import (
    Cancel,
    ConfigError,
    Context,
    Embedded,
    Fixed,
    JobCancelled,
    JobFailed,
    JobHandle,
    JobNotFound,
    JobState,
    Packhorse,
    PayloadError,
    ResultUnavailable,
)
from packhorse.clock import ManualClock
from packhorse.ids import new_id, to_text
from packhorse.job import NewJob
from tests.waiting import wait_until

SOON = 60.0
DAY = 86_400.0
CENTURY = 36_500 * DAY
MakeApp = Callable[..., Packhorse]
STATES = pytest.mark.parametrize("state", ["succeeded", "failed", "cancelled"])
KINDS = pytest.mark.parametrize("coroutine", [False, True], ids=["thread", "coroutine"])


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def make_app(make_app: MakeApp, clock: ManualClock) -> MakeApp:
    """Applications whose time the test moves."""
    return functools.partial(make_app, clock=clock, lease=CENTURY / 2)


def prune(app: Packhorse) -> None:
    """What a dispatcher does once a minute."""
    while app.store.prune(app.settings.retention, 1_000):
        pass


def is_kept(job: JobHandle[Any]) -> bool:
    try:
        job.look()
    except JobNotFound:
        return False
    return True


def dropped(job: JobHandle[Any]) -> None:
    wait_until(lambda: not is_kept(job), "nothing is kept of it")


def ending_as(app: Packhorse, coroutine: bool = False, **options: Any) -> Any:
    """A task that ends in the state it is told."""

    def work(context: Context, state: str) -> str:
        context.progress(1, note="kept with its job")
        if state == "failed":
            raise ValueError
        if state == "cancelled":
            raise Cancel("enough")
        return state

    async def awork(context: Context, state: str) -> str:
        return work(context, state)

    return app.task(takes_context=True, name="shop.work", **options)(awork if coroutine else work)


def ended(job: JobHandle[Any]) -> JobHandle[Any]:
    wait_until(lambda: job.state.finished)
    return job


# Dropped at once.


@KINDS
@STATES
@pytest.mark.parametrize("by", ["settings", "task"])
def test_a_job_that_is_not_to_be_kept_is_dropped_at_once(make_app: MakeApp, state: str, by: str, coroutine: bool):
    """With all that was stored of it, and no other state with it."""
    name = f"keep_{state}"
    app = make_app(**({name: 0} if by == "settings" else {}))
    task = ending_as(app, coroutine, retries=0, **({name: 0} if by == "task" else {}))
    with Embedded(app):
        jobs = {end: task.enqueue(end) for end in ("succeeded", "failed", "cancelled")}
        dropped(jobs.pop(state))
        for other in jobs.values():
            ended(other)
    assert sorted(job.state for job in app.inspection.jobs()) == sorted(jobs)


def test_nothing_is_left_of_a_dropped_job(make_app: MakeApp):
    """Neither its payload nor its progress, its tags or its earlier attempts."""
    app = make_app()

    @app.task(takes_context=True, keep_succeeded=0, retries=1, backoff=Fixed(0), tags=("seen",))
    def work(context: Context) -> str:
        context.progress(1)
        if context.attempt == 1:
            raise ValueError
        return "result"

    with Embedded(app):
        job = work.enqueue()
        dropped(job)
    assert app.store.entries(job._raw_id) == []
    assert list(app.inspection.jobs()) == []
    for wait in (lambda: job.result(SOON), job.look, lambda: app.job(job.id)):
        with pytest.raises(JobNotFound):
            wait()


def test_a_task_that_keeps_nothing_encodes_no_result(make_app: MakeApp):
    """So what cannot be encoded is no complaint either."""
    app = make_app(keep_succeeded=0)

    @app.task
    def work() -> Any:
        return object()

    with Embedded(app):
        job = work.enqueue()
        dropped(job)
    with pytest.raises(JobNotFound):
        job.look()


@pytest.mark.parametrize("by", ["settings", "task"])
def test_every_way_to_be_cancelled_is_dropped_at_once(make_app: MakeApp, clock: ManualClock, by: str):
    """By an operator while it runs, in a thread or as a coroutine, or because it has expired."""
    app = make_app(**({"keep_cancelled": 0} if by == "settings" else {}))
    options: dict[str, Any] = {"keep_cancelled": 0} if by == "task" else {}
    running = threading.Semaphore(0)

    @app.task(takes_context=True, retries=3, backoff=Fixed(0), **options)
    def thread(context: Context) -> None:
        running.release()
        wait_until(lambda: context.stop_requested)
        raise ValueError

    async def endless() -> None:
        running.release()
        await asyncio.sleep(SOON)

    def never() -> None:
        raise AssertionError("it has expired")

    coroutine = app.task(name="coroutine", **options)(endless)
    late = app.task(name="late", expires=1, **options)(never)
    expired = late.enqueue()
    clock.advance(2)
    with Embedded(app, concurrency=4):
        dropped(expired)
        jobs = [thread.enqueue(), coroutine.enqueue()]
        for _ in jobs:
            assert running.acquire(timeout=SOON)
        for job in jobs:
            job.cancel()
            dropped(job)
    assert app.inspection.counts()[JobState.CANCELLED] == 0


def test_a_job_that_expires_while_it_waits_for_a_slot_is_dropped_too(make_app: MakeApp, clock: ManualClock):
    """Its signed expiry is looked at again when it begins."""
    app = make_app()

    @app.task(keep_cancelled=0, expires=10)
    def late() -> None:
        raise AssertionError("it has expired")

    job = late.enqueue()
    real = app.store.exchange

    def slow(*args: Any, **kwargs: Any) -> Any:
        reply = real(*args, **kwargs)
        if reply.claims:
            clock.advance(100)
        return reply

    app.store.exchange = slow  # type: ignore[method-assign]
    with Embedded(app):
        dropped(job)


def test_a_forged_job_leaves_its_trace_whatever_the_task_it_names_wants(make_app: MakeApp):
    """Its task's name is no more to be trusted than the rest of it."""
    app = make_app()
    task = ending_as(app, keep_failed=0)
    assert app.seals.signed  # SQLite makes no key where jobs are that it never signed
    [id] = app.store.insert([NewJob(new_id(), task.name, b"forged")])
    with Embedded(app):
        ended(app.job(to_text(id)))
    assert app.job(to_text(id)).state is JobState.FAILED


def test_a_job_that_cannot_be_performed_is_dropped_like_any_failed_one(make_app: MakeApp):
    """Where no failed jobs are kept at all."""
    app = make_app(unknown_task_timeout=0, keep_failed=0)
    task = ending_as(app)
    assert app.seals.signed
    forged = app.store.insert([NewJob(new_id(), name, b"forged") for name in ("shop.work", "shop.unknown")])
    jobs: list[JobHandle[Any]] = [app.job(to_text(id)) for id in forged]
    other = make_app()

    @other.task(name="shop.unknown")
    def unknown() -> None: ...

    jobs.append(unknown.enqueue())
    with Embedded(app):
        for job in jobs:
            dropped(job)
        assert task.enqueue("succeeded").result(SOON) == "succeeded"


def test_undecodable_jobs_can_be_dropped_by_themselves(make_app: MakeApp):
    """Other failures are kept."""
    app = make_app(drop_undecodable=True)
    assert app.seals.signed
    task = ending_as(app)
    [id] = app.store.insert([NewJob(new_id(), "shop.work", b"forged")])
    forged = app.job(to_text(id))
    with Embedded(app):
        dropped(forged)
        failed = ended(task.enqueue("failed"))
    assert failed.state is JobState.FAILED


def test_an_attempt_that_will_be_retried_is_never_dropped(make_app: MakeApp):
    """Only finished jobs are."""
    app = make_app(keep_failed=0, keep_succeeded=None)
    runs: list[int] = []

    @app.task(retries=3, backoff=Fixed(0))
    def flaky() -> str:
        runs.append(1)
        if len(runs) < 3:
            raise ValueError
        return "fine"

    with Embedded(app):
        job = flaky.enqueue()
        assert job.result(SOON) == "fine"
    assert len(job.look().failures) == 2


# Kept for a while.


@STATES
def test_settings_say_how_long_jobs_are_kept(make_app: MakeApp, clock: ManualClock, state: str):
    """Until that time has passed since they ended, and not until it has passed since they were enqueued."""
    app = make_app(**{f"keep_{state}": 100})
    task = ending_as(app)
    job = task.enqueue(state)
    clock.advance(1_000)
    with Embedded(app):
        ended(job)
    clock.advance(99)
    prune(app)
    assert is_kept(job)
    clock.advance(2)
    prune(app)
    assert not is_kept(job)


@STATES
def test_none_keeps_them_for_good(make_app: MakeApp, clock: ManualClock, state: str):
    app = make_app(**{f"keep_{state}": None})
    with Embedded(app):
        job = ended(ending_as(app).enqueue(state))
    clock.advance(CENTURY)
    prune(app)
    assert is_kept(job)


@STATES
@pytest.mark.parametrize("length", [50, 50.0, timedelta(seconds=50)], ids=repr)
def test_a_task_may_say_how_long_its_own_are_kept(make_app: MakeApp, clock: ManualClock, state: str, length: Any):
    """Shorter or longer than the others."""
    app = make_app(**{f"keep_{state}": 100})
    short = ending_as(app, **{f"keep_{state}": length})

    def work(context: Context) -> None:
        short.function(context, state)

    def task(name: str, **options: Any) -> Any:
        return app.task(takes_context=True, name=name, **options)(work)

    usual, long, forever = (
        task("shop.usual"),
        task("shop.long", **{f"keep_{state}": 1_000}),
        task("shop.forever", **{f"keep_{state}": None}),
    )
    with Embedded(app):
        jobs = [ended(job) for job in (short.enqueue(state), usual.enqueue(), long.enqueue(), forever.enqueue())]
    left = []
    for seconds in (49, 2, 50, 900, CENTURY):
        clock.advance(seconds)
        prune(app)
        left.append([is_kept(job) for job in jobs])
    assert left == [
        [True, True, True, True],
        [False, True, True, True],
        [False, False, True, True],
        [False, False, False, True],
        [False, False, False, True],
    ]


@pytest.mark.parametrize("how", ["running", "expired"])
def test_a_tasks_own_length_counts_however_its_jobs_end(make_app: MakeApp, clock: ManualClock, how: str):
    """Also where the task itself had no say in it."""
    app = make_app(keep_cancelled=10, keep_failed=10)
    running = threading.Event()

    @app.task(name="shop.work", keep_cancelled=1_000, keep_failed=1_000)
    async def work() -> None:
        running.set()
        await asyncio.sleep(SOON)

    match how:
        case "running":
            job: JobHandle[Any] = work.enqueue()
        case "expired":
            job = work.using(expires=1).enqueue()
            clock.advance(2)
    with Embedded(app):
        if how == "running":
            assert running.wait(SOON)
            job.cancel()
        ended(job)
    clock.advance(100)
    prune(app)
    assert is_kept(job)
    clock.advance(1_000)
    prune(app)
    assert not is_kept(job)


def test_a_job_sent_round_again_is_kept_anew(make_app: MakeApp, clock: ManualClock):
    """Its time counts from its new end, by the rule for that."""
    app = make_app(keep_failed=100, keep_succeeded=100)
    broken = True

    @app.task(keep_failed=50, keep_succeeded=50)
    def mend() -> str:
        if broken:
            raise ValueError
        return "whole"

    with Embedded(app):
        job = ended(mend.enqueue())
        clock.advance(40)
        broken = False
        assert job.retry()
        clock.advance(40)
        prune(app)
        assert job.result(SOON) == "whole"
        clock.advance(40)
        prune(app)
        assert job.result(0) == "whole"
        clock.advance(20)
        prune(app)
        assert not is_kept(job)


def test_a_dispatcher_prunes_by_itself(make_app: MakeApp, clock: ManualClock):
    app = make_app(keep_succeeded=100)
    with Embedded(app):
        job = ended(ending_as(app).enqueue("succeeded"))
    clock.advance(101)
    with Embedded(app):
        dropped(job)


@pytest.mark.parametrize("name", ["keep_succeeded", "keep_failed", "keep_cancelled", "result_ttl"])
@pytest.mark.parametrize("wrong", [-1, "week", True, float("nan"), float("inf"), timedelta(days=-1)], ids=repr)
def test_a_length_that_is_none_is_refused(make_app: MakeApp, name: str, wrong: Any):
    with pytest.raises(ConfigError, match=f"{name} must be"):
        make_app().task(name="work", **{name: wrong})(lambda: None)


# Results.


@KINDS
@pytest.mark.parametrize("by", ["settings", "task"])
def test_a_result_may_be_kept_for_a_shorter_time_than_its_job(
    make_app: MakeApp, clock: ManualClock, by: str, coroutine: bool
):
    """Later it is said to be gone, and is not taken for None."""
    app = make_app(**({"result_ttl": 60} if by == "settings" else {}))
    task = ending_as(app, coroutine, **({"result_ttl": timedelta(seconds=60)} if by == "task" else {}))
    with Embedded(app):
        job = task.enqueue("succeeded")
        assert job.result(SOON) == "succeeded"
    clock.advance(59)
    prune(app)
    assert job.result(0) == "succeeded"
    clock.advance(2)
    prune(app)
    with pytest.raises(ResultUnavailable, match="it was kept for its time, and the job longer"):
        job.result(0)
    assert app.store.job(job._raw_id).result is None  # type: ignore[union-attr]
    assert job.state is JobState.SUCCEEDED


def test_a_task_may_keep_its_results_longer_than_the_settings_say(make_app: MakeApp, clock: ManualClock):
    app = make_app(result_ttl=60)
    task = ending_as(app, result_ttl=None)
    with Embedded(app):
        job = task.enqueue("succeeded")
        job.result(SOON)
    clock.advance(1_000)
    prune(app)
    assert job.result(0) == "succeeded"


def test_a_job_without_a_result_is_not_said_to_have_lost_one(make_app: MakeApp, clock: ManualClock):
    """None is a result like any other."""
    app = make_app(result_ttl=60)

    @app.task
    def work() -> None: ...

    with Embedded(app):
        job = work.enqueue()
        job.result(SOON)
    clock.advance(1_000)
    prune(app)
    assert job.result(0) is None


@KINDS
def test_a_task_may_keep_no_results_at_all(make_app: MakeApp, coroutine: bool):
    """Nothing is stored, and whoever asks is told why; not even what cannot be encoded is looked at."""
    app = make_app()

    def work() -> Any:
        return object()

    async def awork() -> Any:
        return object()

    task: Any = app.task(name="shop.work", results=False)(awork if coroutine else work)
    with Embedded(app):
        job = task.enqueue()
        with pytest.raises(ResultUnavailable, match="the task keeps no results"):
            job.result(SOON)
    stored = app.store.job(job._raw_id)
    assert stored is not None
    assert (stored.result, stored.result_error, stored.state) == (None, None, JobState.SUCCEEDED)
    with pytest.raises(PayloadError, match="keeps no results"):
        app.inspection.shown_result(stored)


def test_who_asks_need_not_know_the_task_to_be_told_that_it_keeps_no_results(make_app: MakeApp):
    """It is signed with the job, since None would be a lie."""
    app, asking = make_app(), make_app()

    @app.task(results=False)
    def work() -> int:
        return 7

    with Embedded(app):
        job = ended(work.enqueue())
    with pytest.raises(ResultUnavailable, match="the task keeps no results"):
        asking.job(job.id).result(0)


def test_a_task_that_keeps_no_results_still_fails_and_cancels(make_app: MakeApp):
    app = make_app()
    task = ending_as(app, results=False)
    with Embedded(app):
        with pytest.raises(JobFailed):
            task.enqueue("failed").result(SOON)
        with pytest.raises(JobCancelled):
            task.enqueue("cancelled").result(SOON)


@pytest.mark.parametrize("wrong", [None, 0, "no"])
def test_results_is_a_switch(make_app: MakeApp, wrong: Any):
    with pytest.raises(ConfigError, match="results must be True or False"):
        make_app().task(name="work", results=wrong)(lambda: None)
