"""Transactions at both ends: what is enqueued joins the caller's, and a job is completed in the task's own."""

import asyncio
import contextvars
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy
from psycopg.rows import dict_row
from psycopg.types.string import StrDumper
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from packhorse import ConfigError, Context, Embedded, EnqueueError, JobState, Packhorse, chain, limit, unique
from packhorse.errors import StoreDataError
from packhorse.job import Parent
from packhorse.stores.postgres_watch import LAST_LOOK, PostgresWatch
from packhorse.stores.sql_store import Bell
from tests.servers.postgres import Server
from tests.waiting import wait_until

KEY = "a key that only these tests ever sign with"
QUICK: dict[str, Any] = {"heartbeat": 0.05, "lease": 30, "polling_interval": 30, "keys": [KEY]}
_numbers = count()


class Place:
    """A store, and how a program of one's own reaches the same database."""

    def __init__(self, kind: str, where: Any) -> None:
        self.kind = kind
        if kind == "sqlite":
            self._file = where / "jobs.db"
            url = f"sqlite:///{self._file}?synchronous=normal"
            self.sqlalchemy_url = f"sqlite:///{self._file}"
        else:
            self._conninfo = where.conninfo("postgres")
            url = where.url("postgres", schema=f"trans_{next(_numbers)}")
            self.sqlalchemy_url = f"postgresql+psycopg://postgres@/postgres?host={where.folder}"
        self.app = Packhorse("shop", url, **QUICK)
        self.app.control.migrate()
        with closing(self.connect()) as connection:
            connection.execute("drop table if exists paid")
            connection.execute("create table paid (what text)")
            connection.commit()

    def connect(self) -> Any:
        if self.kind == "sqlite":
            return sqlite3.connect(self._file, timeout=20)
        return psycopg.connect(self._conninfo)

    def connect_autocommit(self) -> Any:
        if self.kind == "sqlite":
            return sqlite3.connect(self._file, timeout=20, isolation_level=None)
        return psycopg.connect(self._conninfo, autocommit=True)

    def engine(self, **options: Any) -> sqlalchemy.Engine:
        return sqlalchemy.create_engine(self.sqlalchemy_url, **options)

    def async_connect(self) -> Any:
        return psycopg.AsyncConnection.connect(self._conninfo)

    @property
    def paid(self) -> list[str]:
        with closing(self.connect()) as connection:
            return sorted(what for (what,) in connection.execute("select what from paid").fetchall())

    @property
    def jobs(self) -> int:
        return len(list(self.app.inspection.jobs()))

    def states(self) -> list[JobState]:
        return [job.state for job in self.app.inspection.jobs()]


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    tmp_path.chmod(0o700)
    where = tmp_path if request.param == "sqlite" else request.getfixturevalue("postgres")
    place = Place(request.param, where)
    yield place
    place.app.close()


@pytest.fixture
def server(postgres: Server) -> Iterator[Place]:
    place = Place("postgres", postgres)
    yield place
    place.app.close()


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Place]:
    tmp_path.chmod(0o700)
    place = Place("sqlite", tmp_path)
    yield place
    place.app.close()


@pytest.fixture
def double(place: Place) -> Any:
    return doubled(place.app)


def doubled(app: Packhorse) -> Any:
    @app.task(name="double")
    def double(number: int) -> int:
        return 2 * number

    return double


# Enqueueing.


def test_a_rollback_leaves_no_job(place: Place, double: Any):
    with closing(place.connect()) as connection:
        connection.execute("insert into paid values ('a')")
        with place.app.on(connection):
            double.enqueue(1)
        connection.rollback()
    assert (place.jobs, place.paid) == (0, [])


def test_a_commit_brings_the_job_with_the_rows(place: Place, double: Any):
    with closing(place.connect()) as connection:
        connection.execute("insert into paid values ('a')")
        with place.app.on(connection):
            double.enqueue(1)
        assert (place.jobs, place.paid) == (0, [])
        connection.commit()
    assert (place.jobs, place.paid) == (1, ["a"])


def test_the_first_statement_of_a_transaction_may_be_ours(place: Place, double: Any):
    with closing(place.connect()) as connection:
        with place.app.on(connection):
            double.enqueue(1)
        assert place.jobs == 0
        connection.rollback()
        assert place.jobs == 0
        with place.app.on(connection):
            double.enqueue(1)
        connection.commit()
    assert place.jobs == 1


def test_a_savepoint_takes_back_what_came_after_it(place: Place, double: Any):
    with closing(place.connect()) as connection:
        connection.execute("insert into paid values ('a')")
        with place.app.on(connection):
            kept = double.enqueue(1)
            connection.execute("savepoint mine")
            double.enqueue(2)
            connection.execute("rollback to savepoint mine")
            later = double.enqueue(3)
        connection.commit()
    assert {job.id for job in place.app.inspection.jobs()} == {kept.id, later.id}


def test_a_job_in_a_savepoint_that_is_kept(place: Place, double: Any):
    with closing(place.connect()) as connection:
        connection.execute("insert into paid values ('a')")
        connection.execute("savepoint mine")
        with place.app.on(connection):
            double.enqueue(2)
        connection.execute("release savepoint mine")
        connection.commit()
    assert place.states() == [JobState.READY]


def test_without_a_transaction_each_stroke_is_one(place: Place, double: Any):
    with closing(place.connect_autocommit()) as connection:
        with place.app.on(connection):
            double.enqueue(1)
            assert place.jobs == 1
        connection.execute("begin")
        with place.app.on(connection):
            double.enqueue(2)
        connection.execute("rollback")
    assert place.jobs == 1


def test_everything_that_enqueues_joins(place: Place, double: Any):
    app = place.app
    app.schedules.add(double.call(1), "0 3 * * *", key="nightly")

    @app.task(name="alone", unique=True)
    def alone() -> None: ...

    with closing(place.connect()) as connection:
        with app.on(connection):
            app.enqueue_many([double.call(number) for number in range(3)])
            chain(double.call(1), double.call(2)).enqueue()
            app.schedules.run_now("nightly")
            assert alone.enqueue().id == alone.enqueue().id
        assert place.jobs == 0
        connection.commit()
    assert place.jobs == 7
    assert sorted(map(str, place.states())) == ["ready"] * 6 + ["waiting"]


def test_an_error_takes_back_the_stroke_and_not_the_transaction(place: Place, double: Any):
    """The caller may go on: nothing of the batch that failed is left in the transaction."""
    with closing(place.connect()) as connection:
        connection.execute("insert into paid values ('a')")
        lent = place.app.store.lent(connection)
        good, bad = (double.call(number).new_job() for number in (1, 2))
        with pytest.raises(StoreDataError):
            lent.insert([good, bad._replace(after=(Parent(bytes(16)),))])
        lent.insert([double.call(3).new_job()])
        connection.commit()
    assert (place.jobs, place.paid) == (1, ["a"])


def test_outside_the_block_nothing_is_lent(place: Place, double: Any):
    with closing(place.connect()) as connection:
        with place.app.on(connection):
            inside = contextvars.copy_context()
        double.enqueue(1)
        assert place.jobs == 1
        inside.run(double.enqueue, 2)  # started inside, and left running
        assert place.jobs == 2


def test_other_threads_do_not_see_the_block(place: Place, double: Any):
    with closing(place.connect_autocommit()) as connection:
        if place.kind == "postgres":
            connection.execute("begin")
        with place.app.on(connection):
            thread = threading.Thread(target=double.enqueue, args=(1,), daemon=True)
            thread.start()
            thread.join(20)
            assert place.jobs == 1


def test_a_commit_wakes_a_sleeping_worker(place: Place, double: Any):
    with Embedded(place.app), closing(place.connect()) as connection:
        assert double.enqueue(1).result(timeout=20) == 2
        with place.app.on(connection):
            job = double.enqueue(2)
        connection.commit()
        assert job.result(timeout=20) == 4


# The caller's settings.


def test_settings_of_sqlite_stay_as_they_are(file: Place):
    double = doubled(file.app)
    with closing(file.connect()) as connection:
        connection.row_factory = sqlite3.Row
        connection.text_factory = bytes
        with file.app.on(connection):
            double.using(tags=("a",)).enqueue(1)
            double.enqueue(2)
        assert (connection.row_factory, connection.text_factory) == (sqlite3.Row, bytes)
        assert connection.in_transaction
        connection.commit()
    with Embedded(file.app):
        wait_until(lambda: file.states() == [JobState.SUCCEEDED] * 2)


def test_another_file_is_refused(file: Place, tmp_path: Path):
    double = doubled(file.app)
    for name in (":memory:", tmp_path / "other.db"):
        with (
            closing(sqlite3.connect(name)) as connection,
            file.app.on(connection),
            pytest.raises(ConfigError, match="One transaction needs one file"),
        ):
            double.enqueue(1)
    assert file.jobs == 0


def test_a_connection_of_another_thread_is_refused(file: Place):
    double = doubled(file.app)

    async def enqueue() -> None:
        with closing(file.connect()) as connection, file.app.on(connection):
            await double.aenqueue(1)

    with pytest.raises(ConfigError, match="belongs to the thread"):
        asyncio.run(enqueue())


class Odd(StrDumper):
    def dump(self, obj: str) -> Any:
        return bytes(super().dump(obj) or b"") + b"!"


def test_settings_of_psycopg_stay_as_they_are(server: Place):

    @server.app.task(name="greet", unique=unique("{name}"))
    def greet(name: str) -> None: ...

    with closing(server.connect()) as connection:
        connection.row_factory = dict_row
        connection.cursor_factory = psycopg.ClientCursor
        connection.prepare_threshold = 0
        connection.adapters.register_dumper(str, Odd)
        connection.execute("set search_path = pg_catalog")
        connection.execute("set client_encoding = 'LATIN1'")
        connection.execute("set local enable_seqscan = on")
        before = connection.execute("show all").fetchall()
        with server.app.on(connection):
            greet.using(tags=("a",), priority=3).enqueue("Łódź")
        assert connection.execute("show all").fetchall() == before
        assert connection.execute("select %s as name", ["a"]).fetchone() == {"name": "a!"}
        connection.commit()
    [job] = server.app.inspection.jobs()
    assert (job.priority, job.tags) == (3, ("a",))


def test_a_pipeline_goes_on(server: Place):
    double = doubled(server.app)
    with closing(server.connect()) as connection:
        with connection.pipeline():
            connection.execute("insert into paid values ('a')")
            with server.app.on(connection):
                double.enqueue(1)
            connection.execute("insert into paid values ('b')")
        assert server.jobs == 0
        connection.commit()
    assert (server.jobs, server.paid) == (1, ["a", "b"])


def test_a_transaction_that_has_failed_says_so(server: Place):
    double = doubled(server.app)
    with closing(server.connect()) as connection:
        with pytest.raises(psycopg.errors.UndefinedTable):
            connection.execute("select * from nowhere")
        with server.app.on(connection), pytest.raises(EnqueueError, match="Roll it back"):
            double.enqueue(1)
        connection.rollback()
        with server.app.on(connection):
            double.enqueue(1)
        connection.commit()
    assert server.jobs == 1


def test_another_database_is_refused(server: Place, postgres: Server):
    double = doubled(server.app)
    with (
        closing(psycopg.connect(postgres.conninfo("template1"))) as connection,
        server.app.on(connection),
        pytest.raises(ConfigError, match="'template1'"),
    ):
        double.enqueue(1)


def test_what_leads_to_no_connection_of_ours_is_refused(place: Place, double: Any):
    for wrong in (object(), "a url", place.engine()):
        with place.app.on(wrong), pytest.raises(ConfigError, match="lend a connection"):
            double.enqueue(1)


def test_memory_has_nothing_to_lend_to():
    app = Packhorse("shop", "memory://", keys=[KEY])
    with pytest.raises(ConfigError, match="no database"), app.on(object()):
        pass


# A caller's transaction may be long.


def test_a_long_transaction_leaves_workers_asleep(server: Place):
    """It has no place among the writers before it commits, so that whoever is about to sleep does not wait for it."""
    double = doubled(server.app)
    with closing(server.connect()) as connection:
        with server.app.on(connection):
            double.enqueue(1)
        watch = PostgresWatch(server.app.store._connections, Bell.READY)  # type: ignore[attr-defined]
        try:
            _, quiet = watch._look()
            assert quiet
            assert not watch.wait(2 * LAST_LOOK)
            connection.commit()
            assert watch.wait(20)
        finally:
            watch.close()


def test_others_are_performed_beside_a_long_transaction(server: Place):
    double = doubled(server.app)
    with Embedded(server.app), closing(server.connect()) as connection:
        with server.app.on(connection):
            late = double.enqueue(1)
        assert [double.enqueue(number).result(timeout=20) for number in range(3)] == [0, 2, 4]
        connection.commit()
        assert late.result(timeout=20) == 2


# SQLAlchemy.


def test_sqlalchemy(place: Place, double: Any):
    engine = place.engine()
    paid = sqlalchemy.text("insert into paid values (:what)")
    try:
        with engine.connect() as connection:
            with place.app.on(connection):
                double.enqueue(1)
            connection.rollback()
            assert place.jobs == 0
            with place.app.on(connection):
                double.enqueue(1)
            connection.commit()  # it knows of no statement but ours
        assert place.jobs == 1
        with engine.begin() as connection, place.app.on(connection):
            connection.execute(paid, {"what": "a"})
            double.enqueue(1)
        assert (place.jobs, place.paid) == (2, ["a"])
        with Session(engine) as session:
            with place.app.on(session):
                double.enqueue(2)
            session.rollback()
            assert place.jobs == 2
            with place.app.on(session):
                double.enqueue(2)
            session.commit()
        assert place.jobs == 3
        alone = engine.execution_options(isolation_level="AUTOCOMMIT")
        with alone.connect() as connection, place.app.on(connection):
            double.enqueue(3)
            assert place.jobs == 4
    finally:
        engine.dispose()


# Async.


def test_async_connections(server: Place):
    double = doubled(server.app)

    async def work() -> None:
        connection = await server.async_connect()
        async with connection, server.app.on(connection):
            await connection.execute("insert into paid values ('a')")
            await asyncio.gather(*(double.aenqueue(number) for number in range(5)))
            with pytest.raises(ConfigError, match="aenqueue"):
                double.enqueue(1)
            assert server.jobs == 0
        assert server.jobs == 5
        connection = await server.async_connect()
        async with server.app.on(connection):
            await double.aenqueue(6)
        await connection.rollback()
        await connection.close()

    asyncio.run(work())
    assert (server.jobs, server.paid) == (5, ["a"])


def test_async_sqlalchemy(server: Place):
    double = doubled(server.app)

    async def work() -> None:
        engine = create_async_engine(server.sqlalchemy_url)
        try:
            async with AsyncSession(engine) as session:
                async with server.app.on(session):
                    await double.aenqueue(1)
                await session.rollback()
                assert server.jobs == 0
                async with server.app.on(session):
                    await double.aenqueue(1)
                await session.commit()
            async with engine.begin() as connection, server.app.on(connection):
                await double.aenqueue(2)
        finally:
            await engine.dispose()

    asyncio.run(work())
    assert server.jobs == 2


def test_each_kind_has_its_block(server: Place):
    async def work() -> None:
        async with await server.async_connect() as connection:
            with pytest.raises(ConfigError, match="async with"), server.app.on(connection):
                pass
        with closing(server.connect()) as other, pytest.raises(ConfigError, match="with `with"):
            async with server.app.on(other):
                pass

    asyncio.run(work())


# Completing.


def payer(place: Place, pay: Callable[[Context, Any], Any], **options: Any) -> Any:
    @place.app.task(name="pay", takes_context=True, **options)
    def task(context: Context) -> Any:
        with closing(place.connect()) as connection:
            connection.execute("insert into paid values ('a')")
            return pay(context, connection)

    return task


def test_completed_with_its_own_rows(place: Place):
    events: list[str] = []
    place.app.subscribe("succeeded")(lambda event: events.append(event.kind))

    def pay(context: Context, connection: Any) -> str:
        context.complete_with(connection, {"paid": 1})
        assert place.states() == [JobState.RUNNING]
        connection.commit()
        assert place.states() == [JobState.SUCCEEDED]
        return "not this one"

    task = payer(place, pay)
    with Embedded(place.app):
        job = task.enqueue()
        assert job.result(timeout=20) == {"paid": 1}
    place.app.events.flush()
    assert (place.paid, events) == (["a"], ["succeeded"])
    assert (job.look().attempts, job.state) == (1, JobState.SUCCEEDED)


def test_an_error_after_the_commit_changes_nothing(place: Place):
    def pay(context: Context, connection: Any) -> None:
        context.complete_with(connection, 1)
        connection.commit()
        raise ValueError("too late")

    task = payer(place, pay, retries=3)
    with Embedded(place.app):
        job = task.enqueue()
        assert job.result(timeout=20) == 1
    assert (place.paid, job.state, job.look().attempts) == (["a"], JobState.SUCCEEDED, 1)


@pytest.mark.parametrize("how", ["raises", "returns"])
def test_a_rollback_is_a_failure(place: Place, how: str):
    """Also where the task says nothing: its rows and its end come together or not at all."""

    def pay(context: Context, connection: Any) -> None:
        context.complete_with(connection, 1)
        if context.attempt == 2:
            connection.commit()
            return
        connection.rollback()
        if how == "raises":
            raise ValueError("no")

    task = payer(place, pay, retries=1, backoff=0)
    with Embedded(place.app):
        job = task.enqueue()
        assert job.result(timeout=20) == 1
    looked = job.look()
    assert (place.paid, looked.attempts) == (["a"], 2)
    [failed] = looked.failures
    assert failed.failure.type == ("ValueError" if how == "raises" else "packhorse.errors.NotCommitted")


def test_a_lost_claim_takes_the_rows_with_it(place: Place):
    def pay(context: Context, connection: Any) -> None:
        if context.attempt == 1 and not place.app.store.audit():
            connection.rollback()
            place.app.control.pause("elsewhere")  # so that the next attempt knows
            place.app.store.leave(context._claim.token.process)
            connection.execute("insert into paid values ('lost')")
        context.complete_with(connection, 1)
        connection.commit()

    task = payer(place, pay)
    with Embedded(place.app):
        assert task.enqueue().result(timeout=20) == 1
    assert place.paid == ["a"]


def test_followers_and_permits_go_on(place: Place, double: Any):
    def pay(context: Context, connection: Any) -> None:
        context.complete_with(connection, 5)
        connection.commit()

    task = payer(place, pay, limit=limit(to=1, group="till"))
    with Embedded(place.app):
        chain(task.call(), double.call(4)).enqueue()
        for _ in range(4):
            task.enqueue()
        wait_until(lambda: place.states() == [JobState.SUCCEEDED] * 6)
    assert place.paid == ["a"] * 5


def test_a_job_that_is_not_kept(place: Place):
    def pay(context: Context, connection: Any) -> None:
        context.complete_with(connection)
        connection.commit()

    task = payer(place, pay, keep_succeeded=0)
    with Embedded(place.app):
        task.enqueue()
        wait_until(lambda: place.paid == ["a"])
        wait_until(lambda: place.jobs == 0)


def test_completed_with_an_async_connection(server: Place):
    @server.app.task(name="pay", takes_context=True)
    async def pay(context: Context) -> None:
        async with await server.async_connect() as connection:
            await connection.execute("insert into paid values ('a')")
            await context.acomplete_with(connection, 3)

    with Embedded(server.app):
        assert pay.enqueue().result(timeout=20) == 3
    assert server.paid == ["a"]


def test_completed_with_sqlalchemy(place: Place):
    engine = place.engine()

    @place.app.task(name="pay", takes_context=True)
    def pay(context: Context) -> None:
        with Session(engine) as session, session.begin():
            session.execute(sqlalchemy.text("insert into paid values ('a')"))
            context.complete_with(session, 3)

    try:
        with Embedded(place.app):
            assert pay.enqueue().result(timeout=20) == 3
    finally:
        engine.dispose()
    assert place.paid == ["a"]


def test_a_result_that_cannot_be_kept_is_met_in_the_task(place: Place):
    def pay(context: Context, connection: Any) -> None:
        context.complete_with(connection, object())

    task = payer(place, pay)
    with Embedded(place.app):
        job = task.enqueue()
        wait_until(lambda: job.state is JobState.FAILED)
    assert place.paid == []
