"""Error reporters: told of every attempt that raised, while the exception is at hand."""

import asyncio
import builtins
import functools
import json
import logging
import secrets
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from packhorse import (
    Cancel,
    ConfigError,
    Embedded,
    ErrorReport,
    Fixed,
    JobCancelled,
    JobFailed,
    Packhorse,
    Retry,
    Secret,
    Snooze,
    TaskError,
    current_context,
)
from packhorse.reporters import named_reporters, sentry
from tests.waiting import wait_until

SOON = 60.0
KINDS = pytest.mark.parametrize("coroutine", [False, True], ids=["thread", "coroutine"])


def declared(app: Packhorse, function: Callable[..., Any], coroutine: bool, **options: Any) -> Any:
    @functools.wraps(function)
    async def afunction(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return app.task(**{"name": "shop.work", **options})(afunction if coroutine else function)


@pytest.fixture
def told(app: Packhorse) -> list[ErrorReport]:
    """What a reporter of the application is told."""
    reports: list[ErrorReport] = []
    app.error_reporters.append(reports.append)
    return reports


# When they are told.


@KINDS
def test_each_failed_attempt_is_reported_and_the_last_one_as_final(
    app: Packhorse, told: list[ErrorReport], coroutine: bool
):
    """With the exception itself and the context of its job."""
    errors: list[BaseException] = []

    def work() -> None:
        errors.append(ValueError(f"attempt {len(errors) + 1}"))
        raise errors[-1]

    task = declared(app, work, coroutine, retries=2, backoff=Fixed(0), queue_name="slow")
    with Embedded(app):
        job = task.enqueue()
        with pytest.raises(JobFailed):
            job.result(SOON)
    assert [report.error for report in told] == errors
    assert [report.final for report in told] == [False, False, True]
    assert [report.context.attempt for report in told] == [1, 2, 3]
    assert {(report.context.job_id, report.context.task, report.context.queue_name) for report in told} == {
        (job.id, "shop.work", "slow")
    }
    assert told[0].error.__traceback__ is not None


@KINDS
@pytest.mark.parametrize("error", [Retry("later", after=0), TaskError("expected"), SystemExit(3)], ids=repr)
def test_whatever_ends_in_a_failure_is_reported(
    app: Packhorse, told: list[ErrorReport], error: BaseException, coroutine: bool
):
    def work() -> None:
        raise error

    task = declared(app, work, coroutine)
    with Embedded(app), pytest.raises(JobFailed):
        task.enqueue().result(SOON)
    assert [(report.error, report.final) for report in told] == [(error, True)]


@KINDS
def test_what_is_no_failure_is_not_reported(app: Packhorse, told: list[ErrorReport], coroutine: bool):
    """A snooze, a task that cancels itself, and one that an operator cancels."""
    runs: list[int] = []

    def work(how: str) -> None:
        runs.append(1)
        if how == "snooze" and len(runs) == 1:
            raise Snooze(0.01)
        if how == "cancel":
            raise Cancel("enough")

    task = declared(app, work, coroutine)
    running = threading.Event()

    @app.task
    async def endless() -> None:
        running.set()
        await asyncio.sleep(SOON)

    with Embedded(app):
        assert task.enqueue("snooze").result(SOON) is None
        with pytest.raises(JobCancelled):
            task.enqueue("cancel").result(SOON)
        job = endless.enqueue()
        assert running.wait(SOON)
        job.cancel()
        with pytest.raises(JobCancelled):
            job.result(SOON)
    assert told == []


def test_what_is_no_failure_is_not_reported_where_reasons_are_encrypted(make_app: Callable[..., Packhorse]):
    """There they are stored like failures, and are none."""
    app = make_app(encryption=True, keys=("an-example-that-is-long-enough-91827364",))
    reports: list[ErrorReport] = []
    app.error_reporters.append(reports.append)

    @app.task
    def work() -> None:
        raise Cancel("enough")

    with Embedded(app), pytest.raises(JobCancelled, match="enough"):
        work.enqueue().result(SOON)
    assert reports == []


@KINDS
def test_a_reporter_is_told_inside_the_job(app: Packhorse, coroutine: bool):
    """Library code finds the context there too, and the job has not ended yet."""
    seen: list[Any] = []

    def look(report: ErrorReport) -> None:
        seen.append((current_context() is report.context, app.job(report.context.job_id).state))

    app.error_reporters.append(look)

    def work() -> None:
        raise ValueError

    task = declared(app, work, coroutine)
    with Embedded(app), pytest.raises(JobFailed):
        task.enqueue().result(SOON)
    assert seen == [(True, "running")]


def test_a_report_can_mask_a_text(app: Packhorse, told: list[ErrorReport]):
    """Reporters get the exception as it is; before they send its text they can hide what is secret."""

    @app.task
    def work(password: str, key: Secret[str]) -> None:
        raise ValueError(f"{password} and {key.reveal()}")

    with Embedded(app), pytest.raises(JobFailed):
        work.enqueue("first-canary", Secret("second-canary")).result(SOON)
    [report] = told
    assert report.mask(str(report.error)) == "••• and •••"
    assert report.mask("nothing secret") == "nothing secret"


# Reporters that fail.


@KINDS
@pytest.mark.parametrize("trouble", [ValueError("first-canary"), SystemExit(1), KeyboardInterrupt()], ids=repr)
def test_a_failing_reporter_is_logged_and_changes_nothing(
    app: Packhorse, caplog: pytest.LogCaptureFixture, coroutine: bool, trouble: BaseException
):
    """The attempt is retried as it would have been, and the other reporters are told.

    The log says who failed, with what and where, but not in its own words: those may be the task's secrets.
    """

    def broken(report: ErrorReport) -> None:
        raise trouble

    def quoting(report: ErrorReport) -> None:
        raise RuntimeError(f"could not send {report.error}") from report.error

    reports: list[ErrorReport] = []
    app.error_reporters += [broken, quoting, reports.append]
    runs: list[int] = []

    def work(password: str) -> str:
        runs.append(1)
        if len(runs) == 1:
            raise ValueError(f"wrong password {password}")
        return "fine"

    task = declared(app, work, coroutine, retries=1, backoff=Fixed(0))
    with caplog.at_level(logging.DEBUG), Embedded(app):
        assert task.enqueue("first-canary").result(SOON) == "fine"
    assert len(reports) == 1
    formatted = "\n".join(logging.Formatter().format(record) for record in caplog.records)
    assert f"broken failed itself: {type(trouble).__name__} at {__file__}:" in formatted
    assert f"quoting failed itself: RuntimeError at {__file__}:" in formatted
    assert "first-canary" not in formatted


# By name.


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Makes a distribution that offers reporters."""

    def install(entries: str, source: str) -> None:
        folder = tmp_path / "site"
        information = folder / "fake_reporters-1.0.dist-info"
        information.mkdir(parents=True)
        (information / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-reporters\nVersion: 1.0\n")
        (information / "entry_points.txt").write_text(f"[packhorse.error_reporters]\n{entries}\n")
        (folder / "fake_reporters.py").write_text(source)
        monkeypatch.syspath_prepend(str(folder))

    yield install
    sys.modules.pop("fake_reporters", None)


def test_a_reporter_is_found_by_the_name_a_package_offers_it_under(
    make_app: Callable[..., Packhorse], installed: Callable[..., None]
):
    installed("bell = fake_reporters:ring\nother = fake_reporters:missing", "rung = []\nring = rung.append\n")
    app = make_app(error_reporters=("bell",))

    @app.task
    def work() -> None:
        raise ValueError("no")

    with Embedded(app), pytest.raises(JobFailed):
        work.enqueue().result(SOON)
    import fake_reporters  # type: ignore[import-not-found]

    [report] = fake_reporters.rung
    assert isinstance(report, ErrorReport)
    assert str(report.error) == "no"


def test_a_name_that_nobody_offers_is_refused_at_the_start(
    make_app: Callable[..., Packhorse], installed: Callable[..., None]
):
    """And those that are offered are named."""
    installed("bell = fake_reporters:ring", "")
    with pytest.raises(ConfigError, match=r"offers the error reporter 'drum'; there are: bell, sentry\."):
        make_app(error_reporters=["drum"])


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("", "cannot be loaded: AttributeError"),
        ("1/0", "cannot be loaded: ZeroDivisionError"),
        ("ring = 7", "no function"),
    ],
)
def test_a_reporter_that_cannot_be_loaded_is_refused_at_the_start(
    make_app: Callable[..., Packhorse], installed: Callable[..., None], source: str, complaint: str
):
    installed("bell = fake_reporters:ring", source)
    with pytest.raises(ConfigError, match=rf"The error reporter 'bell' \(fake_reporters:ring\).*{complaint}"):
        make_app(error_reporters=("bell",))


def test_where_none_is_named_nobody_looks_for_any(monkeypatch: pytest.MonkeyPatch):
    """To look through all installed packages takes longer than all the rest of making an application."""

    def never(**kwargs: Any) -> Any:
        raise AssertionError("looked")

    monkeypatch.setattr("importlib.metadata.entry_points", never)
    assert named_reporters(()) == []


# Sentry.


class Postbox(Transport):
    """Keeps what would be sent."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Any] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        for item in envelope.items:
            if item.type == "event":
                self.events.append(json.loads(item.get_bytes()))


@pytest.fixture
def postbox() -> Iterator[Postbox]:
    box = Postbox()
    # Without the integrations, which would reach into logging and threading for the rest of the run.
    sentry_sdk.init("https://key@sentry.invalid/1", transport=box, default_integrations=False)
    yield box
    sentry_sdk.get_client().close()
    sentry_sdk.get_global_scope().set_client(None)


@KINDS
def test_sentry_gets_the_exception_and_the_ids(make_app: Callable[..., Packhorse], postbox: Postbox, coroutine: bool):
    """As tags to search for and as a context to read, on events of this job only."""
    app = make_app(error_reporters=("sentry",))

    def work() -> None:
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise ValueError("outer") from error

    task = declared(app, work, coroutine, retries=1, backoff=Fixed(0), queue_name="slow")
    with Embedded(app):
        job = task.enqueue()
        with pytest.raises(JobFailed):
            job.result(SOON)
    first, last = postbox.events
    assert [value["value"] for value in first["exception"]["values"]] == ["'inner'", "outer"]
    ids = {"job_id": job.id, "task": "shop.work", "queue_name": "slow"}
    for event, attempt, final in ((first, 1, False), (last, 2, True)):
        assert event["tags"] == {f"packhorse.{name}": value for name, value in ids.items()}
        assert event["contexts"]["packhorse"] == {**ids, "attempt": attempt, "final": final}
    frames = first["exception"]["values"][-1]["stacktrace"]["frames"]
    assert frames[-1]["function"] == "work"
    sentry_sdk.capture_message("something else")
    wait_until(lambda: len(postbox.events) == 3)
    assert "packhorse" not in json.dumps(postbox.events[2].get("tags", {}))


@KINDS
def test_sentry_gets_no_arguments(make_app: Callable[..., Packhorse], postbox: Postbox, coroutine: bool):
    """Neither as variables of a frame, ours or the task's, nor as what a message says of a secret."""
    app = make_app(error_reporters=("sentry",))
    order, host, password, key, variable = (secrets.token_hex(8) for _ in range(5))  # not in any line of source

    def connect(where: dict[str, Any]) -> None:
        made_here = variable
        raise ConnectionError(f"cannot log in with {where['password']}") from (None if made_here else OSError())

    def work(order: str, login: dict[str, Any], key: Secret[str]) -> None:
        copied = [order, login, key.reveal()]
        try:
            connect(login)
        except ConnectionError as error:
            error.add_note(f"with the key {key.reveal()}")
            raise ExceptionGroup("several", [error, RuntimeError(f"key {copied[2]}")]) from error

    task = declared(app, work, coroutine)
    with Embedded(app), pytest.raises(JobFailed):
        task.enqueue(order, login={"host": host, "password": password}, key=Secret(key)).result(SOON)
    [event] = postbox.events
    sent = json.dumps(event)
    assert "cannot log in with" in sent
    assert [canary for canary in (order, host, password, key, variable, '"vars"') if canary in sent] == []


def test_sentry_that_is_not_installed_is_said_so(
    app: Packhorse, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """The job fails as it would have."""
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split(".")[0] == "sentry_sdk":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    app.error_reporters.append(sentry)

    @app.task
    def work() -> None:
        raise ValueError("no")

    with Embedded(app), pytest.raises(JobFailed, match="no"):
        work.enqueue().result(SOON)
    assert "sentry failed itself: The reporter 'sentry' needs the package sentry-sdk: pip install" in caplog.text
