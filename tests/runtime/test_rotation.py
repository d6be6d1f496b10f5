"""Changing keys while jobs are enqueued and performed: add everywhere, promote, wait, remove."""

import logging
import random
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from packhorse import (
    Context,
    Embedded,
    FailureKind,
    JobFailed,
    JobHandle,
    JobState,
    Packhorse,
    PackhorseError,
    PayloadError,
    ResultUnavailable,
)
from packhorse.ids import from_text
from packhorse.signing import key_id
from packhorse.stores.contract import Act, Change, OrderKind, Selection
from tests.waiting import wait_until

SOON = 60.0
K1, K2, K3 = (f"{name}-key-{uuid.uuid5(uuid.NAMESPACE_DNS, name)}" for name in ("one", "two", "three"))

Ring = tuple[str, ...]


def app_on(database: Path, keys: Ring, name: str = "shop", **settings: Any) -> Packhorse:
    """As each program of a fleet would make it: one file, connections of its own."""
    url = f"sqlite:///{database}?synchronous=normal"
    app = Packhorse(name, url, keys=keys, heartbeat=0.1, lease=30, polling_interval=0.2, **settings)

    @app.task(name="double", takes_context=True)
    def double(context: Context, number: int) -> int:
        context.progress(number)
        return 2 * number

    @app.task(name="adouble")
    async def adouble(number: int) -> int:
        return 2 * number

    @app.task(name="fail", retries=1, backoff=0)
    def fail(number: int) -> None:
        raise ValueError(f"number {number}")

    return app


def sealed_with(data: bytes) -> str:
    """Which of our keys an envelope names."""
    return {key_id(key.encode()): key for key in (K1, K2, K3)}[data[2:6]]


class Program:
    """One member of a fleet: enqueues in one thread, performs in others, and reads what became of its jobs."""

    def __init__(self, database: Path, keys: Ring, **settings: Any) -> None:
        self.app = app_on(database, keys, **settings)
        self.keys = keys
        self.enqueued: list[tuple[str, int, str]] = []
        self.read: set[str] = set()
        self.wrong: list[str] = []
        self._stopping, self._all_enqueued = threading.Event(), threading.Event()
        self._worker = Embedded(self.app, concurrency=2)
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._enqueue, self._read)]

    def start(self) -> None:
        self._worker.__enter__()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """It has read the end of all it enqueued."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(SOON)
            assert not thread.is_alive()
            self._all_enqueued.set()
        self._worker.__exit__(None, None, None)
        self.app.close()

    def _enqueue(self) -> None:
        draw, number = random.Random(id(self)), 0
        while not self._stopping.is_set():
            number += 1
            name = draw.choice(["double", "double", "adouble", "fail"])
            handle = self.app.tasks[name].enqueue(number)
            self.enqueued.append((handle.id, number, name))
            self._stopping.wait(0.003)

    def _read(self) -> None:
        place = 0
        while not self._all_enqueued.is_set() or place < len(self.enqueued):
            if place == len(self.enqueued):
                self._all_enqueued.wait(0.002)
                continue
            id, number, name = self.enqueued[place]
            place += 1
            try:
                self._check(self.app.job(id), number, name)
            except (PackhorseError, AssertionError) as error:
                self.wrong.append(f"{name} {number}, read with {self.keys}: {error!r}")
            self.read.add(id)

    def _check(self, job: JobHandle[Any], number: int, name: str) -> None:
        if name != "fail":
            assert job.result(SOON) == 2 * number
            if name == "double":
                progress = job.progress()
                assert progress is not None
                assert progress.done == number
            return
        with pytest.raises(JobFailed) as caught:
            job.result(SOON)
        seen = job.look()
        assert caught.value.failure.message == f"number {number}"
        assert [attempt.failure.message for attempt in seen.failures] == [f"number {number}"]


@contextmanager
def fleet(database: Path, size: int, keys: Ring, **settings: Any) -> Iterator[list[Program]]:
    programs = [Program(database, keys, **settings) for _ in range(size)]
    for program in programs:
        program.start()
    try:
        yield programs
    finally:
        for program in programs:
            program.stop()


@pytest.mark.slow
@pytest.mark.parametrize("encryption", [False, True])
def test_keys_are_changed_under_load_and_no_job_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, encryption: bool
):
    """Program by program, each step everywhere before the next; every result and failure is read on the way."""
    database = tmp_path / "jobs.db"
    gone: list[Program] = []

    def settle(programs: list[Program]) -> None:
        """Some work is done in this state, by everybody."""
        before = [len(program.read) for program in programs]
        wait_until(lambda: all(len(it.read) >= n + 15 for it, n in zip(programs, before, strict=True)), patience=SOON)

    def deploy(programs: list[Program], keys: Ring) -> None:
        for place, old in enumerate(list(programs)):
            programs[place] = Program(database, keys, encryption=encryption)
            programs[place].start()
            settle(programs)
            old.stop()
            gone.append(old)

    def unfinished_with(key: str) -> int:
        states = {state for state in JobState if not state.finished}
        jobs = looking.inspection.stored_jobs(Selection(states=states), page=1_000)
        whole = (looking.store.job(from_text(job.id)) for job in jobs)
        return sum(sealed_with(job.payload) == key for job in whole if job is not None and not job.finished)

    looking = app_on(database, (K2, K1), encryption=encryption)
    with caplog.at_level(logging.INFO, "packhorse"), fleet(database, 3, (K1,), encryption=encryption) as programs:
        settle(programs)
        deploy(programs, (K1, K2))
        deploy(programs, (K2, K1))
        wait_until(lambda: unfinished_with(K1) == 0, "all jobs signed with the old key are done", patience=SOON)
        deploy(programs, (K2,))
        settle(programs)
        gone += programs
    assert [wrong for program in gone for wrong in program.wrong] == []
    enqueued = [job for program in gone for job in program.enqueued]
    assert len(gone) == 12
    assert {id for program in gone for id in program.read} == {id for id, *_ in enqueued}
    assert [it.getMessage() for it in caplog.records if "was not performed" in it.getMessage()] == []
    for job in looking.inspection.jobs(Selection(states={JobState.FAILED})):
        assert job.failure is not None
        assert job.failure.kind is FailureKind.EXCEPTION
    seals = [sealed_with(looking.inspection.stored(id).payload) for id, *_ in enqueued[::10]]
    assert set(seals) == {K1, K2}
    looking.close()


@pytest.mark.parametrize("encryption", [False, True])
def test_a_removed_key_is_refused(tmp_path: Path, encryption: bool):
    """What it signed is neither performed nor believed, and comes back with the key."""
    database = tmp_path / "jobs.db"
    old, new = (app_on(database, keys, encryption=encryption) for keys in ((K1,), (K2,)))
    with Embedded(old):
        done, failed = old.tasks["double"].enqueue(1), old.tasks["fail"].enqueue(2)
        assert done.result(SOON) == 2
        wait_until(lambda: failed.state.finished)
    late = old.tasks["double"].enqueue(3)
    with Embedded(new):
        with pytest.raises(JobFailed, match="which application 'shop' does not have") as caught:
            new.job(late.id).result(SOON)
        assert caught.value.failure.kind is FailureKind.UNDECODABLE
        assert new.tasks["double"].enqueue(4).result(SOON) == 8
    with pytest.raises(ResultUnavailable, match=f"signed with the key {key_id(K1.encode()).hex()}"):
        new.job(done.id).result(0)
    failure = new.job(failed.id).look().failure
    assert failure is not None
    assert "cannot be shown" in failure.message
    with pytest.raises(PayloadError):
        new.job(done.id).progress()
    both = app_on(database, (K2, K1), encryption=encryption)
    assert both.job(done.id).result(0) == 2
    assert both.job(failed.id).look().failure.message == "number 2"  # type: ignore[union-attr]
    assert both.job(late.id).retry()
    with Embedded(both):
        assert both.job(late.id).result(SOON) == 6
    for app in (old, new, both):
        app.close()


def test_an_envelope_that_names_a_key_it_was_not_sealed_with_is_refused(tmp_path: Path):
    """The name is a hint where to look, and is signed itself."""
    app = app_on(tmp_path / "jobs.db", (K1, K2))
    job = app.tasks["double"].enqueue(1)
    raw, payload = from_text(job.id), app.inspection.stored(job.id).payload
    for other in (K2, K3):
        renamed = payload[:2] + key_id(other.encode()) + payload[6:]
        with pytest.raises(PayloadError):
            app.seals.open_job(raw, "double", renamed)
    unsigned = payload[:1] + bytes([payload[1] & ~1]) + bytes(20) + payload[22:]
    with pytest.raises(PayloadError, match="takes signed envelopes only"):
        app.seals.open_job(raw, "double", unsigned)
    assert app.seals.open_job(raw, "double", payload).version == 1
    app.close()


@pytest.mark.parametrize("encryption", [False, True])
def test_a_job_of_one_application_is_refused_by_another(tmp_path: Path, encryption: bool):
    """Though they share store, key and task: a copied row is not a job of theirs."""
    database = tmp_path / "jobs.db"
    shop, bank = (app_on(database, (K1,), name, encryption=encryption) for name in ("shop", "bank"))
    runs: list[int] = []
    bank.tasks["double"].function = lambda context, number: runs.append(number)
    job = shop.tasks["double"].enqueue(1)
    with Embedded(bank):
        with pytest.raises(JobFailed, match="made for something else than jobs of application 'bank'") as caught:
            bank.job(job.id).result(SOON)
        assert caught.value.failure.kind is FailureKind.UNDECODABLE
    assert runs == []
    with Embedded(shop):
        assert job.retry()
        assert job.result(SOON) == 2
    with pytest.raises(ResultUnavailable, match="made for something else than results"):
        bank.job(job.id).result(0)
    for app in (shop, bank):
        app.close()


def test_an_order_of_another_application_or_key_is_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """A job goes on; it is said once, not at every beat."""
    database = tmp_path / "jobs.db"
    shop, bank, outsider = app_on(database, (K1,)), app_on(database, (K1,), "bank"), app_on(database, (K3,))
    running, go = threading.Event(), threading.Event()

    @shop.task(takes_context=True)
    def work(context: Context) -> bool:
        running.set()
        assert go.wait(SOON)
        return context.stop_requested

    with Embedded(shop):
        job = work.enqueue()
        assert running.wait(SOON)
        forgeries = [
            bank.seals.order(OrderKind.CANCEL, "forged"),
            outsider.seals.order(OrderKind.CANCEL, "forged"),
            shop.seals.order(OrderKind.CANCEL, "another reason"),
            b"",
        ]
        for seal in forgeries:
            assert not shop.seals.is_order(OrderKind.CANCEL, "forged", seal)
            shop.store.move(Selection(ids=[from_text(job.id)]), Change(Act.CANCEL, seal=seal), "nobody", "forged")
        wait_until(lambda: "was not ours and is ignored" in caplog.text)
        go.set()
        assert job.result(SOON) is False
    assert caplog.text.count("was not ours and is ignored") == 1
    for app in (shop, bank, outsider):
        app.close()


def test_orders_are_obeyed_across_a_rotation(tmp_path: Path):
    """An operator whose program signs with the new key is heard by a worker that has both."""
    database = tmp_path / "jobs.db"
    worker, operator = app_on(database, (K1, K2)), app_on(database, (K2, K1))
    running = threading.Event()

    @worker.task(takes_context=True, name="work")
    def work(context: Context) -> bool:
        running.set()
        wait_until(lambda: context.stop_requested, patience=SOON)
        return True

    with Embedded(worker):
        job = work.enqueue()
        assert running.wait(SOON)
        assert operator.job(job.id).cancel()
        assert job.result(SOON) is True
    for app in (worker, operator):
        app.close()
