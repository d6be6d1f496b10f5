"""Canaries: what is secret in a job is seen by its task, and by nobody who reads logs, failures or events."""

import functools
import json
import logging
import random
import string
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from packhorse import (
    Cancel,
    Context,
    Embedded,
    EnqueueError,
    ErrorReport,
    Event,
    Fixed,
    JobCancelled,
    JobFailed,
    Packhorse,
    PayloadError,
    ResultUnavailable,
    Retry,
    Secret,
    StoreError,
    current_context,
)
from packhorse.logs import JSONFormatter, TextFormatter
from tests.waiting import wait_until

SOON = 60.0
MANY = 1_000
CORE = 16  # letters of a canary that are looked for; what stands around them are traps for the mask

KINDS = pytest.mark.parametrize("coroutine", [False, True], ids=["thread", "coroutine"])
TRAPS = [
    ("", ""),
    ("it's ", ""),
    ('"', '"'),
    ("'\"", "\\"),
    ("two\nlines ", "\n"),
    ("é ", "ß"),
    ("\t", " "),
    ("postgres://user:", "@db/shop"),
    ("Bearer ", ""),
    ("a&b=", "%20"),
    ("🔑", "\u2028"),
]


class Canary(NamedTuple):
    text: str
    core: str


def canaries(count: int, seed: int = 7) -> list[Canary]:
    draw = random.Random(seed)
    found = []
    for number in range(count):
        core = "".join(draw.choices(string.ascii_letters + string.digits, k=CORE))
        before, after = TRAPS[number % len(TRAPS)]
        found.append(Canary(f"{before}{core}{after}", core))
    return found


def leaked(text: str, known: list[Canary]) -> list[str]:
    """The canaries in a text, found by all runs of letters and digits in it."""
    if not text:
        return []
    cores = {canary.core: canary.text for canary in known}
    windows = {text[start : start + CORE] for start in range(len(text) - CORE + 1)}
    return [f"{cores[core]!r} near {text[max(0, text.find(core) - 80) :][:200]!r}" for core in windows & cores.keys()]


# Where a secret may stand.


@dataclass
class Login:
    user: str
    password: str


@dataclass
class Account:
    name: str
    login: Login
    key: Secret[str]
    notes: list[Any] = field(default_factory=list)


class Pair(NamedTuple):
    left: str
    token: str


PLACES: dict[str, Callable[[str], tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "secret": lambda it: ((Secret(it),), {}),
    "keyword": lambda it: ((), {"value": Secret(it)}),
    "password": lambda it: ((None,), {"password": it}),
    "positional password": lambda it: ((None, it), {}),
    "nested dict": lambda it: (({"a": {"b": {"apiKey": it}}},), {}),
    "list under a name": lambda it: (({"tokens": ["other", it]},), {}),
    "deep under a name": lambda it: (({"credentials": {"user": {"deep": [1, (2, {"x": it})]}}},), {}),
    "secret in a list": lambda it: (([1, [2, {"x": Secret(it)}]],), {}),
    "secret of a dict": lambda it: ((Secret({"anything": [it]}),), {}),
    "key of a dict": lambda it: (({"sessions": {it: 1}},), {}),
    "extra keyword": lambda it: ((None,), {"x_auth_token": it}),
    "metadata": lambda it: ((), {}),
}


def reveal(place: str, canary: str, values: tuple[Any, ...]) -> str:
    """What a careless task would put into a message: the value itself, or the whole argument."""
    shown = current_context().metadata if place == "metadata" else values
    return str(canary) if len(canary) % 2 else f"{canary!r} of {_opened(shown)!r}"


def _opened(value: Any) -> Any:
    if isinstance(value, Secret):
        return _opened(value.reveal())
    if isinstance(value, dict):
        return {key: _opened(it) for key, it in value.items()}
    if isinstance(value, list | tuple):
        return [_opened(it) for it in value]
    return value


class Odd(Exception):
    """Its text is made of what it holds."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def __str__(self) -> str:
        return f"odd: {self.held}"


def chained(text: str) -> None:
    try:
        try:
            raise ConnectionError(text)
        except ConnectionError as error:
            raise KeyError(text) from error
    except KeyError:
        raise RuntimeError("wrapped")  # noqa: B904 - the context alone has it


def noted(text: str) -> None:
    error = ValueError("see the notes")
    error.add_note(text)
    raise error


def grouped(text: str) -> None:
    raise ExceptionGroup("some", [ValueError(text), ExceptionGroup("more", [KeyError(text)])])


def raising(make: Callable[[str], BaseException]) -> Callable[[str], None]:
    def fail(text: str) -> None:
        raise make(text)

    return fail


ENDS: dict[str, Callable[[str], None]] = {
    "message": raising(lambda it: ValueError(f"bad: {it}")),
    "repr": raising(lambda it: ValueError(f"bad: {it!r}")),
    "many arguments": raising(lambda it: ValueError("bad", it, [it])),
    "key error": raising(lambda it: KeyError(it)),
    "key error of a repr": raising(lambda it: KeyError(f"no {it!r}")),
    "json": raising(lambda it: ValueError(json.dumps({"sent": it}))),
    "own text": raising(Odd),
    "chained": chained,
    "noted": noted,
    "grouped": grouped,
    "retry": raising(lambda it: Retry(f"again, {it}", after=0)),
    "cancel": raising(lambda it: Cancel(f"enough of {it}")),
    "exit": raising(lambda it: SystemExit(it)),
    "long": raising(lambda it: ValueError("x" * 3_000 + it + "y" * 3_000 + it)),
    "at the cut": raising(lambda it: ValueError("x" * (4096 // 3 - 5) + it + "y" * 9_000)),
}


class Outputs:
    """Everything that anybody may read of the jobs of an application."""

    def __init__(self, app: Packhorse) -> None:
        self.app = app
        self.records: list[str] = []
        self.events: list[str] = []
        self.reports: list[ErrorReport] = []
        app.subscribe()(self._event)
        app.error_reporters.append(self.reports.append)

    def _event(self, event: Event) -> None:
        self.events.append(f"{event!r} {event.failure} {event.failure.traceback if event.failure else ''}")

    def texts(self, caplog: pytest.LogCaptureFixture) -> Iterator[tuple[str, str]]:
        for formatter in (TextFormatter(), JSONFormatter(), logging.Formatter("%(message)s %(args)s")):
            for record in caplog.records:
                yield "log", formatter.format(record)
        assert self.app.events.flush(60)
        for event in self.events:
            yield "event", event
        for job in self.app.inspection.jobs():
            yield "job", repr(self.app.job(job.id).look())
            stored = self.app.inspection.stored(job.id)
            yield "columns", f"{stored.reason} {stored.result_error}"
            yield "arguments", json.dumps(self.app.inspection.shown_arguments(stored), default=repr, ensure_ascii=False)
            handle = self.app.job(job.id)
            try:
                handle.result(0)
            except (JobFailed, JobCancelled, ResultUnavailable) as error:
                yield "raised", f"{error} {error!r} {vars(error)}"
        for report in self.reports:
            yield "report", f"{report.context!r} {report.mask(str(report.error))}"


@pytest.fixture
def debug(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.DEBUG):
        yield caplog


def found_in(outputs: Outputs, caplog: pytest.LogCaptureFixture, known: list[Canary]) -> list[str]:
    return [f"{where}: {leak}" for where, text in outputs.texts(caplog) for leak in leaked(text, known)]


# The great hunt.


@KINDS
@pytest.mark.parametrize("count", [180, pytest.param(MANY, marks=[pytest.mark.slow, pytest.mark.thorough])])
def test_none_of_a_thousand_canaries_is_seen_by_anybody(
    app: Packhorse, debug: pytest.LogCaptureFixture, coroutine: bool, count: int
):
    """Whatever place among the arguments it has, and whatever error carries it out of the task."""
    outputs = Outputs(app)
    known = canaries(count)

    def work(value: Any = None, password: Any = None, **others: Any) -> None:
        context = current_context()
        place, end, core = context.metadata["place"], context.metadata["end"], context.metadata["number"]
        values = (value, password, others)
        ENDS[end](reveal(place, known[core].text, values))

    @functools.wraps(work)
    async def awork(value: Any = None, password: Any = None, **others: Any) -> None:
        work(value, password, **others)

    task: Any = app.task(name="shop.work", retries=1, backoff=Fixed(0))(awork if coroutine else work)
    calls = []
    for number, canary in enumerate(known):
        place = list(PLACES)[number % len(PLACES)]
        end = list(ENDS)[number % len(ENDS)]
        args, kwargs = PLACES[place](canary.text)
        metadata = {"place": place, "end": end, "number": number}
        if place == "metadata":
            metadata |= {"secret_key": canary.text}
        calls.append(task.using(metadata=metadata).call(*args, **kwargs))
    with Embedded(app):
        jobs = app.enqueue_many(calls)
        wait_until(lambda: all(job.state.finished for job in jobs), patience=SOON)
    assert len(outputs.reports) > count
    assert found_in(outputs, debug, known) == []
    failures = [job.look().failure for job in jobs]
    assert sum("•••" in failure.message + failure.traceback for failure in failures if failure) > count / 2


@KINDS
@pytest.mark.parametrize("kind", ["dataclass", "named tuple", "list of dataclasses"])
def test_canaries_in_typed_arguments_are_masked(
    app: Packhorse, debug: pytest.LogCaptureFixture, kind: str, coroutine: bool
):
    """Fields have telling names, and may be secrets themselves."""
    outputs = Outputs(app)
    known = canaries(60)

    def with_account(account: Account) -> None:
        raise ValueError(f"{account} {account.key.reveal()}")

    def with_pair(pair: Pair) -> None:
        raise ValueError(f"{pair}")

    def with_logins(logins: list[Login]) -> None:
        raise KeyError(f"{logins}")

    function: Any = {"dataclass": with_account, "named tuple": with_pair, "list of dataclasses": with_logins}[kind]

    @functools.wraps(function)
    async def afunction(*args: Any) -> None:
        function(*args)

    task: Any = app.task(name="shop.work")(afunction if coroutine else function)
    values: list[Any] = []
    for one, two in zip(known[::2], known[1::2], strict=True):
        made: dict[str, list[Any]] = {
            "dataclass": [Account("Ann", Login("ann", one.text), Secret(two.text), [1])],
            "named tuple": [Pair("left", one.text), Pair("left", two.text)],
            "list of dataclasses": [[Login("ann", one.text), Login("bob", two.text)]],
        }
        values += made[kind]
    with Embedded(app):
        jobs = app.enqueue_many(task.call(value) for value in values)
        wait_until(lambda: all(job.state.finished for job in jobs))
    assert found_in(outputs, debug, known) == []


def test_arguments_are_told_by_nobody_but_the_task_itself(app: Packhorse, debug: pytest.LogCaptureFixture):
    """Secret or not: no log, failure or event quotes an argument, a result or metadata of its own accord."""
    outputs, known = Outputs(app), canaries(44)

    @app.task(takes_context=True, retries=1, backoff=Fixed(0))
    def work(context: Context, text: str, end: str, *, more: list[str]) -> Any:
        copied = [text, *more, context.metadata]
        match end:
            case "failed":
                raise ValueError("nothing to add")
            case "cancelled":
                raise Cancel
            case "unstorable":
                return [copied, object()]
        return copied

    with Embedded(app):
        jobs = [
            work.using(metadata={"note": three.text}).enqueue(one.text, end, more=[two.text])
            for (one, two, three, _), end in zip(
                zip(*[iter(known)] * 4, strict=True),
                ["succeeded", "failed", "cancelled", "unstorable"] * 3,
                strict=False,
            )
        ]
        wait_until(lambda: all(job.state.finished for job in jobs))
    texts = [(where, text) for where, text in outputs.texts(debug) if where != "arguments"]
    assert [f"{where}: {leak}" for where, text in texts for leak in leaked(text, known)] == []


# Traps of their own.


def one_canary(number: int = 0) -> Canary:
    return canaries(number + 1, seed=11)[number]


@KINDS
@pytest.mark.parametrize("how", ["pop", "clear", "delete", "overwrite"])
def test_what_a_task_took_out_of_its_arguments_is_still_secret(
    app: Packhorse, debug: pytest.LogCaptureFixture, how: str, coroutine: bool
):
    """`options.pop("password")` is how many functions begin."""
    outputs, canary = Outputs(app), one_canary()

    def work(options: dict[str, Any], tokens: list[str]) -> None:
        password = options["password"]
        match how:
            case "pop":
                options.pop("password")
                tokens.pop()
            case "clear":
                options.clear()
                tokens.clear()
            case "delete":
                del options["password"], tokens[:]
            case "overwrite":
                options["password"], tokens[0] = "gone", "gone"
        raise ValueError(f"cannot log in with {password}")

    @functools.wraps(work)
    async def awork(options: dict[str, Any], tokens: list[str]) -> None:
        work(options, tokens)

    task: Any = app.task(name="shop.work")(awork if coroutine else work)
    with Embedded(app), pytest.raises(JobFailed, match="cannot log in with •••"):
        task.enqueue({"password": canary.text}, [canary.text]).result(SOON)
    assert found_in(outputs, debug, [canary]) == []


def test_the_name_of_many_arguments_counts_for_each_of_them(app: Packhorse, debug: pytest.LogCaptureFixture):
    """`*tokens` and `**credentials` say what is in them."""
    outputs, known = Outputs(app), canaries(2)

    @app.task
    def work(user: str, *tokens: str, **credentials: str) -> None:
        raise ValueError(f"{tokens} {credentials}")

    with Embedded(app), pytest.raises(JobFailed):
        work.enqueue("ann", "first", known[0].text, anything=known[1].text).result(SOON)
    assert found_in(outputs, debug, known) == []
    [job] = app.inspection.jobs()
    shown = app.inspection.shown_arguments(app.inspection.stored(job.id))
    assert shown == {"user": "ann", "tokens": "•••", "credentials": "•••"}


def test_arguments_are_shown_by_name_with_secrets_masked(make_app: Callable[..., Packhorse]):
    """What is not secret is shown as it was enqueued."""
    app = make_app(sensitive_names=("order",))

    @app.task
    def work(user: str, password: str, *rest: int, order: int, **others: Any) -> None: ...

    job = work.enqueue("ann", "hunter2", 1, 2, order=12345, key=Secret("x"), deep={"list": [1, {"cvv": 123}]})
    assert app.inspection.shown_arguments(app.inspection.stored(job.id)) == {
        "user": "ann",
        "password": "•••",
        "rest": [1, 2],
        "order": "•••",
        "others": {"key": "•••", "deep": {"list": [1, {"cvv": "•••"}]}},
    }


def test_arguments_without_names_are_not_shown(make_app: Callable[..., Packhorse]):
    """Whoever does not know the task, or knows it in another version, cannot tell a password from a user."""
    app, stranger, newer = make_app(), make_app(), make_app()
    canary = one_canary()

    @app.task(name="shop.login")
    def login(user: str, password: str, retry: bool = False) -> None: ...

    @newer.task(name="shop.login", version=2)
    def new_login(password: str, user: str) -> None: ...

    job = login.enqueue("ann", canary.text, retry=True)
    for looking in (stranger, newer):
        shown = looking.inspection.shown_arguments(looking.inspection.stored(job.id))
        assert shown == {"0": "•••", "1": "•••", "retry": True}
    shown = app.inspection.shown_arguments(app.inspection.stored(job.id))
    assert shown == {"user": "ann", "password": "•••", "retry": True}


def test_names_that_an_application_adds_are_sensitive_too(
    make_app: Callable[..., Packhorse], debug: pytest.LogCaptureFixture
):
    app = make_app(sensitive_names=("diagnosis",))
    outputs, canary = Outputs(app), one_canary()

    @app.task
    def work(patient: dict[str, str]) -> None:
        raise ValueError(patient["diagnosis"])

    with Embedded(app), pytest.raises(JobFailed, match=r"ValueError: •••"):
        work.enqueue({"diagnosis": canary.text}).result(SOON)
    assert found_in(outputs, debug, [canary]) == []


@pytest.mark.parametrize(
    "result",
    [
        lambda it: {it: object()},
        lambda it: {"tokens": {it: {1: 2}}},
        lambda it: [{"x": {it: float("nan")}}],
        lambda it: Odd(it),
    ],
)
def test_a_result_that_cannot_be_stored_is_not_told_with_its_secrets(
    app: Packhorse, debug: pytest.LogCaptureFixture, result: Callable[[str], Any]
):
    """The path to the value that cannot be encoded may lead over one."""
    outputs, canary = Outputs(app), one_canary()

    @app.task
    def work(token: str) -> Any:
        return result(token)

    with Embedded(app):
        job = work.enqueue(canary.text)
        wait_until(lambda: job.state.finished)
    assert job.look().result_error is not None
    texts = [logging.Formatter().format(record) for record in debug.records] + [str(job.look())]
    assert [leak for text in texts for leak in leaked(text, [canary])] == []
    assert outputs.reports == []


def test_a_result_is_shown_with_its_secrets_masked(app: Packhorse):
    @app.task
    def work() -> dict[str, Any]:
        return {"user": "ann", "password": "hunter2", "deep": [Secret("x"), {"iban": "DE1"}]}

    with Embedded(app):
        job = work.enqueue()
        assert job.result(SOON)["password"] == "hunter2"
    shown = app.inspection.shown_result(app.inspection.stored(job.id))
    assert shown == {"user": "ann", "password": "•••", "deep": ["•••", {"iban": "•••"}]}


def test_a_broken_backoff_does_not_tell_what_the_error_said(app: Packhorse, debug: pytest.LogCaptureFixture):
    outputs, canary = Outputs(app), one_canary()

    def backoff(attempt: int, error: BaseException) -> float:
        raise RuntimeError(f"no wait for {error}")

    @app.task(retries=3, backoff=backoff)
    def work(password: str) -> None:
        raise ValueError(password)

    with Embedded(app), pytest.raises(JobFailed, match="the wait before the next attempt could not be found"):
        work.enqueue(canary.text).result(SOON)
    assert found_in(outputs, debug, [canary]) == []


def test_a_job_that_cannot_be_decoded_does_not_tell_what_it_holds(
    make_app: Callable[..., Packhorse], debug: pytest.LogCaptureFixture
):
    """The task has changed its mind about what it takes; the arguments are still somebody's."""
    before, after = make_app(), make_app()
    outputs, known = Outputs(after), canaries(40)

    def upgrade(version: int, args: list[Any], kwargs: dict[str, Any]) -> Any:
        raise ValueError(f"cannot upgrade {args} {kwargs}")

    def fewer() -> None: ...
    def number(password: Login) -> None: ...
    def pair(password: Pair) -> None: ...

    after.task(name="shop.fewer")(fewer)
    after.task(name="shop.number")(number)
    after.task(name="shop.pair")(pair)
    after.task(name="shop.upgraded", version=2, upgrade=upgrade)(lambda password: None)
    calls = []
    for place, canary in enumerate(known):
        name = ("fewer", "number", "pair", "upgraded")[place % 4]
        value = (canary.text, {"password": canary.text}, [canary.text, canary.text], {canary.text: 1})[place // 4 % 4]
        if f"shop.{name}" not in before.tasks:
            before.task(name=f"shop.{name}")(lambda password: None)
        calls.append(before.tasks[f"shop.{name}"].call(value))
    with Embedded(after):
        jobs = before.enqueue_many(calls)
        wait_until(lambda: all(job.state.finished for job in jobs))
    texts = [(where, text) for where, text in outputs.texts(debug) if where != "arguments"]
    assert [f"{where}: {leak}" for where, text in texts for leak in leaked(text, known)] == []


def test_a_call_does_not_show_its_arguments(app: Packhorse, monkeypatch: pytest.MonkeyPatch):
    """Nor does the error that hands back the calls that were not enqueued."""
    canary = one_canary()

    @app.task
    def work(password: str) -> None: ...

    def refuse(jobs: Any) -> Any:
        raise StoreError("full")

    call = work.call(canary.text)
    with monkeypatch.context() as patch:
        patch.setattr(app.store, "insert", refuse)
        with pytest.raises(EnqueueError) as caught:
            app.enqueue_many([call])
    texts = [repr(call), repr(caught.value), str(caught.value), repr(vars(caught.value)), repr(work)]
    assert [leak for text in texts for leak in leaked(text, [canary])] == []


@pytest.mark.parametrize(
    "value",
    [object(), {1: 2}, float("nan"), "lone \ud800", [[{"x": object()}]], "x" * 300_000],
    ids=lambda it: type(it).__name__,
)
def test_an_argument_that_is_refused_is_not_quoted(app: Packhorse, value: Any):
    canary = one_canary()

    @app.task
    def work(password: Any) -> None: ...

    with pytest.raises(PayloadError) as caught:
        work.enqueue([canary.text, value])
    assert leaked(f"{caught.value!r}", [canary]) == []


def test_a_subscriber_that_quotes_its_event_quotes_no_secret(app: Packhorse, debug: pytest.LogCaptureFixture):
    """What it is told has been masked before."""
    outputs, canary = Outputs(app), one_canary()

    @app.subscribe("failed")
    def broken(event: Event) -> None:
        raise ValueError(f"cannot pass on {event}")

    @app.task
    def work(password: str) -> None:
        raise ValueError(password)

    with Embedded(app), pytest.raises(JobFailed):
        work.enqueue(canary.text).result(SOON)
    assert app.events.flush()
    assert found_in(outputs, debug, [canary]) == []


def test_secrets_of_one_job_do_not_blot_out_the_words_of_another(app: Packhorse):
    """Each failure is masked with its own job's secrets alone."""

    @app.task
    def work(password: str, word: str) -> None:
        raise ValueError(f"{password} {word}")

    with Embedded(app):
        jobs = [work.enqueue("alpha", "bravo"), work.enqueue("bravo", "alpha")]
        wait_until(lambda: all(job.state.finished for job in jobs))
    assert [job.look().failure.message for job in jobs] == ["••• bravo", "••• alpha"]  # type: ignore[union-attr]


def test_the_context_is_no_argument(app: Packhorse):
    """It takes the first place of the function, and the names of the others must not move by one."""

    @app.task(takes_context=True)
    def work(context: Context, password: str, user: str) -> None:
        raise ValueError(f"{user}: {password}")

    with Embedded(app):
        job = work.enqueue("hunter2", "alpha")
        with pytest.raises(JobFailed, match="alpha: •••"):
            job.result(SOON)
    stored = app.inspection.stored(job.id)
    assert app.inspection.shown_arguments(stored) == {"password": "•••", "user": "alpha"}


# Encrypted.


@pytest.mark.slow
def test_none_of_a_thousand_canaries_stands_in_the_files_of_an_encrypted_store(tmp_path: Path):
    """Not in arguments, results, errors, progress, reasons or metadata: all that a task says is encrypted."""
    known = canaries(MANY, seed=13)
    app = files_written(tmp_path / "encrypted", known, encryption=True)
    assert leaks_in(tmp_path / "encrypted", known) == []
    results = [app.job(job.id).look() for job in app.inspection.jobs()]
    assert len(results) == MANY
    app.close()


def test_the_same_canaries_stand_in_the_files_of_a_store_that_is_not(tmp_path: Path):
    """Or else the test above would prove nothing. The task's own words and results count, secret or not."""
    known = canaries(66, seed=13)
    app = files_written(tmp_path / "plain", known, encryption=False, compress_above=None)
    assert leaks_in(tmp_path / "plain", known) == [canary.core for canary in known]
    app.close()


def files_written(folder: Path, known: list[Canary], **settings: Any) -> Packhorse:
    folder.mkdir(mode=0o700)
    app = Packhorse(
        "shop",
        f"sqlite:///{folder}/jobs.db?synchronous=normal",
        keys=("an-example-that-is-long-enough-91827364",),
        polling_interval=0.2,
        **settings,
    )

    @app.task(takes_context=True, name="shop.work", retries=1, backoff=Fixed(0))
    def work(context: Context, text: str, how: str) -> Any:
        match how:
            case "argument":
                return None
            case "result":
                return {"deep": [text]}
            case "error":
                raise ValueError(text)
            case "retried" if context.attempt == 1:
                raise RuntimeError(text)
            case "progress":
                context.progress(1, 2, text)
            case "cancel":
                raise Cancel(f"because of {text}")
            case "unstorable":
                return {text: object()}
            case "metadata":
                return context.metadata
            case "chained":
                chained(text)
        return None

    ways = ["argument", "result", "error", "retried", "progress", "cancel", "unstorable", "metadata", "chained"]
    calls = []
    for number, canary in enumerate(known):
        how = ways[number % len(ways)]
        used = work.using(metadata={"note": canary.text}) if how == "metadata" else work
        calls.append(used.call(canary.text, how))
    with Embedded(app):
        jobs = app.enqueue_many(calls)
        wait_until(lambda: all(job.state.finished for job in jobs), patience=SOON)
    for number, job in enumerate(jobs):
        how, seen = ways[number % len(ways)], job.look()
        if how == "cancel":
            assert (seen.reason, seen.failure) == (f"because of {known[number].text}", None)
            with pytest.raises(JobCancelled, match=known[number].core):
                job.result(0)
        if how == "progress":
            progress = job.progress()
            assert progress is not None
            assert known[number].core in progress.note
        if how == "result":
            assert job.result(0) == {"deep": [known[number].text]}
        if how == "error":
            assert seen.failure is not None
            assert known[number].core in seen.failure.message
    return app


def leaks_in(folder: Path, known: list[Canary]) -> list[str]:
    """Read as bytes, and before the log is cleared away."""
    files = [path for path in folder.iterdir() if path.is_file() and not path.name.endswith("-key")]
    assert {path.name for path in files} >= {"jobs.db", "jobs.db-wal"}
    data = b"\0".join(path.read_bytes() for path in files)
    return [canary.core for canary in known if canary.core.encode() in data]
