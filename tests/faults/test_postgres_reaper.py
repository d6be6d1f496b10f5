"""Who is ended for being stopped in the middle of a stroke: ours, and nobody who only looks like one of ours."""

from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from packhorse.stores.postgres import PostgresStore
from packhorse.testing.contract.helpers import insert
from tests.servers.postgres import Server
from tests.waiting import wait_until

SILENT = """
    select 1 from pg_stat_activity where pid = {pid} and state = 'active' and wait_event = 'ClientRead'
    and xact_start is not null and state_change < clock_timestamp() - interval '0.1 s'
"""


@pytest.fixture
def store(postgres: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[PostgresStore]:
    store = PostgresStore(postgres.url("postgres", schema="reaper"))
    insert(store, "a")
    monkeypatch.setattr(store._connections, "_patience", 0.05)
    yield store
    store.close()
    postgres.run("drop schema reaper cascade")


def stop_in_a_pipeline(postgres: Server, connection: psycopg.Connection[tuple[object, ...]]) -> None:
    """Inside the block the server waits for more, and says that it is at work."""
    connection.execute("begin")
    connection.execute("update reaper.job set attempts = attempts returning 1").fetchall()
    wait_until(lambda: postgres.run(SILENT.format(pid=connection.info.backend_pid)), "it keeps silent")


def test_a_session_of_somebody_else_is_not_ended(postgres: Server, store: PostgresStore):
    """It has our name, our user and our database, and stands in the middle of a pipeline."""
    with closing(
        psycopg.connect(postgres.conninfo("postgres"), application_name="packhorse", autocommit=True)
    ) as theirs:
        with theirs.pipeline():
            stop_in_a_pipeline(postgres, theirs)
            assert not store._connections.end_stopped()
            theirs.execute("commit")
        assert theirs.execute("select 1").fetchall() == [(1,)]


def test_one_of_ours_is_ended(postgres: Server, store: PostgresStore):
    ours = store._connections.connect()
    pipeline = ours.pipeline()
    pipeline.__enter__()
    stop_in_a_pipeline(postgres, ours)
    assert store._connections.end_stopped()
    with pytest.raises(psycopg.OperationalError):
        ours.execute("commit").fetchall()
    ours.close()


def test_one_of_another_store_beside_ours_is_not_ended(postgres: Server, store: PostgresStore):
    """Its own have to see to it."""
    other = PostgresStore(postgres.url("postgres", schema="another"))
    theirs = other._connections.connect()
    with theirs.pipeline():
        stop_in_a_pipeline(postgres, theirs)
        assert not store._connections.end_stopped()
        theirs.execute("commit")
    theirs.close()
    other.close()


def test_a_borrowed_connection_has_no_mark(postgres: Server, store: PostgresStore):
    with closing(psycopg.connect(postgres.conninfo("postgres"))) as theirs:
        store.lent(theirs).insert([])
        [(marks,)] = theirs.execute(
            "select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()"
        ).fetchall()
    assert marks == 0
