"""What `import packhorse` offers, apart from what it does elsewhere."""

import inspect
import pickle
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

import packhorse
from packhorse import Act, Change, EnqueueError, Failure, FailureKind, JobFailed, JobNotFound, Packhorse, Selection
from packhorse.outcome import Awaits
from packhorse.stores.contract import Audit
from tests.skins.test_guide import errors

FACTS: dict[str, Any] = {
    "after": 5.0,
    "awaits": Awaits("approved:42"),
    "delay": 5,
    "failure": Failure(FailureKind.EXCEPTION, "ValueError", "no", "Traceback …"),
    "discard": True,
    "id": "0198c5a0-0000-7000-8000-000000000000",
    "ids": ("one", "two"),
    "key": "nightly",
    "name": "shop.work",
    "performed": 1_000,
    "reason": "enough",
    "state": "ready",
    "total": 3,
    "url": "nonsense://ann:secret@host",
    "waited": 1.5,
    "why": "so it is",
}


@pytest.fixture
def app(tmp_path: Path) -> Any:
    app = Packhorse("shop", f"sqlite:///{tmp_path}/jobs.db")
    yield app
    app.close()


def made(kind: type[BaseException]) -> BaseException:
    """With all the facts that it takes."""
    if kind.__init__ in (Exception.__init__, LookupError.__init__, ValueError.__init__, BaseException.__init__):
        return kind("what happened")
    known = inspect.signature(kind).parameters
    assert known.keys() - FACTS.keys() <= {"enqueued", "left_out"}, kind
    return kind(**{name: FACTS[name] for name in known if name in FACTS})


@pytest.mark.parametrize("kind", sorted(errors(), key=str), ids=lambda kind: str(kind.__name__))
def test_every_error_survives_pickling(kind: type[BaseException]):
    """As it must to come back from another process."""
    error = made(kind)
    error.add_note("said on the way")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert (str(copy), copy.args, vars(copy)) == (str(error), error.args, vars(error))


def test_an_error_of_handles_leaves_them_behind(app: Packhorse):
    """They hold a store's connections."""

    @app.task
    def work() -> None: ...

    error = EnqueueError("full", enqueued=[work.enqueue()], left_out=[work.call()])
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.enqueued, copy.left_out) == ("full", [], [])
    assert (len(error.enqueued), len(error.left_out)) == (1, 1)


def fail() -> None:
    raise JobFailed(FACTS["id"], FACTS["failure"])


@pytest.mark.slow
def test_an_error_comes_back_from_a_process_pool():
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool, pytest.raises(JobFailed) as raised:
        pool.submit(fail).result(timeout=60)
    assert raised.value.failure == FACTS["failure"]


def test_every_name_is_there():
    """And sorted, so that two branches seldom meet in one line."""
    assert packhorse.__all__ == sorted(packhorse.__all__)
    assert all(hasattr(packhorse, name) for name in packhorse.__all__)


HEAVY = {"asyncio", "importlib.metadata", "packhorse.runtime", "socket", "sqlite3", "subprocess", "tomllib"}
HEAVY |= {"cronsim", "packhorse.moments", "packhorse.scheduling", "packhorse.zones"}


def test_who_only_enqueues_imports_no_worker():
    """Nor what only workers, schedules, coroutines and files of settings need; all names are there all the same."""
    program = """
import sys, packhorse
print(*sys.modules)
assert packhorse.Embedded is __import__("packhorse.runtime.embedded").runtime.embedded.Embedded
import packhorse.moments
assert packhorse.cron is packhorse.moments.cron
assert packhorse.monthly is packhorse.moments.monthly
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not HEAVY & set(ran.stdout.split())
    with pytest.raises(AttributeError, match="module 'packhorse' has no attribute 'Embeded'"):
        _ = packhorse.Embeded  # type: ignore[attr-defined]


def test_what_operators_do_is_done_with_public_names(app: Packhorse):
    """And read again in the audit, the newest first."""

    @app.task(queue_name="mail")
    def work() -> None: ...

    app.enqueue_many(work.call() for _ in range(3))
    assert app.control.act(Selection(queues={"mail"}), Change(Act.CANCEL), actor="ann", reason="enough") == 3
    assert app.control.act(Selection(queues={"mail"}), Change(Act.DISCARD), actor="bob") == 3
    acts = app.inspection.audit()
    assert [(it.actor, it.act, it.reason, it.jobs) for it in acts] == [
        ("bob", "discard", "", 3),
        ("ann", "cancel", "enough", 3),
    ]
    assert app.inspection.audit(limit=1) == acts[:1]
    assert all(isinstance(it, Audit) for it in acts)


def test_progress_of_what_is_no_job(app: Packhorse):
    """The same error as everywhere."""
    with pytest.raises(JobNotFound):
        app.inspection.progress("nonsense")
