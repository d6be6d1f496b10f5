"""From a claim to its outcome: look up, decode, call, encode, decide."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import time
from typing import Any

from packhorse import codec
from packhorse.app import Packhorse
from packhorse.errors import PayloadError
from packhorse.failpoints import failpoint
from packhorse.ids import to_text
from packhorse.job import MESSAGE_CAP, Claim, FailureKind, JobState, Token, storable
from packhorse.outcome import Outcome, decide, refuse, stop, succeed
from packhorse.retry import RetryPolicy
from packhorse.task import BaseTask

log = logging.getLogger("packhorse.jobs")

Prepared = tuple[BaseTask[..., Any], list[Any], dict[str, Any]]


class UnknownTask(LookupError):
    """This worker has no task of that name."""


class Performer:
    def __init__(self, app: Packhorse) -> None:
        self._app = app
        self._tasks = app.tasks
        self.cancelled: dict[Token, str] = {}

    def is_coroutine(self, claim: Claim) -> bool:
        task = self._tasks.get(claim.task)
        return task is not None and task.is_coroutine

    def in_thread(self, claim: Claim) -> Outcome:
        failpoint("slot.before_perform")
        prepared = self._prepare(claim)
        if isinstance(prepared, Outcome):
            return prepared
        task, args, kwargs = prepared
        began = time.monotonic_ns()
        try:
            value = contextvars.copy_context().run(task.function, *args, **kwargs)
        except BaseException as error:  # a task may also raise SystemExit; the slot must live on
            return self._raised(claim, task, error, began)
        if value is not None and (inspect.iscoroutine(value) or inspect.isgenerator(value)):
            value.close()
            return self._raised(claim, task, _undone(value), began)
        return self._returned(claim, value, began)

    async def in_loop(self, claim: Claim) -> Outcome:
        failpoint("slot.before_perform")
        prepared = self._prepare(claim)
        if isinstance(prepared, Outcome):
            return prepared
        task, args, kwargs = prepared
        began = time.monotonic_ns()
        try:
            value = await task.function(*args, **kwargs)
        except asyncio.CancelledError as error:
            if claim.token in self.cancelled:
                return stop(claim.token, _since(began), self.cancelled.pop(claim.token))
            return self._raised(claim, task, error, began)
        except BaseException as error:
            return self._raised(claim, task, error, began)
        return self._returned(claim, value, began)

    def _prepare(self, claim: Claim) -> Prepared | Outcome:
        if self.cancelled and claim.token in self.cancelled:
            return stop(claim.token, None, self.cancelled.pop(claim.token))
        task = self._tasks.get(claim.task)
        if task is None:
            return self._refused(claim, FailureKind.UNKNOWN_TASK, _unknown(claim.task, self._app))
        try:
            args, kwargs = codec.decode_arguments(claim.payload)
        except PayloadError as error:
            return self._refused(claim, FailureKind.UNDECODABLE, error)
        return task, args, kwargs

    def _refused(self, claim: Claim, kind: FailureKind, error: Exception) -> Outcome:
        log.error("job %s was not performed: %s", to_text(claim.token.id), error)
        return refuse(claim, kind, error)

    def _returned(self, claim: Claim, value: Any, began: int) -> Outcome:
        duration = _since(began)
        failpoint("slot.after_perform")
        if self.cancelled:
            self.cancelled.pop(claim.token, None)  # it came too late
        if value is None:
            return succeed(claim.token, duration, None)
        try:
            return succeed(claim.token, duration, codec.encode_result(value))
        except Exception as error:  # a value's own methods may raise anything while they are looked at
            why = str(error) if isinstance(error, PayloadError) else f"{type(error).__name__} while encoding it"
            log.warning("job %s (%s) succeeded without a result: %s", to_text(claim.token.id), claim.task, why)
            return succeed(claim.token, duration, None, storable(why, MESSAGE_CAP))

    def _raised(self, claim: Claim, task: BaseTask[..., Any], error: BaseException, began: int) -> Outcome:
        duration = _since(began)
        failpoint("slot.after_perform")
        try:
            outcome = decide(claim, error, task.policy, duration, skip_frames=1)
        except BaseException as broken:  # the task's own backoff, or a wait that is no length
            note = f"{type(error).__name__}, and the wait before the next attempt could not be found: {broken!r}"
            outcome = decide(claim, TypeError(note), RetryPolicy(), duration)
        reason = self.cancelled.pop(claim.token, None)
        if reason is not None and not outcome.state.finished:
            outcome = stop(claim.token, duration, reason)  # an operator asked: it must not come back
        _log_end(claim, outcome, error)
        return outcome


def _unknown(name: str, app: Packhorse) -> UnknownTask:
    return UnknownTask(
        f"there is no task {name!r} in application {app.name!r}. Start a worker whose code has it, then retry the job."
    )


def _undone(value: object) -> TypeError:
    return TypeError(
        f"the function returned a {type(value).__name__} instead of doing its work; "
        "if a decorator hides that it is a coroutine function, make the decorator's function async too"
    )


def _since(began: int) -> int:
    return (time.monotonic_ns() - began) // 1000


def _log_end(claim: Claim, outcome: Outcome, error: BaseException) -> None:
    id, attempt = to_text(claim.token.id), claim.attempts + 1
    kind = type(error).__name__
    match outcome.state:
        case JobState.FAILED:
            log.error("job %s (%s) failed for good in attempt %d: %s", id, claim.task, attempt, kind)
        case JobState.SCHEDULED:
            wait = outcome.delay / 1_000_000
            log.info("job %s (%s) ended attempt %d with %s; again in %.1f s", id, claim.task, attempt, kind, wait)
        case _:
            log.info("job %s (%s) ended %s in attempt %d", id, claim.task, outcome.state, attempt)
