"""Lines to a server that are encrypted: all that a store does on them, and what a fork must not do to them."""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from chaos.proxy import Proxy
from packhorse.errors import StoreUnavailable
from packhorse.job import JobState
from packhorse.queues import EVERYTHING
from packhorse.stores.postgres import PostgresStore
from packhorse.testing.contract.helpers import Worker, insert, names, states, succeeded
from tests.servers import certificates
from tests.servers.postgres import USER, Missing, Server
from tests.waiting import wait_until

LINES = "select ssl from pg_stat_ssl join pg_stat_activity using (pid) where application_name = 'packhorse'"


def free_port() -> str:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    try:
        server = Server()
    except Missing as missing:
        pytest.skip(str(missing))
    try:
        certificates.make(server.folder)
        if os.geteuid() == 0:
            for file in ("server.crt", "server.key"):
                shutil.chown(server.folder / file, USER, USER)
        place = {f"ssl_{what}_file": f"{server.folder}/server.{end}" for what, end in (("cert", "crt"), ("key", "key"))}
        server.start(listen_addresses="127.0.0.1", port=free_port(), ssl="on", **place)
        yield server
    finally:
        server.remove()


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy(("127.0.0.1", int(server.port))) as proxy:
        yield proxy


def url_of(server: Server, proxy: Proxy, mode: str, **more: str) -> str:
    root = {} if mode == "require" else {"sslrootcert": f"{server.folder}/root.crt"}
    return server.through(("localhost", proxy.address[1]), "postgres", schema="tls", sslmode=mode, **root | more)


@pytest.fixture(params=["require", "verify-full"])
def store(server: Server, proxy: Proxy, request: pytest.FixtureRequest) -> Iterator[PostgresStore]:
    store = PostgresStore(url_of(server, proxy, request.param))
    yield store
    store.close()
    server.run("drop schema if exists tls cascade")


def test_jobs_go_their_way(server: Server, store: PostgresStore):
    worker = Worker(store, "worker")
    insert(store, "a", "b")
    insert(store, *(f"many {n:04}" for n in range(300)))  # by COPY
    for _ in range(10):  # more often than the driver sees a statement before it prepares it
        if not (claims := worker.claim(50)):
            break
        assert worker.finish(*map(succeeded, claims)) == []
    assert set(states(store).values()) == {JobState.SUCCEEDED}
    assert set(server.run(LINES)) == {(True,)}


def test_who_sleeps_is_called(store: PostgresStore):
    insert(store, "before")
    watch = store.watch(EVERYTHING)
    with ThreadPoolExecutor() as threads:
        woken = threads.submit(watch.wait, 60)
        insert(store, "a")
        assert woken.result(60) is True
    watch.close()


def test_a_line_that_is_cut_is_replaced(server: Server, store: PostgresStore, proxy: Proxy):
    """In the middle of everything, without a goodbye; its other end is ended."""
    worker = Worker(store, "worker")
    insert(store, "a", "b")
    [claim] = worker.claim(1)
    watch = store.watch(EVERYTHING)
    proxy.cut()
    reply = worker.exchange(succeeded(claim), limit=1)
    assert (names(reply.claims), reply.refused) == (["b"], [])
    with pytest.raises(StoreUnavailable):
        watch.wait(5)
    with ThreadPoolExecutor() as threads:
        woken = threads.submit(watch.wait, 60)
        insert(store, "c")
        assert woken.result(60) is True
    watch.close()


def test_a_line_whose_server_is_asked_about_it(server: Server, store: PostgresStore):
    """Whether it is at work, on another line; and it can be ended from there."""
    insert(store, "a")
    connection = store._connections.connect()
    assert connection._at_work() is False
    store._connections.give_back(store._connections.connect(connection))
    with pytest.raises(psycopg.OperationalError):
        connection.execute("select 1")
    connection.close()


def test_a_server_that_nobody_vouches_for_is_not_trusted(server: Server, proxy: Proxy, tmp_path: Path):
    certificates.make(tmp_path)
    store = PostgresStore(url_of(server, proxy, "verify-full", sslrootcert=f"{tmp_path}/root.crt"))
    with pytest.raises(StoreUnavailable, match="SSL error"):
        insert(store, "a")
    store.close()


FORKING = """
import json, multiprocessing, os, sys, threading
from packhorse.stores.postgres import PostgresStore
from packhorse.testing.contract.helpers import insert

def sockets():
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            found[fd] = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            pass
    return {fd: where for fd, where in found.items() if where.startswith("socket:")}

def lines():
    return sorted(connection.info.backend_pid for connection in store._connections._idle)

def work(name):
    for n in range(20):
        insert(store, f"{name} {n}")
        insert(store, f"{name} {n} b", f"{name} {n} c")

def child(name, theirs):
    shared = sorted(set(sockets().values()) & set(theirs))
    work(name)
    print(json.dumps({"name": name, "shared": shared}), flush=True)

store = PostgresStore(sys.argv[1])
work("before")
store.queues()
before, theirs = lines(), list(sockets().values())
children = []
for n in range(2):
    if (pid := os.fork()) == 0:
        child(f"child {n}", theirs)
        store.close()
        os._exit(0)
    children.append(pid)
process = multiprocessing.get_context("fork").Process(target=child, args=("process", theirs))
process.start()
work("parent")
process.join()
ended = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
work("after")
print(json.dumps({"name": "parent", "ended": ended + [process.exitcode], "same": before == lines(),
                  "left": len(sockets()) - len(theirs)}), flush=True)
store.close()
"""


@pytest.mark.parametrize("encrypted", [True, False], ids=["tls", "plain"])
def test_a_fork_leaves_the_parents_lines_alone(server: Server, proxy: Proxy, encrypted: bool):
    """Both enqueue at once. The child uses none of its parent's lines, ends none, and keeps none open."""
    url = url_of(server, proxy, "verify-full") if encrypted else server.url("postgres", schema="tls", port=server.port)
    done = subprocess.run([sys.executable, "-c", FORKING, url], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    said = {one["name"]: one for one in map(json.loads, done.stdout.splitlines())}
    assert {name: one.get("shared") for name, one in said.items() if name != "parent"} == {
        "child 0": [],
        "child 1": [],
        "process": [],
    }
    assert said["parent"] == {"name": "parent", "ended": [0, 0, 0], "same": True, "left": 0}
    store = PostgresStore(url)
    try:
        assert len(states(store)) == 6 * 20 * 3
    finally:
        store.close()
        server.run("drop schema if exists tls cascade")


def test_a_line_that_only_a_child_has_is_ended(server: Server, proxy: Proxy):
    """When its parent is gone, the server must not take it for one that is still there."""
    script = """
import os, sys, time
from packhorse.stores.postgres import PostgresStore
from packhorse.testing.contract.helpers import insert
store = PostgresStore(sys.argv[1])
insert(store, "a")
[connection] = store._connections._idle
if os.fork():
    print(connection.info.backend_pid, flush=True)
    os._exit(0)
sys.stdin.read()
"""
    url = server.url("postgres", schema="tls", port=server.port)
    with subprocess.Popen(
        [sys.executable, "-c", script, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdin is not None
        pid = int(parent.stdout.readline())
        wait_until(lambda: not server.run(f"select 1 from pg_stat_activity where pid = {pid}"), "its back-end is gone")
        parent.stdin.close()
    server.run("drop schema if exists tls cascade")
