"""The queue in which a process's threads wait for the lock of SQLite's writers."""

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from packhorse.errors import StoreUnavailable
from packhorse.stores import sqlite_connections
from packhorse.stores.sqlite import SQLiteStore
from packhorse.stores.sqlite_connections import Connection
from packhorse.stores.sqlite_queue import WriterQueue, queue_of
from tests.waiting import wait_until

LONG = 120.0


class Struck(BaseException):
    pass


class Waiter(threading.Thread):
    """A thread that waits for the lock, which the test hands out, and says what came of it."""

    def __init__(self, queue: WriterQueue, permits: threading.Semaphore, patience: float = LONG) -> None:
        super().__init__(daemon=True)
        self._queue, self._permits, self._patience = queue, permits, patience
        self.got: bool | None = None
        self.struck = False
        before = len(queue.waiting)
        self.start()
        wait_until(lambda: len(queue.waiting) > before or not self.is_alive(), "it waits")

    def run(self) -> None:
        try:
            self.got = self._queue.wait(lambda: self._permits.acquire(blocking=False), self._patience)
        except Struck:
            self.struck = True

    def strike(self) -> None:
        """Raise an exception in the thread, wherever it is."""
        assert self.ident is not None
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.ident), ctypes.py_object(Struck))
        self.join()
        assert self.struck


@pytest.fixture
def permits() -> threading.Semaphore:
    return threading.Semaphore(0)


def test_writers_are_served_in_the_order_in_which_they_came(permits: threading.Semaphore):
    queue = WriterQueue()
    waiters = [Waiter(queue, permits) for _ in range(5)]
    for number, waiter in enumerate(waiters):
        permits.release()
        waiter.join()
        assert [each.got for each in waiters] == [True] * (number + 1) + [None] * (4 - number)
    assert not queue.waiting


def test_a_writer_that_gives_up_leaves_no_place_behind(permits: threading.Semaphore):
    """Neither the first, nor one in the middle."""
    queue = WriterQueue()
    impatient = [Waiter(queue, permits, 0.05)]
    patient = Waiter(queue, permits)
    impatient.append(Waiter(queue, permits, 0.05))
    last = Waiter(queue, permits)
    for waiter in impatient:
        waiter.join()
        assert waiter.got is False
    assert len(queue.waiting) == 2
    for waiter in (patient, last):
        permits.release()
        waiter.join()
        assert waiter.got is True


@pytest.mark.parametrize("struck", [0, 1])
def test_a_struck_writer_leaves_no_place_behind(permits: threading.Semaphore, struck: int):
    queue = WriterQueue()
    waiters = [Waiter(queue, permits) for _ in range(3)]
    waiters.pop(struck).strike()
    assert len(queue.waiting) == 2
    for waiter in waiters:
        permits.release()
        waiter.join()
        assert waiter.got is True
    assert not queue.waiting


def test_patience_begins_anew_with_everyone_who_is_served(monkeypatch: pytest.MonkeyPatch):
    """Who stands behind many others is refused only when none of them has got it for so long."""
    now = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=time.sleep)
    monkeypatch.setattr("packhorse.stores.sqlite_queue.time", clock)
    queue, permits = WriterQueue(), threading.Semaphore(0)
    waiters = [Waiter(queue, permits, 1.0) for _ in range(4)]
    for waiter in waiters[:3]:
        now[0] += 0.9
        permits.release()
        waiter.join()
        assert waiter.got is True
    assert waiters[3].is_alive()
    now[0] += 1.1
    waiters[3].join()
    assert waiters[3].got is False


def test_connections_of_one_database_share_a_queue(tmp_path: Path):
    (tmp_path / "one").touch()
    (tmp_path / "two").touch()
    fds = [os.open(tmp_path / name, os.O_RDONLY) for name in ("one", "one", "two")]
    first, second, other = map(queue_of, fds)
    assert first is second
    assert first is not other
    for fd in fds:
        os.close(fd)


# With connections.


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    tmp_path.chmod(0o700)
    store = SQLiteStore(f"sqlite:///{tmp_path}/jobs.db")
    store.migrate()
    yield store
    store.close()


def test_whoever_holds_the_lock_closes_past_those_who_wait(store: SQLiteStore):
    """A failed transaction closes its connection; to queue up for the lock it has would mean to wait for itself."""
    pool = store._connections
    holder, other = pool.take(), pool.take()
    holder.acquire()
    thread = in_thread(other.acquire)
    wait_until(lambda: other._queue.waiting, "the other one waits")
    holder.close()
    thread.join()
    other.release()
    assert holder.closed
    pool.give_back(other)


def test_a_struck_writer_does_not_keep_the_lock(store: SQLiteStore, monkeypatch: pytest.MonkeyPatch):
    """The exception comes right behind the call that has got it."""
    pool = store._connections
    connection, other = pool.take(), pool.take()

    def struck(connection: Connection) -> bool:
        try_lock(connection)
        raise Struck

    try_lock = Connection._try_lock
    with monkeypatch.context() as striking:
        striking.setattr(Connection, "_try_lock", struck)
        with pytest.raises(Struck):
            connection.acquire()
    other.acquire()
    other.release()
    pool.give_back(connection)
    pool.give_back(other)


@pytest.mark.parametrize("patient", [False, True])
def test_a_writer_that_nobody_lets_in_is_refused(store: SQLiteStore, monkeypatch: pytest.MonkeyPatch, patient: bool):
    monkeypatch.setattr(sqlite_connections, "DEADLINE", 0.05)
    pool = store._connections
    holder, other = pool.take(), pool.take()
    holder.acquire()
    with pytest.raises(StoreUnavailable, match="look for a stopped process"):
        other.acquire(patient)
    holder.release()
    other.acquire(patient)
    other.release()
    pool.give_back(holder)
    pool.give_back(other)


def test_a_forked_child_does_not_wait_for_its_parents_threads(store: SQLiteStore):
    pool = store._connections
    holder, other = pool.take(), pool.take()
    queue = holder._queue
    queue.waiting.append(threading.Lock())  # as if the fork had come in the middle
    pool.give_back(holder)
    pool.give_back(other)
    if (child := os.fork()) == 0:
        os._exit(len(queue.waiting))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    queue.waiting.clear()


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread
