"""An exception from outside at every place of a store's call where CPython can raise one: nothing stays behind.

These are strangers' (a KeyboardInterrupt, a test's timeout), which nobody can put off, as threads that perform jobs put
off ours. So each call is struck at one place after the other, and the store looked at while the exception is alive.
"""

import fcntl
import gc
import itertools
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from chaos.strikes import struck_at
from packhorse.clock import SystemClock
from packhorse.ids import new_id
from packhorse.job import Token
from packhorse.queues import EVERYTHING
from packhorse.stores import Store, open_store, sqlite_connections
from packhorse.stores.contract import Entry
from packhorse.stores.postgres import PostgresStore
from packhorse.stores.sqlite import SQLiteStore
from packhorse.testing.contract.helpers import Worker, job, new_nonce, succeeded
from tests.contract.stores import quick_folder
from tests.servers.postgres import Server
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(bool(os.environ.get("COVERAGE_RUN")), reason="it profiles, as this does")

Call = Callable[[], object]
SCHEMA = "struck"


class Struck:
    """A store whose calls are struck; each `Way` makes what it needs, and says what to call."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.worker = Worker(store, "worker", lease=10**9)
        self.names = itertools.count()
        self.lent: Any = None

    def new(self) -> str:
        return f"{next(self.names)}-{os.getpid()}"

    def claimed(self) -> Token:
        self.store.insert([job(self.new())])
        [claim, *_] = self.worker.claim(1)
        return claim.token

    # The calls.

    def enqueue(self) -> Call:
        new = job(self.new())
        return lambda: self.store.insert([new])

    def enqueue_on_a_new_connection(self) -> Call:
        self.store.close()
        return self.enqueue()

    def enqueue_many(self) -> Call:
        jobs = [job(self.new()) for _ in range(500)]
        return lambda: self.store.insert(jobs)

    def step(self) -> Call:
        token = self.claimed()
        return lambda: self.store.record(token, [Entry("step", "one", b"1")])

    def look(self) -> Call:
        token = self.claimed()
        return lambda: self.store.entries(token.id)

    def signal(self) -> Call:
        return lambda: self.store.signal(self.new(), b"data", 1)

    def exchange(self) -> Call:
        done = succeeded(self.claimed())
        self.store.insert([job(self.new())])
        nonce = new_nonce()
        return lambda: self.store.exchange(self.worker.id, nonce, [done], EVERYTHING, 1)

    def enqueue_on_a_borrowed_connection(self) -> Call:
        new = job(self.new())
        self.lent = self.connect()
        return lambda: self.store.lent(self.lent).insert([new])

    def connect(self) -> Any:
        if isinstance(self.store, SQLiteStore):
            return sqlite3.connect(self.store.path, timeout=0.1, isolation_level=None)
        return psycopg.connect(self.store._connections._conninfo, autocommit=True)

    # What must be so while the exception is alive, and after it.

    def check(self) -> None:
        if isinstance(self.store, SQLiteStore):
            check_file(self.store.path)
        else:
            for connection in self.store._connections._idle:
                assert connection.closed or connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        again = self.new()
        self.store.insert([job(again)])
        if self.lent is not None:
            if not getattr(self.lent, "closed", False):
                self.lent.rollback()
                self.lent.execute("select 1").fetchone()
                self.lent.close()
            self.lent = None


def check_file(path: Path) -> None:
    """Another process gets the lock, and SQLite's own."""
    lock = os.open(f"{path}-lock", os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        other = sqlite3.connect(path, timeout=0, isolation_level=None)
        other.execute("begin immediate")
        other.execute("rollback")
        other.close()
    finally:
        os.close(lock)


@pytest.fixture(params=["sqlite", "postgres"])
def struck(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Struck]:
    monkeypatch.setattr(sqlite_connections, "DEADLINE", 0.5)  # nobody is slow here, only gone
    if request.param == "postgres":
        server: Server = request.getfixturevalue("postgres")
        store: Store = open_store(server.url("postgres", schema=SCHEMA), SystemClock())
        store.migrate()
        yield Struck(store)
        store.close()
        server.run(f"drop schema {SCHEMA} cascade")
        return
    with quick_folder() as folder:
        store = open_store(f"sqlite:///{folder}/jobs.db", SystemClock())
        store.migrate()
        yield Struck(store)
        store.close()


def open_descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


CALLS = (
    "enqueue",
    "enqueue_on_a_new_connection",
    "enqueue_many",
    "step",
    "look",
    "signal",
    "exchange",
    "enqueue_on_a_borrowed_connection",
)
SOME = {"sqlite": 5, "postgres": 19}  # every so-manieth place, in each run
ALL = {"sqlite": 1, "postgres": 3}


# Of generators of psycopg's, which find their line closed.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("stride", ["some", pytest.param("all", marks=pytest.mark.thorough)])
@pytest.mark.parametrize("call", CALLS)
def test_nothing_stays_behind_wherever_a_call_is_struck(struck: Struck, call: str, stride: str):
    make: Callable[[], Call] = getattr(struck, call)
    make()()  # what is only done once
    struck.check()
    struck.store.close()
    descriptors = open_descriptors()
    kind = "sqlite" if isinstance(struck.store, SQLiteStore) else "postgres"
    places = 0
    step = (ALL if stride == "all" else SOME)[kind] * (20 if "many" in call else 1)
    for place in itertools.count(0, step):
        work = make()
        raised = struck_at(place, work)  # is alive until the next
        try:
            struck.check()
        except BaseException as error:
            error.add_note(f"struck at place {place}, {raised!r}")
            raise error from raised
        if raised is None:
            break
        places += 1
    assert places > 3
    raised = work = None  # type: ignore[assignment]

    def all_closed() -> bool:
        gc.collect()
        struck.store.close()  # a descriptor that was in somebody's way is closed at the next occasion
        return open_descriptors() <= descriptors

    wait_until(all_closed, "as many descriptors as before")
    if isinstance(struck.store, PostgresStore):
        assert_no_transactions(struck.store)


def assert_no_transactions(store: PostgresStore) -> None:
    """A server notices soon that a client has gone."""
    ours = """
        select count(*) from pg_stat_activity
        where datname = current_database() and pid <> pg_backend_pid() and xact_start is not null
              and backend_type = 'client backend'
    """
    with psycopg.connect(store._connections._conninfo, autocommit=True) as look:
        wait_until(lambda: look.execute(ours).fetchone() == (0,))


def test_a_struck_job_is_there_wholly_or_not_at_all(struck: Struck):
    for place in itertools.count(0, 3):
        name = struck.new()
        new = job(name, after=(), payload=b"its arguments")
        if struck_at(place, lambda new=new: struck.store.insert([new])) is None:  # type: ignore[misc]
            break
        found = struck.store.job(new.id)
        assert found is None or (found.state == "ready" and found.payload == b"its arguments")
    assert struck.store.job(new.id) is not None
    assert struck.store.job(new_id()) is None
