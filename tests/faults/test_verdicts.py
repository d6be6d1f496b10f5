"""Verdicts on orphans that the store does not take at once, turn by turn."""

from typing import Any, Literal

import pytest

from packhorse import Packhorse
from packhorse.clock import SECOND, ManualClock
from packhorse.errors import StoreUnavailable
from packhorse.ids import from_text, new_id
from packhorse.job import Claim
from packhorse.queues import EVERYTHING
from packhorse.runtime.begun import mark_of
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
    assert not store.beat([adopter])


@pytest.mark.parametrize("begun", [True, False])
def test_a_lost_reply_hides_no_beginning(
    app: Packhorse, store: MemoryStore, monkeypatch: pytest.MonkeyPatch, begun: bool
):
    """A strict job that had begun must not come back, though its adopter was never told whose it was."""
    handle = app.task(name="task", on_worker_lost="fail")(lambda: None).enqueue()
    worker, adopter = join(store), join(store)
    [held] = store.exchange(worker, 7, [], EVERYTHING, 1).claims
    marks = frozenset({mark_of(7, held.token.id)} if begun else set())
    deaths = {worker: Death("was killed by SIGKILL", begun=marks, pid=77)}
    judge, adopt = Judge(app), store.adopt

    def adopt_unheard(*args: Any, **kwargs: Any) -> list[Orphan]:
        adopt(*args, **kwargs)
        raise StoreUnavailable("the reply was lost")

    with monkeypatch.context() as broken:
        broken.setattr(store, "adopt", adopt_unheard)
        with pytest.raises(StoreUnavailable):
            judge.judge(adopter, deaths)
    judge.judge(adopter, deaths)
    job = handle.look()
    assert (job.state, job.losses) == (("failed", 1) if begun else ("ready", 0))
    if begun:
        assert job.failure is not None
        assert "The worker with pid 77" in job.failure.message


@pytest.mark.parametrize(("alone", "state"), [(False, "failed"), (True, "ready")])
def test_a_job_that_ran_alone_is_not_blamed_for_its_worker(app: Packhorse, store: MemoryStore, alone: bool, state: str):
    """Its third loss, but the whole worker died, and not its own process."""
    handle = app.task(name="task")(lambda: None).enqueue()
    adopter = join(store)
    for number, is_alone in enumerate((False, False, alone)):
        worker = join(store)
        [held] = store.exchange(worker, number, [], EVERYTHING, 1, starting=1).claims
        begun = frozenset({mark_of(number, held.token.id, alone=is_alone)})
        Judge(app).judge(adopter, {worker: Death("was killed by SIGKILL", begun=begun)})
    job = handle.look()
    assert (job.state, job.losses) == (state, 3)


STRICT, PLAIN = "fail", "retry"


@pytest.mark.parametrize(
    ("rule", "announced", "seen", "expected"),
    [
        # Where somebody saw the worker die, what it had begun is known, whatever it had told the store.
        (PLAIN, False, "begun", ("ready", 1, False)),
        (PLAIN, True, "begun", ("ready", 1, False)),
        (STRICT, False, "begun", ("failed", 1, False)),
        (STRICT, True, "begun", ("failed", 1, False)),
        (PLAIN, False, "not begun", ("ready", 0, False)),
        (PLAIN, True, "not begun", ("ready", 0, False)),
        (STRICT, True, "not begun", ("ready", 0, False)),
        # Where nobody saw it, what was announced counts, and what was not may have begun.
        (PLAIN, True, "unseen", ("ready", 1, False)),
        (STRICT, True, "unseen", ("failed", 1, False)),
        (PLAIN, False, "unseen", ("ready", 0, True)),
        (STRICT, False, "unseen", ("ready", 0, True)),
        # What we ended ourselves is nobody's fault; but what must not begin twice does not come back.
        (PLAIN, True, "asked", ("ready", 0, False)),
        (STRICT, True, "asked", ("failed", 1, False)),
        (PLAIN, True, "another timed out", ("ready", 0, False)),
        (STRICT, True, "another timed out", ("failed", 1, False)),
        (STRICT, False, "another timed out, not begun", ("ready", 0, False)),
    ],
)
def test_the_verdict(
    app: Packhorse,
    store: MemoryStore,
    clock: ManualClock,
    rule: Literal["fail", "retry"],
    announced: bool,
    seen: str,
    expected: tuple[str, int, bool],
):
    handle = app.task(name="task", on_worker_lost=rule)(lambda: None).enqueue()
    worker, adopter = join(store), join(store)
    [held] = store.exchange(worker, 7, [], EVERYTHING, 1, starting=int(announced)).claims
    begun = frozenset() if "not begun" in seen else frozenset({mark_of(7, held.token.id)})
    guilty = frozenset({new_id()}) if "timed out" in seen else frozenset()
    death = Death("was killed by SIGKILL", guilty, begun, asked=seen == "asked")
    if seen == "unseen":
        clock.advance(31)
        adopter = join(store)
    Judge(app).judge(adopter, {} if seen == "unseen" else {worker: death})
    job = handle.look()
    again = claim(store, adopter)
    assert (job.state, job.losses, bool(again and again[0].suspect)) == expected


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
