"""What becomes of a stroke on PostgreSQL whose line breaks, whose reply is lost, or whose server keeps silent."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import Any

import psycopg
import pytest

from chaos.places import ANSWERED
from chaos.proxy import Mode, Proxy
from packhorse.clock import SECOND
from packhorse.errors import StoreUnavailable
from packhorse.job import JobState
from packhorse.limits import Pace
from packhorse.queues import EVERYTHING
from packhorse.stores import postgres_connections, postgres_strokes, postgres_watch
from packhorse.stores.contract import Act, Change, Entry, ProcessInfo, Selection, StoredSchedule
from packhorse.stores.postgres import PostgresStore
from packhorse.testing.contract.helpers import Worker, id_of, insert, job, names, sole, states, succeeded
from tests.servers.postgres import Server
from tests.waiting import wait_until

COMMITTED = b"COMMIT\0"
FOUND = b"id\0"  # the answer to a beat, which is one, too
RUNG = b"ring\0"  # the answer to a single job, which is a statement by itself
OURS = "application_name = 'packhorse'"


@pytest.fixture
def schema(postgres: Server) -> Iterator[str]:
    yield "line"
    postgres.run("drop schema if exists line cascade")


@pytest.fixture
def proxy(postgres: Server) -> Iterator[Proxy]:
    with Proxy(postgres.socket) as proxy:
        yield proxy


@pytest.fixture
def store(postgres: Server, proxy: Proxy, schema: str) -> Iterator[PostgresStore]:
    store = PostgresStore(postgres.through(proxy.address, "postgres", schema=schema))
    store.queues()  # makes the schema
    yield store
    proxy.set(Mode.PASS)
    store.close()


def performed(store: PostgresStore, proxy: Proxy, act: Callable[[], Any], answer: bytes = COMMITTED) -> Any:
    """The answer of an act whose commit was done and not answered."""
    proxy.set(Mode.LOSE_REPLY, holding=answer)
    try:
        return act()
    finally:
        proxy.set(Mode.PASS)
        assert proxy.seen.lost_replies == 1


# A commit that was done, and nobody was told.


def test_an_insert_is_acknowledged_and_there_is_one_job(store: PostgresStore, proxy: Proxy):
    assert performed(store, proxy, lambda: insert(store, "a", "b")) == [id_of("a"), id_of("b")]
    assert names(Worker(store, "worker").claim()) == ["a", "b"]


@pytest.mark.parametrize(("jobs", "answer"), [("ab", COMMITTED), ("a", RUNG)], ids=["several", "one"])
def test_an_insert_whose_reply_is_lost_again_and_again(store: PostgresStore, proxy: Proxy, jobs: str, answer: bytes):
    """Twice it is borne with; whoever is told that it failed may find it there all the same."""
    proxy.set(Mode.LOSE_REPLY, holding=answer, times=2)
    insert(store, *jobs)
    proxy.set(Mode.LOSE_REPLY, holding=answer, times=9)
    with pytest.raises(StoreUnavailable):
        insert(store, *jobs.upper())
    proxy.set(Mode.PASS)
    assert sorted(states(store)) == sorted(jobs.upper() + jobs)


def test_an_insert_that_merged_is_merged_once(store: PostgresStore, proxy: Proxy):
    insert(store, sole("a"))
    assert performed(store, proxy, lambda: insert(store, sole("b"))) == [id_of("a")]
    assert list(states(store)) == ["a"]


def test_an_exchange_has_its_claims_and_no_outcome_is_refused(store: PostgresStore, proxy: Proxy):
    """So no task is performed a second time, and nobody is told that it was refused."""
    worker = Worker(store, "worker")
    insert(store, "a", "b")
    [claim] = worker.claim(1)
    reply = performed(store, proxy, lambda: store.exchange(worker.id, 77, [succeeded(claim)], EVERYTHING, 1), ANSWERED)
    assert (names(reply.claims), reply.refused, reply.alive) == (["b"], [], True)
    assert store.held(worker.id) == [reply.claims[0].token]
    assert worker.finish(succeeded(reply.claims[0])) == []
    assert set(states(store).values()) == {JobState.SUCCEEDED}


def test_an_entry_is_kept(store: PostgresStore, proxy: Proxy):
    worker = Worker(store, "worker")
    insert(store, "a")
    [claim] = worker.claim()
    assert performed(store, proxy, lambda: store.record(claim.token, [Entry("step", "one", b"1")])) is True
    assert store.entries(id_of("a")) == [Entry("step", "one", b"1")]


def test_a_beat_finds_the_lease(store: PostgresStore, proxy: Proxy):
    worker = Worker(store, "worker")
    both = [worker.id, id_of("nobody")]
    assert performed(store, proxy, lambda: store.beat(both), FOUND) == [id_of("nobody")]


def test_who_enrols_or_leaves_has_done_so(store: PostgresStore, proxy: Proxy):
    info = ProcessInfo(id_of("worker"), "worker", "here", 1)
    performed(store, proxy, lambda: store.enroll(info, 60 * SECOND))
    assert len(store.processes()) == 1


def test_who_leaves_gives_back_what_it_held(store: PostgresStore, proxy: Proxy):
    worker = Worker(store, "worker")
    insert(store, "a")
    worker.claim()
    performed(store, proxy, lambda: store.leave(worker.id))
    assert (store.processes(), states(store)) == ([], {"a": JobState.READY})


def test_a_signal_is_sent_once(store: PostgresStore, proxy: Proxy):
    performed(store, proxy, lambda: store.signal("go", b"1", 60 * SECOND))
    assert len(store.signals("go")) == 1


def test_a_token_of_a_rate_is_taken_once(store: PostgresStore, proxy: Proxy):
    pace = Pace("calls", 1, 3_600 * SECOND, 2)
    assert performed(store, proxy, lambda: store.take_token(pace, 0)) == 0
    assert store.take_token(pace, 0) == 0
    assert store.take_token(pace, 0) is None


def test_a_moment_gets_its_job_and_the_scheduler_is_told(store: PostgresStore, proxy: Proxy):
    """A second try would find the schedule changed, and take it for another's work."""
    store.put_schedule(StoredSchedule(key="k", task="t", rule="every 60", payload=b"", next_at=5), "me", "")
    [schedule] = store.schedules()
    ticked = performed(
        store,
        proxy,
        lambda: store.tick(schedule, [(5, job("a"))], handled=5, next_at=65, repeats=None),
    )
    assert [tick.job for tick in ticked] == [id_of("a")]
    assert store.schedules()[0].revision == schedule.revision + 1
    assert list(states(store)) == ["a"]


def test_an_operators_act_is_done_and_audited_once(store: PostgresStore, proxy: Proxy):
    insert(store, "a", "b")
    moved = performed(store, proxy, lambda: store.move(Selection(), Change(Act.CANCEL), "me", "because"))
    assert moved.jobs == 2
    performed_again = store.audit()
    assert [(audit.act, audit.jobs) for audit in performed_again] == [("cancel", 2)]


def test_a_pause_is_audited_once(store: PostgresStore, proxy: Proxy):
    performed(store, proxy, lambda: store.pause("slow", None, "me", ""))
    assert [audit.act for audit in store.audit()] == ["pause"]


# A line that breaks before the commit.


@contextmanager
def jobs_locked(server: Server, schema: str) -> Iterator[None]:
    with psycopg.connect(server.conninfo("postgres")) as outsider:
        outsider.execute(f"lock table {schema}.job in access exclusive mode".encode())
        yield


def waits(server: Server) -> bool:
    return bool(server.run(f"select 1 from pg_stat_activity where {OURS} and wait_event_type = 'Lock'"))


@pytest.mark.parametrize("how", ["terminated", "cut"])
def test_a_stroke_that_was_broken_off_is_done_once(
    postgres: Server, store: PostgresStore, proxy: Proxy, schema: str, how: str
):
    """In the middle: it is rolled back, and run again by itself."""
    worker = Worker(store, "worker")
    insert(store, "a", "b")
    [claim] = worker.claim(1)
    with ThreadPoolExecutor() as threads:
        with jobs_locked(postgres, schema):
            finished: Future[Any] = threads.submit(worker.exchange, succeeded(claim), limit=1)
            wait_until(lambda: waits(postgres), "the exchange waits")
            if how == "terminated":
                postgres.run(f"select pg_terminate_backend(pid, 5000) from pg_stat_activity where {OURS}")
            else:
                proxy.cut()
        reply = finished.result(60)
    assert (names(reply.claims), reply.refused) == (["b"], [])
    assert states(store) == {"a": JobState.SUCCEEDED, "b": JobState.RUNNING}


def test_deadlocks_with_outsiders_never_surface(postgres: Server, store: PostgresStore, schema: str):
    """Whoever PostgreSQL chooses: the stroke is run again."""
    worker = Worker(store, "worker")
    insert(store, "a", "b")
    claims = worker.claim()
    first, second = sorted(claim.token.id for claim in claims)
    take = f"select 1 from {schema}.job where id = %s for update"
    with psycopg.connect(postgres.conninfo("postgres")) as outsider, ThreadPoolExecutor() as threads:
        outsider.execute("set deadlock_timeout = '60s'")  # so that it is the stroke that is chosen
        outsider.execute(take.encode(), [second])
        finished = threads.submit(worker.finish, *map(succeeded, claims))
        wait_until(lambda: waits(postgres), "the stroke waits for the second, and has the first")
        outsider.execute(take.encode(), [first])
        outsider.rollback()
        assert finished.result(60) == []
    assert set(states(store).values()) == {JobState.SUCCEEDED}


def test_a_stroke_that_failed_spoils_no_line(
    postgres: Server, store: PostgresStore, schema: str, monkeypatch: pytest.MonkeyPatch
):
    """What the driver was about to prepare when the server passed over it is not there."""
    monkeypatch.setattr(store._connections, "_patience", 0.05)
    monkeypatch.setattr(postgres_strokes, "PATIENCE", 0.05)
    for n in range(12):
        with jobs_locked(postgres, schema), pytest.raises(StoreUnavailable, match=r"lock timeout|has what this needs"):
            insert(store, f"not {n}")
        insert(store, f"{n}")
    assert len(states(store)) == 12


def test_who_is_stopped_in_the_middle_of_a_stroke_holds_up_nobody_for_long(postgres: Server, store: PostgresStore):
    """To the server it is not idle: it may go on sending any moment. When it does, it does its stroke again."""
    worker, other = Worker(store, "worker"), Worker(store, "other")
    insert(store, "a", "b")
    [claim] = worker.claim(1)
    going, stopped = Event(), Event()

    def stop(c: Any) -> str:
        if not stopped.is_set():
            assert c.execute("update job set attempts = attempts where state in (3, 4)").rowcount == 2
            stopped.set()
            going.wait(60)
        return "done"

    with ThreadPoolExecutor() as threads:
        first = threads.submit(store._stroke, "", stop)
        stopped.wait(60)
        assert worker.finish(succeeded(claim)) == []
        going.set()
        assert first.result(60) == "done"
    assert names(other.claim()) == ["b"]


def test_nobody_waits_for_another_as_long_as_a_lease_lasts(store: PostgresStore):
    """Else one that is stopped costs the others theirs."""
    Worker(store, "worker", lease=3 * SECOND)
    Worker(store, "patient", lease=300 * SECOND)
    with store._connections.session() as c:
        assert list(c.execute("show lock_timeout")) == [("500ms",)]


def test_one_who_is_slow_costs_nobody_a_failure(postgres: Server, store: PostgresStore, schema: str):
    """It is at work for longer than one with a short lease waits at a time: that one waits again."""
    worker = Worker(store, "worker", lease=3 * SECOND)
    insert(store, "a")
    [claim] = worker.claim(1)
    with psycopg.connect(postgres.conninfo("postgres")) as slow, ThreadPoolExecutor() as threads:
        slow.execute(f"update {schema}.job set attempts = attempts".encode())
        at_work = threads.submit(slow.execute, "select pg_sleep(1.5)")
        finishing = threads.submit(worker.finish, succeeded(claim))
        at_work.result(60)
        slow.rollback()
        assert finishing.result(60) == []


# Silence.


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_connections, "ANSWER", 1.0)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("lost", [Mode.SWALLOW_REQUESTS, Mode.SWALLOW_REPLIES])
def test_a_half_open_line_is_given_up(store: PostgresStore, proxy: Proxy, lost: Mode):
    """Nothing that the kernel could see is wrong with it. The caller gets an error, and later all is well again."""
    insert(store, "a")
    proxy.set(lost)
    with pytest.raises(StoreUnavailable):
        insert(store, "b")
    with pytest.raises(StoreUnavailable):
        store.queues()
    proxy.set(Mode.PASS)
    insert(store, "c")
    assert {"a", "c"} <= set(states(store))


@pytest.mark.usefixtures("impatient")
def test_one_silent_line_among_good_ones_is_replaced(
    store: PostgresStore, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
):
    """Its other end at the server, which has rows to itself, is ended, and the stroke is done on another line."""
    monkeypatch.setattr(store._connections, "end_stopped", lambda: False)  # what somebody else would do later
    worker = Worker(store, "worker")
    insert(store, "a", "b")
    [claim] = worker.claim(1)
    proxy.deafen()  # those that are open now
    reply = worker.exchange(succeeded(claim), limit=1)
    assert (names(reply.claims), reply.refused) == (["b"], [])


@pytest.mark.usefixtures("impatient")
def test_a_slow_server_is_not_a_silent_one(
    postgres: Server, store: PostgresStore, schema: str, monkeypatch: pytest.MonkeyPatch
):
    """As long as it is at work on the answer."""
    probes: list[bool | None] = []
    look = postgres_connections.Connection._at_work

    def looked_at(connection: postgres_connections.Connection) -> bool | None:
        probes.append(look(connection))
        return probes[-1]

    monkeypatch.setattr(postgres_connections.Connection, "_at_work", looked_at)
    insert(store, "a")
    with ThreadPoolExecutor() as threads:
        with jobs_locked(postgres, schema):
            looked = threads.submit(store.queues)
            wait_until(lambda: waits(postgres), "the look waits")
            asked = len(probes)
            wait_until(lambda: len(probes) >= asked + 2, "somebody looked twice whether the server is at work")
        assert [it.queue for it in looked.result(60)] == ["default"]


def test_a_watch_that_cannot_begin_says_so_in_words_of_the_contract(store: PostgresStore, proxy: Proxy):
    """Else a worker would take it for a bug."""
    proxy.set(Mode.LOSE_REPLY, holding=b"LISTEN\0")
    with pytest.raises(StoreUnavailable):
        store.watch(EVERYTHING)
    assert proxy.seen.lost_replies == 1


def test_a_watch_that_hears_nothing_looks_more_often(
    postgres: Server, store: PostgresStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """It calls itself first. Here the call goes to another database, where nobody hears it."""
    monkeypatch.setattr(postgres_watch, "CALL_WITHIN", 60.0)
    elsewhere = PostgresStore(postgres.url("template1", schema="packhorse"))
    watch = store.watch(EVERYTHING)
    assert caplog.messages == []
    watch.close()
    with monkeypatch.context() as patch:
        patch.setattr(postgres_watch, "CALL_WITHIN", 0.2)
        patch.setattr(store._connections, "take", elsewhere._connections.take)
        patch.setattr(store._connections, "give_back", elsewhere._connections.give_back)
        watch = store.watch(EVERYTHING)
    try:
        assert caplog.messages == ["calls of the server do not arrive (NOTIFY): jobs are looked for each 1 s"]
        with ThreadPoolExecutor() as threads:
            woken = threads.submit(watch.wait, 60)
            insert(store, "a")
            assert woken.result(60) is True
    finally:
        watch.close()
        elsewhere.close()


# What the database may be set to.


@pytest.mark.parametrize(
    ("setting", "other", "ours"),
    [
        ("default_transaction_isolation", "serializable", "read committed"),
        ("default_transaction_read_only", "on", "off"),
        ("statement_timeout", "1s", "0"),
        ("idle_session_timeout", "20ms", "0"),
        ("idle_in_transaction_session_timeout", "20ms", "15s"),
        ("lock_timeout", "1ms", "5s"),
        ("search_path", "elsewhere", '"line"'),
    ],
)
def test_what_the_database_is_set_to_does_not_matter(
    postgres: Server, schema: str, setting: str, other: str, ours: str
):
    postgres.run("create database odd")
    postgres.run(f"alter database odd set {setting} = '{other}'")
    store = PostgresStore(postgres.url("odd", schema=schema))
    try:
        worker = Worker(store, "worker")
        insert(store, "a", "b")
        assert names(worker.claim()) == ["a", "b"]
        [connection] = store._connections._idle
        assert connection.execute(f"show {setting}".encode()).fetchone() == (ours,)
    finally:
        store.close()
        postgres.run("drop database odd with (force)")


def test_no_connection_is_free(postgres: Server, store: PostgresStore):
    """One clear error; the next call finds one again."""
    postgres.run("create role guest login superuser connection limit 0")
    postgres.run("alter role guest nosuperuser connection limit 0")
    poor = PostgresStore(postgres.url("postgres", user="guest", schema="line").replace("postgres@", "guest@"))
    try:
        with pytest.raises(StoreUnavailable, match="too many connections"):
            poor.queues()
        postgres.run("alter role guest superuser")
        assert poor.queues() == []
    finally:
        poor.close()
        postgres.run("drop role guest")


def test_a_line_to_a_server_that_takes_no_writes_any_more_is_dropped(postgres: Server, store: PostgresStore):
    """As after a fail-over: the next one may lead to the new primary."""
    insert(store, "a")
    before = {connection.info.backend_pid for connection in store._connections._idle}
    for connection in store._connections._idle:
        connection.execute("set default_transaction_read_only = on")
    insert(store, "b")
    assert before.isdisjoint(connection.info.backend_pid for connection in store._connections._idle)
    assert sorted(states(store)) == ["a", "b"]


def test_both_sides_of_a_fork_go_on(postgres: Server, store: PostgresStore):
    """The child makes lines of its own, and leaves the parent's alone, also when it ends."""
    insert(store, "before")
    before = [connection.info.backend_pid for connection in store._connections._idle]
    pid = os.fork()
    if not pid:
        status = 1
        try:
            insert(store, "child")
            mine = [connection.info.backend_pid for connection in store._connections._idle]
            status = 0 if set(mine).isdisjoint(before) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    insert(store, "parent")
    assert [connection.info.backend_pid for connection in store._connections._idle] == before
    assert sorted(states(store)) == ["before", "child", "parent"]
