"""Many plain jobs at once go to PostgreSQL by COPY, which knows no repetition. The promises of insert hold as ever."""

import random
import threading
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from chaos.proxy import Mode, Proxy
from packhorse import Packhorse, unique
from packhorse.clock import SECOND, ManualClock
from packhorse.errors import StoreDataError, StoreUnavailable
from packhorse.ids import new_id, to_text
from packhorse.job import JobState, NewJob
from packhorse.queues import EVERYTHING
from packhorse.stores import open_store, postgres_connections, postgres_copy, postgres_exchange
from packhorse.stores.contract import Selection
from packhorse.stores.postgres import PostgresStore
from packhorse.testing.contract.behind import leftovers
from packhorse.testing.contract.helpers import Worker, sole, succeeded
from tests.contract.stores import schemas
from tests.servers.pgbouncer import Pooler
from tests.servers.postgres import Missing, Server

MANY = 3 * postgres_copy.LEAST


@pytest.fixture
def url(postgres: Server) -> Iterator[str]:
    with schemas(postgres) as urls:
        yield next(urls)


@pytest.fixture
def store(url: str) -> Iterator[PostgresStore]:
    store = PostgresStore(url)
    store.migrate()
    yield store
    store.close()


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """How jobs were written."""
    ways: list[str] = []

    def noted(way: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def write(*args: Any) -> Any:
            ways.append(way)
            return original(*args)

        return write

    monkeypatch.setattr(postgres_copy, "write", noted("copy", postgres_copy.write))
    monkeypatch.setattr(postgres_exchange, "insert", noted("statement", postgres_exchange.insert))
    return ways


def new_jobs(number: int, **more: Any) -> list[NewJob]:
    return [NewJob(new_id(), "birds.count", b"%d" % n, **more) for n in range(number)]


def stored(store: PostgresStore) -> set[str]:
    found: list[str] = []
    after = None
    while page := store.jobs(Selection(), after, 1_000):
        found += [job.id for job in page]
        after = bytes.fromhex(page[-1].id.replace("-", ""))
    assert len(set(found)) == len(found)
    assert leftovers(store) == []
    return set(found)


def ids(jobs: Sequence[NewJob]) -> set[str]:
    return {to_text(job.id) for job in jobs}


def test_many_plain_jobs_are_copied(store: PostgresStore, ways: list[str]):
    jobs = new_jobs(MANY)
    assert store.insert(jobs) == [job.id for job in jobs]
    assert ways == ["copy"]
    assert stored(store) == ids(jobs)
    claims = Worker(store, "worker").claim(MANY)
    assert [(claim.token.id, claim.payload) for claim in claims] == [(job.id, job.payload) for job in jobs]


@pytest.mark.parametrize(
    "other",
    [{"tags": ("x",)}, {"terms": sole("x").terms}, {"ageing": SECOND}, {"member": (b"f" * 16, 1)}],
    ids=lambda other: next(iter(other)),
)
def test_with_one_that_brings_more_all_go_by_the_statement(store: PostgresStore, ways: list[str], other: dict):
    jobs = new_jobs(MANY)
    jobs[7] = jobs[7]._replace(**other)
    store.insert(jobs)
    assert ways == ["statement"]
    assert stored(store) == ids(jobs)


def test_few_go_by_the_statement_which_takes_one_round_trip(store: PostgresStore, ways: list[str]):
    store.insert(new_jobs(postgres_copy.LEAST - 1))
    assert ways == ["statement"]


def test_copied_jobs_look_as_others_do(url: str, ways: list[str]):
    """Whatever a plain job may say of itself is there, as the store in memory has it."""
    clock = ManualClock()
    luck = random.Random(7)
    jobs = [
        NewJob(
            new_id(),
            luck.choice(["birds.count", "vögel.zählen 🐦"]),
            luck.randbytes(luck.choice([0, 1, 5_000])),
            queue=luck.choice(["default", "päckchen", ""]),
            priority=luck.randint(-100, 100),
            run_at=luck.choice([None, 5, clock.now() + 9 * SECOND]),
            delay=luck.choice([None, None, -1, 3 * SECOND]),
            expires_at=luck.choice([None, 12_345]),
            lifetime=luck.choice([None, None, 60 * SECOND]),
            share=luck.choice([None, None, "ann"]),
        )
        for _ in range(postgres_copy.LEAST)
    ]
    store, memory = open_store(url, clock), open_store("memory://", clock)
    store.insert(jobs)
    memory.insert(jobs)
    assert ways == ["copy"]
    assert store.jobs(Selection(), limit=MANY) == memory.jobs(Selection(), limit=MANY)
    assert all(store.job(job.id) == memory.job(job.id) for job in jobs[:50])
    store.close()


# Repetitions.


def test_a_repeated_insert_changes_nothing(store: PostgresStore, ways: list[str]):
    jobs = new_jobs(MANY)
    store.insert(jobs)
    worker = Worker(store, "worker")
    worker.finish(*map(succeeded, worker.claim(10)))
    before = store.jobs(Selection(), limit=2 * MANY)
    assert store.insert(jobs) == [job.id for job in jobs]
    assert ways == ["copy", "copy", "statement"]
    assert store.jobs(Selection(), limit=2 * MANY) == before


@pytest.mark.parametrize("place", [0, MANY // 2, MANY - 1])
def test_one_that_is_known_keeps_no_other_from_being_written(store: PostgresStore, place: int):
    jobs = new_jobs(MANY)
    store.insert([jobs[place]._replace(queue="first")])
    assert store.insert(jobs) == [job.id for job in jobs]
    assert stored(store) == ids(jobs)
    assert [job.id for job in store.jobs(Selection(queues=["first"]))] == [to_text(jobs[place].id)]


def test_the_same_id_twice_in_one_call(store: PostgresStore):
    jobs = new_jobs(MANY)
    store.insert([*jobs, jobs[3]._replace(payload=b"another")])
    assert stored(store) == ids(jobs)
    found = store.job(jobs[3].id)
    assert found is not None
    assert found.payload == jobs[3].payload


def test_clients_that_insert_the_same_at_once(store: PostgresStore, url: str):
    """In one order, in the other, and only in part."""
    jobs = new_jobs(MANY)
    batches = [jobs, jobs[::-1], jobs[: MANY // 2], jobs[MANY // 2 :]]
    barrier = threading.Barrier(len(batches))

    def insert(batch: list[NewJob]) -> list[bytes]:
        own = PostgresStore(url)
        own.queues()
        barrier.wait(30)
        try:
            return own.insert(batch)
        finally:
            own.close()

    with ThreadPoolExecutor(len(batches)) as threads:
        answers = list(threads.map(insert, batches))
    assert answers == [[job.id for job in batch] for batch in batches]
    assert stored(store) == ids(jobs)


@pytest.mark.parametrize("times", [1, 2])
def test_a_lost_reply_to_the_commit(postgres: Server, store: PostgresStore, url: str, times: int):
    """The commit was done, nobody was told, and the insert is done again: each job is there once."""
    with Proxy(postgres.socket) as proxy:
        through = PostgresStore(postgres.through(proxy.address, "postgres", schema=store.schema))
        through.queues()
        jobs = new_jobs(MANY)
        proxy.set(Mode.LOSE_REPLY, holding=b"COMMIT\0", times=times)
        assert through.insert(jobs) == [job.id for job in jobs]
        assert proxy.seen.lost_replies == times
        through.close()
    assert stored(store) == ids(jobs)


def test_a_line_that_breaks_in_the_middle(postgres: Server, store: PostgresStore):
    with Proxy(postgres.socket) as proxy:
        through = PostgresStore(postgres.through(proxy.address, "postgres", schema=store.schema))
        through.queues()
        jobs = new_jobs(MANY)
        proxy.set(Mode.LOSE_REPLY, holding=b"COPY ", times=1)
        assert through.insert(jobs) == [job.id for job in jobs]
        assert proxy.seen.lost_replies == 1
        through.close()
    assert stored(store) == ids(jobs)


def test_a_session_that_is_ended_before_the_commit(
    postgres: Server, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
):
    original = postgres_copy.write

    def write(connection: psycopg.Connection[Any], *args: Any) -> None:
        original(connection, *args)
        postgres.run(f"select pg_terminate_backend({connection.info.backend_pid}, 5000)")

    monkeypatch.setattr(postgres_copy, "write", write)
    jobs = new_jobs(MANY)
    assert store.insert(jobs) == [job.id for job in jobs]
    assert stored(store) == ids(jobs)


def test_a_silent_server_is_reported_and_not_waited_for_twice(
    postgres: Server, store: PostgresStore, ways: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(postgres_connections, "ANSWER", 0.2)
    with Proxy(postgres.socket) as proxy:
        through = PostgresStore(postgres.through(proxy.address, "postgres", schema=store.schema))
        through.queues()
        proxy.set(Mode.SWALLOW_REPLIES)
        with pytest.raises(StoreUnavailable):
            through.insert(new_jobs(MANY))
        proxy.set(Mode.PASS)
        through.close()
    assert "statement" not in ways
    assert stored(store) == set()


# All or none.


@pytest.mark.parametrize(
    "bad",
    [
        {"task": "lone surrogate \ud800"},
        {"task": "with a \0"},
        {"queue": "\ud800"},
        {"run_at": 1 << 70},
        {"priority": 1 << 20},
        {"payload": "no bytes"},
        {"share": 5},
    ],
    ids=str,
)
def test_all_or_none(store: PostgresStore, bad: dict):
    jobs = new_jobs(MANY)
    jobs[-1] = jobs[-1]._replace(**bad)
    with pytest.raises(StoreDataError):
        store.insert(jobs)
    assert stored(store) == set()
    store.insert(jobs[:-1])  # and the line is none the worse
    assert len(stored(store)) == MANY - 1


# Who hears of it, and where it goes.


def test_a_sleeping_worker_is_called(store: PostgresStore):
    watch = store.watch(EVERYTHING)
    try:
        assert not watch.wait(0)
        with ThreadPoolExecutor(1) as threads:
            woken = threads.submit(watch.wait, 30)
            store.insert(new_jobs(MANY))
            assert woken.result(30)
    finally:
        watch.close()


def test_behind_a_pooler_that_hands_out_transactions(postgres: Server, url: str, store: PostgresStore, ways: list[str]):
    try:
        pooler = Pooler(postgres)
    except Missing as missing:
        pytest.skip(str(missing))
    try:
        pooled = PostgresStore(pooler.url(schema=store.schema))
        jobs = new_jobs(MANY)
        pooled.insert(jobs)
        pooled.insert([*jobs, *new_jobs(1)])
        assert ways == ["copy", "copy", "statement"]
        assert pooled._connections.seen_pooled
        pooled.close()
    finally:
        pooler.end()
    assert len(stored(store)) == MANY + 1


def test_on_a_lent_connection_nothing_spoils_the_callers_transaction(
    postgres: Server, store: PostgresStore, ways: list[str]
):
    """There the statement is said, known ids or not."""
    jobs = new_jobs(MANY)
    store.insert(jobs[:1])
    with psycopg.connect(postgres.conninfo("postgres")) as theirs:
        theirs.execute("create temp table paid (what text)")
        store.lent(theirs).insert(jobs)
        theirs.execute("insert into paid values ('all')")
        assert stored(store) == ids(jobs[:1])
    assert ways == ["statement"]
    assert stored(store) == ids(jobs)


def test_a_very_large_insert_is_one_transaction(store: PostgresStore, ways: list[str]):
    jobs = new_jobs(20_000)
    store.insert(jobs)
    assert ways == ["copy"]
    assert sum(queue.of(JobState.READY) for queue in store.queues()) == 20_000


@pytest.mark.thorough
def test_a_hundred_thousand_in_one_call_take_little_memory(url: str, ways: list[str]):
    """No more than a few batches are held at once, beside the handles that are asked for."""
    app = Packhorse("shop", url, keys=["a key that only these tests ever sign with"])

    @app.task
    def count(number: int, text: str) -> None: ...

    told: list[int] = []
    tracemalloc.start()
    try:
        handles = app.enqueue_many((count.call(n, "x" * 1_000) for n in range(100_000)), progress=told.append)
        kept, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert told == list(range(5_000, 100_001, 5_000))
    assert set(ways) == {"copy"}
    assert most - kept < 20 << 20
    assert len({handle.id for handle in handles}) == 100_000
    app.close()


def test_each_of_many_calls_is_told_what_stands_for_it(url: str, ways: list[str]):
    """Plain ones, and those with unique keys that somebody holds, in batches of their own and in one."""
    app = Packhorse("shop", url, keys=["a key that only these tests ever sign with"], batch_size=200)

    @app.task
    def count(number: int) -> None: ...

    @app.task(unique=unique())
    def check(number: int) -> None: ...

    held = [check.enqueue(number) for number in range(10)]
    mixed = [count.call(n) if n < 1_500 else check.call(n - 1_500) for n in range(2_100)]
    handles = app.enqueue_many(mixed)
    assert [handle.id for handle in handles[1_500:1_510]] == [handle.id for handle in held]
    assert len({handle.id for handle in handles}) == 2_100
    assert app.inspection.counts()[JobState.READY] == 2_100
    assert ways == ["statement"] * 10 + ["copy", "statement", "statement"]
    app.close()
