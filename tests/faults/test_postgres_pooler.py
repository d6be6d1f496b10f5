"""PostgreSQL behind a pooler that hands out sessions for one transaction each."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import psycopg
import pytest

from packhorse.errors import StoreURLError
from packhorse.job import JobState, Parent
from packhorse.queues import EVERYTHING
from packhorse.stores.postgres import PostgresStore
from packhorse.stores.postgres_url import parse
from packhorse.testing.contract.helpers import Worker, id_of, insert, job, limited, names, sole, states, succeeded
from tests.servers.pgbouncer import Pooler
from tests.servers.postgres import Missing, Server
from tests.waiting import wait_until


@pytest.fixture
def pooler(postgres: Server) -> Iterator[Pooler]:
    try:
        pooler = Pooler(postgres)
    except Missing as missing:
        pytest.skip(str(missing))
    yield pooler
    pooler.end()
    postgres.run("drop schema if exists pooled cascade")


@pytest.fixture(params=["found out", "told"])
def store(pooler: Pooler, request: pytest.FixtureRequest) -> Iterator[PostgresStore]:
    more = {"pooler": "transaction"} if request.param == "told" else {}
    store = PostgresStore(pooler.url(schema="pooled", **more))
    yield store
    store.close()


def test_jobs_go_their_way(store: PostgresStore):
    """With all that a session would have remembered between transactions."""
    worker = Worker(store, "worker")
    insert(store, "a", sole("b"), limited("c"), job("d", after=(Parent(id_of("a")),)))
    for _ in range(10):  # more often than the driver sees a statement before it prepares it
        if not (claims := worker.claim()):
            break
        assert worker.finish(*map(succeeded, claims)) == []
    assert set(states(store).values()) == {JobState.SUCCEEDED}
    assert len(states(store)) == 4


def test_many_at_once_share_few_sessions(store: PostgresStore):
    """More threads than the pooler has sessions; no job is given to two."""
    workers = [Worker(store, f"worker {n}") for n in range(6)]
    with ThreadPoolExecutor(6) as threads:
        list(threads.map(lambda n: insert(store, *(f"{n} {m}" for m in range(20))), range(6)))
        claimed = [names(claims) for claims in threads.map(lambda worker: worker.claim(30), workers)]
    assert sorted(name for some in claimed for name in some) == sorted(states(store))


def test_who_sleeps_looks_now_and_then(store: PostgresStore):
    """Nobody can listen here, and nothing is missed for that."""
    watch = store.watch(EVERYTHING)
    try:
        assert watch.wait(0) is False
        with ThreadPoolExecutor() as threads:
            woken = threads.submit(watch.wait, 60)
            insert(store, "a")
            assert woken.result(60) is True
    finally:
        watch.close()


def test_nothing_is_left_behind_for_others(store: PostgresStore, pooler: Pooler, postgres: Server):
    """Settings, locks and prepared statements stay with the session, and the next transaction may be anybody's."""
    worker = Worker(store, "worker")
    for n in range(10):
        insert(store, f"{n}")
        worker.claim()
    store.wait_jobs([id_of("0")], 0.01)
    sessions = "select pid from pg_stat_activity where application_name = 'packhorse'"
    assert postgres.run(sessions) != []
    with psycopg.connect(pooler.conninfo, autocommit=True) as other:
        assert other.execute("show enable_seqscan").fetchone() == ("on",)
        assert other.execute("show search_path").fetchone() == ('"$user", public',)
        assert other.execute("select count(*) from pg_prepared_statements").fetchone() == (0,)
    wait_until(lambda: postgres.run("select 1 from pg_locks where locktype = 'advisory'") == [], "no lock is left")


def test_a_server_without_a_pooler_is_known(postgres: Server):
    """There one can listen, and settings are said once."""
    store = PostgresStore(postgres.url("postgres", schema="pooled"))
    try:
        insert(store, "a")
        assert [connection.pooled for connection in store._connections._idle] == [False]
    finally:
        store.close()
        postgres.run("drop schema pooled cascade")


def test_claims_that_wait_instead_of_passing_over(postgres: Server):
    """Where the URL asks for it; what an outsider locks is then waited for, and not jumped."""
    passing = PostgresStore(postgres.url("postgres", schema="pooled"))
    waiting = PostgresStore(postgres.url("postgres", schema="pooled", skip_locked="false"))
    worker = Worker(passing, "worker")
    insert(passing, "a", "b")
    take = "select 1 from pooled.job where id = %s for update"
    try:
        with psycopg.connect(postgres.conninfo("postgres")) as outsider, ThreadPoolExecutor() as threads:
            outsider.execute(take, [id_of("a")])
            assert names(worker.claim(1)) == ["b"]
            claimed = threads.submit(Worker(waiting, "other").claim, 1)
            blocked = "select 1 from pg_stat_activity where application_name = 'packhorse' and wait_event_type = 'Lock'"
            wait_until(lambda: postgres.run(blocked), "the claim waits")
            outsider.rollback()
            assert names(claimed.result(60)) == ["a"]
    finally:
        passing.close()
        waiting.close()
        postgres.run("drop schema pooled cascade")


@pytest.mark.parametrize("option", ["pooler=statement", "skip_locked=maybe"])
def test_options_that_make_no_sense(option: str):
    with pytest.raises(StoreURLError):
        parse(f"postgresql:///shop?{option}")


def test_plain_jobs_go_on_beside_a_transaction_that_stays_open(store: PostgresStore, postgres: Server):
    """Though nobody can tell by a mark whose it is."""
    worker = Worker(store, "worker")
    insert(store, limited("a", "a"), limited("b", "b"), "plain")
    claims = {claim.token.id: claim for claim in [*worker.claim(), *worker.claim()]}
    with closing(psycopg.connect(postgres.conninfo("postgres"))) as theirs:
        assert store.lent(theirs).complete(succeeded(claims[id_of("a")]))
        reply = worker.exchange(succeeded(claims[id_of("b")]), succeeded(claims[id_of("plain")]), limit=5)
        assert names(reply.put_off) == ["b"]
        assert states(store)["plain"] is JobState.SUCCEEDED
        theirs.commit()
    assert worker.finish(succeeded(claims[id_of("b")])) == []
    assert states(store)["b"] is states(store)["a"] is JobState.SUCCEEDED
