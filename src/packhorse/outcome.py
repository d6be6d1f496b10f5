"""How an attempt ends: `decide` turns what happened into an Outcome, and stores write batches of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from packhorse.clock import SECOND, length
from packhorse.errors import (
    Cancel,
    ProcessExitError,
    ProcessPrunedError,
    PutBack,
    Retry,
    Snooze,
    TaskError,
    TimedOut,
)
from packhorse.job import MESSAGE_CAP, Claim, Failure, FailureKind, JobState, Token, message_of, storable
from packhorse.retry import RetryPolicy

MAX_LOSSES = 3
SOLO_FROM = 2  # losses after which a job runs alone in a process of its own
# What runs so can hardly harm its worker; but something that kills every worker from there must come to an end, too.
MAX_LOSSES_ALONE = 10
INNOCENT_AFTER = 3_600 * SECOND  # of running: what kills its worker does so sooner
STRAY_CAP = 60 * SECOND
STRAY_STEPS = (STRAY_CAP // SECOND).bit_length()  # waits below the cap: 1, 2, 4 … 32 s
_SUCCEEDED = JobState.SUCCEEDED
FOREVER = 1 << 60


class Awaits(NamedTuple):
    """The signal a job waits for: the first one of that name behind the number `after`."""

    signal: str
    after: int = 0


class Outcome(NamedTuple):
    """Where a job stands after an attempt. Stores know these fields and no policy.

    state      a finished state; SCHEDULED to come back `delay` microseconds from the store's now (at once where that
               is 0); READY to go back in place, keeping its order key
    spent      counts as an attempt; `lost` counts as a loss
    duration   microseconds since the task began, None where it never began
    failure    an encoded Failure: kept with the finished job, or as the row of an attempt that did not succeed
    owner      the process whose attempt it was, where another one writes the verdict
    strayed    counts as having come to a worker that does not know the task
    suspect    it may have begun on a worker that was lost, and nobody knows; stands until an attempt is spent
    keep       microseconds a finished job is kept: 0 deletes it at once, None is the rule for its state
    result_ttl microseconds its result is kept, None as long as the job
    awaits     a signal that makes the SCHEDULED job due before its time
    after      jobs that the SCHEDULED one waits for, however they end
    written    the store has it already: the task wrote it in a transaction of its own
    """

    token: Token
    state: JobState
    spent: bool = True
    lost: bool = False
    delay: int = 0
    duration: int | None = None
    result: bytes | None = None
    result_error: str | None = None
    failure: bytes | None = None
    reason: str | None = None
    owner: bytes | None = None
    strayed: bool = False
    keep: int | None = None
    result_ttl: int | None = None
    awaits: Awaits | None = None
    after: tuple[bytes, ...] = ()
    written: bool = False
    suspect: bool = False

    @property
    def size(self) -> int:
        """Bytes it brings along, roughly."""
        if self.result is None and self.failure is None:
            return 200
        return 200 + len(self.result or b"") + len(self.failure or b"")


def succeed(
    token: Token,
    duration: int,
    result: bytes | None,
    result_error: str | None = None,
    *,
    keep: int | None = None,
    result_ttl: int | None = None,
) -> Outcome:
    # By place: names would cost every job half a microsecond.
    return Outcome(
        token, _SUCCEEDED, True, False, 0, duration, result, result_error, None, None, None, False, keep, result_ttl
    )


def release(token: Token) -> Outcome:
    """Back in place, as if it had never been claimed."""
    return Outcome(token, JobState.READY, spent=False)


def expire(token: Token) -> Outcome:
    return Outcome(token, JobState.CANCELLED, spent=False, reason="expired")


def stop(token: Token, duration: int | None, reason: str = "cancelled") -> Outcome:
    """An operator asked, and the task ended."""
    return Outcome(token, JobState.CANCELLED, spent=duration is not None, duration=duration, reason=reason)


def decide(
    claim: Claim,
    error: BaseException,
    policy: RetryPolicy,
    duration: int | None,
    *,
    skip_frames: int = 0,
    mask: Callable[[str], str] = str,
) -> Outcome:
    """The outcome of an attempt that did not return; `mask` hides secrets in its texts."""
    token, attempt = claim.token, claim.attempts + 1
    match error:
        case Snooze():
            delay = max(0, length(error.after))
            return Outcome(token, JobState.SCHEDULED, spent=False, delay=delay, duration=duration)
        case BaseExceptionGroup() if error.split(PutBack)[1] is None:  # of tasks that the task waits for together
            return decide(claim, error.exceptions[0], policy, duration)
        case PutBack(delay=None):
            return release(token)
        case PutBack(delay=delay, awaits=awaits, after=after):
            back = Outcome(token, JobState.SCHEDULED, spent=False, delay=delay, duration=duration, awaits=awaits)
            return back._replace(after=after)
        case Cancel():
            return Outcome(
                token, JobState.CANCELLED, duration=duration, reason=storable(mask(message_of(error)), MESSAGE_CAP)
            )
        case Retry():
            wait = None if policy.exhausted(attempt) else _asked_wait(error, policy, attempt)
        case _:
            wait = policy.wait(attempt, error)
    failure = Failure.of(error, _kind(error), skip_frames=skip_frames, mask=mask).encode()
    if wait is None:
        return Outcome(token, JobState.FAILED, duration=duration, failure=failure)
    return Outcome(token, JobState.SCHEDULED, delay=wait, duration=duration, failure=failure)


def stray(claim: Claim, error: BaseException, patience: int) -> Outcome:
    """No task of that name here: back for a worker that knows it, less and less often, and failed in the end."""
    strays = max(0, claim.strays)  # not signed, so it may be any number
    short = min(strays, STRAY_STEPS)
    waited = ((1 << short) - 1) * SECOND + (strays - short) * STRAY_CAP
    if waited >= patience:
        return refuse(claim, FailureKind.UNKNOWN_TASK, error)
    wait = min(SECOND << short, STRAY_CAP, patience - waited)
    return Outcome(claim.token, JobState.SCHEDULED, spent=False, strayed=True, delay=wait)


def refuse(claim: Claim, kind: FailureKind, error: BaseException) -> Outcome:
    """The task never began and never will: its name or its payload means nothing here."""
    return Outcome(claim.token, JobState.FAILED, spent=False, failure=Failure.of(error, kind).encode())


def decide_lost(
    claim: Claim,
    error: ProcessExitError | ProcessPrunedError,
    *,
    fail_at_once: bool,
    alone: bool = False,
    max_losses: int = MAX_LOSSES,
    owner: bytes | None = None,
    duration: int | None = None,
) -> Outcome:
    """The verdict on an orphan: run again in place, or fail once it was lost too often.

    One that ran `alone` in a process of its own when its worker died is hardly to blame.
    Over months an endless job loses some workers through no fault of its own: those after a long run do not count.
    """
    failure = Failure.of(error, FailureKind.WORKER_LOST).encode()
    counts = fail_at_once or duration is None or duration < INNOCENT_AFTER
    if alone:
        max_losses = max(max_losses, MAX_LOSSES_ALONE)
    failed = fail_at_once or (counts and claim.losses + 1 >= max_losses)
    state = JobState.FAILED if failed else JobState.READY
    return Outcome(claim.token, state, spent=False, lost=counts, duration=duration, failure=failure, owner=owner)


def heed(outcome: Outcome, asked: str) -> Outcome:
    """An operator asked for the job's end: it must not come back."""
    if outcome.state.finished:
        return outcome
    return outcome._replace(state=JobState.CANCELLED, delay=0, reason=asked)


def go_back(outcome: Outcome) -> Outcome:
    """An operator asked for another start: however this attempt ended, unless it did its work, it does not count."""
    if outcome.state is JobState.SUCCEEDED:
        return outcome
    back = outcome._replace(state=JobState.READY, spent=False, delay=0, reason=None, keep=None)
    return back._replace(awaits=None, after=())


def broken(token: Token, error: BaseException) -> Outcome:
    """Packhorse itself failed around the task. Nothing of the error is asked for but its class."""
    why = f"{type(error).__name__} outside the task itself; whether the task had ended is not known"
    failure = Failure(FailureKind.EXCEPTION, "packhorse.errors.PackhorseError", why)
    return Outcome(token, JobState.FAILED, failure=failure.encode())


def bare(outcome: Outcome, error: BaseException) -> Outcome:
    """What is left of an outcome that the store will not take: its end, and why the rest is gone."""
    why = f"the store refused it ({type(error).__name__})"
    if outcome.state is JobState.SUCCEEDED:
        return Outcome(outcome.token, JobState.SUCCEEDED, result_error=why)
    if outcome.state is JobState.CANCELLED:
        return Outcome(outcome.token, JobState.CANCELLED, spent=outcome.spent)
    failure = Failure(FailureKind.EXCEPTION, "packhorse.errors.StoreDataError", why).encode()
    return Outcome(outcome.token, JobState.FAILED, spent=outcome.spent, lost=outcome.lost, failure=failure)


def _asked_wait(error: Retry, policy: RetryPolicy, attempt: int) -> int:
    return max(0, length(error.after if error.after is not None else policy.backoff(attempt, error)))


def _kind(error: BaseException) -> FailureKind:
    if isinstance(error, TaskError | Retry):
        return FailureKind.ERROR
    return FailureKind.TIMEOUT if isinstance(error, TimedOut) else FailureKind.EXCEPTION
