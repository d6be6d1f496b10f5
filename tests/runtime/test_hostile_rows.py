"""Somebody else writes to the SQLite file: whatever is in a cell costs its own job at most, and no role ends."""

import asyncio
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from packhorse import Embedded, FailureKind, JobFailed, JobState, Packhorse
from packhorse.control import FORGED_CAP
from packhorse.errors import ConfigError, EnqueueError, StoreError, StoreUnsafe
from packhorse.ids import new_id, to_text
from packhorse.job import Claim, Token
from packhorse.outcome import STRAY_CAP, stray
from packhorse.queues import EVERYTHING, Entry
from packhorse.runtime import process as process_module
from packhorse.runtime import supervisor as supervisor_module
from packhorse.runtime.child import Plan
from packhorse.runtime.orphans import Death
from packhorse.runtime.process import Process, Trouble, place_of
from packhorse.runtime.supervisor import Supervisor
from packhorse.stores.contract import Exchanged, Order, OrderKind, ProcessInfo, Retention
from packhorse.stores.sqlite import SQLiteStore
from packhorse.stores.sqlite_connections import raise_translated
from packhorse.stores.sqlite_exchange import UNION_TERMS
from tests.waiting import wait_until

SOON = 60.0
SECRET = "4111-1111-1111-1111"


@pytest.fixture
def make_shop(tmp_path: Path) -> Iterator[Callable[..., Packhorse]]:
    """Applications that share one SQLite file."""
    made: list[Packhorse] = []

    def make(name: str = "shop", **settings: Any) -> Packhorse:
        quick: dict[str, Any] = {"heartbeat": 0.05, "lease": 30, "polling_interval": 0.05}
        made.append(Packhorse(name, f"sqlite:///{tmp_path}/jobs.db?synchronous=normal", **quick | settings))
        return made[-1]

    yield make
    for app in made:
        app.close()


@pytest.fixture
def shop(make_shop: Callable[..., Packhorse]) -> Packhorse:
    return make_shop()


@pytest.fixture
def deaths(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Threads that ended with an error."""
    seen: list[str] = []

    def note(args: threading.ExceptHookArgs) -> None:
        seen.append(f"{args.thread and args.thread.name}: {args.exc_type.__name__}")

    monkeypatch.setattr(threading, "excepthook", note)
    return seen


def attack(app: Packhorse, statement: str, *parameters: Any) -> None:
    """As somebody who has the file and knows SQLite."""
    assert isinstance(app.store, SQLiteStore)
    connection = sqlite3.connect(app.store.path, timeout=10)
    connection.execute("pragma ignore_check_constraints = on")
    with connection:
        connection.execute(statement, parameters)
    connection.close()


COLUMNS = {
    "job": [
        *("state", "queue", "rank", "order_key", "epoch", "attempts", "losses", "strays"),
        *("run_at", "expires_at", "nonce", "asked", "asked_seal"),
    ],
    "payload": ["task", "body", "created_at"],
}
ODD: dict[str, Any] = {"queue": b"\x00", "task": b"\x00", "asked": b"\x00", "body": 5, "asked_seal": 5}


@pytest.mark.parametrize(("table", "column"), [(table, name) for table, names in COLUMNS.items() for name in names])
def test_a_value_of_another_type_is_refused(shop: Packhorse, table: str, column: str):
    """Where nobody switches the constraints off: a slip of the hand."""
    shop.task(name="t")(lambda: None).enqueue()
    assert isinstance(shop.store, SQLiteStore)
    with sqlite3.connect(shop.store.path) as connection, pytest.raises(sqlite3.IntegrityError, match="CHECK"):
        connection.execute(f"update {table} set {column} = ?", (ODD.get(column, "abc"),))
    connection.close()


POISON = {
    "expires_at": "update job set expires_at = 'abc' where id = ?",
    "task": "update payload set task = x'ff00' where id = ?",
    "task_not_utf8": "update payload set task = cast(x'ff' as text) where id = ?",
    "body_number": "update payload set body = 5 where id = ?",
    "body_text": "update payload set body = 'hello hello hello hello hello' where id = ?",
    "body_not_utf8": f"update payload set body = cast(x'ff' || '{SECRET}' as text) where id = ?",
    "attempts": "update job set attempts = 'zz' where id = ?",
    "attempts_huge": "update job set attempts = 9223372036854775807 where id = ?",
    "losses": "update job set losses = 'zz' where id = ?",
    "strays": "update job set strays = x'00' where id = ?",
    "created_at": "update payload set created_at = 'zz' where id = ?",
    "queue": "update job set queue = x'6161' where id = ?",
    "queue_not_utf8": "update job set queue = cast(x'61ff' as text) where id = ?",
    "rank": "update job set rank = 'zz' where id = ?",
    "order_key": "update job set order_key = 'zz' where id = ?",
    "run_at": "update job set run_at = 'zz' where id = ?",
    "nonce": "update job set nonce = 'zz' where id = ?",
    "epoch": "update job set epoch = 'zz' where id = ?",
    "epoch_huge": "update job set epoch = 9223372036854775807 where id = ?",
    "no_payload": "delete from payload where id = ?",
    "id": "update job set id = 'text' where id = ?",
}
# What is in a queue that has no name, or behind every rank, waits for ever; an order key or an epoch is overwritten.
STILL = {"queue", "queue_not_utf8", "rank"}
HEALED = {"attempts_huge", "order_key", "run_at", "nonce", "epoch"}


@pytest.mark.parametrize("cell", POISON)
def test_a_poisoned_cell_costs_its_own_job_alone(
    shop: Packhorse, deaths: list[str], caplog: pytest.LogCaptureFixture, cell: str
):
    @shop.task(name="t")
    def task() -> str:
        return "done"

    bad, *good = [task.enqueue() for _ in range(4)]
    good.append(task.using(queue_name="zoo").enqueue())
    attack(shop, POISON[cell], bad._raw_id)
    with Embedded(shop, concurrency=1):
        assert [job.result(SOON) for job in good] == ["done"] * 4
        later = task.using(run_after=0.05).enqueue()
        assert later.result(SOON) == "done"
        if cell not in STILL | {"no_payload", "id"}:
            wait_until(lambda: bad.look().finished)
            expected = JobState.SUCCEEDED if cell in HEALED else JobState.FAILED
            assert bad.look().state is expected
    if cell not in STILL | HEALED | {"no_payload", "id"}:
        failure = bad.look().failure
        assert failure is not None
        assert failure.kind is FailureKind.UNDECODABLE
    if cell in ("no_payload", "id"):
        assert held_states(shop) == [6]
    assert deaths == []
    assert {job.look().losses for job in good} == {0}
    assert SECRET not in caplog.text


def held_states(app: Packhorse) -> list[int]:
    assert isinstance(app.store, SQLiteStore)
    connection = sqlite3.connect(app.store.path)
    rows = connection.execute("select state from job where state <> 5").fetchall()
    connection.close()
    return [state for (state,) in rows]


def test_a_scheduled_job_that_is_never_due_does_not_stop_the_dispatcher(shop: Packhorse, deaths: list[str]):
    task = shop.task(name="t")(lambda: "done")
    stuck = task.using(run_after=3600).enqueue()
    attack(shop, "update job set order_key = 'zz'")
    with Embedded(shop):
        assert task.using(run_after=0.05).enqueue().result(SOON) == "done"
    assert stuck.state is JobState.SCHEDULED
    assert deaths == []


def test_odd_tokens_are_sorted_all_the_same(shop: Packhorse):
    """`held`, `beat`, `adopt` and `prune` put rows in order."""
    store, me, other = shop.store, new_id(), new_id()
    task = shop.task(name="t")(lambda: None)
    for process in (me, other):
        store.enroll(ProcessInfo(process, "worker", "here", 1), 10**9)
    jobs = [task.enqueue() for _ in range(4)]
    assert len(store.exchange(me, 1, [], EVERYTHING, 4).claims) == 4
    attack(shop, "update job set asked = 'why'")
    attack(shop, "update job set nonce = 'x', started_at = 'then' where n = 1")
    attack(shop, "update job set id = 'id' where n = 2")
    assert len(store.held(me)) == 4
    assert len(store.orders([me, other])) == 4
    assert len(store.adopt(other, 2, 10, dead=[me])) == 4
    attack(shop, "update job set state = 7, prune_at = 1, finished_at = 'x' where n = 1")
    attack(shop, "update job set state = 7, prune_at = 1, finished_at = 5 where n > 1")
    assert store.prune(Retention(None, None, None), 10) == 4
    assert [store.job(job._raw_id) is None for job in jobs].count(True) >= 3


def test_an_owner_without_a_proper_id_is_a_stranger(shop: Packhorse):
    store, me = shop.store, new_id()
    store.enroll(ProcessInfo(me, "dispatcher", "here", 1), 10**9)
    shop.task(name="t")(lambda: None).enqueue()
    attack(shop, "update job set state = 4, process = 'nobody', nonce = 1")
    [orphan] = store.adopt(me, 2, 10)
    assert orphan.owner.id == b""


def test_odd_keys_in_very_many_queues(shop: Packhorse):
    """They are merged here and not by SQLite."""
    task = shop.task(name="t")(lambda: None)
    for number in range(UNION_TERMS + 2):
        task.using(queue_name=f"q{number}").enqueue()
    attack(shop, "update job set rank = 'zz' where queue = 'q99'")
    me = new_id()
    shop.store.enroll(ProcessInfo(me, "worker", "here", 1), 10**9)
    assert len(shop.store.exchange(me, 1, [], EVERYTHING, 5).claims) == 5


def test_queues_without_a_name_do_not_lead_in_circles(shop: Packhorse):
    """Text that is not UTF-8 reads as another, which sorts before it."""
    task = shop.task(name="t")(lambda: None)
    for name in ("a", "aa", "ab", "b"):
        task.using(queue_name=name).enqueue()
    attack(shop, "update job set queue = cast(x'61ff' as text) where n = 2")
    me = new_id()
    shop.store.enroll(ProcessInfo(me, "worker", "here", 1), 10**9)
    assert [claim.queue for claim in shop.store.exchange(me, 1, [], EVERYTHING, 9).claims] == ["a", "ab", "b"]
    attack(shop, "update job set queue = x'6161' where n = 1")
    assert len(shop.inspection.queues()) == 4
    assert Entry("", True).matches(b"aa") is False


def test_odd_cells_are_shown(shop: Packhorse):
    job = shop.task(name="t")(lambda: None).enqueue()
    attack(shop, "update job set rank = 'x', expires_at = 'x', run_at = x'00', started_at = 'x'")
    attack(shop, "update payload set created_at = 'x', body = 5")
    seen = job.look()
    assert (seen.priority, seen.expires_at, seen.run_at, seen.started_at) == (0, None, None, None)
    attack(shop, "update job set state = 'x'")
    with pytest.raises(StoreError, match="has the state str"):
        job.look()


def test_a_stored_envelope_that_is_none(shop: Packhorse):
    task = shop.task(name="t")(lambda: 1 / 0)
    with Embedded(shop):
        job = task.enqueue()
        with pytest.raises(JobFailed):
            job.result(SOON)
    attack(shop, "update ending set failure = 5, result = 5")
    failure = job.look().failure
    assert failure is not None
    assert failure.kind is FailureKind.UNDECODABLE


# Orders.


@pytest.mark.parametrize(
    ("asked", "seal"), [(b"\x00", b""), ("x", 5), ("x" * 70_000, "copied"), (b"\xff" * 9, "copied"), ("\0", "text")]
)
def test_a_forged_order_is_ignored_whatever_it_is(shop: Packhorse, deaths: list[str], asked: Any, seal: Any):
    begun, go_on = threading.Event(), threading.Event()

    @shop.task(name="long")
    def long() -> str:
        begun.set()
        go_on.wait(SOON)
        return "done"

    with Embedded(shop):
        job = long.enqueue()
        assert begun.wait(SOON)
        whole = shop.store.job(job._raw_id)
        assert whole is not None
        attack(shop, "update job set asked = ?, asked_seal = ?", asked, whole.payload if seal == "copied" else seal)
        wait_until(lambda: shop.control.forged_orders == 1)
        go_on.set()
        assert job.result(SOON) == "done"
    assert deaths == []


@pytest.mark.parametrize("reason", ["x" * 70_000, "lone \ud800", "nul \0"])
def test_reasons_and_actors_are_made_storable(shop: Packhorse, reason: str):
    begun = threading.Event()

    @shop.task(name="long")
    async def long() -> None:
        begun.set()
        await asyncio.sleep(SOON)

    task = shop.task(name="t")(lambda: None)
    with Embedded(shop):
        job = long.enqueue()
        assert begun.wait(SOON)
        assert job.cancel(reason)
        wait_until(lambda: job.look().finished)
    assert job.look().state is JobState.CANCELLED
    waiting = task.enqueue()
    assert shop.control.cancel([waiting.id], reason=reason, actor=reason) == 1
    assert len(waiting.look().reason or "") < 1_100
    shop.control.pause("mail", reason=reason, actor=reason)
    shop.control.pause("mail", until=5, reason=reason, actor=reason)
    assert shop.control.resume("mail", reason=reason, actor=reason)
    assert max(len(entry.reason) for entry in shop.store.audit()) < 1_100


def test_no_order_of_ours_is_false_and_nothing_worse(shop: Packhorse):
    good = shop.seals.order("cancel", "why")
    assert shop.seals.is_order("cancel", "why", good)
    for reason, seal in [(b"why", good), ("why", 5), ("why", None), ("why\ud800", good), ("x" * 70_000, good), (5, 5)]:
        assert not shop.seals.is_order("cancel", reason, seal)


def test_forged_orders_are_counted_and_forgotten(shop: Packhorse, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.CRITICAL)
    orders = [Order(OrderKind.CANCEL, Token(b"p", n, b"i" * 16, 1), "x", b"") for n in range(FORGED_CAP + 5)]
    orders.append(orders[-1]._replace(token=Token(b"p", 0, "text", 1)))  # type: ignore[arg-type]
    assert shop.control.trusted(orders) == []
    assert shop.control.trusted(orders[-1:]) == []
    assert (shop.control.forged_orders, len(shop.control.forged)) == (FORGED_CAP + 6, FORGED_CAP)


def test_a_queue_without_a_name_is_refused(shop: Packhorse):
    job = shop.task(name="t")(lambda: None).enqueue()
    with pytest.raises(ConfigError, match="queue name"):
        shop.control.change([job.id], queue_name="")
    attack(shop, "update job set queue = x'6161', rank = 'x'")
    assert shop.control.change([job.id], priority=3) == 1
    assert (job.look().queue, job.look().priority) == ("aa", 3)


# Roles.


class Fails:
    """A role that fails at every second turn, as a worker does that claims, fails and gives back."""

    name, queues = "fails", ""
    drained, performing, stuck = True, False, False

    def __init__(self) -> None:
        self.turns = 0
        self.failed_at: list[float] = []

    def begin(self, process: Process) -> None:
        self.process = process

    def turn(self) -> float:
        self.turns += 1
        self.process.wake.set()  # what it wrote itself wakes it
        if self.turns % 2:
            self.failed_at.append(time.monotonic())
            raise KeyError(SECRET)
        return 0

    def obey(self, orders: Any) -> None: ...
    def quiet(self) -> None: ...
    def leave(self) -> None: ...
    def end(self) -> None: ...


def test_a_role_lives_through_any_error_and_backs_off(shop: Packhorse, caplog: pytest.LogCaptureFixture):
    role = Fails()
    process = Process(shop, role)
    thread = threading.Thread(target=process.run)
    thread.start()
    wait_until(lambda: len(role.failed_at) >= 5)
    process.stop()
    thread.join(SOON)
    assert not thread.is_alive()
    first, *_, fifth = role.failed_at[:5]
    # A tenth of 0.1, 0.2, 0.4 and 0.8 s at the least: it had made hundreds of turns in that time.
    assert fifth - first >= 0.15
    assert "KeyError at test_hostile_rows.py:" in caplog.text
    assert SECRET not in caplog.text


def test_trouble_is_forgotten_after_a_while(monkeypatch: pytest.MonkeyPatch):
    now = [1_000.0]
    monkeypatch.setattr("packhorse.runtime.process.time.monotonic", lambda: now[0])
    trouble = Trouble()
    delays = [trouble.delay() for _ in range(12)]
    assert delays[0] <= 0.1
    assert 0.6 <= min(delays[8:]) <= max(delays) <= 6.0
    now[0] += process_module.STEADY + 1
    assert trouble.delay() <= 0.1
    assert place_of(StoreError("as it is")) == "as it is"
    assert place_of(ValueError(SECRET)) == "ValueError"


def test_a_heart_beats_on(shop: Packhorse, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    beats: list[Any] = []

    def beat(processes: Any) -> list[bytes]:
        beats.append(processes)
        raise TypeError(SECRET)

    monkeypatch.setattr(shop.store, "beat", beat)
    process = Process(shop, Fails())
    process.beat_alone()
    wait_until(lambda: len(beats) >= 3)
    assert process._heart is not None
    process._heart.stop()
    assert "could not beat: TypeError at" in caplog.text
    assert SECRET not in caplog.text


def test_a_supervisor_goes_on(shop: Packhorse, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    """Whatever fails: a beat, a verdict, a start, or a whole turn."""

    def fail(*_: Any, **__: Any) -> Any:
        raise TypeError(SECRET)

    supervisor = Supervisor(shop, [])
    for name in ("beat", "adopt", "leave"):
        monkeypatch.setattr(shop.store, name, fail)
    supervisor._beat()
    supervisor._unjudged = {new_id(): Death("was killed")}
    supervisor._judge_children()
    assert supervisor._unjudged
    monkeypatch.setattr(supervisor_module, "Started", lambda *_: (_ for _ in ()).throw(OSError(11, "too many")))
    supervisor._start(Plan("app", "worker"), 3)
    assert [(plan.role, failures) for _, plan, failures in supervisor._due] == [("worker", 4)]
    turns: list[int] = []

    def turn() -> None:
        turns.append(1)
        supervisor._stopping = len(turns) == 3
        fail()

    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr(supervisor, "_turn", turn)
    assert supervisor.run() == 0
    assert len(turns) == 3
    assert "the supervisor failed (TypeError at" in caplog.text
    assert "could not sign off: TypeError at" in caplog.text
    assert SECRET not in caplog.text


def test_a_claim_that_breaks_the_worker_fails_alone(shop: Packhorse, deaths: list[str], monkeypatch: Any):
    """Whatever a store hands out."""
    task = shop.task(name="t")(lambda: "done")
    bad, good = task.enqueue(), task.enqueue()
    real = shop.store.exchange

    def exchange(*args: Any, **kwargs: Any) -> Exchanged:
        reply = real(*args, **kwargs)
        odd: Any = {"expires_at": "x"}
        claims = [it._replace(**odd) if it.token.id == bad._raw_id else it for it in reply.claims]
        return reply._replace(claims=claims)

    monkeypatch.setattr(shop.store, "exchange", exchange)
    with Embedded(shop):
        assert good.result(SOON) == "done"
        with pytest.raises(JobFailed, match="TypeError outside the task"):
            bad.result(SOON)
    assert deaths == []


def test_an_outcome_that_no_row_takes_is_given_up(shop: Packhorse, deaths: list[str]):
    """The others of its batch are written, and the worker goes on."""
    task = shop.task(name="t")(lambda: "done")
    bad, good = task.enqueue(), task.enqueue()
    attack(shop, f"create trigger no before update on job when new.id = x'{bad._raw_id.hex()}' and new.state > 4 "
           "begin select raise(abort, 'CHECK constraint failed: no'); end")  # fmt: skip
    with Embedded(shop, concurrency=2):
        assert good.result(SOON) == "done"
        assert task.enqueue().result(SOON) == "done"
    assert not bad.look().finished
    assert deaths == []


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_the_loop_outlives_its_coroutines(make_shop: Callable[..., Packhorse], kind: type[BaseException], deaths: Any):
    shop = make_shop()

    @shop.task(name="bad")
    async def bad() -> None:
        async def helper() -> None:
            raise kind(1)

        await asyncio.gather(helper(), asyncio.sleep(0.05))

    @shop.task(name="stop")
    async def stop() -> str:
        asyncio.get_running_loop().stop()
        return "stopped"

    @shop.task(name="good")
    async def good() -> str:
        return "fine"

    with Embedded(shop):
        with pytest.raises(JobFailed, match=kind.__name__):
            bad.enqueue().result(SOON)
        assert stop.enqueue().result(SOON) == "stopped"
        assert good.enqueue().result(SOON) == "fine"
    wait_until(lambda: not any(thread.name == "packhorse-loop" for thread in threading.enumerate()))
    assert deaths == []


# The key, the strays, the expiry, the text.


def test_a_lost_key_is_not_replaced_while_there_are_jobs(make_shop: Callable[..., Packhorse], tmp_path: Path):
    shop = make_shop()
    shop.task(name="t")(lambda: None).enqueue()
    key = tmp_path / "jobs.db-key"
    kept = key.read_bytes()
    key.unlink()
    again = make_shop()
    task = again.task(name="t")(lambda: "done")
    with pytest.raises(StoreUnsafe, match="Put the key back from the backup"):
        Embedded(again)
    with pytest.raises(EnqueueError, match="PACKHORSE_KEYS"):
        task.enqueue()
    assert not key.exists()
    key.write_bytes(kept)
    key.chmod(0o600)
    with Embedded(again):
        assert task.enqueue().result(SOON) == "done"


def test_a_database_without_jobs_gets_a_new_key(make_shop: Callable[..., Packhorse], tmp_path: Path):
    shop = make_shop()
    job = shop.task(name="t")(lambda: None).enqueue()
    (tmp_path / "jobs.db-key").unlink()
    assert make_shop().control.discard([job.id]) == 1
    assert make_shop().task(name="t")(lambda: None).enqueue()


@pytest.mark.parametrize("strays", [-5, 0, 1, 5, 6, 7, 100, 9_000_000_000_000_000_000])
def test_any_number_of_strays_is_summed_at_once(strays: int):
    claim = Claim(Token(b"p", 1, b"i", 1), "t", b"", "q", 0, 0, 0, 0, None, strays)
    waits = [min(1_000_000 << n, STRAY_CAP) for n in range(min(max(strays, 0), 200))]
    outcome = stray(claim, LookupError("x"), 1_000_000_000)
    if sum(waits) >= 1_000_000_000:
        assert outcome.state is JobState.FAILED
    else:
        assert outcome.delay == min(1_000_000 << max(strays, 0), STRAY_CAP, 1_000_000_000 - sum(waits))


def test_an_expired_job_is_retried_by_who_has_the_key(
    make_shop: Callable[..., Packhorse], monkeypatch: pytest.MonkeyPatch
):
    """Another application's retry leaves it as it is, and takes what else was selected."""
    monkeypatch.setattr("packhorse.runtime.perform.SKEW", 0)
    shop, other = make_shop(), make_shop("other")

    @shop.task(name="t")
    def task() -> str:
        return "done"

    job, plain = task.using(expires=0.01).enqueue(), task.enqueue()
    assert plain.cancel()
    time.sleep(0.02)
    with Embedded(shop):
        wait_until(lambda: job.look().finished)
    assert job.look().reason == "expired"
    assert other.control.retry([job.id]) == 0
    assert job.look().expires_at is not None
    assert other.control.retry([job.id, plain.id]) == 1
    assert (job.state, plain.state) == (JobState.CANCELLED, JobState.READY)
    assert job.retry()
    with Embedded(shop):
        assert job.result(SOON) == "done"


def test_sqlite_is_not_quoted_where_it_quotes_what_is_stored():
    error = sqlite3.OperationalError(f"Could not decode to UTF-8 column 'body' with text '{SECRET}'")
    with pytest.raises(StoreError) as caught:
        raise_translated(error)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


def test_ids_in_logs_are_ids(shop: Packhorse, caplog: pytest.LogCaptureFixture):
    job = shop.task(name="t")(lambda: None).enqueue()
    attack(shop, "update job set attempts = 'x'")
    with Embedded(shop):
        wait_until(lambda: job.look().finished)
    assert f"the row of job {to_text(job._raw_id)} makes no sense" in caplog.text
