"""Which claims had begun: the page that a worker shares with its supervisor, and claims that wait to be announced."""

import os
import random
from collections import deque
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from packhorse import Packhorse
from packhorse.clock import SECOND, ManualClock
from packhorse.errors import StoreUnavailable
from packhorse.ids import new_id
from packhorse.job import Claim, JobState, Token
from packhorse.outcome import Outcome, release, succeed
from packhorse.queues import EVERYTHING
from packhorse.runtime.begun import Begun, make_page, mark_of
from packhorse.runtime.process import Process
from packhorse.runtime.worker import Worker
from packhorse.stores.contract import EXCHANGE_JOBS, ProcessInfo
from packhorse.stores.memory import MemoryStore

SLOTS = 4


@pytest.fixture
def page() -> Iterator[int]:
    fd = make_page(SLOTS)
    yield fd
    os.close(fd)


def token(n: int) -> Token:
    return Token(b"w" * 16, n, n.to_bytes(16, "big"), 1)


def mark(token: Token) -> tuple[int, bytes]:
    return mark_of(token.nonce, token.id)


def test_what_has_begun_is_read_by_another_map_of_the_page(page: int):
    """As the supervisor reads it, whose map is its own."""
    worker, supervisor = Begun(page, SLOTS), Begun(page, SLOTS)
    assert supervisor.read() == frozenset()
    worker.begin(token(1))
    worker.begin(token(2))
    worker.keep([token(3)], alone=[token(4)])
    worker.begin_alone(token(5))
    alone = {mark_of(it.nonce, it.id, alone=True) for it in (token(4), token(5))}
    assert supervisor.read() == {mark(token(1)), mark(token(2)), mark(token(3)), *alone}


class Model:
    """The slots of a worker that begins what it is given in order, ends it at random, and writes it in batches."""

    def __init__(self, begun: Begun, dice: random.Random) -> None:
        self._begun = begun
        self._dice = dice
        self._waiting: deque[Token] = deque()
        self.running: list[Token] = []
        self.ended: deque[Token] = deque()

    def put(self, claims: list[Claim]) -> None:
        self._waiting.extend(claim.token for claim in claims)

    def work(self, steps: int) -> None:
        for _ in range(steps):
            while self._waiting and len(self.running) < SLOTS:
                self._begun.begin(self._waiting[0])
                self.running.append(self._waiting.popleft())
            # The first one takes long, so that marks of thousands of others come after its own.
            if len(self.running) > 1:
                self.ended.append(self.running.pop(self._dice.randrange(1, len(self.running))))
            elif self.running and self._dice.random() < 0.001:
                self.ended.append(self.running.pop())

    @property
    def holds(self) -> int:
        return len(self._waiting) + len(self.running) + len(self.ended)


@pytest.mark.parametrize("seed", range(3))
def test_no_mark_is_lost_while_its_job_is_held(page: int, seed: int):
    """However long it runs, and however late the store is told of its end."""
    dice, begun, reader = random.Random(seed), Begun(page, SLOTS), Begun(page, SLOTS)
    worker = Worker(Packhorse("begun", "memory://"), EVERYTHING, SLOTS, begun=begun)
    worker._slots = slots = Model(begun, dice)  # type: ignore[assignment]
    numbers = count(1)
    for turn in range(120):
        for _ in range(min(len(slots.ended), dice.choice((0, 0, 1, EXCHANGE_JOBS)))):
            slots.ended.popleft()
        room = max(0, SLOTS + EXCHANGE_JOBS - slots.holds)
        more = [token(next(numbers)) for _ in range(min(EXCHANGE_JOBS, room))]
        worker._put([Claim(it, "task", b"", "default", 0, 0, 0, 0, None) for it in more])
        slots.work(dice.choice((3, 300, 3_000)))
        if turn % 5 == 0:
            missing = {mark(it) for it in [*slots.running, *slots.ended]} - reader.read()
            assert not missing


# Claims that are announced before they begin.


class Kept:
    """A worker whose slots only collect what they are given."""

    def __init__(self, app: Packhorse, store: MemoryStore) -> None:
        self.worker = Worker(app, EVERYTHING, SLOTS)
        self.process = Process(app, self.worker)
        self.process.guard_tasks = lambda: None  # type: ignore[method-assign]
        store_process(store, self.process)
        self.worker._process = self.process
        self.given: list[Claim] = []
        self.worker._slots.put = self.given.extend  # type: ignore[method-assign, assignment]
        self.worker._pace = 0.000_1  # its jobs are quick, so that it claims ahead
        self.store = store

    def turn(self, ended: int = 0) -> list[str]:
        """Hand in what was given first; the tasks that begin now."""
        done, self.given[:] = self.given[:ended], self.given[ended:]
        for claim in done:
            self.worker._hand_in(succeed(claim.token, 100, None))
        before = len(self.given)
        self.worker.turn()
        return [claim.task for claim in self.given[before:]]

    def announced(self) -> set[bytes]:
        return {id for id, job in self.store._jobs.items() if job.started_at is not None}


def store_process(store: MemoryStore, process: Process) -> None:
    store.enroll(ProcessInfo(process.id, "worker", "here", 1), 30 * SECOND)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(ManualClock())


@pytest.fixture
def app(store: MemoryStore) -> Packhorse:
    return Packhorse("announced", store, clock=store.clock)


def tasks(app: Packhorse) -> tuple[Any, Any]:
    return app.task(name="plain")(lambda: None), app.task(name="strict", on_worker_lost="fail")(lambda: None)


def test_strict_claims_begin_once_the_store_was_told(app: Packhorse, store: MemoryStore):
    """Those for free slots at once, those ahead when a slot is free."""
    _, strict = tasks(app)
    for _ in range(10):
        strict.enqueue()
    kept = Kept(app, store)
    assert len(kept.turn()) == SLOTS
    assert len(store.held(kept.process.id)) == 10
    assert {claim.token.id for claim in kept.given} == kept.announced()
    assert kept.turn() == []
    assert len(kept.turn(ended=2)) == 2
    assert {claim.token.id for claim in kept.given} <= kept.announced()


def test_plain_claims_behind_strict_ones_begin_ahead_as_ever(app: Packhorse, store: MemoryStore):
    plain, strict = tasks(app)
    for _ in range(SLOTS + 2):
        plain.enqueue()
    strict.enqueue()
    plain.enqueue()
    kept = Kept(app, store)
    assert kept.turn() == ["plain"] * (SLOTS + 3)
    assert kept.turn(ended=SLOTS) == ["strict"], "as soon as there is a free slot"


@pytest.mark.parametrize("how", ["using", "lost", "suspect"])
def test_who_else_is_announced_first(app: Packhorse, store: MemoryStore, how: str):
    """A job that is strict by itself, that has lost a worker before, or may have."""
    plain, _ = tasks(app)
    for _ in range(SLOTS):
        plain.enqueue()
    (plain.using(on_worker_lost="fail") if how == "using" else plain).enqueue()
    other = Kept(app, store)
    if how != "using":
        claims = store.exchange(other.process.id, 1, [], EVERYTHING, 99).claims
        back = [release(claim.token) for claim in claims]
        if how == "lost":
            back[-1] = Outcome(claims[-1].token, JobState.READY, spent=False, lost=True)
        else:
            back[-1] = back[-1]._replace(suspect=True)
        store.exchange(other.process.id, 2, back, EVERYTHING, 0)
    kept = Kept(app, store)
    assert len(kept.turn()) == SLOTS
    assert len(kept.worker._cautious) == 1
    assert len(kept.turn(ended=1)) == 1
    assert kept.announced() >= {claim.token.id for claim in kept.given}


def test_an_announcement_that_failed_is_made_again(app: Packhorse, store: MemoryStore, monkeypatch: pytest.MonkeyPatch):
    """Nothing begins on the strength of it."""
    _, strict = tasks(app)
    for _ in range(SLOTS + 1):
        strict.enqueue()
    kept = Kept(app, store)
    kept.turn()

    def away(*given: object, **named: object) -> None:
        raise StoreUnavailable("not now")

    with monkeypatch.context() as broken:
        broken.setattr(store, "exchange", away)
        with pytest.raises(StoreUnavailable):
            kept.turn(ended=1)
    assert len(kept.given) == SLOTS - 1
    assert [*kept.turn(), *kept.turn()] == ["strict"]


def test_what_is_announced_is_not_forgotten_where_the_lease_cannot_be_confirmed(
    app: Packhorse, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
):
    """The store was told of it, and fails when it is asked once more. The claim goes back later, and begins nowhere."""
    _, strict = tasks(app)
    for _ in range(SLOTS + 1):
        strict.enqueue()
    kept = Kept(app, store)
    kept.turn()

    def away() -> bool:
        raise StoreUnavailable("not now")

    with monkeypatch.context() as broken:
        broken.setattr(kept.process, "confirm_lease", away)
        with pytest.raises(StoreUnavailable):
            kept.turn(ended=1)
    assert len(kept.given) == SLOTS - 1
    assert [*kept.turn(), *kept.turn()] == ["strict"]


def test_what_was_put_off_stays_marked(page: int):
    """However many begin after it: its outcome is not written, and its worker may die."""
    begun, reader = Begun(page, SLOTS), Begun(page, SLOTS)
    worker = Worker(Packhorse("begun", "memory://"), EVERYTHING, SLOTS, begun=begun)
    worker._slots = slots = Model(begun, random.Random(1))  # type: ignore[assignment]
    held_up = [token(n) for n in range(1, 300)]
    for it in held_up:
        begun.begin(it)
    worker._put_off.note(0, [succeed(it, 1, None) for it in held_up])
    numbers = count(1_000)
    for _ in range(20):
        more = [token(next(numbers)) for _ in range(EXCHANGE_JOBS)]
        worker._put([Claim(it, "task", b"", "default", 0, 0, 0, 0, None) for it in more])
        slots.work(3_000)
        slots.ended.clear()
    assert {mark(it) for it in held_up} <= reader.read()


def test_one_that_finds_no_slot_goes_back(app: Packhorse, store: MemoryStore):
    _, strict = tasks(app)
    for _ in range(SLOTS + 3):
        strict.enqueue()
    kept = Kept(app, store)
    kept.turn()
    assert len(kept.worker._cautious) == 3
    kept.worker.quiet()
    kept.turn()
    assert len(store.held(kept.process.id)) == SLOTS
    assert {job.losses for job in store._jobs.values()} == {0}


def test_the_head_of_a_run_waits_and_the_rest_goes_back(app: Packhorse, store: MemoryStore):
    """A run has one permit, and each of its jobs would have to be announced by itself."""
    tasks(app)
    kept = Kept(app, store)
    claims = [
        Claim(Token(kept.process.id, 1, new_id(), 1), name, b"x" * 50, "default", 0, 0, 0, 0, None, run=run)
        for name, run in [
            ("strict", "a"),
            ("plain", "a"),
            ("plain", "b"),
            ("strict", "b"),
            ("plain", "b"),
            ("plain", None),
        ]
    ]
    cautious = [claim for claim in claims if claim.task == "strict"]
    at_once = kept.worker._without_cautious(claims, cautious)
    assert [(claim.task, claim.run) for claim in at_once] == [("plain", "b"), ("plain", None)]
    assert [claim.run for claim in kept.worker._cautious.waited(0)] == ["a"]
    assert len(kept.worker._ended) == 3
