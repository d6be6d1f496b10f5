"""A process has so many connections and no more: the others queue, but for what others wait for."""

import ctypes
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import psycopg
import pytest

from packhorse import Packhorse
from packhorse.clock import SECOND
from packhorse.errors import StoreUnavailable, StoreURLError
from packhorse.ids import new_id
from packhorse.job import JobState, NewJob, Parent
from packhorse.outcome import succeed
from packhorse.queues import EVERYTHING
from packhorse.stores import postgres_places
from packhorse.stores.contract import Act, Change, ProcessInfo, Selection
from packhorse.stores.postgres import PostgresStore
from packhorse.stores.postgres_url import parse
from tests.contract.stores import schemas
from tests.servers.postgres import Server
from tests.waiting import wait_until

SOON = 60.0
KEY = ["a key of 32 or more characters, for tests"]


@pytest.fixture
def url(postgres: Server) -> Iterator[str]:
    with schemas(postgres) as urls:
        yield f"{next(urls)}&application_name=pool"


@pytest.fixture
def narrow(url: str) -> Iterator[PostgresStore]:
    """A store with a single connection."""
    store = PostgresStore(f"{url}&pool=1")
    store.migrate()
    yield store
    store.close()


def backends(server: Server) -> int:
    [(number,)] = server.run("select count(*) from pg_stat_activity where application_name = 'pool'")
    assert isinstance(number, int)
    return number


def queueing(store: PostgresStore) -> int:
    return len(store._connections._lanes._common._queue)


def is_queueing(store: PostgresStore, number: int) -> bool:
    return queueing(store) == number


def free(store: PostgresStore) -> int:
    places = store._connections._lanes._common
    return places._free + len(places.dropped)


def test_more_threads_than_the_server_has_room_for(url: str, postgres: Server):
    """None is refused, and the process has no more connections than it may."""
    app = Packhorse("shop", url, keys=KEY)
    most, over = [0], threading.Event()

    @app.task
    def work(number: int) -> None: ...

    def enqueue(number: int) -> None:
        for _ in range(20):
            work.enqueue(number)

    def look() -> None:
        while not over.wait(0.01):
            most[0] = max(most[0], backends(postgres))

    looking = threading.Thread(target=look)
    looking.start()
    try:
        with ThreadPoolExecutor(120) as threads:
            list(threads.map(enqueue, range(120)))
    finally:
        over.set()
        looking.join()
    [queue] = app.store.queues()
    assert queue.of(JobState.READY) == 2_400
    assert 1 < most[0] < 2 * postgres_places.POOL, "those that are being closed are still there for a moment"
    app.close()


def test_who_came_first_goes_first(narrow: PostgresStore):
    order: list[int] = []

    def use(number: int) -> None:
        connection = narrow._connections.take()
        order.append(number)
        narrow._connections.give_back(connection)

    held = narrow._connections.take()
    with ThreadPoolExecutor(10) as threads:
        for number in range(10):
            threads.submit(use, number)
            wait_until(partial(is_queueing, narrow, number + 1), "it to queue")
        narrow._connections.give_back(held)
    assert order == list(range(10))
    assert free(narrow) == 1


def test_who_waits_too_long_is_told_why(narrow: PostgresStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(postgres_places, "WITHIN", 0.05)
    held = narrow._connections.take()
    with ThreadPoolExecutor() as threads:
        told = threads.submit(narrow.queues).exception(SOON)
    assert isinstance(told, StoreUnavailable)
    assert "all 1 connections that this process may have at once have been in use for 0.05 s" in str(told)
    assert "pool=" in str(told)
    assert queueing(narrow) == 0
    narrow._connections.give_back(held)
    assert narrow.queues() == []


def test_what_keeps_a_worker_alive_does_not_queue_behind_its_tasks(narrow: PostgresStore):
    """It enrols, claims, beats and finishes while all connections of the program are in use."""
    job = NewJob(new_id(), "task", b"")
    narrow.insert([job])
    held, process = narrow._connections.take(), new_id()

    def live() -> list[bytes]:
        narrow.enroll(ProcessInfo(process, "worker", "here", 1), 60 * SECOND)
        narrow.promote(10)
        [claim] = narrow.exchange(process, 1, [], EVERYTHING, 1).claims
        assert narrow.beat([process]) == []
        assert narrow.orders([process]) == []
        narrow.exchange(process, 2, [succeed(claim.token, 1, None)], EVERYTHING, 0)
        return [claim.token.id]

    with ThreadPoolExecutor() as threads:
        assert threads.submit(live).result(SOON) == [job.id]
    assert queueing(narrow) == 0
    narrow._connections.give_back(held)


def test_waiting_for_jobs_does_not_queue_behind_those_who_work(narrow: PostgresStore):
    """The room looks on behalf of all who wait."""
    job = NewJob(new_id(), "task", b"")
    narrow.insert([job])
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(narrow.room.wait, [job.id], SOON)
        wait_until(lambda: narrow.room._sleeps_in is not None, "it to wait")
        held = narrow._connections.take()
        other = PostgresStore(narrow.url)
        other.move(Selection(ids=[job.id]), Change(Act.CANCEL), "ann", "")
        assert waiting.result(SOON) == {job.id}
        other.close()
    narrow._connections.give_back(held)


def test_who_has_a_connection_does_not_wait_for_a_second(narrow: PostgresStore):
    """Else all who have one might wait for each other."""
    held = narrow._connections.take()
    assert narrow.queues() == []
    narrow._connections.give_back(held)
    assert free(narrow) == 1


def test_who_has_a_transaction_of_the_caller_in_hand_does_not_queue(narrow: PostgresStore):
    """What it has locked may be what those wait for who have all connections. Here a look of its own is needed."""
    first, then = NewJob(new_id(), "task", b""), new_id()
    narrow.insert([first, NewJob(then, "task", b"", after=(Parent(first.id),))])
    process = new_id()
    narrow.enroll(ProcessInfo(process, "worker", "here", 1), 60 * SECOND)
    [claim] = narrow.exchange(process, 1, [], EVERYTHING, 1).claims
    held = narrow._connections.take()

    def complete() -> bool:
        with psycopg.connect(narrow._connections._conninfo) as theirs:
            theirs.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            return narrow.lent(theirs).complete(succeed(claim.token, 1, None))

    with ThreadPoolExecutor() as threads:
        assert threads.submit(complete).result(SOON) is True
    narrow._connections.give_back(held)
    job = narrow.job(then)
    assert job is not None
    assert job.state is JobState.READY


class Struck(BaseException):
    pass


# A thread that is hit right after `take` drops its connection, and the driver says so.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_exception_raised_into_a_thread_loses_no_place(url: str):
    """Whether it queues, has just got its place, or is at work."""
    store = PostgresStore(f"{url}&pool=2")
    store.migrate()
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            try:
                while not over.is_set():
                    connection = store._connections.take()
                    try:
                        time.sleep(0.000_2)
                    finally:
                        store._connections.give_back(connection)
            except Struck:
                continue

    def guarded() -> None:
        while not over.is_set():
            try:
                work()
            except Struck:
                continue

    threads = [threading.Thread(target=guarded) for _ in range(8)]
    for thread in threads:
        thread.start()
    draw = random.Random(1)
    for _ in range(300):
        thread = draw.choice(threads)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Struck))
        time.sleep(draw.uniform(0, 0.002))
    over.set()
    for thread in threads:
        thread.join(SOON)
    assert not any(thread.is_alive() for thread in threads)
    assert free(store) == 2
    assert queueing(store) == 0
    store.close()


def test_a_failed_connect_gives_its_place_back(narrow: PostgresStore, monkeypatch: pytest.MonkeyPatch):
    """Also while somebody keeps the error."""
    errors: list[BaseException] = []
    narrow._connections.drop_idle()
    with monkeypatch.context() as patch:
        patch.setattr(narrow._connections, "_conninfo", "host=/nowhere")
        for _ in range(3):
            with pytest.raises(StoreUnavailable) as caught:
                narrow.queues()
            errors.append(caught.value)
    assert narrow.queues() == []


def test_a_forked_child_has_all_places(narrow: PostgresStore):
    """Its parent's threads have taken theirs along into another process."""
    held = narrow._connections.take()
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(narrow.queues)
        wait_until(lambda: queueing(narrow) == 1, "somebody to queue")
        child = in_child(lambda: narrow.queues() == [])
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        narrow._connections.give_back(held)
        assert waiting.result(SOON) == []


def in_child(act: Callable[[], Any]) -> int:
    if pid := os.fork():
        return pid
    try:
        os._exit(0 if act() else 1)
    finally:
        os._exit(2)


@pytest.mark.parametrize("pool", ["0", "-1", "many", "1001", "²"])
def test_a_pool_that_is_no_number_is_refused(pool: str):
    with pytest.raises(StoreURLError, match="pool must be a number from 1 to 1000"):
        parse(f"postgresql:///jobs?pool={pool}&schema=x")


def test_the_driver_is_not_told_of_the_pool():
    found = parse("postgresql:///jobs?pool=3")
    assert found.pool == 3
    assert "pool" not in found.conninfo
