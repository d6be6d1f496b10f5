"""Pickle: for those who ask for it by name, task by task, and never before the signature is found right."""

import ast
import logging
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from packhorse import (
    ConfigError,
    Context,
    Embedded,
    FailureKind,
    Fixed,
    JobFailed,
    JobState,
    Packhorse,
    PayloadError,
    ResultUnavailable,
    Secret,
)
from packhorse.ids import from_text
from packhorse.job import NewJob
from packhorse.pickling import PickleCodec
from packhorse.queues import parse_queues
from packhorse.runtime.process import Process
from packhorse.runtime.worker import Worker
from tests.waiting import wait_until

SOON = 60.0
SOURCE = Path(__file__).parents[2] / "src" / "packhorse"
KEY = "a-key-of-some-length-0f9e8d7c6b5a4938"
KINDS = pytest.mark.parametrize("coroutine", [False, True], ids=["thread", "coroutine"])


class Shape:
    """Nothing but pickle carries it."""

    def __init__(self, corners: set[complex]) -> None:
        self.corners = corners

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shape) and other.corners == self.corners

    __hash__ = None  # type: ignore[assignment]


class Unreadable:
    """Can be pickled, and not unpickled."""

    def __reduce__(self) -> Any:
        return _refuse, ("unspeakable",)


def _refuse(text: str) -> None:
    raise ValueError(f"will not be made of {text}")


def nothing(value: Any = None) -> None: ...


class Loads:
    """Counts what reaches pickle."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[bytes] = []
        self._loads = pickle.loads
        monkeypatch.setattr("packhorse.pickling.pickle.loads", self)

    def __call__(self, data: bytes) -> Any:
        self.seen.append(data)
        return self._loads(data)


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Loads:
    return Loads(monkeypatch)


# Round trips.


@KINDS
@pytest.mark.parametrize("protocol", [0, 5])
@pytest.mark.parametrize("settings", [{}, {"encryption": True, "keys": (KEY,)}], ids=["signed", "encrypted"])
def test_what_nothing_else_carries_travels_as_a_pickle(
    make_app: Callable[..., Packhorse], coroutine: bool, protocol: int, settings: dict[str, Any]
):
    """Arguments by place and by name, and results; metadata goes beside them as always."""
    app = make_app(**settings)
    seen: list[Any] = []

    def work(context: Context, shape: Shape, *others: Any, key: Secret[str]) -> Any:
        seen.append((shape, others, key, context.metadata))
        return {1j: shape, (): [range(3), work_like]}

    async def awork(context: Context, shape: Shape, *others: Any, key: Secret[str]) -> Any:
        return work(context, shape, *others, key=key)

    codec = PickleCodec(protocol)
    task: Any = app.task(takes_context=True, codec=codec, name="work")(awork if coroutine else work)
    shape = Shape({1 + 2j, 3j})
    with Embedded(app):
        job = task.using(metadata={"tenant": (7, Secret("x"))}).enqueue(shape, frozenset({1}), key=Secret("hush"))
        assert job.result(SOON) == {1j: shape, (): [range(3), work_like]}
        plain = app.task(name="plain")(nothing).enqueue({"still": "JSON"})
        assert plain.result(SOON) is None
    assert seen == [(shape, (frozenset({1}),), Secret("hush"), {"tenant": (7, Secret("x"))})]


def work_like() -> None:
    """Functions travel by their import path."""


def test_each_attempt_gets_arguments_of_its_own(app: Packhorse):
    """What the first one changed is not seen by the second."""

    @app.task(takes_context=True, codec=PickleCodec(), retries=1, backoff=Fixed(0))
    def work(context: Context, shape: Shape) -> int:
        shape.corners.add(9j)
        if context.attempt == 1:
            raise ValueError
        return len(shape.corners)

    with Embedded(app):
        assert work.enqueue(Shape({1j})).result(SOON) == 2


def test_the_caps_hold_for_pickles_too(make_app: Callable[..., Packhorse]):
    app = make_app(payload_cap=2048, result_cap=2048, compress_above=None)

    @app.task(codec=PickleCodec())
    def work(text: str) -> str:
        return text * 100

    with pytest.raises(PayloadError, match="more than the 2,048 allowed"):
        work.enqueue("x" * 3_000)
    with Embedded(app):
        job = work.enqueue("x" * 100)
        with pytest.raises(ResultUnavailable, match="more than 2,048"):
            job.result(SOON)
    assert job.state is JobState.SUCCEEDED


def test_what_cannot_be_pickled_is_refused_where_it_is_made(app: Packhorse):
    """By the caller, before anything is stored; as a result it is missing, and the job has ended well."""

    @app.task(codec=PickleCodec())
    def work(value: Any = None) -> Any:
        return threading.Lock()

    with pytest.raises(PayloadError, match=r"It cannot be pickled \((TypeError|PicklingError|AttributeError)\)"):
        work.enqueue(lambda: "unspeakable")
    assert list(app.inspection.jobs()) == []
    with Embedded(app), pytest.raises(ResultUnavailable, match=r"It cannot be pickled \(TypeError\)"):
        work.enqueue().result(SOON)


def test_what_cannot_be_unpickled_is_undecodable(app: Packhorse):
    """It is not retried, the worker lives, and what it held is not told."""

    @app.task(codec=PickleCodec(), retries=5, name="work")
    def work(value: Any) -> Any:
        return value

    with Embedded(app, concurrency=1):
        job = work.enqueue(Unreadable())
        with pytest.raises(JobFailed) as caught:
            job.result(SOON)
        assert work.enqueue(1).result(SOON) == 1
    failure = caught.value.failure
    assert failure.kind is FailureKind.UNDECODABLE
    assert "It cannot be unpickled (ValueError)" in failure.message
    assert "unspeakable" not in failure.message + failure.traceback


def test_a_result_that_cannot_be_unpickled_is_unavailable(app: Packhorse):
    @app.task(codec=PickleCodec())
    def work() -> Any:
        return Unreadable()

    with Embedded(app):
        job = work.enqueue()
        with pytest.raises(ResultUnavailable, match=r"It cannot be unpickled \(ValueError\)"):
            job.result(SOON)


def test_any_codec_that_raises_while_it_reads_costs_the_result_alone(app: Packhorse):
    """Codecs of others need not be as careful."""

    class Careless:
        def encode(self, value: Any) -> bytes:
            return pickle.dumps(value)

        def decode(self, data: bytes) -> Any:
            value = pickle.loads(data)
            if value != ((), {}):
                raise KeyError("a result")
            return value

    @app.task(codec=Careless())
    def work() -> str:
        return "result"

    with Embedded(app):
        job = work.enqueue()
        with pytest.raises(ResultUnavailable, match="the task's own codec raised KeyError"):
            job.result(SOON)


@KINDS
def test_secrets_among_pickled_arguments_are_masked(app: Packhorse, coroutine: bool):
    """Also those that the task took out."""

    def work(options: dict[Any, Any], *, password: str) -> None:
        token = options.pop("token")
        raise ValueError(f"{token.reveal()} {password}")

    async def awork(options: dict[Any, Any], *, password: str) -> None:
        work(options, password=password)

    task: Any = app.task(codec=PickleCodec(), name="work")(awork if coroutine else work)
    with Embedded(app), pytest.raises(JobFailed, match="ValueError: ••• •••"):
        task.enqueue({1: 2, "token": Secret("first-canary")}, password="second-canary").result(SOON)


# Verified first.


def test_pickle_sees_nothing_but_what_was_verified(app: Packhorse, loads: Loads):
    """Each byte of a payload changed in turn, swapped with another job's, cut, unsigned, or made by somebody else."""

    @app.task(codec=PickleCodec(), name="work")
    def work(value: Any) -> Any:
        return value

    app.task(name="other", codec=PickleCodec())(nothing)
    jobs = [work.enqueue("mine"), work.enqueue("yours")]
    payload, theirs = (app.inspection.stored(job.id).payload for job in jobs)
    app.control.discard([job.id for job in jobs])
    raw = from_text(jobs[0].id)
    stranger = Packhorse("shop", "memory://", keys=(KEY,))
    bank = Packhorse("bank", app.store)
    evil = pickle.dumps(((Unreadable(),), {}))
    forged = [
        theirs,
        evil,
        b"",
        payload[:22] + evil,
        payload[:-1],
        payload + b"\0",
        stranger.seals._seal("job", raw + b"work", evil, head=bytes(18), flags=16),  # type: ignore[arg-type]
        bank.seals._seal("job", raw + b"work", evil, head=bytes(18), flags=16),  # type: ignore[arg-type]
        app.seals._seal("result", raw + b"work", evil, head=bytes(18), flags=16),  # type: ignore[arg-type]
        app.seals._seal("job", raw + b"other", evil, head=bytes(18), flags=16),  # type: ignore[arg-type]
    ]
    for place in range(len(payload)):
        changed = bytearray(payload)
        changed[place] ^= 1 << (place % 8)
        forged.append(bytes(changed))
    forged.append(payload[:1] + bytes([payload[1] & ~1]) + bytes(20) + payload[22:])
    for data in forged:
        with pytest.raises(PayloadError):
            app.seals.open_job(raw, "work", data)
    with Embedded(app):
        for data in forged:
            app.store.insert([NewJob(raw, "work", data)])
            with pytest.raises(JobFailed) as caught:
                jobs[0].result(SOON)
            assert caught.value.failure.kind is FailureKind.UNDECODABLE
            app.control.discard([jobs[0].id])
        assert loads.seen == []
        assert work.enqueue("mine").result(SOON) == "mine"
    assert len(loads.seen) == 2


def test_a_forged_result_never_reaches_pickle(app: Packhorse, loads: Loads, monkeypatch: pytest.MonkeyPatch):
    @app.task(codec=PickleCodec(), name="work")
    def work(value: Any) -> Any:
        return value

    with Embedded(app):
        job, other = work.enqueue("mine"), work.enqueue("yours")
        wait_until(lambda: job.state.finished and other.state.finished)
    good = app.inspection.stored(job.id)
    loads.seen.clear()
    assert good.result is not None
    foreign_bytes = [
        app.inspection.stored(other.id).result,
        good.payload,
        good.result[:22] + pickle.dumps(Unreadable()),
        good.result[:-1],
        pickle.dumps(Unreadable()),
    ]
    for result in foreign_bytes:
        with pytest.raises(PayloadError):
            app.inspection.result_of(replace(good, result=result))
    assert loads.seen == []


def test_who_only_looks_unpickles_nothing(app: Packhorse, loads: Loads):
    """Commands and dashboards show that there is something, and not what."""

    @app.task(codec=PickleCodec())
    def work(value: Any) -> Any:
        return value

    with Embedded(app):
        job = work.enqueue("mine")
        wait_until(lambda: job.state.finished)
    loads.seen.clear()
    stored = app.inspection.stored(job.id)
    for look in (app.inspection.arguments, app.inspection.shown_arguments, app.inspection.shown_result):
        with pytest.raises(PayloadError, match="the task's own codec"):
            look(stored)
    assert loads.seen == []
    assert job.look().state is JobState.SUCCEEDED


def test_a_worker_without_the_codec_does_not_unpickle(app: Packhorse, make_app: Callable[..., Packhorse], loads: Loads):
    """The choice is the worker's too: a signed pickle for a task that takes JSON is refused."""
    other = make_app()

    @other.task(name="work", codec=PickleCodec())
    def work(value: Any) -> None: ...

    app.task(name="work")(nothing)
    with Embedded(app), pytest.raises(JobFailed, match="a codec that the task does not have"):
        work.enqueue("x").result(SOON)
    assert loads.seen == []


def test_signing_is_demanded(make_app: Callable[..., Packhorse]):
    app = make_app(signing=False)
    with pytest.raises(ConfigError, match="decodes only signed payloads"):
        app.task(codec=PickleCodec())(nothing)
    assert app.tasks == {}


@pytest.mark.parametrize("protocol", [-1, 99, None, "5"])
def test_a_protocol_that_there_is_not_is_refused(protocol: Any):
    with pytest.raises(ConfigError, match="protocol must be a whole number"):
        PickleCodec(protocol)


def test_a_class_is_no_codec(app: Packhorse):
    wrong: Any = PickleCodec
    with pytest.raises(ConfigError, match=r"codec takes an instance: codec=PickleCodec\(\)"):
        app.task(codec=wrong)(nothing)


# Warned of.


def test_a_worker_warns_at_its_start_of_tasks_that_are_pickled(app: Packhorse, caplog: pytest.LogCaptureFixture):
    """By name, and once, however often it enrols."""
    app.task(name="shop.second", codec=PickleCodec())(nothing)
    app.task(name="shop.first", codec=PickleCodec())(nothing)
    plain = app.task(name="shop.plain")(nothing)
    process = Process(app, Worker(app, parse_queues("*"), 1))
    thread = threading.Thread(target=process.run, daemon=True)
    thread.start()
    plain.enqueue().result(SOON)
    before = process.id
    app.store.leave(before)
    wait_until(lambda: process.id != before, "it enrols anew")
    process.stop()
    thread.join(SOON)
    warnings = [it for it in caplog.records if it.name == "packhorse.worker" and "can run any code" in it.getMessage()]
    assert [it.getMessage() for it in warnings] == [
        "the codec of shop.first, shop.second can run any code: "
        "whoever has a key of application 'shop' can run it in this worker"
    ]
    assert warnings[0].levelno == logging.WARNING


def test_a_worker_without_such_tasks_warns_of_nothing(app: Packhorse, caplog: pytest.LogCaptureFixture):
    class Harmless(PickleCodec):
        runs_code = False

    app.task(name="plain")(nothing)
    app.task(name="own", codec=Harmless())(nothing)
    with Embedded(app):
        app.tasks["plain"].enqueue().result(SOON)
    assert "can run any code" not in caplog.text


# The only module of its kind.

DANGEROUS = {
    "pickle",
    "_pickle",
    "cPickle",
    "cloudpickle",
    "dill",
    "marshal",
    "shelve",
    "yaml",
    "jsonpickle",
    "copyreg",
}
RUNS_TEXT = {"eval", "exec", "compile", "__import__"}
IMPORTS_BY_NAME = {"import_module", "locate", "import_string", "run_path", "run_module"}


def dangers_in(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        match node:
            case ast.Import():
                names = [alias.name for alias in node.names]
            case ast.ImportFrom():
                names = [node.module or "", *(alias.name for alias in node.names)]
            case ast.Call(func=ast.Name(id=name)) if name in RUNS_TEXT | IMPORTS_BY_NAME:
                names = [f"{name}()"]
            case ast.Call(func=ast.Attribute(attr=name)) if name in IMPORTS_BY_NAME:
                names = [f"{name}()"]
            case _:
                names = []
        yield from (name for name in names if name.split(".")[0] in DANGEROUS or name.endswith("()"))


def test_no_other_module_can_run_what_it_reads():
    """No pickle, marshal, shelve or YAML, no eval or exec; and only what loads an application imports by name."""
    found = {str(path.relative_to(SOURCE)): sorted(set(dangers_in(path))) for path in SOURCE.rglob("*.py")}
    assert {path: names for path, names in found.items() if names} == {
        "django/discovery.py": ["import_module()"],  # the modules `tasks` of the apps that a site has installed
        "django/tasks.py": ["import_string()"],  # for Django, which lets its tasks be pickled; no job comes this way
        "pickling.py": ["pickle"],
        "runtime/loading.py": ["import_module()", "run_path()"],
        "testing/contract/__init__.py": ["import_module()"],  # its own modules
    }


def test_packhorse_itself_does_not_even_import_it(tmp_path: Path):
    """Whatever it uses of Python: unless somebody asks, `packhorse.pickling` is not loaded."""
    program = (
        "import sys, packhorse, packhorse.cli, packhorse.runtime.child; print('packhorse.pickling' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (ended.stdout, ended.returncode) == ("False\n", 0)


def test_the_search_for_dangers_finds_some(tmp_path: Path):
    """Or else the test above would prove nothing."""
    path = tmp_path / "bad.py"
    path.write_text(
        "import os, pickle as p\nfrom marshal import loads\nfrom yaml.nodes import x\nimport importlib as i\n"
        "def f():\n    import shelve\n    eval('1')\n    i.import_module('x')\n    __import__('x')\n"
    )
    assert sorted(dangers_in(path)) == [
        "__import__()",
        "eval()",
        "import_module()",
        "marshal",
        "pickle",
        "shelve",
        "yaml.nodes",
    ]
