"""The ground on which PostgreSQL is measured, and the loop that others are held against."""

from collections.abc import Iterator

import psycopg
import pytest

from bench.bare_postgres_worker import connect, exchange, new_row
from bench.drains import drain
from bench.lab import Lab
from bench.sizes import QUICK
from bench.stores.postgres import MeasuredPostgres
from bench.systems import PackhorseSystem
from bench.systems.bare_postgres import Bare300System, BareListeningSystem, BarePostgresSystem
from bench.systems.peers import available
from bench.systems.sites import NativeSystem, PackhorseDjangoSystem, PackhorseSite
from tests.servers.postgres import Missing
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.servers]


class WithoutPeers(MeasuredPostgres):
    known_peers = ()
    known_variants = ()


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    try:
        with Lab(QUICK, WithoutPeers, 1, quiet=True) as lab:
            yield lab
            assert not lab.troubles
    except Missing as missing:
        pytest.skip(str(missing))


def ask(lab: Lab, database: str, statement: str) -> object:
    with psycopg.connect(lab.store.url(database), autocommit=True) as connection:
        row = connection.execute(statement.encode()).fetchone()
        assert row is not None
        return row[0]


def statistics(lab: Lab, database: str) -> object:
    return ask(lab, database, "select count(*) from pg_stats where tablename = 'job'")


def filled(lab: Lab, jobs: int) -> BarePostgresSystem:
    system = BarePostgresSystem(lab)
    system.fill(range(1, jobs + 1))
    return system


def test_commits_reach_the_disk(lab):
    shown = lab.store.describe()["server"]
    assert (shown["fsync"], shown["synchronous_commit"], shown["shared_buffers"]) == ("on", "on", "128MB")


def test_a_copy_has_the_rows_and_leaves_the_source_alone(lab):
    source = filled(lab, 5)
    source.close()
    copy = source.copy()
    assert copy.unfinished() == 5
    copy.enqueue(6)
    assert copy.unfinished() == 6
    copy.close()
    assert ask(lab, source.database, "select count(*) from job") == 5


def test_only_a_settled_table_has_statistics_and_copies_keep_them(lab):
    source = filled(lab, 50)
    source.close()
    fresh = lab.store.copy(source.database)
    lab.store.settle(source.database)
    settled = lab.store.copy(source.database)
    assert not statistics(lab, fresh)
    assert statistics(lab, settled)


def test_nobody_gathers_statistics_until_workers_begin(lab):
    def autovacuum() -> object:
        return ask(lab, "postgres", "show autovacuum")

    assert autovacuum() == "off"
    system = filled(lab, 1)
    with system.start(held=True):
        wait_until(lambda: autovacuum() == "on", "autovacuum is on")
    system.close()
    wait_until(lambda: autovacuum() == "off", "autovacuum is off again")


def test_statements_are_counted_for_one_database(lab):
    watched, other = lab.store.new("watched"), lab.store.new("other")
    lab.store.count_statements(watched)
    before = lab.store.statements(watched)
    with psycopg.connect(lab.store.url(watched), autocommit=True) as connection:
        for _ in range(3):
            connection.execute("select 1")
            connection.execute("select %s::int", (1,), prepare=True)
    ask(lab, other, "select 1")
    assert (before, lab.store.statements(watched), lab.store.statements(other)) == (0, 6, 0)


def test_round_trips_are_taken_as_often_as_asked(lab):
    taken = lab.store.round_trips(3)
    assert {name: len(values) for name, values in taken.items()} == {"select_1": 3, "notify": 3}


@pytest.mark.parametrize("make", [PackhorseSystem, BarePostgresSystem, Bare300System])
def test_every_job_is_drained_once_and_its_finish_recorded(lab, make):
    source = make(lab)
    source.fill(range(1, 1_001))
    source.close()
    system = source.copy()
    figures = drain(system, 1_000)
    assert sorted(figures["numbers"]) == list(range(1, 1_001))
    assert figures["rate_with_finish"] > 0
    assert system.unfinished() == 0
    system.close()


@pytest.mark.parametrize("make", [PackhorseDjangoSystem, NativeSystem])
def test_tasks_of_django_are_drained_once(lab, make):
    """By the command of a site, and without Django, in one environment; peers are installed where they are measured."""
    if PackhorseSite not in available(lab, (PackhorseSite,)):
        pytest.skip(lab.notes[-1])
    test_every_job_is_drained_once_and_its_finish_recorded(lab, make)


def test_a_listening_loop_is_woken(lab):
    system = BareListeningSystem(lab)
    with system.start() as running:
        for number in (1, 2, 3):
            system.enqueue(number)
            assert running.wait_performed(number, 20)
    system.close()


def test_an_exchange_of_the_bare_loop_finishes_only_what_is_its_own(lab):
    system = filled(lab, 3)
    with connect(lab.store.url(system.database)) as mine:
        claims = exchange(mine, 1, [], 2)
        first, second = (job for job, *_ in claims)
        assert exchange(mine, 2, [first], 0) == []
        assert system.unfinished() == 3
        assert len(exchange(mine, 1, [first, second], 5)) == 1
    assert system.unfinished() == 1
    system.close()


def test_the_bare_loop_refuses_what_it_did_not_sign(lab):
    system = filled(lab, 1)
    job, *_ = new_row(2)
    ask(lab, system.database, f"update job set id = '{job}' returning 1")
    with system.start() as running:
        wait_until(lambda: not running.alive, "a worker gave up")
        assert "was not signed by us" in running.log.read_text()
        assert running.performed() == 0
    system.close()


def test_databases_are_gone_when_a_scenario_is_done(lab):
    lab.store.new("temporary")
    lab.scenario_done()
    assert ask(lab, "postgres", "select count(*) from pg_database where datname like 'bench%'") == 0
