"""A PostgreSQL server that is killed, restarted, frozen or full under workers: they go on when it is back."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import psycopg
import pytest

from packhorse.errors import StoreUnavailable
from packhorse.stores.contract import Level
from packhorse.stores.postgres import PostgresStore
from packhorse.testing.contract.helpers import insert, states
from tests.faults.harness import PostgresPlace
from tests.faults.test_schedules import check_one_job_for_each_moment, schedule, settle, wait_ticked
from tests.servers.postgres import Missing, Server
from tests.waiting import wait_until

OURS = "application_name = 'packhorse'"


@pytest.fixture
def killable(tmp_path: Path) -> Iterator[PostgresPlace]:
    try:
        server = Server()
    except Missing as missing:
        pytest.skip(str(missing))
    try:
        server.start()
        place = PostgresPlace(tmp_path, server)
        place.settings |= {"lease": 120.0, "heartbeat": 1.0}  # it is away for less
        yield place
        place.end()
    finally:
        server.remove()


@pytest.mark.servers
@pytest.mark.parametrize("how", ["kill", "crash", "stop", "freeze"])
def test_workers_go_on_when_the_server_is_back(killable: PostgresPlace, how: str):
    """What ran when it went is written down then, and runs once; what was enqueued before is there."""
    place, server = killable, killable.server
    held = place.enqueue("hold", "held")
    workers = place.workers("--concurrency", "2")
    place.wait_started("held")
    place.app.close()
    if how == "freeze":
        server.freeze()
    else:
        getattr(server, how)()
    place.let_go("held")
    workers.wait_log("the store failed")
    if how == "freeze":
        server.thaw()
    else:
        server.start()
    after = place.enqueue_many("note", *[(f"after-{n}",) for n in range(20)])
    place.wait_all_finished()
    assert workers.stop() == 0
    place.check([held, *after])
    assert len(place.lines("held", "start")) == 1
    assert len(workers.pids("worker")) == 1


@pytest.mark.servers
@pytest.mark.slow
def test_recurring_work_goes_on_after_an_outage_longer_than_a_lease(killable: PostgresPlace):
    """The leases of all are over by then. Nothing is adopted that nobody lost, and each moment has its one job."""
    place, server = killable, killable.server
    place.settings |= {"lease": 2.0, "heartbeat": 0.3}
    workers = place.workers("--concurrency", "4")
    firsts = schedule(place, "every-second")
    wait_ticked(place, ["every-second"], 2)
    held = place.enqueue("hold", "held")
    place.wait_started("held")
    place.app.close()
    server.kill()
    gone_at = time.monotonic()
    workers.wait_log("its lease is about to end")
    wait_until(lambda: time.monotonic() > gone_at + 2 * place.settings["lease"], "all leases are over")
    server.start()
    wait_ticked(place, ["every-second"], 4)
    place.let_go("held")
    place.wait_state(held, "succeeded")
    settle(place, workers)
    check_one_job_for_each_moment(without_lines(place, "held"), firsts)


def without_lines(place: PostgresPlace, without: str) -> PostgresPlace:
    """The place, with the lines of schedules alone in its ledger."""
    kept = [line for line in place.ledger.path.read_text().splitlines(keepends=True) if not line.startswith(without)]
    place.ledger.path.write_text("".join(kept))
    return place


@pytest.fixture
def small(tmp_path: Path) -> Iterator[PostgresPlace]:
    """With room for few."""
    try:
        server = Server()
    except Missing as missing:
        pytest.skip(str(missing))
    try:
        server.start(max_connections="20", superuser_reserved_connections="0")
        place = PostgresPlace(tmp_path, server)
        yield place
        place.end()
    finally:
        server.remove()


def take_all(server: Server, crowd: ExitStack) -> None:
    """Until the server lets nobody in any more, whoever was there before."""
    while True:
        try:
            crowd.enter_context(closing(psycopg.connect(server.conninfo("postgres"))))
        except psycopg.OperationalError:
            return


@pytest.mark.servers
def test_a_server_without_a_free_connection_is_one_clear_error(small: PostgresPlace):
    """Who is connected goes on, who is not is told, and the next call finds one again."""
    first, second = PostgresStore(small.url), PostgresStore(small.url)
    try:
        insert(first, "a")
        with ExitStack() as crowd:
            take_all(small.server, crowd)
            for _ in range(3):
                with pytest.raises(StoreUnavailable, match="too many clients"):
                    insert(second, "b")
            insert(first, "c")
            [found] = [finding for finding in first.examine() if finding.about == "connections"]
            assert found.level is Level.WARNING
        insert(second, "b")
        assert sorted(states(first)) == ["a", "b", "c"]
    finally:
        first.close()
        second.close()


@pytest.mark.servers
def test_workers_that_find_no_connection_wait_for_one(small: PostgresPlace):
    """Their lines are cut and others take their places; what ran meanwhile is written down later, and runs once."""
    place, server = small, small.server
    held = place.enqueue("hold", "held")
    workers = place.workers("--concurrency", "2")
    place.wait_started("held")
    with ExitStack() as crowd:
        server.run("select 1")  # a line of its own, before there is no more room
        take_all(server, crowd)

        def push_out() -> bool:
            """Some of them may be back before the others are in: then once more."""
            server.run(f"select pg_terminate_backend(pid, 5000) from pg_stat_activity where {OURS}")
            take_all(server, crowd)
            return not server.run(f"select 1 from pg_stat_activity where {OURS}")

        wait_until(push_out, "none of them is connected", 60)
        place.let_go("held")
        workers.wait_log("too many clients")
    after = place.enqueue_many("note", *[(f"after-{n}",) for n in range(5)])
    place.wait_all_finished()
    assert workers.stop() == 0
    place.check([held, *after])
    assert len(place.lines("held", "start")) == 1
