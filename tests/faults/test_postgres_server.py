"""A PostgreSQL server that is killed, restarted or frozen under workers: they go on when it is back."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.harness import PostgresPlace
from tests.servers.postgres import Missing, Server


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
