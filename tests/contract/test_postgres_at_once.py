"""Many at once on PostgreSQL: what SQLite is spared, as it has one writer at a time. Each thread has its own store."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import psycopg
import pytest

from packhorse import Packhorse
from packhorse.clock import SECOND, ManualClock, SystemClock
from packhorse.ids import to_text
from packhorse.job import Claim, JobState, Parent
from packhorse.limits import UniqueConflict
from packhorse.outcome import Awaits, Outcome
from packhorse.queues import EVERYTHING
from packhorse.stores import postgres, postgres_exchange, postgres_watch
from packhorse.stores.contract import Act, Change, Paused, Selection
from packhorse.stores.postgres import PostgresStore
from packhorse.stores.postgres_clock import ServerClock
from packhorse.stores.sql_store import Bell
from packhorse.testing.contract.behind import leftovers
from packhorse.testing.contract.helpers import (
    Worker,
    cancelled,
    id_of,
    insert,
    job,
    limited,
    name_of,
    names,
    released,
    sole,
    state,
    states,
    succeeded,
)
from tests.contract.stores import schemas
from tests.servers.postgres import Server
from tests.waiting import wait_until

THREADS = 4
DONE = {JobState.SUCCEEDED}

Open = Callable[[], PostgresStore]


@pytest.fixture
def opened(postgres: Server) -> Iterator[Open]:
    """Opens the same store again and again."""
    stores: list[PostgresStore] = []
    with schemas(postgres, fresh=False) as urls:
        url = next(urls)

        def open_one() -> PostgresStore:
            stores.append(PostgresStore(url, SystemClock()))
            return stores[-1]

        yield open_one
        for store in stores:
            store.close()


def all_at_once(acts: Sequence[Callable[[], object]]) -> list[object]:
    """Begun together; what each came to."""
    barrier = threading.Barrier(len(acts))

    def begun(act: Callable[[], object]) -> object:
        barrier.wait()
        return act()

    with ThreadPoolExecutor(len(acts)) as threads:
        return [future.result() for future in [threads.submit(begun, act) for act in acts]]


def drain(store: PostgresStore, name: str, limit: int, seen: Counter[str], held: "Held | None" = None) -> None:
    """Claim and finish until everything is finished."""
    worker = Worker(store, name)
    outcomes: list[Outcome] = []
    while True:
        reply = worker.exchange(*outcomes, limit=limit)
        assert reply.refused == []
        seen.update(names(reply.claims))
        if held is not None:
            held.change(len(reply.claims), len(outcomes))
        if not reply.claims and not outcomes and set(states(store).values()) == DONE:
            return
        outcomes = [succeeded(claim) for claim in reply.claims]


class Held:
    """How many of a limit run: they count from when a claim is known until just before its end is written."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.now = self.most = 0

    def change(self, begun: int, ended: int) -> None:
        with self._lock:
            self.now += begun - ended
            self.most = max(self.most, self.now)


def test_each_job_is_taken_once(opened: Open):
    """However many claim at the same time."""
    store = opened()
    wanted = [f"{number:04}" for number in range(1_000)]
    store.insert([job(name, queue=f"q{number % 3}") for number, name in enumerate(wanted)])
    seen: Counter[str] = Counter()
    all_at_once([partial(drain, opened(), f"worker {n}", 7 + n, seen) for n in range(THREADS)])
    assert seen == Counter(wanted)
    assert leftovers(store) == []


def test_the_last_of_many_parents_opens_the_gate(opened: Open):
    """Parents that end in transactions which cannot see each other do not both leave it shut."""
    store = opened()
    ends = ["a", "b", "c"]
    for number in range(40):
        parents = [job(f"{number}{end}", queue=end) for end in ends]
        after = tuple(Parent(parent.id) for parent in parents)
        store.insert([*parents, job(f"{number}z", queue="z", after=after)])
    workers = [Worker(opened(), end) for end in ends]
    claims = [worker.claim(100, queues=end) for worker, end in zip(workers, ends, strict=True)]

    def end_all(number: int) -> None:
        for claim in claims[number]:
            assert workers[number].finish(succeeded(claim)) == []

    all_at_once([partial(end_all, n) for n in range(len(ends))])
    assert {name: it for name, it in states(store).items() if name[-1] == "z" and it is not JobState.READY} == {}
    assert leftovers(store) == []


def test_who_comes_after_a_job_that_is_about_to_end_is_not_left_behind(opened: Open):
    """Either it sees the end, or the end sees it."""
    store, other = opened(), opened()
    worker = Worker(opened(), "worker")
    for number in range(60):
        insert(store, f"{number}a", f"{number}b")
        first, second = worker.claim(2, queues="default")
        child = job(f"{number}z", queue="z", after=(Parent(first.token.id), Parent(second.token.id)))
        all_at_once(
            [
                partial(worker.finish, succeeded(first), succeeded(second)),
                partial(other.insert, [child]),
            ]
        )
        assert state(store, f"{number}z") is JobState.READY
    assert leftovers(store) == []


@pytest.mark.parametrize("to", [1, 2])
def test_a_limit_is_neither_overrun_nor_left_unused(opened: Open, to: int):
    """Never do more run than may, and in the end nobody waits."""
    store = opened()
    store.insert([limited(f"{number:04}", "k", to=to) for number in range(60)])
    seen: Counter[str] = Counter()
    held = Held()
    all_at_once([partial(drain, opened(), f"worker {n}", 3, seen, held) for n in range(THREADS)])
    assert held.most <= to
    assert set(seen.values()) == {1}
    assert len(seen) == 60
    assert leftovers(store) == []


@pytest.mark.parametrize("conflict", [UniqueConflict.KEEP, UniqueConflict.REPLACE, UniqueConflict.RESCHEDULE])
def test_a_unique_key_has_one_holder(opened: Open, conflict: UniqueConflict):
    """However many come with it at once, in whatever order."""
    stores = [opened() for _ in range(THREADS)]
    for number in range(10):
        keys = [f"{number}/{place}" for place in range(6)]

        def come(thread: int, keys: list[str] = keys, number: int = number) -> list[bytes]:
            jobs = [sole(f"{number}.{thread}.{place}", key, conflict) for place, key in enumerate(keys)]
            return stores[thread].insert(jobs[::-1] if thread % 2 else jobs)[:: -1 if thread % 2 else 1]

        answers = all_at_once([partial(come, n) for n in range(THREADS)])
        unfinished = [name for name, it in states(stores[0]).items() if it is JobState.READY]
        assert len([name for name in unfinished if name.startswith(f"{number}.")]) == len(keys)
        if conflict is not UniqueConflict.REPLACE:
            assert all(answer == answers[0] for answer in answers)
    assert leftovers(stores[0]) == []


def test_a_signal_and_who_comes_to_await_it_do_not_miss_each_other(opened: Open):
    """Whichever is first."""
    store, sender = opened(), opened()
    worker = Worker(opened(), "worker")
    for number in range(60):
        insert(store, f"{number}")
        claim = worker.claim_one()
        asleep = Outcome(claim.token, JobState.SCHEDULED, spent=False, delay=3_600 * SECOND, awaits=Awaits(f"{number}"))
        all_at_once(
            [
                partial(worker.finish, asleep),
                partial(sender.signal, f"{number}", b"now", SECOND),
            ]
        )
        assert state(store, f"{number}") is JobState.READY
        worker.finish(succeeded(worker.claim_one()))


def test_a_pause_that_ends_while_jobs_are_sent_to_wait_for_its_end(
    opened: Open, postgres: Server, monkeypatch: pytest.MonkeyPatch
):
    """It ends before they go, and they do not; or behind them, and lets them go on."""
    store, operator = opened(), opened()
    worker = Worker(store, "worker")
    insert(store, *"abc")
    operator.pause("birds.count", None, "ann", "", kind=Paused.TASK)
    waits = "select 1 from pg_stat_activity where wait_event_type = 'Lock' and wait_event = 'advisory'"
    original = postgres_exchange._take_unpaused
    with ThreadPoolExecutor(1) as threads:
        ending: list[Future[bool]] = []

        def meanwhile(*args: Any) -> int:
            if not ending:
                ending.append(threads.submit(operator.resume, "birds.count", "ann", "", kind=Paused.TASK))
                wait_until(lambda: ending[0].done() or postgres.run(waits), "the pause neither ends nor waits")
            return original(*args)

        monkeypatch.setattr(postgres_exchange, "_take_unpaused", meanwhile)
        claims = worker.claim()
        assert ending[0].result() is True
    claims += worker.claim()
    assert sorted(names(claims)) == ["a", "b", "c"]


def test_operators_and_workers_at_the_same_jobs(opened: Open):
    """Every act counts or is refused, and each job stands in one place."""
    store = opened()
    store.insert([limited(f"{number:03}", "k", to=20) if number % 3 else job(f"{number:03}") for number in range(90)])
    ids = [id_of(f"{number:03}") for number in range(90)]

    def work(number: int) -> None:
        worker = Worker(opened(), f"worker {number}")
        outcomes: list[Outcome] = []
        for turn in range(25):
            reply = worker.exchange(*outcomes, limit=5)
            ways: list[Callable[[Claim], Outcome]] = [succeeded, cancelled, released]
            outcomes = [ways[(turn + n) % 3](claim) for n, claim in enumerate(reply.claims)]
        worker.finish(*outcomes)

    def operate(act: Act) -> None:
        mine = opened()
        for turn in range(25):
            mine.move(Selection(ids=ids[turn : turn + 40]), Change(act, priority=turn % 3), "ann", "")
            mine.promote(100)

    acts: list[Callable[[], object]] = [partial(work, n) for n in range(2)]
    acts += [partial(operate, act) for act in (Act.RETRY, Act.CHANGE, Act.CANCEL)]
    all_at_once(acts)
    assert len(states(store)) == 90
    assert leftovers(store) == []
    last = Worker(store, "last")
    while claims := last.claim(100):
        last.finish(*map(succeeded, claims))
    assert not set(states(store).values()) & {JobState.READY, JobState.WAITING, JobState.RUNNING}


def test_a_deadlock_with_an_outsider_is_tried_again(opened: Open, postgres: Server):
    """The server ends one of the two, and no error comes to the caller."""
    store = opened()
    worker = Worker(store, "worker")
    insert(store, "a", "b")
    claims = worker.claim()
    lock = f"select 1 from {store.schema}.job where id = %s for update"
    with psycopg.connect(postgres.conninfo("postgres")) as outsider, ThreadPoolExecutor(1) as threads:
        outsider.execute("set deadlock_timeout = '1h'")  # so that it is not the one who notices
        outsider.execute(lock, [id_of("b")])
        ending = threads.submit(worker.finish, *map(succeeded, claims))
        waits = "select 1 from pg_stat_activity where wait_event_type = 'Lock' and query like '%ended%'"
        wait_until(lambda: postgres.run(waits), "nobody waits for the row")
        outsider.execute(lock, [id_of("a")])
        outsider.rollback()
        assert ending.result() == []
    assert set(states(store).values()) == DONE


@pytest.mark.parametrize("direct", [True, False])
def test_a_row_that_moves_just_before_it_is_locked_stays_for_the_next_claim(
    postgres: Server, direct: bool, monkeypatch: pytest.MonkeyPatch
):
    """A claim finds the rows that it has locked by their place, and this one has another now, which it cannot see."""
    if not direct:
        monkeypatch.setattr(PostgresStore, "_exchange_directly", lambda self, it: None)
    with schemas(postgres, fresh=False) as urls:
        store = PostgresStore(f"{next(urls)}&skip_locked=false", SystemClock())
        worker = Worker(store, "worker")
        insert(store, "0", "a", "b")
        first = worker.claim_one()
        with psycopg.connect(postgres.conninfo("postgres")) as outsider, ThreadPoolExecutor(1) as threads:
            outsider.execute(f"update {store.schema}.job set strays = 1 where id = %s", [id_of("a")])
            claiming = threads.submit(worker.exchange, succeeded(first), limit=2)
            waits = "select 1 from pg_stat_activity where wait_event_type = 'Lock' and query like '%picked%'"
            wait_until(lambda: postgres.run(waits), "the claim waits")
            outsider.commit()
            claims = claiming.result(60).claims
        assert names(claims) == ["b"]
        assert state(store, "a") is JobState.READY
        claims += worker.claim()
        assert names(claims) == ["b", "a"]
        assert worker.finish(*map(succeeded, claims)) == []
        assert set(states(store).values()) == DONE
        assert leftovers(store) == []
        store.close()


def test_a_database_that_defaults_to_serializable(postgres: Server):
    """The store says which isolation it needs, and nothing is refused."""
    postgres.run("create database strict")
    postgres.run("alter database strict set default_transaction_isolation = 'serializable'")
    url = postgres.url("strict", schema="jobs")
    stores = [PostgresStore(url, SystemClock()) for _ in range(4)]
    store, *others = stores
    try:
        store.insert(
            [limited(f"{number:03}", "k", to=2) if number % 2 else job(f"{number:03}") for number in range(60)]
        )
        shown = store._stroke("", lambda c: c.plain("show transaction_isolation").fetchall())
        assert shown == [("read committed",)]
        with store._cursor() as c:
            assert c.plain("show transaction_isolation").fetchall() == [("read committed",)]
        seen: Counter[str] = Counter()
        all_at_once([partial(drain, others[n], f"worker {n}", 5, seen) for n in range(3)])
        assert set(seen.values()) == {1}
    finally:
        for store in stores:
            store.close()
        postgres.run("drop database strict with (force)")


def test_no_call_is_missed(opened: Open, monkeypatch: pytest.MonkeyPatch):
    """Whether a job comes while one sleeps, is about to, or has just woken up."""
    monkeypatch.setattr(postgres_watch, "LOOK_ANYWAY", 3_600.0)
    store, sender = opened(), opened()
    watch = store.watch(EVERYTHING)
    worker = Worker(store, "worker")
    sent = 150

    def send() -> None:
        for number in range(sent):
            insert(sender, f"{number}")

    with ThreadPoolExecutor(1) as threads:
        sending = threads.submit(send)
        got: list[str] = []
        while len(got) < sent:
            got += [name_of(claim.token.id) for claim in worker.claim(3)]
            if len(got) < sent and not (claims := worker.claim(3)):
                assert watch.wait(3_600.0)  # a missed call would let it sleep until pytest's own timeout
            elif len(got) < sent:
                got += names(claims)
        sending.result()
    watch.close()
    assert sorted(got, key=int) == [str(number) for number in range(sent)]


def test_who_is_about_to_commit_when_one_goes_to_sleep_is_not_missed(
    opened: Open, postgres: Server, monkeypatch: pytest.MonkeyPatch
):
    """It had found nobody to call. It is told at once, as it may be there already, and again when it is."""
    monkeypatch.setattr(postgres_watch, "LOOK_ANYWAY", 3_600.0)
    store = opened()
    watch = store.watch(EVERYTHING)
    with psycopg.connect(postgres.conninfo("postgres"), cursor_factory=psycopg.RawCursor) as writer:
        writer.execute(f"set search_path = {store.schema}".encode())
        writer.execute(postgres_watch.RING.encode(), postgres_watch.ring_arguments(store.schema, Bell.READY))
        assert watch.wait(0) is True
        assert watch.wait(0) is False
        with ThreadPoolExecutor(1) as threads:
            sleeping = threads.submit(watch.wait, 3_600.0)
            writer.commit()
            assert sleeping.result() is True
    assert watch.wait(0) is False
    watch.close()


def test_nobody_is_called_while_nobody_sleeps(opened: Open, postgres: Server):
    """A call costs all who write, so that it goes to sleepers alone."""
    store = opened()
    watch = store.watch(EVERYTHING)
    heard: list[object] = []
    name = postgres_watch.channel(store.schema, Bell.READY)
    with psycopg.connect(postgres.conninfo("postgres"), autocommit=True) as listener:
        listener.execute(f'listen "{name}"')
        for number in range(10):
            insert(store, f"{number}")
        assert watch.wait(0) is True
        listener.execute("select 1")
        heard += listener.notifies(timeout=0)
        assert heard == []
        watch.settle()
        with ThreadPoolExecutor(1) as threads:
            sleeping = threads.submit(watch.wait, 20.0)
            locks = "select 1 from pg_locks where locktype = 'advisory' and mode = 'ShareLock'"
            wait_until(lambda: postgres.run(locks), "it does not listen")
            insert(store, "one more")
            assert sleeping.result() is True
        heard += listener.notifies(timeout=10, stop_after=1)
        assert len(heard) == 1
    watch.close()


def test_a_call_that_comes_with_the_answer_to_a_look_is_heard(opened: Open, monkeypatch: pytest.MonkeyPatch):
    """The driver takes it off the line with the answer, so that nothing is left there to wake who sleeps."""
    monkeypatch.setattr(postgres_watch, "LOOK_ANYWAY", 3_600.0)
    store = opened()
    watch = store.watch(EVERYTHING)
    original = postgres_watch.PostgresWatch._look
    looks: list[int] = []

    def look(self: postgres_watch.PostgresWatch, **how: bool) -> tuple[int, bool]:
        found = original(self, **how)
        insert(store, f"after look {len(looks)}")
        self._connected().execute("select 1")
        looks.append(found[0])
        return found

    monkeypatch.setattr(postgres_watch.PostgresWatch, "_look", look)
    assert watch.wait(5) is True
    assert len(looks) == 1  # it was called; a look at the end of its patience would have found the job, too
    monkeypatch.undo()
    watch.close()


def test_what_comes_between_a_call_and_the_end_of_listening_is_told(opened: Open):
    """Who was called may have looked before it came."""
    store = opened()
    watch = store.watch(EVERYTHING)
    with ThreadPoolExecutor(1) as threads:
        sleeping = threads.submit(watch.wait, 20.0)
        insert(store, "calls")
        assert sleeping.result() is True
    insert(store, "comes in between")
    watch.settle()
    assert watch.wait(0) is True
    watch.settle()
    assert watch.wait(0) is False
    watch.close()


# Hosts.


def test_hosts_whose_clocks_are_apart_agree_on_leases(postgres: Server):
    """Each has a clock of its own, set as it likes, and another boot; the server's decides."""
    with schemas(postgres) as urls:
        url = next(urls)
        here, there = PostgresStore(url), PostgresStore(url)
        clock = there._connections.clock
        own = clock.local
        clock.local = lambda: own() + 3_600 * SECOND
        try:
            worker = Worker(here, "here", lease=4 * SECOND)
            insert(here, "job")
            [claim] = worker.claim()
            other = Worker(there, "there")
            assert abs(here.now() - there.now()) < SECOND
            assert there.adopt(other.id, 5, 10) == []
            wait_until(lambda: there.adopt(other.id, 6, 10), "the lease that nobody renews is over")
            assert not here.exchange(worker.id, 7, [succeeded(claim)], EVERYTHING, 0).alive
        finally:
            here.close()
            there.close()


def test_applications_on_several_hosts_agree_on_leases(postgres: Server, monkeypatch: pytest.MonkeyPatch):
    """Opened by a URL, as everybody does: the jobs of one host are no orphans to the other."""
    with schemas(postgres) as urls:
        url = next(urls)
        stores = []
        for host in ("here", "there"):
            monkeypatch.setattr(SystemClock, "boot", lambda self, host=host: host)
            stores.append(Packhorse("shop", url).store)
        here, there = stores
        try:
            worker, other = Worker(here, "here"), Worker(there, "there")
            insert(here, "job")
            claim = worker.claim_one()
            assert there.adopt(other.id, 5, 10) == []
            assert worker.finish(succeeded(claim)) == []
        finally:
            here.close()
            there.close()


def test_who_is_stopped_in_an_exchange_keeps_no_sibling_from_its_beat(opened: Open, postgres: Server):
    """A supervisor beats for all its children by one stroke; the row of one may be locked for long."""
    store = opened()
    store.clock = asked = store._connections.clock
    stopped, sibling = Worker(store, "stopped"), Worker(store, "sibling")
    with psycopg.connect(postgres.conninfo("postgres")) as exchange:
        exchange.execute(f"update {store.schema}.process set lease = lease where id = %s".encode(), [stopped.id])
        store.clock = later = ServerClock(lambda: None)
        later.learn(asked.local(), asked.now() + 2 * SECOND, asked.local())
        assert store.beat([stopped.id, sibling.id, id_of("nobody")]) == [id_of("nobody")]
    left = {view.id: view.lease_left for view in store.processes()}
    assert left[to_text(sibling.id)] > left[to_text(stopped.id)]


def slow_exchange(store: PostgresStore, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """From now on, while the exchanges of the store, which go step by step, are under way."""
    store._detours = 100
    monkeypatch.setattr(postgres, "failpoint", lambda name: act() if name == "exchange.between" else None)


def test_a_process_in_a_long_exchange_is_beaten_for(opened: Open, monkeypatch: pytest.MonkeyPatch):
    """On a slow line it may take longer than the lease, which must not run out for that."""
    store, beating = opened(), opened()
    store.clock = beating.clock = clock = ManualClock()
    worker, sibling = Worker(store, "worker", lease=10 * SECOND), Worker(beating, "sibling", lease=10 * SECOND)
    insert(store, "a", "b")
    claim = worker.claim_one()

    def beat() -> None:
        for _ in range(3):
            clock.advance(4)
            assert beating.beat([worker.id, sibling.id]) == []

    slow_exchange(store, monkeypatch, beat)
    answer = worker.exchange(succeeded(claim), limit=1)
    assert (names(answer.claims), answer.refused, answer.alive) == (["b"], [], True)


def test_whose_lease_runs_out_in_an_exchange_is_given_nothing(opened: Open, monkeypatch: pytest.MonkeyPatch):
    """But what it has done counts, as nobody else was given the job."""
    store = opened()
    store.clock = clock = ManualClock()
    worker = Worker(store, "worker", lease=10 * SECOND)
    insert(store, "a", "b")
    claim = worker.claim_one()
    slow_exchange(store, monkeypatch, lambda: clock.advance(12))
    answer = worker.exchange(succeeded(claim), limit=1)
    assert (answer.claims, answer.refused, answer.alive) == ([], [], False)
    assert states(store) == {"a": JobState.SUCCEEDED, "b": JobState.READY}


@pytest.mark.parametrize("overtaken", ["beat", "beat for several", "exchange"])
def test_who_is_overtaken_takes_nothing_back_of_a_lease(opened: Open, overtaken: str):
    """It was asked for earlier, and comes later: the line was slow."""
    store = opened()
    store.clock = clock = ManualClock()
    worker, sibling = Worker(store, "worker", lease=10 * SECOND), Worker(store, "sibling", lease=10 * SECOND)
    insert(store, "a")
    claim = worker.claim_one()
    clock.advance(4)
    assert store.beat([worker.id]) == []
    clock.advance(-4)
    if overtaken == "beat":
        assert store.beat([worker.id]) == []
    elif overtaken == "beat for several":
        assert store.beat([worker.id, sibling.id]) == []
    else:
        assert worker.exchange(succeeded(claim), limit=1).alive
    assert {view.lease_left for view in store.processes() if view.id == to_text(worker.id)} == {14.0}


def test_a_lease_from_a_time_that_was_wrong_is_put_right(opened: Open):
    """Somebody set the server's clock, and set it back."""
    store = opened()
    store.clock = clock = ManualClock()
    worker = Worker(store, "worker", lease=10 * SECOND)
    clock.advance(9)
    assert store.beat([worker.id]) == []
    clock.advance(9)
    assert store.beat([worker.id]) == []
    clock.advance(-18)
    assert store.beat([worker.id]) == []
    assert [view.lease_left for view in store.processes()] == [10.0]


def test_the_servers_time_is_learned_again_and_small_differences_are_left_alone():
    moment = 1_000 * SECOND
    clock = ServerClock(lambda: clock.learn(moment, 5_000 * SECOND, moment), lambda: moment)
    assert clock.is_old
    assert clock.now() == clock.ticks() == 5_000 * SECOND
    assert not clock.is_old
    moment += 61 * SECOND
    assert clock.is_old
    clock.learn(moment, 5_061 * SECOND + 5_000, moment)
    assert clock.now() == 5_061 * SECOND
    clock.learn(moment, 9_000 * SECOND, moment + 2 * SECOND)
    assert clock.now() == 8_999 * SECOND
