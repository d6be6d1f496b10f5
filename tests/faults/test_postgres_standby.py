"""A primary with a synchronous standby: it is killed, the standby takes over, and workers find it by themselves."""

import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from threading import Event, Thread

import pytest

from packhorse.errors import EnqueueError, StoreUnsafe
from packhorse.stores.postgres import PostgresStore
from packhorse.testing.contract.helpers import insert
from tests.faults.harness import PostgresPlace
from tests.servers.postgres import Missing, Server
from tests.waiting import wait_until

pytestmark = pytest.mark.servers

SYNCHRONOUS = "select 1 from pg_stat_replication where sync_state = 'sync'"


class Pair(PostgresPlace):
    """A store of two hosts, of which the one that takes writes is used."""

    def __init__(self, folder: Path, primary: Server, standby: Server) -> None:
        self.hosts = f"{standby.folder},{primary.folder}"
        super().__init__(folder, primary)
        self.standby = standby

    @property
    def url(self) -> str:
        more = f"schema={self.schema}&target_session_attrs=read-write"
        return f"postgresql://postgres@/postgres?host={self.hosts}&{more}"

    def fail_over(self) -> None:
        self.server.kill()
        self.standby.promote()
        self.server = self.standby


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    servers: list[Server] = []
    try:
        servers.append(Server())
        servers[0].start()
        servers.append(Server(standby_of=servers[0]))
        servers[1].start()
        servers[0].run("alter system set synchronous_standby_names = '*'")
        servers[0].run("select pg_reload_conf()")
        wait_until(lambda: servers[0].run(SYNCHRONOUS), "the standby keeps up")
        pair = Pair(tmp_path, *servers)
        pair.settings |= {"lease": 120.0, "heartbeat": 1.0}  # nobody's is over while one takes the other's place
        yield pair
        pair.end()
    except Missing as missing:
        pytest.skip(str(missing))
    finally:
        for server in servers:
            server.remove()


def test_workers_go_on_with_the_standby_and_nothing_acknowledged_is_lost(pair: Pair):
    """Jobs are enqueued all the while; whoever got a handle for one has a job that is performed."""
    acknowledged = pair.enqueue_many("note", *[(f"before-{n}",) for n in range(20)])
    workers = pair.workers("--concurrency", "2")
    pair.wait_ran("before-19")
    running = pair.enqueue("hold", "running")
    pair.wait_started("running")
    enough = Event()

    def enqueue() -> None:
        for number in count():
            if enough.is_set():
                return
            try:
                acknowledged.append(pair.enqueue("note", f"during-{number}"))
            except EnqueueError:
                enough.wait(0.05)

    client = Thread(target=enqueue)
    client.start()
    try:
        wait_until(lambda: len(acknowledged) > 30, "some were enqueued meanwhile")
        pair.fail_over()
        began, known = time.monotonic(), len(acknowledged)
        pair.let_go("running")
        wait_until(lambda: len(acknowledged) > known + 10, "enqueueing goes on")
        last = acknowledged[-1]  # before the rows are read, as others come meanwhile
        key = pair.rows()[bytes.fromhex(last.replace("-", ""))].key
        pair.wait_ran(key)
        took = time.monotonic() - began
    finally:
        enough.set()
        client.join(30)
    pair.wait_all_finished()
    assert workers.stop() == 0
    pair.check([*acknowledged, running])
    assert len(pair.lines("running", "start")) == 1
    assert took < 60  # a few seconds, where the machine has nothing else to do


def test_a_standby_is_refused_by_itself_and_passed_over_beside_the_primary(pair: Pair):
    store = PostgresStore(pair.url)
    insert(store, "a")
    wait_until(lambda: pair.standby.run(f"select 1 from pg_namespace where nspname = '{pair.schema}'"), "it has it")
    alone = PostgresStore(pair.standby.url("postgres", schema=pair.schema))
    with pytest.raises(StoreUnsafe, match="standby"):
        alone.queues()
    with pytest.raises(StoreUnsafe, match="standby"):
        insert(alone, "b")
    store.close()
    alone.close()
