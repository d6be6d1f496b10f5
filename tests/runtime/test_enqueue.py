"""Asking for jobs: one, many, later, sooner, elsewhere."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from packhorse import ConfigError, EnqueueError, JobCancelled, JobNotFound, JobState, Packhorse
from packhorse.clock import to_datetime
from packhorse.errors import StoreUnavailable
from packhorse.runtime.embedded import Embedded
from packhorse.stores.contract import Selection
from tests.waiting import wait_until

SOON = 60.0


@pytest.fixture
def performed() -> list[Any]:
    """What was performed, in order."""
    return []


@pytest.fixture
def note(app: Packhorse, performed: list[Any]) -> Any:
    @app.task
    def note(what: Any) -> None:
        performed.append(what)

    return note


def all_finished(app: Packhorse) -> bool:
    return not any(number for state, number in app.inspection.counts().items() if not state.finished)


def test_a_delayed_job_waits_for_its_time(app: Packhorse, note: Any, performed: list[Any]):
    """It is scheduled until then, and starts no earlier."""
    later = note.using(run_after=0.3).enqueue("later")
    moment = note.using(run_after=datetime.now(UTC) + timedelta(seconds=0.3)).enqueue("at that moment")
    past = note.using(run_after=datetime.now(UTC) - timedelta(hours=1)).enqueue("past")
    assert (later.state, moment.state, past.state) == (JobState.SCHEDULED, JobState.SCHEDULED, JobState.READY)
    with Embedded(app):
        for job in (later, moment, past):
            job.result(SOON)
    assert performed[0] == "past"
    for job in (later, moment):
        seen = job.look()
        assert seen.run_at is not None
        assert seen.started_at is not None
        assert seen.started_at >= seen.run_at


def test_a_job_for_tomorrow_can_be_run_now(app: Packhorse, note: Any, performed: list[Any]):
    """An operator need not wait."""
    tomorrow = note.using(run_after=timedelta(days=1)).enqueue("tomorrow")
    with Embedded(app):
        note.enqueue("today").result(SOON)
        assert tomorrow.state is JobState.SCHEDULED
        assert app.control.run_now([tomorrow.id]) == 1
        tomorrow.result(SOON)
    assert performed == ["today", "tomorrow"]


def test_an_expired_job_is_never_performed(app: Packhorse, note: Any, performed: list[Any]):
    """It ends cancelled, with the reason; one that is still fresh is performed."""
    stale = note.using(expires=0).enqueue("stale")
    past = note.using(expires=datetime.now(UTC) - timedelta(seconds=1)).enqueue("past")
    fresh = note.using(expires=timedelta(hours=1)).enqueue("fresh")
    with Embedded(app):
        for job in (stale, past):
            with pytest.raises(JobCancelled) as caught:
                job.result(SOON)
            assert caught.value.reason == "expired"
        fresh.result(SOON)
    assert performed == ["fresh"]
    assert stale.look().attempts == 0


def test_an_expired_job_that_is_retried_is_performed(app: Packhorse, note: Any, performed: list[Any]):
    """Its expiry is lifted, which is audited like the retry itself."""
    stale = note.using(expires=0).enqueue("stale")
    with Embedded(app):
        with pytest.raises(JobCancelled):
            stale.result(SOON)
        assert app.control.retry([stale.id], actor="ann", reason="late is better than never") == 1
        stale.result(SOON)
    assert performed == ["stale"]
    acts = [(it.actor, it.act, it.reason, it.jobs) for it in app.inspection.audit()]
    assert acts == [("ann", act, "late is better than never", 1) for act in ("retry", "reseal")]


@pytest.mark.parametrize(
    ("order", "expected"),
    [("higher_first", [100, 50, 0, -50, -100]), ("lower_first", [-100, -50, 0, 50, 100])],
)
def test_priorities_decide_in_either_order(make_app: Callable[..., Packhorse], order: str, expected: list[int]):
    """Larger first, or smaller first where the application says so; the number shown is the number given."""
    app = make_app(priority_order=order)
    performed: list[int] = []

    @app.task
    def note(priority: int) -> None:
        performed.append(priority)

    jobs = {priority: note.using(priority=priority).enqueue(priority) for priority in (0, 50, -100, 100, -50)}
    assert all(job.look().priority == priority for priority, job in jobs.items())
    assert {job.priority for job in app.inspection.jobs()} == set(jobs)
    with Embedded(app, concurrency=1):
        for job in jobs.values():
            job.result(SOON)
    assert performed == expected


def test_jobs_of_one_priority_keep_their_order(app: Packhorse, note: Any, performed: list[Any]):
    """First come, first served."""
    jobs = app.enqueue_many(note.call(number) for number in range(100))
    with Embedded(app, concurrency=1):
        jobs[-1].result(SOON)
    assert performed == list(range(100))


def test_queues_are_served_in_strict_order(app: Packhorse, note: Any, performed: list[Any]):
    """The worker's list decides, before any priority; a prefix is one entry, and the star is the rest."""
    for queue in ("bulk", "mail.slow", "urgent", "mail.quick", "bulk", "urgent"):
        priority = 100 if queue == "bulk" else -5 if queue == "mail.slow" else 0
        note.using(queue_name=queue, priority=priority).enqueue(queue)
    with Embedded(app, queues="urgent,mail*,*", concurrency=1):
        wait_until(lambda: all_finished(app))
    assert performed == ["urgent", "urgent", "mail.quick", "mail.slow", "bulk", "bulk"]


def test_a_worker_leaves_other_queues_alone(app: Packhorse, note: Any, performed: list[Any]):
    """Only what it was told to serve."""
    other = note.using(queue_name="mails").enqueue("other")
    with Embedded(app, queues="mail"):
        note.using(queue_name="mail").enqueue("mine").result(SOON)
    assert performed == ["mine"]
    assert other.state is JobState.READY


def test_a_paused_queue_rests_until_it_is_resumed(app: Packhorse, note: Any, performed: list[Any]):
    """Other queues go on; what was enqueued meanwhile is performed afterwards."""
    app.control.pause("mail", reason="the server moves")
    held = note.using(queue_name="mail").enqueue("mail")
    with Embedded(app):
        note.enqueue("other").result(SOON)
        assert held.state is JobState.READY
        [mail] = [queue for queue in app.inspection.queues() if queue.queue == "mail"]
        assert mail.pause is not None
        assert mail.pause.reason == "the server moves"
        assert app.control.resume("mail")
        held.result(SOON)
    assert performed == ["other", "mail"]
    assert not app.control.resume("mail")


def test_a_pause_may_end_by_itself(app: Packhorse, note: Any):
    """After a while, or at a moment; nothing begins earlier."""
    end = datetime.now(UTC) + timedelta(seconds=0.2)
    app.control.pause("mail", until=0.2)
    app.control.pause("post", until=end)
    jobs = [note.using(queue_name=queue).enqueue(queue) for queue in ("mail", "post")]
    with Embedded(app):
        for job in jobs:
            job.result(SOON)
            started_at = job.look().started_at
            assert started_at is not None
            assert started_at >= end


def test_many_jobs_come_back_in_the_order_they_were_asked_for(make_app: Callable[..., Packhorse]):
    """In several batches, from any iterable, of several tasks."""
    app = make_app(batch_size=100)

    @app.task
    def double(number: int) -> int:
        return 2 * number

    @app.task
    async def triple(number: int) -> int:
        return 3 * number

    jobs = app.enqueue_many((double if number % 2 else triple).call(number) for number in range(450))
    assert len({job.id for job in jobs}) == 450
    with Embedded(app):
        results = [job.result(SOON) for job in jobs]
    assert results == [2 * number if number % 2 else 3 * number for number in range(450)]
    assert app.enqueue_many([]) == []


def test_many_jobs_of_different_options(app: Packhorse, note: Any):
    """Each call brings the options of its task."""
    jobs = app.enqueue_many([note.call(1), note.using(queue_name="mail", tags=("a", "b")).call(2)])
    assert [job.look().queue for job in jobs] == ["default", "mail"]
    assert [job.id for job in app.inspection.jobs(Selection(tags=["b"]))] == [jobs[1].id]
    assert jobs[1].look().tags == ("a", "b")


def test_all_jobs_are_seen_page_by_page(app: Packhorse, note: Any):
    """Oldest first, however small the page."""
    jobs = app.enqueue_many(note.call(number) for number in range(25))
    assert [job.id for job in app.inspection.jobs(page=10)] == [job.id for job in jobs]
    assert app.inspection.counts()[JobState.READY] == 25


def broken_places(tmp_path: Path) -> dict[str, Path]:
    """Paths at which no database can be."""
    places = {name: tmp_path / name / "jobs.db" for name in ("missing", "open", "directory", "linked", "garbage")}
    for name, path in places.items():
        if name != "missing":
            path.parent.mkdir()
    places["open"].parent.chmod(0o777)
    places["directory"].mkdir()
    places["linked"].symlink_to(tmp_path / "elsewhere.db")
    places["garbage"].write_bytes(b"This is not a database." * 1000)
    return places


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing", "does not exist. Create it"),
        ("open", "is writable for everyone"),
        ("directory", "unable to open database file"),
        ("linked", "is a symbolic link"),
        ("garbage", "file is not a database"),
    ],
)
def test_an_unusable_file_is_an_enqueue_error(tmp_path: Path, name: str, message: str):
    """It says that nothing was enqueued, and why; the cause is chained."""
    app = Packhorse("shop", f"sqlite:///{broken_places(tmp_path)[name]}")

    @app.task
    def note() -> None: ...

    with pytest.raises(EnqueueError, match="Nothing was enqueued: ") as caught:
        note.enqueue()
    assert message in str(caught.value)
    assert caught.value.__cause__ is not None
    app.close()


def test_a_file_that_was_replaced_is_not_written_to(tmp_path: Path):
    """The jobs would be lost in a file that nobody looks into."""
    path = tmp_path / "jobs.db"
    app = Packhorse("shop", f"sqlite:///{path}")

    @app.task
    def note() -> None: ...

    note.enqueue()
    path.rename(tmp_path / "moved.db")
    path.touch()
    with pytest.raises(EnqueueError, match="was moved, deleted or replaced while in use"):
        note.enqueue()
    app.close()


async def test_a_store_that_does_not_answer_is_an_enqueue_error(
    app: Packhorse, note: Any, monkeypatch: pytest.MonkeyPatch
):
    """In every way of enqueueing."""

    def away(jobs: Any) -> Any:
        raise StoreUnavailable("the store is away")

    monkeypatch.setattr(app.store, "insert", away)
    with pytest.raises(EnqueueError, match="the store is away"):
        note.enqueue(1)
    with pytest.raises(EnqueueError):
        await note.aenqueue(1)
    with pytest.raises(EnqueueError, match="Nothing was enqueued"):
        app.enqueue_many([note.call(1)])


def test_a_store_that_goes_away_between_batches_says_how_many_it_took(
    make_app: Callable[..., Packhorse], monkeypatch: pytest.MonkeyPatch
):
    """The message is true: the first batches are there, the rest is not."""
    app = make_app(batch_size=10)

    @app.task
    def note(number: int) -> None: ...

    insert, calls = app.store.insert, iter(range(3))

    def going(jobs: Any) -> Any:
        if next(calls) == 2:
            raise StoreUnavailable("the store is away")
        return insert(jobs)

    monkeypatch.setattr(app.store, "insert", going)
    numbers = iter(range(45))
    with pytest.raises(
        EnqueueError,
        match="Only the first 20 jobs were enqueued; numbers 20 to 39 and all behind them were not: the store is away",
    ) as raised:
        app.enqueue_many(note.call(number) for number in numbers)
    assert app.inspection.counts()[JobState.READY] == 20
    assert len(raised.value.left_out) + 20 + len(list(numbers)) == 45  # nothing fell between


def test_progress_is_told_after_each_batch(tmp_path: Path):
    app = Packhorse("shop", f"sqlite:///{tmp_path}/jobs.db", batch_size=10)

    @app.task
    def note(number: int) -> None: ...

    told: list[int] = []
    app.enqueue_many((note.call(number) for number in range(25)), progress=told.append)
    assert told == [10, 20, 25]
    asyncio.run(app.aenqueue_many([note.call(1)], progress=told.append))
    assert told == [10, 20, 25, 1]
    app.enqueue_many([], progress=told.append)
    assert told == [10, 20, 25, 1]
    app.close()


def test_large_jobs_come_in_smaller_batches(tmp_path: Path):
    """However many a batch may have, what is in memory at once stays small."""
    app = Packhorse("shop", f"sqlite:///{tmp_path}/jobs.db")

    @app.task
    def send(text: str) -> None: ...

    told: list[int] = []
    app.enqueue_many((send.call("x" * 200_000) for _ in range(100)), progress=told.append)
    assert told == [42, 84, 100]
    app.close()


def test_the_batches_before_a_call_that_cannot_be_made_are_enqueued(tmp_path: Path):
    """Also the last of them, which is written while the next is made."""
    app = Packhorse("shop", f"sqlite:///{tmp_path}/jobs.db", batch_size=10)

    @app.task
    def note(number: int) -> None: ...

    def calls() -> Iterator[Any]:
        for number in range(25):
            yield note.call(number)
        raise LookupError("no more")

    with pytest.raises(LookupError) as raised:
        app.enqueue_many(calls())
    assert raised.value.__notes__ == ["20 jobs before it were enqueued; the others of its batch were not."]
    assert app.inspection.counts()[JobState.READY] == 20
    app.close()


def test_the_file_is_nobody_elses_business(tmp_path: Path):
    """Arguments may be private: the database and its companions have mode 0600."""
    app = Packhorse("shop", f"sqlite:///{tmp_path}/jobs.db")

    @app.task
    def note() -> None: ...

    note.enqueue()
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert {"jobs.db", "jobs.db-wal"} <= set(modes)
    assert set(modes.values()) == {0o600}
    app.close()


def test_many_threads_may_enqueue_at_once(app: Packhorse, note: Any):
    """None of their jobs is lost, and each thread gets its own."""
    jobs: list[Any] = []

    def enqueue() -> None:
        for number in range(20):
            jobs.append(note.enqueue(number))

    threads = [threading.Thread(target=enqueue) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({job.id for job in jobs}) == 120
    assert app.inspection.counts()[JobState.READY] == 120


def test_times_come_from_the_store(app: Packhorse, note: Any):
    """Created now, by the clock that the store reads."""
    before = to_datetime(app.clock.now())
    assert before <= note.enqueue(1).look().created_at <= to_datetime(app.clock.now())


def test_operators_may_name_thousands_of_jobs(app: Packhorse, note: Any):
    """More than one statement can carry."""
    handles = app.enqueue_many(note.call(number) for number in range(2_500))
    assert app.control.cancel([handle.id for handle in handles], actor="ann") == 2_500
    assert app.inspection.counts()[JobState.CANCELLED] == 2_500


def test_operators_mistakes_are_told(app: Packhorse):
    """An id that is none, and a time without a zone."""
    with pytest.raises(JobNotFound, match="nonsense"):
        app.control.cancel(["nonsense"])
    with pytest.raises(ConfigError, match="no time zone"):
        app.control.pause("mail", until=datetime(2030, 1, 1))
