"""Errors that introduce themselves: raised with the facts, they say what happened and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from packhorse.masking import masked_url

if TYPE_CHECKING:
    from packhorse.job import Failure
    from packhorse.outcome import Awaits


def _reduced(error: BaseException) -> tuple[Any, ...]:
    """For pickle, as multiprocessing uses it: as the error is, since what it was made from is not what it says."""
    return _remade, (type(error), error.args), error.__dict__


def _remade(kind: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    error = kind.__new__(kind)
    error.args = args
    return error


class PackhorseError(Exception):
    """The root of everything Packhorse raises on its own account."""

    __reduce__ = _reduced


# What a task may raise.


class TaskError(PackhorseError):
    """An expected failure: recorded with kind `error`, and retried like any other."""


class Retry(Exception):
    """Raised by a task: this attempt failed, try again (after a while of the task's choosing)."""

    def __init__(self, reason: str = "the task asked for another attempt", *, after: timedelta | float | None = None):
        super().__init__(reason)
        self.after = after


class Snooze(Exception):
    """Raised by a task: not now. Comes back later; the attempt is not spent."""

    __reduce__ = _reduced

    def __init__(self, after: timedelta | float):
        super().__init__(f"snoozed for {after}")
        self.after = after


class Cancel(Exception):
    """Raised by a task: stop here for good. The job ends `cancelled` and is kept."""

    def __init__(self, reason: str = "cancelled by the task"):
        super().__init__(reason)
        self.reason = reason


class PutBack(BaseException):
    """Raised inside a task by `checkpoint`, `sleep`, `wait_for` and `children`: the attempt ends here, unspent, and the
    job comes back: in its place, or after `delay` microseconds, or when a signal comes, or `after` other jobs.

    No Exception, so that a task's `except Exception` does not keep it.
    """

    __reduce__ = _reduced

    def __init__(
        self, why: str, *, delay: int | None = None, awaits: Awaits | None = None, after: tuple[bytes, ...] = ()
    ):
        super().__init__(why)
        self.delay = delay
        self.awaits = awaits
        self.after = after


class ClaimLost(PutBack):
    """The job is no longer this worker's: another may be performing it already, so this attempt stops at once."""

    def __init__(self, id: str):
        super().__init__(
            f"Job {id} has moved on: this worker seemed dead, or somebody moved the job. What was about to be kept was "
            "refused, and this attempt ends without an outcome."
        )


class NotCommitted(PackhorseError):
    """The attempt failed: the task returned, and the transaction in which it completed the job was rolled back."""

    def __init__(self) -> None:
        super().__init__(
            "The task called complete_with and returned, but the transaction was not committed. Commit it before the "
            "task returns, or raise what went wrong."
        )


class Interrupted(PutBack):
    """Raised inside a task whose worker has to leave, or that an operator stops: it goes back, or is cancelled."""

    def __init__(self, why: str = "the worker has to leave"):
        super().__init__(why)


class TimedOut(PackhorseError):
    """Raised inside a task that has run longer than its `timeout`.

    It may clean up, or return after all; what does not end soon after is ended by force.
    """

    def __init__(self, why: str = "The task has run longer than its timeout."):
        super().__init__(why)


# What a caller may meet.


class ConfigError(PackhorseError):
    """A setting, option or name that cannot be used."""


class DuplicateTask(ConfigError):
    def __init__(self, name: str):
        super().__init__(f"There already is a task named {name!r}. Give one of the two another name with name=….")
        self.name = name


class DuplicateStep(ConfigError):
    def __init__(self, name: str):
        super().__init__(
            f"Step {name!r} was already used in this attempt. Each needs its own name; in a loop, put a number in it."
        )
        self.name = name


class PayloadError(PackhorseError, ValueError):
    """An argument or result that cannot be stored."""


class DeserializationError(PayloadError):
    """An argument stands for something that is no longer there, so the task cannot begin: the job is undecodable."""

    def __init__(self, why: str, *, discard: bool = False):
        super().__init__(why)
        self.discard = discard


class EnqueueError(PackhorseError):
    """The store did not take the job; its own error is the cause.

    `enqueued` are the handles of what was written before (nothing, or the first batches of many), `left_out` the calls
    that were taken and not written: of that batch, and of the next. Those behind were not looked at. Both belong to
    this process: a pickled copy has neither.
    """

    def __init__(self, why: str, *, enqueued: Sequence[Any] = (), left_out: Sequence[Any] = ()):
        super().__init__(why)
        self.enqueued = list(enqueued)
        self.left_out = list(left_out)

    def __reduce__(self) -> tuple[Any, ...]:
        remade, made_from, state = _reduced(self)
        return remade, made_from, state | {"enqueued": [], "left_out": []}

    def after(self, enqueued: Sequence[Any]) -> EnqueueError:
        """The same, as it stands behind batches that were written."""
        if not enqueued:
            return self
        first, last = len(enqueued), len(enqueued) + len(self.left_out) - 1
        why = f"Only the first {first:,} jobs were enqueued; numbers {first:,} to {last:,} and all behind them were not"
        return EnqueueError(f"{why}: {self.__cause__}", enqueued=enqueued, left_out=self.left_out)


class JobNotFound(PackhorseError, LookupError):
    def __init__(self, id: str):
        super().__init__(
            f"There is no job {id!r} in this store. It may have been pruned or discarded; "
            "check the id and that the store URL is the one it was enqueued to."
        )
        self.id = id


class ScheduleNotFound(PackhorseError, LookupError):
    def __init__(self, key: str):
        super().__init__(
            f"There is no schedule {key!r} in this store. `packhorse schedules list` shows those there are."
        )
        self.key = key


class NotFinished(PackhorseError, TimeoutError):
    """No result yet (which is not the same as a result of None)."""

    def __init__(self, id: str, state: str, waited: float):
        super().__init__(f"Job {id} has not finished after {waited:g} s: it is {state}. Wait longer, or look later.")
        self.id = id
        self.state = state


class SignalTimeout(PackhorseError, TimeoutError):
    """Raised by `wait_for`: the time is up. Every later attempt of the job meets it there again."""

    def __init__(self, name: str):
        super().__init__(f"No signal {name!r} came in time.")
        self.name = name


class JobFailed(PackhorseError):
    """The job ended `failed`; `failure` says how."""

    def __init__(self, id: str, failure: Failure):
        super().__init__(f"Job {id} failed: {failure}")
        self.id = id
        self.failure = failure


class JobCancelled(PackhorseError):
    def __init__(self, id: str, reason: str | None):
        super().__init__(f"Job {id} was cancelled: {reason or 'no reason was given'}")
        self.id = id
        self.reason = reason


class ResultUnavailable(PackhorseError):
    """The job succeeded, but its return value was not kept, or cannot be trusted."""

    def __init__(self, id: str, why: str):
        super().__init__(f"Job {id} succeeded, but its result is not available: {why}")
        self.id = id
        self.why = why


# What a store may meet.


class StoreError(PackhorseError):
    """The store could not do what was asked."""


class StoreURLError(ConfigError):
    def __init__(self, url: str, why: str):
        super().__init__(
            f"Cannot use the store URL {masked_url(url)!r}: {why}. "
            "Give one like sqlite:///packhorse.db (relative), sqlite:////var/lib/shop/jobs.db (absolute), "
            "postgresql://user@host/database or memory://."
        )


class StoreUnavailable(StoreError):
    """The store did not answer in time, or refused for the moment; asking again later may help."""


class HeldUp(StoreUnavailable):
    """The store is there, but a transaction of somebody else holds what this needs."""


class StoreFull(StoreUnavailable):
    """There is no space left where the store lives."""


class StoreDataError(StoreError):
    """The store will never take this value."""


class StoreUnsafe(StoreError):
    """The place where the store lives must not be used as it is."""


class SchemaError(StoreError):
    """The store's tables and this version of Packhorse do not fit together."""


# What ends a job whose process died.


class ProcessExitError(PackhorseError):
    """The process that performed the job was seen dying."""


class ProcessPrunedError(PackhorseError):
    """The process that performed the job stopped beating, and its lease ran out."""
