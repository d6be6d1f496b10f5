"""PostgreSQL with its history in partitions: the same promises, and old rows go without being deleted one by one."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from packhorse.clock import SECOND, Clock, ManualClock
from packhorse.errors import StoreURLError
from packhorse.job import JobState, NewJob
from packhorse.outcome import Outcome, succeed
from packhorse.queues import EVERYTHING
from packhorse.stores import Store, postgres_history
from packhorse.stores.contract import ProcessInfo, Retention, Selection
from packhorse.stores.postgres import PostgresStore
from packhorse.testing.contract.behind import leftovers
from packhorse.testing.contract.test_adopt import *  # noqa: F403
from packhorse.testing.contract.test_fencing import *  # noqa: F403
from packhorse.testing.contract.test_insert import *  # noqa: F403
from packhorse.testing.contract.test_looking import *  # noqa: F403
from packhorse.testing.contract.test_lost_replies import *  # noqa: F403
from packhorse.testing.contract.test_move import *  # noqa: F403
from packhorse.testing.contract.test_one_stroke import *  # noqa: F403
from packhorse.testing.contract.test_outcomes import *  # noqa: F403
from packhorse.testing.contract.test_prune import *  # noqa: F403
from packhorse.testing.contract.test_reseal import *  # noqa: F403
from tests.contract.stores import EMPTY, on_kept_lines, schemas
from tests.servers.postgres import Server
from tests.waiting import wait_until

DAY = 86_400 * SECOND
WORKER = b"w" * 16
KEPT = Retention(2 * DAY, 5 * DAY, 2 * DAY)
BEGINNING = datetime(2026, 11, 18, 15, 30, tzinfo=UTC)
SCHEMA = "divided"
FAR = int(datetime(9990, 1, 1, tzinfo=UTC).timestamp()) * SECOND  # so that the first partition has all names of tests


# What every store promises, with all jobs in a partition.


@pytest.fixture
def new_store(postgres: Server) -> Iterator[Callable[[Clock], Store]]:
    url = postgres.url("postgres", schema=SCHEMA)

    def opened(clock: Clock) -> Store:
        if not postgres.run(f"select 1 from pg_namespace where nspname = '{SCHEMA}'"):
            store = PostgresStore(url)
            store.migrate()
            with store._changing("migrate", "5s") as connection:
                postgres_history.divide(connection, "", postgres_history.DAY, FAR)
            store.close()
        return on_kept_lines(postgres, url, clock)

    yield opened
    postgres.run(EMPTY.format(schema=SCHEMA))


def test_these_have_their_jobs_in_a_partition(store: Store):
    assert isinstance(store, PostgresStore)
    store.insert([NewJob(b"z" * 16, "task", b"")])
    with store._cursor() as c:
        assert c.plain("select count(*) from payload_before").fetchall() == [(1,)]


# Partitions.


class Place:
    """A store whose history is divided by days, at a time that is told, and its tables."""

    def __init__(self, server: Server, url: str) -> None:
        self.server = server
        self.clock = ManualClock(int(BEGINNING.timestamp()) * SECOND)
        self.url = url
        self.store = self.open("&history=daily")
        self.store.migrate()
        self.store.enroll(ProcessInfo(WORKER, "worker", "here", 1), 1_000 * DAY)
        self._nonce = 0

    def open(self, more: str = "") -> PostgresStore:
        return PostgresStore(self.url + more, self.clock)

    def new_jobs(self, number: int, **more: Any) -> list[NewJob]:
        """With ids of this very moment."""
        moment = self.clock.now() // 1_000
        made = []
        for _ in range(number):
            self._nonce += 1
            made.append(NewJob(moment.to_bytes(6, "big") + self._nonce.to_bytes(10, "big"), "task", b"body", **more))
        self.store.insert(made)
        return made

    def end(self, how: Callable[[Any], Outcome] = lambda token: succeed(token, 1, b"result")) -> None:
        """All that are ready."""
        while True:
            self._nonce += 1
            if not (claims := self.store.exchange(WORKER, self._nonce, [], EVERYTHING, 1_000).claims):
                break
            self._nonce += 1
            outcomes = [how(claim.token) for claim in claims]
            assert not self.store.exchange(WORKER, self._nonce, outcomes, (), 0).refused

    def prune(self) -> None:
        while self.store.prune(KEPT, 1_000):
            pass

    def tend(self) -> None:
        self.store.tend_history(KEPT)

    def parts(self, table: str = "payload") -> list[str]:
        rows = self.run(
            "select substr(relname::text, length(%s) + 2) from pg_inherits join pg_class on pg_class.oid = inhrelid "
            "where inhparent = to_regclass(%s) order by 1",
            table,
            table,
        )
        return [name for (name,) in rows]

    def count(self, table: str) -> int:
        [(number,)] = self.run(f"select count(*) from {table}")
        return int(number)

    def run(self, text: str, *values: Any) -> list[tuple[Any, ...]]:
        connection = self.store._connections.take()
        try:
            cursor = connection.execute(text.encode(), values)
            return cursor.fetchall() if cursor.description else []
        finally:
            self.store._connections.give_back(connection)

    def ids(self) -> set[str]:
        return {job.id.replace("-", "") for job in self.store.jobs(Selection(), limit=10_000)}


def ids(*some: Sequence[NewJob]) -> set[str]:
    return {job.id.hex() for jobs in some for job in jobs}


@pytest.fixture
def place(postgres: Server) -> Iterator[Place]:
    with schemas(postgres) as urls:
        place = Place(postgres, next(urls))
        yield place
        place.store.close()


def failed(token: Any) -> Outcome:
    return Outcome(token, JobState.FAILED, failure=b"x")


def test_there_are_partitions_for_the_days_to_come(place: Place):
    names = ["20261119", "20261120", "20261121", "before", "rest"]
    assert [place.parts(table) for table in ("payload", "ending", "attempt")] == [names] * 3
    place.clock.step(DAY // SECOND)
    place.tend()
    place.tend()
    assert place.parts() == sorted([*names, "20261122"])


def test_who_was_away_for_long_has_them_again(place: Place):
    """What came meanwhile is elsewhere, is found, and is pruned all the same."""
    place.clock.step(30 * DAY // SECOND)
    jobs = place.new_jobs(3)
    assert place.count("payload_rest") == 3
    place.end()
    place.tend()
    assert place.parts()[:4] == ["20261119", "20261120", "20261121", "20261219"]
    assert place.ids() == ids(jobs)
    place.clock.step(3 * DAY // SECOND)
    place.prune()
    assert place.ids() == set()
    assert [place.count(table) for table in ("payload_rest", "ending_rest", "job")] == [0, 0, 0]


def test_any_process_makes_them_as_long_as_the_last(place: Place):
    """One whose URL says nothing of it."""
    other = place.open()
    place.clock.step(2 * DAY // SECOND)
    other.tend_history(KEPT)
    assert {"20261122", "20261123"} <= set(place.parts())
    other.close()


def test_old_partitions_are_dropped_and_no_row_of_theirs_is_deleted(place: Place):
    place.clock.step(DAY // SECOND)
    old = place.new_jobs(600)
    place.end()
    place.clock.step(DAY // SECOND)
    young = place.new_jobs(5)
    place.end()
    place.clock.step(int(1.9 * DAY) // SECOND)
    place.prune()
    assert place.ids() == ids(young)
    assert place.store.job(old[0].id) is None
    for table in ("payload_20261119", "ending_20261119"):
        assert place.count(table) == 600
        assert place.run("select pg_stat_get_xact_tuples_deleted(%s::regclass)", table) == [(0,)]
    place.tend()  # of the first, which is empty
    place.tend()
    for table in ("payload", "ending", "attempt"):
        assert not {"before", "20261119"} & set(place.parts(table))
        assert place.run("select to_regclass(%s)", f"{table}_20261119") == [(None,)]
        assert "20261120" in place.parts(table)
    assert place.ids() == ids(young)
    assert leftovers(place.store) == []


def test_what_is_kept_outlives_its_partition(place: Place):
    """The unfinished and those that retention keeps move, with results, failures and attempts."""
    place.clock.step(DAY // SECOND)
    gone = place.new_jobs(100)
    place.end()
    bad = place.new_jobs(3)
    place.end(lambda token: Outcome(token, JobState.SCHEDULED, failure=b"first", delay=SECOND, spent=True))
    place.clock.step(2)
    place.store.promote(100)
    place.end(failed)
    later = place.new_jobs(2, delay=90 * DAY)
    for_good = place.new_jobs(1)
    place.end(lambda token: succeed(token, 1, b"keep me", keep=1_000 * DAY))
    before = {job.id: place.store.job(job.id) for job in (*bad, *later, *for_good)}
    assert [len(found.failures) for found in before.values() if found and found.failure] == [1, 1, 1]
    place.clock.step(4 * DAY // SECOND)
    place.prune()
    place.tend()
    place.tend()
    assert "20261119" not in place.parts()
    assert place.ids() == ids(bad, later, for_good)
    assert {id: place.store.job(id) for id in before} == before
    assert place.store.job(gone[0].id) is None
    assert leftovers(place.store) == []
    # And they go on.
    place.clock.step(100 * DAY // SECOND)
    place.store.promote(100)
    place.end()
    place.prune()
    assert place.ids() == ids(later, for_good)
    place.clock.step(3 * DAY // SECOND)
    place.prune()
    assert place.ids() == ids(for_good)


def test_no_partition_goes_before_its_time(place: Place):
    """Whatever is in it: as long as some finished job of it may be kept by a rule, nobody looks."""
    place.clock.step(DAY // SECOND)
    place.new_jobs(3)
    place.end()
    for _ in range(6):
        place.tend()
        assert "20261119" in place.parts()
        place.clock.step(DAY // 4 // SECOND)


def test_where_too_many_are_kept_a_partition_stays(place: Place, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(postgres_history, "MOST", 10)
    place.clock.step(DAY // SECOND)
    jobs = place.new_jobs(11, delay=30 * DAY)
    place.clock.step(4 * DAY // SECOND)
    for _ in range(3):
        place.tend()
    assert "20261119" in place.parts()
    assert place.ids() == ids(jobs)


def test_nobody_waits_long_for_a_partition_to_go(place: Place, postgres: Server):
    """Somebody's open transaction puts it off, and is not waited for."""
    place.clock.step(5 * DAY // SECOND)
    with psycopg.connect(postgres.conninfo("postgres")) as theirs:
        theirs.execute(f"select count(*) from {place.store.schema}.payload")
        place.tend()
        assert "before" in place.parts()
        place.new_jobs(1)
    place.tend()
    assert "before" not in place.parts()


def test_one_that_writes_into_an_old_partition_is_not_overlooked(place: Place, postgres: Server):
    """Its job is not committed yet, so it is seen by nobody; its partition stays."""
    place.clock.step(5 * DAY // SECOND)
    late = NewJob(bytes(15) + b"x", "task", b"late")
    with psycopg.connect(postgres.conninfo("postgres")) as theirs:
        place.store.lent(theirs).insert([late])
        place.tend()
        assert "before" in place.parts()
    place.tend()
    found = place.store.job(late.id)
    assert found is not None
    assert found.payload == b"late"


def test_one_that_comes_to_write_there_after_the_look_is_not_lost(place: Place, monkeypatch: pytest.MonkeyPatch):
    """Nobody writes into a partition any more once it was seen who is left in it."""
    place.clock.step(5 * DAY // SECOND)
    late = NewJob(bytes(15) + b"x", "task", b"late")
    other = place.open()
    original = postgres_history._still_there
    looks: list[str] = []
    written: list[Future[list[bytes]]] = []
    waiting = "select 1 from pg_stat_activity where wait_event_type = 'Lock' and query like '%payload%'"

    def look(*args: Any) -> list[bytes] | None:
        found = original(*args)
        looks.append(args[2].name)
        if looks == ["before"] * 2:  # the second look is the one that counts
            written.append(threads.submit(other.insert, [late]))
            wait_until(lambda: written[0].done() or place.server.run(waiting), "it is written, or waits")
        return found

    with ThreadPoolExecutor(1) as threads:
        monkeypatch.setattr(postgres_history, "_still_there", look)
        place.tend()
        monkeypatch.undo()
        assert written[0].result(30) == [late.id]
    place.tend()
    found = place.store.job(late.id)
    assert found is not None
    assert found.payload == b"late"
    other.close()


def test_two_who_tend_it_at_once(place: Place):
    place.clock.step(3 * DAY // SECOND)
    stores = [place.open(), place.open()]
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda store: store.tend_history(KEPT), stores))
    place.tend()
    assert {"20261122", "20261123"} <= set(place.parts())
    for store in stores:
        store.close()


def test_pruning_tends_it_now_and_then(place: Place):
    place.clock.step(5 * DAY // SECOND)
    place.store.prune(KEPT, 10)
    assert "before" not in place.parts()
    place.clock.step(5 * DAY // SECOND)
    place.store.prune(KEPT, 10)  # not each time
    assert "20261119" in place.parts()


def test_a_store_that_was_not_divided_can_be(postgres: Server):
    """Its table becomes the first partition, and goes as a whole one day."""
    with schemas(postgres) as urls:
        url = next(urls)
        clock = ManualClock(int(BEGINNING.timestamp()) * SECOND)
        plain = PostgresStore(url, clock)
        strange = NewJob(b"\xff" * 16, "task", b"strange")
        usual = NewJob((clock.now() // 1_000).to_bytes(6, "big") + bytes(10), "task", b"usual")
        plain.insert([strange, usual])
        store = PostgresStore(f"{url}&history=weekly", clock)
        assert store.migrate() == []
        assert store.migrate() == []
        for opened in (plain, store):
            assert {job.id for job in opened.jobs(Selection())} == {job.id for job in plain.jobs(Selection())}
            assert [found.payload for job in (strange, usual) if (found := opened.job(job.id))] == [
                b"strange",
                b"usual",
            ]
            assert opened.insert([strange, usual]) == [strange.id, usual.id]
        plain.enroll(ProcessInfo(WORKER, "worker", "here", 1), 1_000 * DAY)
        claims = plain.exchange(WORKER, 1, [], EVERYTHING, 9).claims
        assert {claim.payload for claim in claims} == {b"strange", b"usual"}
        plain.exchange(WORKER, 2, [succeed(claim.token, 1, b"42") for claim in claims], (), 0)
        clock.step(20 * DAY // SECOND)
        assert plain.prune(KEPT, 100) == 2
        store.tend_history(KEPT)
        with store._cursor() as c:
            assert c.plain("select to_regclass('payload_before')::text").fetchall() == [(None,)]
            assert c.plain("select count(*) from payload").fetchall() == [(0,)]
        plain.close()
        store.close()


def test_what_history_may_be():
    with pytest.raises(StoreURLError, match="history must be one of daily, weekly, monthly"):
        PostgresStore("postgresql:///x?history=yearly")
