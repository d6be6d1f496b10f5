"""Encryption: what a store holds can be read with the key alone, and only where it belongs."""

import builtins
import os
import sqlite3
import sys
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from packhorse import (
    Cancel,
    ConfigError,
    Context,
    Embedded,
    FailureKind,
    Fixed,
    JobCancelled,
    JobFailed,
    JobState,
    Packhorse,
    PayloadError,
    ResultUnavailable,
    Secret,
)
from packhorse.ids import from_text
from packhorse.signing import ENCRYPTED, Envelopes, Purpose
from tests.waiting import wait_until

SOON = 60.0
K1, K2, K3 = (f"{name}-key-{uuid.uuid5(uuid.NAMESPACE_DNS, name)}" for name in ("one", "two", "three"))
VALUE: dict[str, Any] = {
    "text": "Grüße 🐎",
    "at": datetime(2026, 5, 1, tzinfo=UTC),
    "price": Decimal("9.90"),
    "secret": Secret("hush"),
    "deep": [(1, {2}), {"!": None}],
    "long": "x" * 10_000,
}
MakeApp = Callable[..., Packhorse]


def make_tasks(app: Packhorse) -> dict[str, Any]:
    @app.task(name="echo")
    def echo(value: Any) -> Any:
        return value

    @app.task(name="aecho")
    async def aecho(value: Any) -> Any:
        return value

    @app.task(name="fail", retries=1, backoff=Fixed(0))
    def fail(text: str) -> None:
        raise ValueError(text)

    @app.task(name="cancel")
    def cancel(text: str) -> None:
        raise Cancel(text)

    @app.task(name="say", takes_context=True)
    def say(context: Context, text: str) -> Any:
        context.progress(1, 2, text)
        return context.metadata

    return {name: app.tasks[name] for name in ("echo", "aecho", "fail", "cancel", "say")}


def failure_of(job: Any) -> Any:
    with pytest.raises(JobFailed) as caught:
        job.result(SOON)
    return caught.value.failure


# Round trips.


@pytest.mark.parametrize("compress_above", [None, 0, 4096])
def test_everything_comes_back_as_it_went(make_app: MakeApp, compress_above: int | None):
    """Arguments, results, failures, reasons, progress and metadata."""
    app = make_app(encryption=True, keys=(K1,), compress_above=compress_above)
    tasks = make_tasks(app)
    with Embedded(app):
        assert tasks["echo"].enqueue(VALUE).result(SOON) == VALUE
        assert tasks["aecho"].enqueue(VALUE).result(SOON) == VALUE
        failed = tasks["fail"].enqueue("what went wrong")
        assert failure_of(failed).message == "what went wrong"
        assert [attempt.failure.message for attempt in failed.look().failures] == ["what went wrong"]
        cancelled = tasks["cancel"].enqueue("why it stopped")
        with pytest.raises(JobCancelled, match="why it stopped"):
            cancelled.result(SOON)
        said = tasks["say"].using(metadata={"note": VALUE}).enqueue("half way")
        assert said.result(SOON) == {"note": VALUE}
        progress = said.progress()
        assert progress is not None
        assert progress.note == "half way"
    seen = cancelled.look()
    assert (seen.state, seen.reason, seen.failure) == (JobState.CANCELLED, "why it stopped", None)
    assert [job.reason for job in app.inspection.jobs() if job.state is JobState.CANCELLED] == ["why it stopped"]


def test_all_envelopes_are_encrypted(make_app: MakeApp):
    """None is left out."""
    app = make_app(encryption=True, keys=(K1,))
    tasks = make_tasks(app)
    with Embedded(app):
        jobs = [tasks["echo"].enqueue(1), tasks["fail"].enqueue("no"), tasks["say"].enqueue("half")]
        wait_until(lambda: all(job.state.finished for job in jobs))
    envelopes: list[bytes | None] = []
    for job in jobs:
        stored = app.inspection.stored(job.id)
        envelopes += [stored.payload, stored.result, stored.failure, *(it.failure for it in stored.failures)]
        envelopes += [entry.data for entry in app.store.entries(from_text(job.id))]
    present = [envelope for envelope in envelopes if envelope is not None]
    assert len(present) == 3 + 2 + 1 + 1 + 1
    assert all(envelope[1] & ENCRYPTED for envelope in present)


def test_the_reason_an_operator_gives_is_kept_as_it_is(make_app: MakeApp):
    """It is the operator's, for everybody to read; the task's own words are encrypted."""
    app = make_app(encryption=True, keys=(K1,))
    running: list[int] = []

    @app.task(takes_context=True, retries=3, backoff=Fixed(0))
    def work(context: Context) -> None:
        running.append(1)
        wait_until(lambda: context.stop_requested)
        raise ValueError("its own words")

    with Embedded(app):
        job = work.enqueue()
        wait_until(lambda: running)
        job.cancel("no longer needed")
        with pytest.raises(JobCancelled, match="no longer needed"):
            job.result(SOON)
    stored = app.inspection.stored(job.id)
    assert stored.reason == "no longer needed"


def test_a_result_that_cannot_be_stored_says_only_that(make_app: MakeApp):
    """Where it stands would be a word of the task's."""
    app = make_app(encryption=True, keys=(K1,))

    @app.task
    def work() -> Any:
        return {"unspeakable": object()}

    with Embedded(app):
        job = work.enqueue()
        with pytest.raises(ResultUnavailable, match="PayloadError while encoding it"):
            job.result(SOON)


def test_a_job_sent_round_again_keeps_its_words(make_app: MakeApp):
    """A task that cancelled itself may be retried, also where its reason was encrypted."""
    app = make_app(encryption=True, keys=(K1,))
    runs: list[int] = []

    @app.task
    def work() -> str:
        runs.append(1)
        if len(runs) == 1:
            raise Cancel("not today")
        return "today"

    with Embedded(app):
        job = work.enqueue()
        with pytest.raises(JobCancelled):
            job.result(SOON)
        assert job.retry()
        assert job.result(SOON) == "today"
    assert job.look().reason is None


# Keys.


@pytest.mark.parametrize("encryption", [False, True])
def test_every_key_of_the_ring_opens_and_the_first_one_seals(make_app: MakeApp, encryption: bool):
    """Whether the reader encrypts itself or not."""
    old = make_app(encryption=True, keys=(K1,))
    new = make_app(encryption=encryption, keys=(K2, K1))
    tasks = make_tasks(old)
    make_tasks(new)
    with Embedded(new):
        job = tasks["echo"].enqueue(VALUE)
        assert new.job(job.id).result(SOON) == VALUE
    with pytest.raises(ResultUnavailable, match="signed with the key"):
        job.result(0)  # the old program does not have the new key


def test_a_job_that_was_signed_before_encryption_was_switched_on_is_performed(make_app: MakeApp):
    """So it can be switched on, and off, while jobs wait."""
    plain, encrypted = make_app(keys=(K1,)), make_app(encryption=True, keys=(K1,))
    before = make_tasks(plain)["echo"].enqueue("before")
    make_tasks(encrypted)
    with Embedded(encrypted):
        assert before.result(SOON) == "before"
    after = encrypted.tasks["echo"].enqueue("after")
    with Embedded(plain):
        assert after.result(SOON) == "after"


def test_without_the_key_a_job_is_undecodable(make_app: MakeApp):
    """It is not performed, its failure can be read, and with the key it can be retried."""
    one, other = make_app(encryption=True, keys=(K1,)), make_app(encryption=True, keys=(K2,))
    both = make_app(encryption=True, keys=(K2, K1))
    job = make_tasks(one)["echo"].enqueue(VALUE)
    make_tasks(other)
    make_tasks(both)
    with Embedded(other):
        failure = failure_of(other.job(job.id))
    assert failure.kind is FailureKind.UNDECODABLE
    assert "which application 'shop' does not have. Put the key back into the ring" in failure.message
    seen = job.look().failure  # one who has not the key of the failure sees that it cannot be shown
    assert seen is not None
    assert seen.message.startswith("The stored failure cannot be shown. It was signed with the key")
    assert job.retry()
    with Embedded(both):
        assert both.job(job.id).result(SOON) == VALUE


def test_an_application_that_does_not_sign_reads_nothing_encrypted(make_app: MakeApp):
    one, unsigned = make_app(encryption=True, keys=(K1,)), make_app(signing=False)
    job = make_tasks(one)["echo"].enqueue(VALUE)
    make_tasks(unsigned)
    with Embedded(unsigned):
        failure = failure_of(unsigned.job(job.id))
    assert failure.kind is FailureKind.UNDECODABLE
    assert "It is encrypted, and this application has no key" in failure.message


def test_another_application_with_the_same_key_reads_nothing(make_app: MakeApp):
    """Keys are derived for each application."""
    shop = make_app(encryption=True, keys=(K1,))
    bank = Packhorse("bank", shop.store, encryption=True, keys=(K1,))
    job = make_tasks(shop)["echo"].enqueue(VALUE)
    with pytest.raises(PayloadError, match="made for something else than jobs of application 'bank'"):
        bank.inspection.arguments(bank.inspection.stored(job.id))


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"encryption": True}, "encryption needs keys"),
        ({"encryption": True, "signing": False, "keys": (K1,)}, "encryption needs signing"),
        ({"encryption": True, "keys": ("short",)}, "fewer than 32 bytes"),
    ],
)
def test_encryption_needs_a_key(make_app: MakeApp, settings: dict[str, Any], complaint: str):
    """One that the store made itself lies beside what it would protect."""
    with pytest.raises(ConfigError, match=complaint):
        make_app(**settings)


# Bound to its place.


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


def app_on(database: Path, **settings: Any) -> Packhorse:
    return Packhorse("shop", f"sqlite:///{database}?synchronous=normal", polling_interval=0.2, **settings)


def swap(database: Path, table: str, column: str, ids: list[str]) -> None:
    """Exchange a column of two rows, as somebody with access to the file could."""
    one, other = map(from_text, ids)
    connection = sqlite3.connect(database, timeout=SOON)
    with connection:
        values = dict(connection.execute(f"select id, {column} from {table} where id in (?, ?)", (one, other)))
        assert len(values) == 2
        for id, value in ((one, values[other]), (other, values[one])):
            connection.execute(f"update {table} set {column} = ? where id = ?", (value, id))
    connection.close()


@pytest.mark.parametrize("encryption", [False, True])
def test_payloads_that_were_swapped_are_both_undecodable(database: Path, encryption: bool):
    """A payload is bound to its job."""
    app = app_on(database, encryption=encryption, keys=(K1,))
    echo = make_tasks(app)["echo"]
    jobs = [echo.enqueue("mine"), echo.enqueue("yours")]
    swap(database, "payload", "body", [job.id for job in jobs])
    with Embedded(app):
        failures = [failure_of(job) for job in jobs]
        assert echo.enqueue("next").result(SOON) == "next"
    assert [failure.kind for failure in failures] == [FailureKind.UNDECODABLE] * 2
    assert all("Its signature is wrong" in failure.message for failure in failures)
    app.close()


@pytest.mark.parametrize("encryption", [False, True])
def test_a_payload_is_bound_to_its_task(database: Path, encryption: bool):
    """Another task must not be called with it."""
    app = app_on(database, encryption=encryption, keys=(K1,))
    tasks = make_tasks(app)
    job = tasks["echo"].enqueue("harmless")
    connection = sqlite3.connect(database, timeout=SOON)
    with connection:
        connection.execute("update payload set task = 'fail'")
    connection.close()
    with Embedded(app):
        assert failure_of(job).kind is FailureKind.UNDECODABLE
    app.close()


@pytest.mark.parametrize("encryption", [False, True])
def test_results_failures_and_progress_that_were_swapped_are_not_believed(database: Path, encryption: bool):
    app = app_on(database, encryption=encryption, keys=(K1,))
    tasks = make_tasks(app)
    with Embedded(app):
        good = [tasks["echo"].enqueue("mine"), tasks["echo"].enqueue("yours")]
        bad = [tasks["fail"].enqueue("mine"), tasks["fail"].enqueue("yours")]
        said = [tasks["say"].enqueue("mine"), tasks["say"].enqueue("yours")]
        wait_until(lambda: all(job.state.finished for job in good + bad + said))
    swap(database, "ending", "result", [job.id for job in good])
    swap(database, "ending", "failure", [job.id for job in bad])
    swap(database, "entry", "data", [job.id for job in said])
    for job in good:
        with pytest.raises(ResultUnavailable, match="Its signature is wrong"):
            job.result(0)
    for job in bad:
        failure = job.look().failure
        assert failure.kind is FailureKind.UNDECODABLE
        assert "cannot be shown" in failure.message
    for job in said:
        with pytest.raises(PayloadError, match="Its signature is wrong"):
            job.progress()
    app.close()


def test_the_cipher_too_knows_whose_text_it_is():
    """Not the signature alone: the same key, another subject, another purpose or another head does not decrypt."""
    envelopes = Envelopes("shop", [K1.encode()], encrypt=True)
    key = envelopes._first
    assert key is not None
    sealed = envelopes.seal(Purpose.JOB, b"mine", b"body", head=b"head")
    flags, prefix = sealed[1], sealed[:6]
    assert flags & ENCRYPTED
    body = sealed[22 + 4 :]
    bound = prefix + b"\0\0\0\4mine" + b"head"
    assert envelopes._decrypt(key, Purpose.JOB, bound, body) == b"body"
    for wrong in (
        prefix + b"\0\0\0\5yours" + b"head",
        prefix + b"\0\0\0\4mine" + b"tail",
        b"\1" + prefix[1:] + b"\0\0\0\4minehea",
    ):
        with pytest.raises(PayloadError, match="cannot be decrypted"):
            envelopes._decrypt(key, Purpose.JOB, wrong, body)
    with pytest.raises(PayloadError, match="cannot be decrypted"):
        envelopes._decrypt(key, Purpose.RESULT, bound, body)


def test_the_same_text_never_looks_the_same_twice():
    """Nobody can tell that two jobs carry the same arguments."""
    envelopes = Envelopes("shop", [K1.encode()], encrypt=True)
    sealed = {envelopes.seal(Purpose.JOB, b"mine", b"body") for _ in range(1_000)}
    assert len(sealed) == 1_000
    assert {envelopes.open(Purpose.JOB, b"mine", data)[2] for data in sealed} == {b"body"}


def test_any_damage_is_found_before_it_is_decrypted(monkeypatch: pytest.MonkeyPatch):
    """Each byte of the envelope counts."""
    envelopes = Envelopes("shop", [K1.encode()], encrypt=True)
    sealed = envelopes.seal(Purpose.JOB, b"mine", b"body", head=b"head")

    def never(*args: Any) -> Any:
        raise AssertionError("decrypted what nobody signed")

    monkeypatch.setattr(Envelopes, "_decrypt", never)
    for place in range(len(sealed)):
        for bit in range(8):
            damaged = bytearray(sealed)
            damaged[place] ^= 1 << bit
            with pytest.raises(PayloadError):
                envelopes.open(Purpose.JOB, b"mine", bytes(damaged), 4)
    for length in range(len(sealed)):
        with pytest.raises(PayloadError):
            envelopes.open(Purpose.JOB, b"mine", sealed[:length], 4)


# Without the package.


@pytest.fixture
def without_cryptography(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split(".")[0] == "cryptography":
            raise ImportError(f"No module named {name!r}")
        return real(name, *args, **kwargs)

    for name in [name for name in sys.modules if name.split(".")[0] == "cryptography"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without)


@pytest.mark.usefixtures("without_cryptography")
def test_without_the_package_an_application_says_what_to_install(make_app: MakeApp):
    """Before it enqueues anything."""
    app = make_app(encryption=True, keys=(K1,))
    with pytest.raises(
        ConfigError, match=r"Encryption needs the package cryptography: pip install 'packhorse\[crypto\]'"
    ):
        make_tasks(app)["echo"].enqueue(1)
    assert list(app.inspection.jobs()) == []


def test_without_the_package_an_encrypted_job_is_undecodable(make_app: MakeApp, request: pytest.FixtureRequest):
    """On a worker that never encrypts itself; it says what to install, and lives."""
    one, other = make_app(encryption=True, keys=(K1,)), make_app(keys=(K1,))
    job = make_tasks(one)["echo"].enqueue(VALUE)
    make_tasks(other)
    request.getfixturevalue("without_cryptography")
    with Embedded(other, concurrency=1):
        failure = failure_of(other.job(job.id))
        assert other.tasks["echo"].enqueue("next").result(SOON) == "next"
    assert failure.kind is FailureKind.UNDECODABLE
    assert "pip install 'packhorse[crypto]'" in failure.message


def test_without_the_package_an_encrypted_result_is_unavailable(make_app: MakeApp, request: pytest.FixtureRequest):
    one, other = make_app(encryption=True, keys=(K1,)), make_app(keys=(K1,))
    echo = make_tasks(one)["echo"]
    with Embedded(one):
        job = echo.enqueue(VALUE)
        job.result(SOON)
    request.getfixturevalue("without_cryptography")
    with pytest.raises(ResultUnavailable, match=r"pip install 'packhorse\[crypto\]'"):
        other.job(job.id).result(0)


def test_keys_may_come_from_a_file(make_app: MakeApp, tmp_path: Path):
    """One per line, the first one seals."""
    file = tmp_path / "keys"
    file.write_text(f"# the new one\n{K2}\n{K1}\n")
    os.chmod(file, 0o600)
    old, new = make_app(encryption=True, keys=(K1,)), make_app(encryption=True, keys_file=str(file))
    job = make_tasks(old)["echo"].enqueue(VALUE)
    make_tasks(new)
    with Embedded(new):
        assert new.job(job.id).result(SOON) == VALUE


def test_a_task_that_cancelled_itself_has_no_failed_attempt(make_app: MakeApp):
    """Its reason is kept where failures are, and is none."""
    app = make_app(keys=[K1], encryption=True)
    runs: list[int] = []

    @app.task
    def work() -> None:
        runs.append(1)
        if len(runs) == 1:
            raise Cancel("enough")

    job = work.enqueue()
    with Embedded(app):
        wait_until(lambda: job.state.finished)
        assert job.look().reason == "enough"
        assert job.retry()
        job.result(SOON)
    assert job.look().failures == ()
