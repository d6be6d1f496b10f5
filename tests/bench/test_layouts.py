"""Layouts that are compared keep the same promises, or the figures say nothing."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from bench.layout_statements import LAYOUTS
from bench.layouts import PINNED, QUICK_DRAINS, Ground, Worker
from tests.contract.stores import quick_folder
from tests.servers.postgres import Server
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.servers]


@pytest.fixture(params=LAYOUTS, ids=lambda layout: layout.name)
def ground(request: pytest.FixtureRequest, postgres: Server) -> Iterator[Ground]:
    ground = Ground(postgres, request.param, 1)
    yield ground
    ground.drop()


@pytest.fixture
def workers(ground: Ground) -> Iterator[list[Worker]]:
    workers = [Worker(ground.conninfo, ground.layout) for _ in range(2)]
    yield workers
    for worker in workers:
        worker.close()


def test_jobs_come_in_order_and_to_one_worker(ground: Ground, workers: list[Worker]):
    ground.fill(history=3, waiting=5)
    one, other = workers
    first, _ = one.exchange([], 2)
    rest, _ = other.exchange([], 10)
    assert [int.from_bytes(held.token.id) for held in (*first, *rest)] == [4, 5, 6, 7, 8]
    assert {(held.token.process, held.token.epoch) for held in first} == {(one.process, 1)}
    assert {held.token.process for held in rest} == {other.process}
    assert one.exchange([], 1) == ([], [])


def test_an_end_is_taken_once_and_only_under_its_token(ground: Ground, workers: list[Worker]):
    ground.fill(history=0, waiting=2)
    one, _ = workers
    [held], _ = one.exchange([], 1)
    token = held.token
    wrong = [token._replace(process=bytes(16)), token._replace(nonce=1), token._replace(epoch=2)]
    for other in wrong:
        assert one.exchange([held._replace(token=other)], 0) == ([], [])
    assert ground.one(ground.layout.finished) == 0
    [following], accepted = one.exchange([held], 1)
    assert (accepted, ground.one(ground.layout.finished)) == ([token.id], 1)
    assert one.exchange([held, following], 1) == ([], [following.token.id])
    assert ground.one(ground.layout.finished) == 2


def test_no_statement_reads_more_than_its_batch(ground: Ground, workers: list[Worker]):
    ground.fill(history=100, waiting=400)
    one, other = workers
    one.warm()
    held, _ = one.exchange([], 200)
    others, _ = other.exchange([], 200)
    one.exchange(held, 0)
    other.exchange(others, 0)
    for worker in workers:
        worker.close()  # which is when its counts are told
    read = "select sum(idx_tup_read) from pg_stat_user_indexes"
    scanned = "select sum(seq_tup_read) from pg_stat_user_tables"
    wait_until(lambda: ground.one(read) >= 400, "the counts are told")
    assert ground.one(read) < 400 * 10
    assert ground.one(scanned) == 0


@pytest.mark.thorough
def test_a_quick_run_tells_of_every_layout_in_every_case(postgres: Server):
    command = [sys.executable, "-m", "bench.layouts", "--quick", "--json"]
    with quick_folder() as folder:
        folder.chmod(0o711)  # the server runs as another user
        env = os.environ | {"TMPDIR": str(folder)}
        ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    figures = json.loads(ended.stdout)["figures"]
    names = [layout.name for layout in LAYOUTS]
    assert list(figures) == [*(case.name for case in QUICK_DRAINS), PINNED.name]
    assert all(list(found) == names for found in figures.values())
    for case in QUICK_DRAINS:
        for found in figures[case.name].values():
            # Each of two workers claims twice, and once more ends what it has.
            assert found["commits"]["median"] == 6 / case.jobs
            assert found["dead"]["median"] >= 2
    for found in figures[PINNED.name].values():
        assert 0 < found["finished"] <= found["made"]
