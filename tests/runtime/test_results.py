"""What becomes of a job, seen by the one who asked for it."""

import threading
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from packhorse import (
    Cancel,
    FailureKind,
    Fixed,
    JobCancelled,
    JobFailed,
    JobNotFound,
    JobState,
    NotFinished,
    Packhorse,
    ResultUnavailable,
    Retry,
    Snooze,
    TaskError,
)
from packhorse.ids import new_id
from packhorse.job import NewJob
from packhorse.runtime.embedded import Embedded

SOON = 60.0


def test_a_result_comes_back(app: Packhorse):
    """Equal to what the task returned."""

    @app.task
    def double(numbers: list[int], *, twice: bool = False) -> list[int]:
        return [number * (4 if twice else 2) for number in numbers]

    with Embedded(app):
        assert double.enqueue([1, 2]).result(SOON) == [2, 4]
        assert double.enqueue(numbers=[1], twice=True).result(SOON) == [4]


def test_no_result_yet_is_not_a_result_of_none(app: Packhorse):
    """NotFinished says the state; a task that returned None gives None."""
    go = threading.Event()

    @app.task
    def wait() -> None:
        go.wait(SOON)

    job = wait.enqueue()
    with pytest.raises(NotFinished, match="it is ready") as caught:
        job.result(timeout=0)
    assert isinstance(caught.value, TimeoutError)
    with Embedded(app):
        with pytest.raises(NotFinished):
            job.result(timeout=0.01)
        go.set()
        assert job.result(SOON) is None
        assert job.result(timeout=0) is None


def test_a_failed_job_raises_its_failure(app: Packhorse):
    """As text: the type by its path, the message and the traceback of the task."""

    class NoSuchPhoto(TaskError):
        pass

    @app.task
    def resize(photo: int) -> None:
        raise NoSuchPhoto(f"photo {photo} is gone")

    with Embedded(app):
        job = resize.enqueue(42)
        with pytest.raises(JobFailed, match="photo 42 is gone") as caught:
            job.result(SOON)
    failure = caught.value.failure
    assert failure.kind is FailureKind.ERROR
    assert failure.type == f"{__name__}.{NoSuchPhoto.__qualname__}"
    assert "in resize" in failure.traceback
    assert "packhorse/runtime" not in failure.traceback
    assert job.state is JobState.FAILED


def test_a_task_that_exits_fails_and_the_worker_lives(app: Packhorse):
    """SystemExit ends the job, not the process."""

    @app.task
    def leave() -> None:
        raise SystemExit(3)

    @app.task
    async def aleave() -> None:
        raise SystemExit(3)

    @app.task
    def stay() -> int:
        return 1

    with Embedded(app, concurrency=1):
        for task in (leave, aleave):
            with pytest.raises(JobFailed, match="SystemExit: 3"):
                task.enqueue().result(SOON)
        assert stay.enqueue().result(SOON) == 1


def test_a_task_may_cancel_itself(app: Packhorse):
    """Its reason is kept."""

    @app.task
    def greet() -> None:
        raise Cancel("nobody is there")

    with Embedded(app):
        job = greet.enqueue()
        with pytest.raises(JobCancelled, match="nobody is there") as caught:
            job.result(SOON)
    assert caught.value.reason == "nobody is there"
    assert job.look().attempts == 1


def test_a_result_that_cannot_be_stored_is_no_failure(app: Packhorse):
    """The job succeeded and is not performed again; only its result is missing."""
    runs = []

    @app.task(retries=5, backoff=0)
    def photo() -> object:
        runs.append(1)
        return object()

    with Embedded(app):
        job = photo.enqueue()
        with pytest.raises(ResultUnavailable, match="a object cannot travel by itself"):
            job.result(SOON)
    assert job.state is JobState.SUCCEEDED
    assert runs == [1]


@pytest.mark.parametrize("id", [str(uuid.UUID(int=7)), uuid.UUID(int=7), "nonsense", ""], ids=repr)
def test_an_unknown_id_is_not_found(app: Packhorse, id: Any):
    """Whether it could be an id or not."""
    with pytest.raises(JobNotFound, match="There is no job"):
        app.job(id)


def test_a_job_is_found_by_its_id_from_anywhere(app: Packhorse, make_app: Callable[..., Packhorse]):
    """Another program on the same store sees the same job."""

    @app.task
    def double(number: int) -> int:
        return 2 * number

    job = double.enqueue(4)
    with Embedded(app):
        assert make_app().job(job.id).result(SOON) == 8
    assert app.job(uuid.UUID(job.id)) == job


def test_a_discarded_job_is_not_found(app: Packhorse):
    """Waiting for it ends at once."""

    @app.task
    def never() -> None: ...

    job = never.enqueue()
    assert app.control.discard([job.id]) == 1
    with pytest.raises(JobNotFound):
        job.result(SOON)


def test_an_unknown_task_fails_and_says_so(app: Packhorse, make_app: Callable[..., Packhorse]):
    """A worker with older code must not crash, and the job can be retried where the task is known."""

    @app.task(name="shop.novel")
    def novel() -> int:
        return 7

    job = novel.enqueue()
    with (
        Embedded(make_app(unknown_task_timeout=0)),
        pytest.raises(JobFailed, match=r"there is no task 'shop\.novel'") as caught,
    ):
        job.result(SOON)
    assert caught.value.failure.kind is FailureKind.UNKNOWN_TASK
    assert job.look().attempts == 0
    assert job.retry()
    with Embedded(app):
        assert job.result(SOON) == 7


@pytest.mark.parametrize("coroutine", [False, True])
def test_a_payload_that_cannot_be_read_fails_and_the_worker_lives(app: Packhorse, coroutine: bool):
    """Whoever wrote that row, the next job is performed."""
    if coroutine:

        @app.task(name="echo")
        async def aecho(text: str) -> str:
            return text

        echo: Any = aecho
    else:

        @app.task(name="echo")
        def secho(text: str) -> str:
            return text

        echo = secho
    assert app.seals.signed  # SQLite makes no key where jobs are that it never signed
    ids = app.store.insert([NewJob(new_id(), "echo", body) for body in (b"\xff", b"{}", b"", b'{"v":9}')])
    with Embedded(app, concurrency=1):
        for id in ids:
            with pytest.raises(JobFailed) as caught:
                app.job(uuid.UUID(bytes=id)).result(SOON)
            assert caught.value.failure.kind is FailureKind.UNDECODABLE
        assert echo.enqueue("still here").result(SOON) == "still here"


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_retries_are_counted_exactly(app: Packhorse, retries: int):
    """n retries are n + 1 attempts; all but the last are rows, the last one stays with the job."""
    runs = []

    @app.task(retries=retries, backoff=0)
    def flaky() -> None:
        runs.append(1)
        raise ValueError(f"attempt {len(runs)}")

    with Embedded(app):
        job = flaky.enqueue()
        with pytest.raises(JobFailed, match=f"attempt {retries + 1}"):
            job.result(SOON)
    seen = job.look()
    assert len(runs) == seen.attempts == retries + 1
    assert [attempt.number for attempt in seen.failures] == list(range(1, retries + 1))
    assert [attempt.failure.message for attempt in seen.failures] == [f"attempt {n}" for n in range(1, retries + 1)]
    assert all(attempt.spent and attempt.started_at for attempt in seen.failures)


def test_a_job_that_recovers_succeeds(app: Packhorse):
    """The attempts before stay visible."""
    runs = []

    @app.task(retries=None, backoff=Fixed(0), give_up_on=KeyError)
    async def flaky() -> str:
        runs.append(1)
        if len(runs) < 4:
            raise Retry("not yet", after=0.01) if len(runs) % 2 else ValueError("no")
        return "at last"

    with Embedded(app):
        job = flaky.enqueue()
        assert job.result(SOON) == "at last"
    assert job.look().attempts == 4
    assert len(job.look().failures) == 3


def test_an_error_to_give_up_on_is_not_retried(app: Packhorse):
    """However many retries are left."""
    runs = []

    @app.task(retries=None, backoff=0, give_up_on=KeyError)
    def hopeless() -> None:
        runs.append(1)
        raise KeyError("no such thing")

    with Embedded(app), pytest.raises(JobFailed, match="no such thing"):
        hopeless.enqueue().result(SOON)
    assert runs == [1]


def test_a_broken_backoff_fails_the_job_and_not_the_worker(app: Packhorse):
    """The failure names both errors."""

    def broken(attempt: int, error: BaseException) -> float:
        raise RuntimeError("bad arithmetic")

    @app.task(retries=5, backoff=broken)
    def flaky() -> None:
        raise ValueError("no")

    with Embedded(app), pytest.raises(JobFailed, match=r"ValueError, and the wait .*bad arithmetic"):
        flaky.enqueue().result(SOON)


def test_a_snooze_is_not_an_attempt(app: Packhorse):
    """Three rounds, one of them counted, none of them a failure."""
    runs = []

    @app.task
    def patient() -> int:
        runs.append(1)
        if len(runs) < 3:
            raise Snooze(0.01)
        return len(runs)

    with Embedded(app):
        job = patient.enqueue()
        assert job.result(SOON) == 3
    assert job.look().attempts == 1
    assert job.look().failures == ()


def test_a_failed_job_can_be_performed_again(app: Packhorse):
    """With fresh attempts; what failed before is kept as rows."""
    broken = True

    @app.task
    def mend() -> str:
        if broken:
            raise ValueError("broken")
        return "whole"

    with Embedded(app):
        job = mend.enqueue()
        with pytest.raises(JobFailed):
            job.result(SOON)
        broken = False
        assert job.retry()
        assert job.result(SOON) == "whole"
    assert not job.retry()
    assert job.look().attempts == 1
    assert [attempt.failure.message for attempt in job.look().failures] == ["broken"]


async def test_every_name_has_an_async_twin(app: Packhorse):
    """The same answers, without blocking the loop."""

    @app.task
    async def double(number: int) -> int:
        return 2 * number

    job = await double.aenqueue(1)
    with pytest.raises(NotFinished):
        await job.aresult(timeout=0)
    assert (await job.alook()).state is JobState.READY
    assert await job.acancel("changed my mind")
    with pytest.raises(JobCancelled, match="changed my mind"):
        await job.aresult(SOON)
    assert await job.aretry()
    with Embedded(app):
        assert await job.aresult(SOON) == 2
        many = await app.aenqueue_many(double.call(number) for number in range(3))
        assert [await job.aresult(SOON) for job in many] == [0, 2, 4]
        assert await (await app.aenqueue(double.call(4))).aresult(SOON) == 8
    assert await app.ajob(job.id) == job
    with pytest.raises(JobNotFound):
        await app.ajob("nonsense")
