"""Waiting for many jobs: for all of them, for the first, or for each as it ends."""

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, assert_type

import pytest

from packhorse import (
    JobCancelled,
    JobFailed,
    JobHandle,
    JobNotFound,
    JobState,
    NotFinished,
    Packhorse,
    PackhorseError,
    ResultUnavailable,
    Task,
    TaskError,
)
from packhorse.errors import StoreUnavailable
from packhorse.runtime.embedded import Embedded
from packhorse.waiting import CHUNK, aas_completed, agather, as_completed, await_jobs, gather, wait_jobs
from tests.waiting import wait_until

SOON = 60.0


# Both halves of each pair of twins, called alike.


def agathered(*handles: JobHandle[Any], **options: Any) -> list[Any]:
    return asyncio.run(agather(*handles, **options))


def awaited(*args: Any, **options: Any) -> Any:
    return asyncio.run(await_jobs(*args, **options))


def collect(seen: list[JobHandle[Any]], handles: Iterable[JobHandle[Any]], timeout: float) -> None:
    for handle in as_completed(handles, timeout):
        seen.append(handle)


def acollect(seen: list[JobHandle[Any]], handles: Iterable[JobHandle[Any]], timeout: float) -> None:
    async def each() -> None:
        async for handle in aas_completed(handles, timeout):
            seen.append(handle)

    asyncio.run(each())


gathers = pytest.mark.parametrize("gather", [gather, agathered])
waits = pytest.mark.parametrize("wait_jobs", [wait_jobs, awaited])
collects = pytest.mark.parametrize("collect", [collect, acollect])


class Doors:
    """A task that waits at the door of its name until it is opened, so that a test says what ends when."""

    def __init__(self, app: Packhorse) -> None:
        self._doors: dict[str, threading.Event] = {}

        @app.task(name="enter")
        def enter(name: str) -> str:
            assert self._doors[name].wait(SOON)
            if name.startswith("bad"):
                raise TaskError(name)
            return name

        self._task: Task[[str], str] = enter

    def enqueue(self, *names: str) -> list[JobHandle[str]]:
        self._doors |= {name: threading.Event() for name in names}
        return [self._task.enqueue(name) for name in names]

    def open(self, *names: str) -> None:
        for name in names:
            self._doors[name].set()

    def open_all(self) -> None:
        self.open(*self._doors)


@pytest.fixture
def doors(app: Packhorse) -> Doors:
    return Doors(app)


class Looks:
    """What was asked of a store."""

    def __init__(self, app: Packhorse, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[list[bytes]] = []
        self.told: set[bytes] = set()
        self.again: set[bytes] = set()
        self.jobs: Counter[bytes] = Counter()
        self._ended, self._job = app.store.ended, app.store.job
        monkeypatch.setattr(app.store, "ended", self.ended)
        monkeypatch.setattr(app.store, "job", self.job)

    def ended(self, ids: Collection[bytes]) -> set[bytes]:
        self.asked.append(list(ids))
        self.again |= self.told.intersection(ids)
        ended = self._ended(ids)
        self.told |= ended
        return ended

    def job(self, id: bytes) -> Any:
        self.jobs[id] += 1
        return self._job(id)


@pytest.fixture
def looks(app: Packhorse, monkeypatch: pytest.MonkeyPatch) -> Looks:
    return Looks(app, monkeypatch)


def finish(*handles: JobHandle[Any]) -> None:
    wait_until(lambda: all(handle.look().finished for handle in handles), "jobs to finish")


# gather


@gathers
def test_results_come_in_the_order_given(app: Packhorse, doors: Doors, gather: Callable[..., list[Any]]):
    """Whatever the order of ending."""
    a, b, c = doors.enqueue("a", "b", "c")
    with Embedded(app):
        doors.open("c")
        finish(c)
        doors.open_all()
        assert gather(a, b, c, timeout=SOON) == ["a", "b", "c"]
        assert gather(c, a, timeout=0) == ["c", "a"]


@gathers
def test_a_job_given_twice_has_its_result_there_twice(app: Packhorse, gather: Callable[..., list[Any]], looks: Looks):
    """Also where two handles were made for it; it is looked at once."""

    @app.task
    def double(number: int) -> int:
        return 2 * number

    one, two = double.enqueue(1), double.enqueue(2)
    with Embedded(app):
        assert gather(one, two, one, JobHandle(app, two._raw_id), timeout=SOON) == [2, 4, 2, 4]
    assert set(looks.jobs.values()) == {1}


@gathers
def test_nothing_to_gather(gather: Callable[..., list[Any]]):
    """There is no need for a store."""
    assert gather() == []
    assert gather(timeout=0, return_errors=True) == []


@gathers
def test_an_error_is_raised_while_others_run(app: Packhorse, doors: Doors, gather: Callable[..., list[Any]]):
    """Nobody waits for a result that will not be used, and the others go on."""
    slow, bad = doors.enqueue("slow", "bad")
    with Embedded(app):
        doors.open("bad")
        with pytest.raises(JobFailed, match="bad") as caught:
            gather(slow, bad, timeout=SOON)
        assert caught.value.id == bad.id
        assert slow.state is JobState.RUNNING
        doors.open("slow")
        assert slow.result(SOON) == "slow"


@gathers
def test_of_several_errors_the_first_to_end_is_raised(app: Packhorse, doors: Doors, gather: Callable[..., list[Any]]):
    """Not the first one given."""
    handles = doors.enqueue("bad 1", "bad 2", "bad 3")
    with Embedded(app):
        for name, handle in [("bad 2", handles[1]), ("bad 1", handles[0]), ("bad 3", handles[2])]:
            doors.open(name)
            finish(handle)
        with pytest.raises(JobFailed, match="bad 2"):
            gather(*handles, timeout=SOON)


def each_ending(app: Packhorse) -> list[JobHandle[Any]]:
    """One job that succeeds, and one of each kind that gives no result."""

    @app.task
    def fine() -> int:
        return 1

    @app.task
    def fail() -> None:
        raise TaskError("no")

    @app.task
    def unstorable() -> object:
        return object()

    @app.task(queue_name="later")
    def later() -> None: ...

    cancelled, gone = later.enqueue(), later.enqueue()
    assert cancelled.cancel("changed my mind")
    assert app.control.discard([gone.id]) == 1
    return [fine.enqueue(), fail.enqueue(), cancelled, unstorable.enqueue(), gone]


ERRORS = [JobFailed, JobCancelled, ResultUnavailable, JobNotFound]


@gathers
def test_errors_may_stand_in_the_list(app: Packhorse, gather: Callable[..., list[Any]]):
    """In the place of the result, as `result()` would raise them."""
    handles = each_ending(app)
    with Embedded(app, "default"):
        fine, *errors = gather(*handles, timeout=SOON, return_errors=True)
    assert fine == 1
    assert [type(error) for error in errors] == ERRORS
    assert [error.id for error in errors] == [handle.id for handle in handles[1:]]


@pytest.mark.parametrize("number", range(4), ids=[error.__name__ for error in ERRORS])
def test_errors_are_raised_as_result_would(app: Packhorse, number: int):
    """Each kind of them."""
    fine, *others = each_ending(app)
    with Embedded(app, "default"), pytest.raises(ERRORS[number]):
        gather(fine, others[number], timeout=SOON)


@pytest.mark.parametrize("return_errors", [False, True])
def test_trouble_with_the_store_is_nobodys_result(
    app: Packhorse, doors: Doors, monkeypatch: pytest.MonkeyPatch, return_errors: bool
):
    """It says nothing of the job, so it is raised in any case."""
    [a] = doors.enqueue("a")

    def refuse(id: bytes) -> None:
        raise StoreUnavailable("not now")

    with Embedded(app):
        doors.open("a")
        finish(a)
        with monkeypatch.context() as patch:
            patch.setattr(app.store, "job", refuse)
            with pytest.raises(StoreUnavailable):
                gather(a, timeout=SOON, return_errors=return_errors)


@gathers
@pytest.mark.parametrize("return_errors", [False, True])
def test_gather_says_how_many_are_missing(
    app: Packhorse, doors: Doors, gather: Callable[..., list[Any]], return_errors: bool
):
    """After the timeout, and at once where it is 0."""
    a, b, c = doors.enqueue("a", "b", "c")
    with Embedded(app):
        doors.open("b")
        finish(b)
        for timeout in (0, 0.01):
            with pytest.raises(NotFinished, match=f"2 of 3 jobs have not finished after {timeout:g} s") as caught:
                gather(a, b, c, timeout=timeout, return_errors=return_errors)
            assert isinstance(caught.value, TimeoutError)
            assert caught.value.id == a.id
            assert a.id in str(caught.value)
        doors.open_all()


@gathers
@pytest.mark.parametrize("return_errors", [False, True])
def test_a_job_sent_round_again_counts_as_unfinished(
    app: Packhorse,
    gather: Callable[..., list[Any]],
    return_errors: bool,
    looks: Looks,
    monkeypatch: pytest.MonkeyPatch,
):
    """An operator's retry between the store's word and the look at the result is waited for."""
    runs = []

    @app.task
    def mend() -> str:
        runs.append(1)
        if len(runs) == 1:
            raise TaskError("broken")
        return "whole"

    @app.task
    def plain() -> str:
        return "plain"

    job, other = mend.enqueue(), plain.enqueue()

    def retried_behind_our_back(ids: Collection[bytes]) -> set[bytes]:
        ended = looks.ended(ids)
        if job._raw_id in ended and len(runs) == 1:
            assert job.retry()
        return ended

    monkeypatch.setattr(app.store, "ended", retried_behind_our_back)
    with Embedded(app):
        assert gather(job, other, timeout=SOON, return_errors=return_errors) == ["whole", "plain"]
    assert len(runs) == 2


# wait_jobs


@waits
def test_waiting_for_all(app: Packhorse, doors: Doors, wait_jobs: Callable[..., Any]):
    """However they end, each job once and in the order given."""
    a, bad, c = doors.enqueue("a", "bad", "c")
    with Embedded(app):
        doors.open_all()
        assert wait_jobs([c, a, bad, a, c], SOON) == ([c, a, bad], [])


@waits
def test_time_that_is_up_is_no_error(app: Packhorse, doors: Doors, wait_jobs: Callable[..., Any]):
    """Those that have ended are told from those that have not, with a look at each."""
    a, b, c, d = doors.enqueue("a", "b", "c", "d")
    with Embedded(app):
        assert wait_jobs([a, b], 0) == wait_jobs([a, b, a], 0.01, first=True) == ([], [a, b])
        doors.open("b", "d")
        finish(b, d)
        assert wait_jobs(iter([d, c, b, a]), 0) == wait_jobs([d, c, b, a], 0.01) == ([d, b], [c, a])
        doors.open_all()


@waits
def test_waiting_for_the_first(app: Packhorse, doors: Doors, wait_jobs: Callable[..., Any]):
    """It is told as soon as it has ended, while the others run."""
    a, b, c = doors.enqueue("a", "b", "c")
    with Embedded(app):
        doors.open("b")
        assert wait_jobs([a, b, c], SOON, first=True) == ([b], [a, c])
        doors.open("c")
        assert wait_jobs([a, c], first=True) == ([c], [a])
        doors.open("a")
        assert wait_jobs([a]) == ([a], [])


@waits
@pytest.mark.parametrize("first", [False, True])
def test_waiting_for_nothing(wait_jobs: Callable[..., Any], first: bool):
    """It is over at once, also without a timeout."""
    assert wait_jobs([], first=first) == ([], [])


@waits
def test_a_job_that_is_gone_counts_as_finished(app: Packhorse, doors: Doors, wait_jobs: Callable[..., Any]):
    """Nobody waits for ever for a job that was discarded."""
    a, gone = doors.enqueue("a", "gone")
    assert app.control.discard([gone.id]) == 1
    assert wait_jobs([a, gone], 0) == ([gone], [a])


# as_completed


def test_jobs_come_in_the_order_of_ending(app: Packhorse, doors: Doors):
    """One by one, each job once, failed ones too."""
    a, bad, c = doors.enqueue("a", "bad", "c")
    with Embedded(app):
        ended = as_completed([a, bad, a, c], SOON)
        for name, handle in [("c", c), ("bad", bad), ("a", a)]:
            doors.open(name)
            assert next(ended) == handle
        assert next(ended, None) is None


async def test_jobs_come_in_the_order_of_ending_to_coroutines(app: Packhorse, doors: Doors):
    """With `async for`."""
    a, bad, c = doors.enqueue("a", "bad", "c")
    following = {c: "bad", bad: "a", a: None}
    seen = []
    with Embedded(app):
        doors.open("c")
        async for handle in aas_completed([a, bad, a, c], SOON):
            seen.append(handle)
            if name := following[handle]:
                doors.open(name)
    assert seen == [c, bad, a]


@collects
def test_nothing_to_wait_for(collect: Callable[..., None]):
    """No job ends, none is missing."""
    seen: list[JobHandle[Any]] = []
    collect(seen, [], 0)
    assert seen == []


@collects
@pytest.mark.parametrize("timeout", [0, 0.01])
def test_those_that_made_it_come_before_the_error(
    app: Packhorse, doors: Doors, collect: Callable[..., None], timeout: float
):
    """The time being up takes nothing away."""
    a, b, c = doors.enqueue("a", "b", "c")
    with Embedded(app):
        doors.open("b", "c")
        finish(b, c)
        seen: list[JobHandle[str]] = []
        with pytest.raises(NotFinished, match=f"1 of 3 jobs have not finished after {timeout:g} s") as caught:
            collect(seen, [a, b, c], timeout)
        assert seen == [b, c]
        assert caught.value.id == a.id
        doors.open("a")


def test_the_time_counts_from_the_call(app: Packhorse, doors: Doors):
    """Not from the first job asked for; what ended until somebody asks has made it."""
    a, b = doors.enqueue("a", "b")
    ended = as_completed([a, b], 0.01)
    with Embedded(app):
        doors.open("b")
        finish(b)
        assert next(ended) == b
        with pytest.raises(NotFinished):
            next(ended)
        doors.open("a")


# Several stores.


@pytest.fixture
def two(app: Packhorse) -> list[Packhorse]:
    return [app, Packhorse("other", "memory://", heartbeat=0.05, lease=30, polling_interval=0.2)]


def test_jobs_of_two_stores(two: list[Packhorse]):
    """Each is waited for where it lives."""
    here, there = map(Doors, two)
    a, c = here.enqueue("a", "c")
    b, d = there.enqueue("b", "d")
    with Embedded(two[0]), Embedded(two[1]):
        ended = as_completed([a, b, c, d], SOON)
        for doors, name, handle in [(there, "b", b), (here, "a", a), (there, "d", d)]:
            doors.open(name)
            assert next(ended) == handle
        finished, unfinished = wait_jobs([a, b, c, d], SOON, first=True)
        assert finished
        assert c in unfinished
        assert wait_jobs([d, c, b, a], 0.01) == ([d, b, a], [c])
        with pytest.raises(NotFinished, match="1 of 4"):
            gather(a, b, c, d, timeout=0)
        here.open("c")
        assert next(ended) == c
        assert gather(a, b, c, d, timeout=SOON) == gather(a, b, c, d, return_errors=True) == ["a", "b", "c", "d"]
        assert wait_jobs([a, b, c, d]) == ([a, b, c, d], [])


def test_a_wait_sleeps_in_two_stores_at_once(two: list[Packhorse], monkeypatch: pytest.MonkeyPatch):
    """Nothing is asked while nothing ends, and an ending in either store is told."""
    here, there = map(Doors, two)
    seen = [Looks(app, monkeypatch) for app in two]
    [a], [b] = here.enqueue("a"), there.enqueue("b")
    ended = as_completed([a, b], SOON)
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(next, ended)
        wait_until(lambda: all(looks.asked for looks in seen), "a look at both")
        with Embedded(two[0]), Embedded(two[1]):
            there.open("b")
            assert waiting.result(SOON) == b
            here.open("a")
            assert next(ended) == a


def test_two_applications_on_one_store(make_app: Callable[..., Packhorse], monkeypatch: pytest.MonkeyPatch):
    """They are one place to wait at."""
    one, other = make_app(), make_app()
    doors = Doors(one)
    a, b = doors.enqueue("a", "b")
    looks = Looks(one, monkeypatch)
    with Embedded(one):
        doors.open_all()
        finish(a, b)
        assert gather(a, other.job(b.id), timeout=SOON) == ["a", "b"]
    assert [len(ids) for ids in looks.asked] == [2]


# Many.


@pytest.mark.parametrize("how", ["gather", "agather", "return_errors", "wait_jobs", "as_completed"])
def test_two_thousand_jobs(app: Packhorse, looks: Looks, how: str):
    """All are seen, each result is read once, and none is asked for after it was seen to have ended."""

    @app.task
    def double(number: int) -> int:
        return 2 * number

    handles = app.enqueue_many(double.call(number) for number in range(2000))
    results = [2 * number for number in range(2000)]
    with Embedded(app):
        match how:
            case "gather":
                assert gather(*handles, timeout=60) == results
            case "agather":
                assert agathered(*handles, timeout=60) == results
            case "return_errors":
                assert gather(*handles, timeout=60, return_errors=True) == results
            case "wait_jobs":
                assert wait_jobs(handles, 60) == (handles, [])
            case "as_completed":
                assert Counter(as_completed(handles, 60)) == Counter(handles)
    assert looks.again == set()
    assert all(number == 1 for number in looks.jobs.values())


@pytest.mark.parametrize("how", ["gather", "first", "as_completed"])
def test_an_ending_far_down_the_list_is_seen(app: Packhorse, doors: Doors, looks: Looks, how: str):
    """Although those before it have not ended and never will."""
    never = app.task(name="never", queue_name="nobody")(lambda: None)
    before: list[JobHandle[Any]] = app.enqueue_many(never.call() for _ in range(2 * CHUNK))
    [bad] = doors.enqueue("bad")
    after: list[JobHandle[Any]] = app.enqueue_many(never.call() for _ in range(CHUNK))
    handles = [*before, bad, *after]
    with Embedded(app, "default"), ThreadPoolExecutor() as threads:
        match how:
            case "gather":
                waiting: Future[Any] = threads.submit(lambda: gather(*handles, timeout=SOON))
            case "first":
                waiting = threads.submit(wait_jobs, handles, SOON, first=True)
            case "as_completed":
                waiting = threads.submit(next, as_completed(handles, SOON))
        wait_until(lambda: any(bad._raw_id in ids for ids in looks.asked), "a look at all of them")
        doors.open("bad")
        match how:
            case "gather":
                with pytest.raises(JobFailed):
                    waiting.result(SOON)
            case "first":
                assert waiting.result(SOON) == ([bad], before + after)
            case "as_completed":
                assert waiting.result(SOON) == bad


# Cancelled waits.


@pytest.mark.parametrize("stores", [1, 2])
@pytest.mark.parametrize("how", ["agather", "return_errors", "await_jobs", "first", "aas_completed", "aresult"])
def test_a_cancelled_wait_leaves_nothing(two: list[Packhorse], how: str, stores: int):
    """No thread waits while it lasts, and nobody looks for its jobs when it is over."""
    handles = [handle for app in two[:stores] for handle in Doors(app).enqueue("a", "b")]

    async def every() -> None:
        async for _ in aas_completed(handles):
            pass

    waits: dict[str, Callable[[], Awaitable[Any]]] = {
        "agather": lambda: agather(*handles),
        "return_errors": lambda: agather(*handles, return_errors=True),
        "await_jobs": lambda: await_jobs(handles),
        "first": lambda: await_jobs(handles, first=True),
        "aas_completed": every,
        "aresult": lambda: asyncio.gather(*(handle.aresult() for handle in handles)),
    }

    async def wanted(number: int) -> None:
        while sum(len(ticket.wanted) for app in two for ticket in app.store.room._tickets) != number:
            await asyncio.sleep(0.01)

    async def cancelled() -> None:
        task = asyncio.ensure_future(waits[how]())
        await asyncio.wait_for(wanted(len(handles)), SOON)
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("asyncio")]
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(wanted(0), SOON)

    asyncio.run(cancelled())
    assert not any(table for app in two for table in app.store.room._tables)


async def test_a_waiting_coroutine_does_not_block_its_loop(app: Packhorse, doors: Doors):
    """Something else on the same loop makes the jobs end."""
    handles = doors.enqueue("a", "b")
    with Embedded(app):
        results, _ = await asyncio.gather(agather(*handles, timeout=SOON), asyncio.to_thread(doors.open_all))
    assert results == ["a", "b"]


# Types.


def test_the_types_are_those_of_the_results(app: Packhorse):
    """Checked by mypy."""

    @app.task
    def length(text: str) -> int:
        return len(text)

    handles = [length.enqueue("a"), length.enqueue("bc")]
    with Embedded(app):
        assert_type(gather(*handles), list[int])
        assert_type(gather(*handles, return_errors=False), list[int])
        assert_type(gather(*handles, return_errors=True), list[int | PackhorseError])
        assert_type(wait_jobs(handles), tuple[list[JobHandle[int]], list[JobHandle[int]]])
        for handle in as_completed(handles):
            assert_type(handle, JobHandle[int])


@gathers
def test_a_list_of_jobs_needs_a_star(app: Packhorse, gather: Callable[..., list[Any]]):
    @app.task
    def work() -> None: ...

    jobs = [work.enqueue(), work.enqueue()]
    for wrong, kind in ((jobs, "list"), (tuple(jobs), "tuple"), (iter(jobs), "list_iterator"), (jobs[0].id, "str")):
        with pytest.raises(TypeError, match=rf"gather\(\*jobs\) takes the jobs one by one.* given a {kind}\."):
            gather(wrong, timeout=0)
