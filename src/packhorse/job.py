"""A job and what is known of it: plain values, no I/O."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from packhorse.errors import PayloadError
from packhorse.limits import FREE, Terms


class JobState(StrEnum):
    SCHEDULED = "scheduled"
    WAITING = "waiting"
    READY = "ready"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def finished(self) -> bool:
        return self in FINISHED


FINISHED = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})
STOPPED = "stopped"  # how the reason of a job begins that an operator stopped


def stopped_reason(why: str) -> str:
    return f"{STOPPED}: {why}" if why else STOPPED


class FailureKind(StrEnum):
    EXCEPTION = "exception"
    ERROR = "error"
    TIMEOUT = "timeout"
    WORKER_LOST = "worker_lost"
    UNDECODABLE = "undecodable"
    UNKNOWN_TASK = "unknown_task"


MESSAGE_CAP = 4 * 1024
TRACEBACK_CAP = 48 * 1024
FAILURE_CAP = 1 << 20  # bytes, encoded: far above what those characters can take


@dataclass(frozen=True, slots=True)
class Failure:
    """The kept record of an error: text only, never a class to import."""

    kind: FailureKind
    type: str
    message: str
    traceback: str = ""

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type

    @classmethod
    def of(
        cls, error: BaseException, kind: FailureKind, *, skip_frames: int = 0, mask: Callable[[str], str] = str
    ) -> Failure:
        """`mask` hides secrets in its texts; it sees them whole, before the middle of a long one is left out."""
        message, trace = mask(message_of(error)), mask(_traceback(error, skip_frames))
        return cls(kind, _class_path(type(error)), storable(message, MESSAGE_CAP), storable(trace, TRACEBACK_CAP))

    def encode(self) -> bytes:
        texts = [self.kind, self.type, self.message, self.traceback]
        return json.dumps(texts, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "backslashreplace")

    @classmethod
    def decode(cls, data: bytes) -> Failure:
        try:
            kind, *texts = json.loads(data)
            if len(texts) == 3 and all(type(text) is str for text in texts):
                return cls(FailureKind(kind), *texts)
        except (ValueError, TypeError, RecursionError):
            pass
        raise PayloadError("It is no failure that Packhorse wrote.")


def _class_path(cls: type) -> str:
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def message_of(error: BaseException) -> str:
    """Its text, however long and whatever is in it."""
    try:
        return "".join([str(error)])  # never a subclass of str, whose methods may do anything
    except BaseException as broken:  # the error's own __str__ may raise anything
        return f"<no message: {type(broken).__name__} while asking for it>"


def _traceback(error: BaseException, skip_frames: int) -> str:
    frames = error.__traceback__
    for _ in range(skip_frames):
        frames = frames.tb_next if frames is not None else None
    try:
        lines = traceback.TracebackException(type(error), error, frames, limit=-100, compact=True).format()
        return "".join(lines)
    except BaseException as broken:
        return f"<no traceback: {type(broken).__name__} while formatting it>"


def storable(text: str, cap: int) -> str:
    """Text any store can take: no NUL, no lone surrogates, bounded; the end matters most, so the middle goes."""
    text = text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")
    if len(text) <= cap:
        return text
    return f"{text[: cap // 3]}\n… {len(text) - cap} characters left out …\n{text[-(cap - cap // 3) :]}"


class Token(NamedTuple):
    """Proves that a claim is still ours. Every write to a running job matches all four."""

    process: bytes
    nonce: int
    id: bytes
    epoch: int


class Need(StrEnum):
    """What a job waits for in one that comes before it: that it succeeds, that it ends, or that it does not succeed."""

    SUCCESS = "success"
    END = "end"
    FAILURE = "failure"


class Parent(NamedTuple):
    """A job that another one waits for."""

    id: bytes
    need: Need = Need.SUCCESS


class NewJob(NamedTuple):
    """What `insert` takes. `run_at` and `expires_at` are moments, `delay` and `lifetime` count from the store's now.

    `ageing` is how many microseconds of waiting make up for one point of priority; 0: none ever do. It waits until all
    those have ended `after` which it comes, and comes itself `before` others, which must still wait. `member` is its
    flow and its place in it. `callbacks` come after it and are inserted if it is: not where another job stands for it,
    nor where it was there already. They are members of the flow that has its id, and have no unique keys.
    """

    id: bytes
    task: str
    payload: bytes
    queue: str = "default"
    priority: int = 0
    run_at: int | None = None
    delay: int | None = None
    expires_at: int | None = None
    lifetime: int | None = None
    share: str | None = None
    tags: tuple[str, ...] = ()
    terms: Terms = FREE
    ageing: int = 0
    after: tuple[Parent, ...] = ()
    before: tuple[Parent, ...] = ()
    member: tuple[bytes, int] | None = None
    callbacks: tuple[NewJob, ...] = ()


def with_callbacks(jobs: Iterable[NewJob]) -> Iterator[NewJob]:
    """They and theirs."""
    for job in jobs:
        yield job
        if job.callbacks:
            yield from with_callbacks(job.callbacks)


class Claim(NamedTuple):
    """A ready job that became ours.

    Those of one `run` share a permit: they are performed one after the other, in the order they came in. A `suspect`
    may have begun on a worker that was lost: it is announced before it begins again.
    """

    token: Token
    task: str
    payload: bytes
    queue: str
    priority: int
    attempts: int
    losses: int
    created_at: int
    expires_at: int | None
    strays: int = 0
    run: str | None = None
    suspect: bool = False


@dataclass(frozen=True, slots=True)
class StoredAttempt:
    """One attempt that did not succeed; its failure as the store got it."""

    number: int
    process: str
    started_at: datetime | None
    ended_at: datetime
    failure: bytes
    spent: bool


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt that did not succeed."""

    number: int
    process: str
    started_at: datetime | None
    ended_at: datetime
    failure: Failure
    spent: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    id: str
    task: str
    state: JobState
    queue: str
    priority: int
    attempts: int
    losses: int
    created_at: datetime
    run_at: datetime | None = None
    expires_at: datetime | None = None
    claimed_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    process: str | None = None
    share: str | None = None
    tags: tuple[str, ...] = ()
    reason: str | None = None
    result_error: str | None = None
    awaits: str | None = None

    @property
    def finished(self) -> bool:
        return self.state.finished

    @property
    def stopped(self) -> bool:
        """An operator stopped it on purpose, and may restart it."""
        return self.state is JobState.CANCELLED and (self.reason or "").partition(": ")[0] == STOPPED


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredJob(_Known):
    """All that a store knows of a job; envelopes are as it got them."""

    failure: bytes | None = None
    result: bytes | None = None
    failures: tuple[StoredAttempt, ...] = ()
    payload: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(_Known):
    """All that is known of a job at the moment somebody looked."""

    failure: Failure | None = None
    failures: tuple[Attempt, ...] = ()
