"""Verdicts on orphans that the store does not take at once, turn by turn."""

from typing import Any

import pytest

from packhorse import Packhorse
from packhorse.clock import SECOND, ManualClock
from packhorse.errors import StoreUnavailable
from packhorse.ids import from_text, new_id
from packhorse.job import Claim
from packhorse.queues import EVERYTHING
from packhorse.runtime.orphans import Death, Judge
from packhorse.runtime.worker import new_nonce
from packhorse.stores.contract import Exchanged, Orphan, ProcessInfo
from packhorse.stores.memory import MemoryStore


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock)


@pytest.fixture
def app(store: MemoryStore, clock: ManualClock) -> Packhorse:
    return Packhorse("verdicts", store, clock=clock)


def join(store: MemoryStore) -> bytes:
    id = new_id()
    store.enroll(ProcessInfo(id, "worker", "here", 42), 30 * SECOND)
    return id


def claim(store: MemoryStore, process: bytes) -> list[Claim]:
    return store.exchange(process, new_nonce(), [], EVERYTHING, 10, starting=10).claims


def test_a_verdict_that_was_not_written_is_written_later(
    app: Packhorse, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
):
    """Its adopter lives, so nobody else would ever look after the job."""
    task = app.task(name="task")(lambda: None)
    handle = task.enqueue()
    worker, adopter = join(store), join(store)
    assert len(claim(store, worker)) == 1
    judge = Judge(app)
    with monkeypatch.context() as broken:
        broken.setattr(store, "exchange", unavailable)
        with pytest.raises(StoreUnavailable):
            judge.judge(adopter, {worker: Death("was killed by SIGKILL")})
    assert [token.id for token in store.held(adopter)] == [from_text(handle.id)]
    judge.judge(adopter)
    job = handle.look()
    assert (job.state, job.losses) == ("ready", 1)
    assert "was killed by SIGKILL" in job.failures[0].failure.message
    assert store.held(adopter) == []


def test_orphans_of_a_lost_reply_go_back(app: Packhorse, store: MemoryStore, monkeypatch: pytest.MonkeyPatch):
    """The store adopted, and the adopter was never told: it lives, so nobody else would ever look after the job."""
    task = app.task(name="task")(lambda: None)
    handle = task.enqueue()
    worker, adopter = join(store), join(store)
    assert len(claim(store, worker)) == 1
    judge = Judge(app)
    adopt = store.adopt

    def adopt_unheard(*args: Any, **kwargs: Any) -> list[Orphan]:
        adopt(*args, **kwargs)
        raise StoreUnavailable("the reply was lost")

    with monkeypatch.context() as broken:
        broken.setattr(store, "adopt", adopt_unheard)
        with pytest.raises(StoreUnavailable):
            judge.judge(adopter, {worker: Death("was killed by SIGKILL")})
    assert [token.id for token in store.held(adopter)] == [from_text(handle.id)]
    judge.judge(adopter)
    assert handle.look().state == "ready"
    assert store.held(adopter) == []


def unavailable(*args: object, **kwargs: object) -> Exchanged:
    raise StoreUnavailable("not now")


def test_a_claim_that_never_began_is_no_loss(app: Packhorse, store: MemoryStore, clock: ManualClock):
    """However often its worker is lost; one that had begun counts."""

    @app.task
    def task() -> None: ...

    def enrolled() -> bytes:
        id = new_id()
        store.enroll(ProcessInfo(id, "worker", "here", 1), 30 * SECOND)
        return id

    handle = task.enqueue()
    for starting in (0, 0, 0, 0, 1):
        assert store.exchange(enrolled(), 1, [], EVERYTHING, 5, starting=starting).claims
        clock.advance(31)
        Judge(app).judge(enrolled())
    job = handle.look()
    assert (job.state, job.losses) == ("ready", 1)
