"""Waiting for results while the store goes away, and across a fork."""

import asyncio
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from packhorse import Embedded, Packhorse
from packhorse.errors import StoreUnavailable
from tests.contract.stores import schemas
from tests.servers.postgres import Server
from tests.waiting import wait_until

SOON = 60.0
KEY = ["a key of 32 or more characters, for tests"]


@pytest.fixture(params=["sqlite", "postgres"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Packhorse]:
    if request.param == "sqlite":
        app = Packhorse("shop", f"sqlite:///{tmp_path}/jobs.db?synchronous=normal", keys=KEY)
        yield app
        app.close()
        return
    with schemas(request.getfixturevalue("postgres")) as urls:
        app = Packhorse("shop", next(urls), keys=KEY)
        yield app
        app.close()


def wanted(app: Packhorse) -> int:
    return sum(len(ticket.wanted) for ticket in tuple(app.store.room._tickets))


def test_a_forked_child_waits_in_a_room_of_its_own(app: Packhorse):
    """Its parent's waiters are not there, and its parent's thread neither; both get their results."""

    @app.task
    def double(number: int) -> int:
        return 2 * number

    ours, its = double.enqueue(1), double.enqueue(2)
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(ours.result, SOON)
        wait_until(lambda: wanted(app) == 1 and app.store.room._sleeps_in is not None, "the parent to wait")
        if not (child := os.fork()):
            code = 1
            try:
                code = 0 if wanted(app) == 0 and its.result(SOON) == 4 else 2
            finally:
                os._exit(code)
        with Embedded(app):
            assert waiting.result(SOON) == 2
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_server_that_goes_away_is_told_to_all_and_found_again():
    server = Server()
    server.start()
    app = Packhorse("shop", server.url("postgres"), keys=KEY)

    @app.task
    def double(number: int) -> int:
        return 2 * number

    handles = list(app.enqueue_many(double.call(number) for number in range(40)))

    async def await_all() -> list[Any]:
        return await asyncio.gather(*(handle.aresult(SOON) for handle in handles[20:]), return_exceptions=True)

    try:
        with ThreadPoolExecutor(21) as threads:
            waiting = [threads.submit(handle.result, SOON) for handle in handles[:20]]
            coroutines = threads.submit(asyncio.run, await_all())
            wait_until(lambda: wanted(app) == 40 and app.store.room._sleeps_in is not None, "all to wait")
            server.stop()
            errors = [each.exception(SOON) for each in waiting] + coroutines.result(SOON)
            assert {type(error) for error in errors} == {StoreUnavailable}
            server.start()
            waiting = [threads.submit(handle.result, SOON) for handle in handles[:20]]
            coroutines = threads.submit(asyncio.run, await_all())
            with Embedded(app):
                results = [each.result(SOON) for each in waiting] + coroutines.result(SOON)
            assert results == [2 * number for number in range(40)]
    finally:
        app.close()
        server.remove()
