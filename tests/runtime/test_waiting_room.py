"""Any number of waiters of a process share one watch and one look, and hold no thread of an event loop's pool."""

import _thread
import asyncio
import ctypes
import gc
import threading
import time
import weakref
from collections import Counter
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from packhorse import Embedded, JobHandle, NotFinished, Packhorse, Task, wait_jobs
from packhorse.errors import StoreUnavailable
from packhorse.stores import waiting_room
from packhorse.stores.contract import Store, Watch
from tests.contract.stores import schemas
from tests.servers.postgres import Server
from tests.waiting import wait_until

SOON = 60.0
CROWD = 100
KEY = ["a key of 32 or more characters, for tests"]


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "postgres":
        with schemas(request.getfixturevalue("postgres")) as urls:
            yield next(urls)
    else:
        yield "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/jobs.db?synchronous=normal"


@pytest.fixture
def app(url: str) -> Iterator[Packhorse]:
    app = Packhorse("shop", url, heartbeat=0.1, lease=30, polling_interval=0.2, keys=KEY)
    yield app
    app.close()


@pytest.fixture
def double(app: Packhorse) -> Task[[int], int]:
    @app.task(name="double")
    def double(number: int) -> int:
        return 2 * number

    return double


class Counted:
    """How often a store was asked who has ended, for how many, and how often somebody began to watch."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.looks: list[list[bytes]] = []
        self.watches: list[Watch] = []
        self._ended, self._watch = store.ended, store.watch_endings
        monkeypatch.setattr(store, "ended", self.ended)
        monkeypatch.setattr(store, "watch_endings", self.watch_endings)

    def ended(self, ids: Collection[bytes]) -> set[bytes]:
        self.looks.append(list(ids))
        return self._ended(ids)

    def watch_endings(self) -> Watch:
        self.watches.append(self._watch())
        return self.watches[-1]


@pytest.fixture
def counted(app: Packhorse, monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(app.store, monkeypatch)


def wanted(app: Packhorse) -> int:
    """How many ids are waited for, by all who wait."""
    return sum(len(ticket.wanted) for ticket in tuple(app.store.room._tickets))


def runs(room: waiting_room.WaitingRoom) -> bool:
    return room._thread is not None


def cancel(handle: JobHandle[Any]) -> None:
    assert handle.cancel()


def test_a_crowd_of_threads_shares_one_watch(app: Packhorse, double: Task[[int], int], counted: Counted):
    """Each gets its result, and nobody looks for one job alone when all are there."""
    handles = enqueued(double, CROWD)
    with ThreadPoolExecutor(CROWD) as threads:
        waiting = [threads.submit(handle.result, SOON) for handle in handles]
        wait_until(lambda: wanted(app) == CROWD, "all to wait")
        with Embedded(app):
            assert [each.result(SOON) for each in waiting] == [2 * number for number in range(CROWD)]
    assert len(counted.watches) == 1


def enqueued(task: Task[[int], int], number: int) -> list[JobHandle[int]]:
    return list(task.app.enqueue_many(task.call(n) for n in range(number)))


def test_a_crowd_of_coroutines_leaves_the_pool_of_the_loop_free(
    app: Packhorse, double: Task[[int], int], counted: Counted
):
    """With a single thread in it an enqueue comes back while all of them wait, before any of their jobs has run."""
    handles = enqueued(double, CROWD)

    async def main() -> list[int]:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        waiting = [asyncio.create_task(handle.aresult(SOON)) for handle in handles]
        while wanted(app) < CROWD:
            await asyncio.sleep(0.01)
        later = await asyncio.wait_for(double.aenqueue(CROWD), SOON)
        assert not any(each.done() for each in waiting)
        with Embedded(app):
            results = await asyncio.gather(*waiting)
            return [*results, await later.aresult(SOON)]

    assert asyncio.run(main()) == [2 * number for number in range(CROWD + 1)]
    assert len(counted.watches) <= 2


@pytest.mark.parametrize("moment", ["before the look", "before the watch", "after the watch"])
def test_an_ending_between_two_looks_is_not_missed(
    app: Packhorse, double: Task[[int], int], moment: str, monkeypatch: pytest.MonkeyPatch
):
    """Whenever it comes: the waiter has read its job, and is not yet being looked for."""
    handle = double.enqueue(1)
    ended, watch_endings = app.store.ended, app.store.watch_endings

    def look(ids: Collection[bytes]) -> set[bytes]:
        if moment == "before the look" and not handle.look().finished:
            cancel(handle)
        return ended(ids)

    def watch() -> Watch:
        if moment == "before the watch":
            cancel(handle)
        made = watch_endings()
        if moment == "after the watch":
            cancel(handle)
        return made

    monkeypatch.setattr(app.store, "ended", look)
    monkeypatch.setattr(app.store, "watch_endings", watch)
    monkeypatch.setattr(waiting_room, "POLL", 2 * SOON)
    assert app.store.room.wait([handle._raw_id], SOON) == {handle._raw_id}


def test_a_newcomer_whose_job_has_ended_does_not_wait_for_a_change(
    app: Packhorse, double: Task[[int], int], counted: Counted
):
    """While others wait, and nothing happens."""
    other, handle = enqueued(double, 2)
    cancel(handle)
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(other.result, SOON)
        wait_until(lambda: len(counted.watches) == 1, "the watch")
        assert app.store.room.wait([handle._raw_id], SOON) == {handle._raw_id}
        cancel(other)
        assert waiting.exception(SOON) is not None


def test_a_small_wait_does_not_rest_as_long_as_a_large_one(
    app: Packhorse, double: Task[[int], int], counted: Counted, monkeypatch: pytest.MonkeyPatch
):
    """Something ends all the time: the small one is looked at again and again, while the large one rests."""
    monkeypatch.setattr(waiting_room, "REST", 0.0)
    monkeypatch.setattr(waiting_room, "SHARE", 1e9)  # after its first look the large one rests for good
    many, few = enqueued(double, 500), enqueued(double, 20)
    with ThreadPoolExecutor() as threads:
        large = threads.submit(wait_jobs, many, SOON)
        wait_until(lambda: sum(len(ids) >= len(many) for ids in counted.looks) >= 2, "the large wait")
        for handle in few:
            waiting = threads.submit(handle.result, SOON)
            wait_until(lambda: wanted(app) == len(many) + 1, "the small one")
            cancel(handle)
            assert waiting.exception(SOON) is not None
        assert not large.done()
        assert sum(len(ids) >= len(many) for ids in counted.looks) <= 3
        for table in app.store.room._tables:
            table.hurry()
        app.control.cancel([handle.id for handle in many], reason="over")
        app.store.room._large.hurry()
        app.store.room.wait([few[0]._raw_id], 0)  # somebody comes, so that the thread looks up
        assert large.result(SOON)[0] == many


def test_a_room_that_nobody_needs_ends(app: Packhorse, double: Task[[int], int], monkeypatch: pytest.MonkeyPatch):
    """Its thread and its watch go some time after the last waiter; the next one finds a new one."""
    monkeypatch.setattr(waiting_room, "LINGER", 0.01)
    for _ in range(2):
        handle = double.enqueue(1)
        with pytest.raises(NotFinished):
            handle.result(0.05)
        wait_until(lambda: app.store.room._thread is None, "the thread to end")
        assert app.store.room._watch is None


def test_closing_the_store_ends_the_room_at_once(url: str):
    """Nothing of it keeps the store in memory."""
    app = Packhorse("shop", url, keys=KEY)

    @app.task
    def never() -> None: ...

    handle: JobHandle[None] | None = never.enqueue()
    assert handle is not None
    with pytest.raises(NotFinished):
        handle.result(0.01)
    room = app.store.room
    wait_until(partial(runs, room), "the thread to begin")
    app.close()
    assert not runs(room)
    store = weakref.ref(app.store)
    del app, handle, never, room
    wait_until(lambda: gc.collect() >= 0 and store() is None, "the store to go")


def test_who_waits_while_the_store_is_closed_goes_on_waiting(app: Packhorse, double: Task[[int], int]):
    handle = double.enqueue(1)
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(handle.result, SOON)
        wait_until(lambda: wanted(app) == 1, "it to wait")
        app.close()
        with Embedded(app):
            assert waiting.result(SOON) == 2


def test_trouble_is_told_to_all_and_the_next_wait_begins_anew(
    app: Packhorse, double: Task[[int], int], monkeypatch: pytest.MonkeyPatch
):
    """Each has an error of its own. A single one is nobody's trouble: it is tried once more."""
    handles = enqueued(double, 6)
    ended, troubles = app.store.ended, Counter[str]()

    def look(ids: Collection[bytes]) -> set[bytes]:
        if troubles["left"] > 0:
            troubles["left"] -= 1
            raise StoreUnavailable("not now")
        return ended(ids)

    async def waits() -> list[Any]:
        return await asyncio.gather(*(handle.aresult(SOON) for handle in handles[3:]), return_exceptions=True)

    monkeypatch.setattr(app.store, "ended", look)
    with ThreadPoolExecutor() as threads:
        waiting = [threads.submit(handle.result, SOON) for handle in handles[:3]]
        coroutines = threads.submit(asyncio.run, waits())
        wait_until(lambda: wanted(app) == 6, "all to wait")
        troubles["left"] = 1
        cancel(handles[0])
        wait_until(lambda: waiting[0].done(), "the first to end")
        assert not coroutines.done()
        assert not any(each.done() for each in waiting[1:])
        troubles["left"] = 1_000_000
        cancel(handles[1])
        errors = [each.exception(SOON) for each in waiting[1:]] + coroutines.result(SOON)
        assert {type(error) for error in errors} == {StoreUnavailable}
        assert len(set(map(id, errors))) == 5
        troubles["left"] = 0
        with Embedded(app):
            assert handles[2].result(SOON) == 4


def test_a_closed_event_loop_is_forgotten(app: Packhorse, double: Task[[int], int], monkeypatch: pytest.MonkeyPatch):
    """Whether its jobs end or not; others are told as usual."""
    monkeypatch.setattr(waiting_room, "SWEEP", 0.05)
    handles = enqueued(double, 3)

    async def begin() -> list[asyncio.Task[int]]:
        tasks = [asyncio.ensure_future(handle.aresult(SOON)) for handle in handles[:2]]
        while wanted(app) < 2:
            await asyncio.sleep(0.01)
        return tasks

    loop = asyncio.new_event_loop()
    tasks = loop.run_until_complete(begin())
    loop.close()
    cancel(handles[0])
    with Embedded(app, "nothing"), ThreadPoolExecutor() as threads:
        waiting = threads.submit(handles[2].result, SOON)
        wait_until(lambda: wanted(app) == 1, "the loop to be forgotten")
        cancel(handles[2])
        assert waiting.exception(SOON) is not None
    for task in tasks:
        task._log_destroy_pending = False  # type: ignore[attr-defined]


class Struck(BaseException):
    pass


def test_an_exception_raised_into_a_waiting_thread_is_met(
    app: Packhorse, double: Task[[int], int], monkeypatch: pytest.MonkeyPatch
):
    """As a timeout is; and nothing is left behind."""
    monkeypatch.setattr(waiting_room, "SWEEP", 0.05)
    handle = double.enqueue(1)
    met: list[bool] = []

    def wait() -> None:
        try:
            handle.result(SOON)
        except Struck:
            met.append(True)

    for _ in range(5):
        thread = threading.Thread(target=wait)
        thread.start()
        # As long as that thread is being started, Python takes it for the one that starts it.
        wait_until(lambda: wanted(app) == 1 and app.store.room._thread is not None, "it to wait")
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Struck))
        thread.join(SOON)
        wait_until(lambda: wanted(app) == 0, "it to be forgotten")
    assert met == [True] * 5


def test_a_thread_that_was_kept_from_beginning_is_started_anew(
    app: Packhorse, double: Task[[int], int], monkeypatch: pytest.MonkeyPatch
):
    """An exception that is raised into the thread that starts it may hit the new one instead, and end it."""
    monkeypatch.setattr(waiting_room, "BEGINNING", 0.05)
    handle, started, start = double.enqueue(1), [], _thread.start_new_thread

    def start_the_second(*args: Any) -> None:
        started.append(args)
        if len(started) > 1:
            start(*args)

    monkeypatch.setattr(_thread, "start_new_thread", start_the_second)
    with pytest.raises(NotFinished):
        handle.result(0.01)
    cancel(handle)
    assert app.store.room.wait([handle._raw_id], SOON) == {handle._raw_id}
    assert len(started) == 2


def test_who_was_kept_from_leaving_is_forgotten(
    app: Packhorse, double: Task[[int], int], monkeypatch: pytest.MonkeyPatch
):
    """An exception may hit a thread at the very moment at which it leaves."""
    monkeypatch.setattr(waiting_room, "SWEEP", 0.05)
    handle, other = enqueued(double, 2)
    with monkeypatch.context() as patch:
        patch.setattr(waiting_room.Ticket, "leave", lambda self: None)
        with pytest.raises(NotFinished):
            handle.result(0.01)
    assert wanted(app) == 1
    with pytest.raises(NotFinished):
        other.result(0.1)
    wait_until(lambda: wanted(app) == 0, "it to be forgotten")


# On a server.


@pytest.fixture
def shop(postgres: Server) -> Iterator[Packhorse]:
    with schemas(postgres) as urls:
        app = Packhorse("shop", f"{next(urls)}&application_name=shop", heartbeat=0.1, lease=30, keys=KEY)
        yield app
        app.close()


def backends(server: Server) -> int:
    [(number,)] = server.run("select count(*) from pg_stat_activity where application_name = 'shop'")
    assert isinstance(number, int)
    return number


def test_waiting_threads_take_one_connection(shop: Packhorse, postgres: Server):
    """More of them than the server has room for."""

    @shop.task
    def double(number: int) -> int:
        return 2 * number

    handles = enqueued(double, CROWD)
    with ThreadPoolExecutor(CROWD) as threads:
        waiting = [threads.submit(handle.result, SOON) for handle in handles]
        wait_until(lambda: wanted(shop) == CROWD, "all to wait")
        shop.store._connections.drop_idle()  # type: ignore[attr-defined]
        wait_until(lambda: backends(postgres) <= 2, "no connection but the one that listens, and one that looks")
        assert backends(postgres) >= 1
        shop.control.cancel([handle.id for handle in handles], reason="over")
        assert {type(each.exception(SOON)).__name__ for each in waiting} == {"JobCancelled"}
    assert backends(postgres) <= 16 + 2


def is_another(server: Server, query: str, pid: object) -> bool:
    return any(found != pid for (found,) in server.run(query))


def test_a_listening_connection_that_is_cut_is_made_anew(shop: Packhorse, postgres: Server):
    """Nobody who waits hears of it."""

    @shop.task
    def never() -> None: ...

    handles = [never.enqueue() for _ in range(10)]
    listening = (
        "select pid from pg_stat_activity where application_name = 'shop' and query ~* 'try_advisory|last_value'"
    )
    with ThreadPoolExecutor(10) as threads:
        waiting = [threads.submit(handle.result, SOON) for handle in handles]
        wait_until(lambda: shop.store.room._sleeps_in is not None, "the room to listen")
        for _ in range(3):
            cut = postgres.run(f"select pid, pg_terminate_backend(pid) from ({listening}) as it")
            assert cut
            wait_until(partial(is_another, postgres, listening, cut[0][0]), "another connection")
        assert not any(each.done() for each in waiting)
        shop.control.cancel([handle.id for handle in handles], reason="over")
        assert {type(each.exception(SOON)).__name__ for each in waiting} == {"JobCancelled"}


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_ten_thousand_idle_waiters_ask_little(
    shop: Packhorse, postgres: Server, busy: bool, monkeypatch: pytest.MonkeyPatch
):
    """At most four statements a second, also while other jobs end all the time."""
    number, seconds, said = 10_000, 3.0, Counter[int]()
    execute = psycopg.Cursor.execute

    def count(self: Any, *args: Any, **kwargs: Any) -> Any:
        said[threading.get_ident()] += 1
        return execute(self, *args, **kwargs)

    @shop.task
    def never() -> None: ...

    others = [never.enqueue() for _ in range(200)]

    async def main() -> int:
        ids = [handle._raw_id for handle in shop.enqueue_many(never.call() for _ in range(number))]
        room = shop.store.room
        waiting = [asyncio.ensure_future(room.await_ended([id], SOON)) for id in ids]
        while wanted(shop) < number or room._small.new or room._watch is None or room._small.looking:
            await asyncio.sleep(0.1)
        assert room._thread is not None
        thread = room._thread
        until, before = time.monotonic() + seconds, said[thread]
        while time.monotonic() < until:
            if busy and others:
                await asyncio.to_thread(others.pop().cancel)
            await asyncio.sleep(0.01)
        asked = said[thread] - before
        assert not any(each.done() for each in waiting)
        for each in waiting:
            each.cancel()
        return asked

    monkeypatch.setattr(psycopg.Cursor, "execute", count)
    assert asyncio.run(main()) <= 4 * seconds + 4, "and one look that was under way"
