"""From a claim to its outcome: verify, look up, decode, call, encode, decide."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import math
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple, TypeVar

from packhorse import forks
from packhorse.app import SEALED_REASON, Packhorse
from packhorse.clock import SECOND, length, to_datetime
from packhorse.codec import Encoded
from packhorse.context import Context, Progress, performing
from packhorse.errors import (
    Cancel,
    ClaimLost,
    DeserializationError,
    Interrupted,
    NotCommitted,
    PayloadError,
    PutBack,
    StoreUnavailable,
    TimedOut,
)
from packhorse.events import Event, EventKind
from packhorse.failpoints import failpoint
from packhorse.ids import to_text
from packhorse.job import MESSAGE_CAP, Claim, Failure, FailureKind, JobState, StoredJob, Token, storable
from packhorse.limits import Pace
from packhorse.logs import job_extra
from packhorse.masking import mask_text, secrets_in
from packhorse.outcome import SOLO_FROM, Outcome, decide, expire, refuse, release, stray, succeed
from packhorse.reporters import ErrorReport, report
from packhorse.retry import RetryPolicy
from packhorse.runtime.deadlines import Deadlines
from packhorse.runtime.isolated import Pool
from packhorse.runtime.progress import Recorder
from packhorse.runtime.seats import Seat, Why
from packhorse.seals import NEVER
from packhorse.steps import Steps, patiently
from packhorse.stores.contract import MERGED, Entry, Order
from packhorse.task import BaseTask, default_keep
from packhorse.varying import USING, as_told, task_of

T = TypeVar("T")

log = logging.getLogger("packhorse.jobs")

RESULTS_AT_ONCE = 1_000
SKEW = 60 * SECOND  # how far the clocks of enqueuing programs and workers may be apart


class Prepared(NamedTuple):
    task: BaseTask[..., Any]
    context: Context
    args: list[Any]
    kwargs: dict[str, Any]
    timeout: float | None


class MustAsk(Exception):
    """The arguments are not all in the payload."""


class UnknownTask(LookupError):
    """This worker has no task of that name, or an older version of it."""


class Performer:
    def __init__(
        self,
        app: Packhorse,
        stop_by: Callable[[], float | None] = lambda: None,
        ask: Callable[[Token, Why], bool] = lambda token, why: True,
        force: Callable[[Token, Why], None] = lambda token, why: None,
        *,
        pool: Pool | None = None,
        began: Callable[[Token, float | None], None] | None = None,
    ) -> None:
        """`ask` and `force` end a running job whose time is up; `began` is told of each with its timeout."""
        self._app = app
        self._pool = pool
        self._began = began
        self.ending_timeout = app.settings.ending_timeout
        self.deadlines = Deadlines(self.ending_timeout, ask, force)
        self.interrupted: dict[Token, Why] = {}
        self._tasks = app.known_tasks
        self._stop_by = stop_by
        self._recorder = Recorder(app)
        self._open_job = app.seals.open_job
        self._stray_patience = length(app.settings.unknown_task_timeout)
        self.orders: dict[Token, Order] = {}  # that are to be obeyed
        self._completed: dict[Token, Outcome] = {}  # by their tasks; whether that was committed shows at the end

    def is_coroutine(self, claim: Claim) -> bool:
        task = self._tasks.get(claim.task)
        return task is not None and task.is_coroutine and not self.is_isolated(claim)

    def is_isolated(self, claim: Claim) -> bool:
        if self._pool is None:
            return False
        task = task_of(self._app, claim)
        return claim.losses >= SOLO_FROM or (task is not None and task.performed.isolate)

    # What contexts ask.

    def stop_asked(self, token: Token) -> bool:
        return token in self.orders or self._stop_by() is not None

    def seconds_left(self, token: Token) -> float | None:
        stop_by, left = self._stop_by(), self.deadlines.left(token)
        if stop_by is None or math.isinf(stop_by):
            return left
        until_stop = max(0.0, stop_by - time.monotonic())
        return until_stop if left is None else min(left, until_stop)

    def report_progress(self, claim: Claim, progress: Progress) -> None:
        self._recorder.note(claim, progress)

    def take_token(self, pace: Pace, patience: int) -> int | None:
        return self._app.store.take_token(pace, patience)

    def steps(self, token: Token) -> Steps:
        return Steps(token, self._app)

    def complete(
        self,
        claim: Claim,
        began: int,
        result: Any,
        connection: object,
        loop: asyncio.AbstractEventLoop | None,
    ) -> None:
        task = task_of(self._app, claim) or self._tasks[claim.task]
        keep, ttl = task.stored.keep[JobState.SUCCEEDED], task.stored.result_ttl
        wanted = result is not None and keep != 0 and task.stored.results
        sealed = self._sealed_result(task, claim.token.id, result) if wanted else None
        outcome = succeed(claim.token, _since(began), sealed, keep=keep, result_ttl=ttl if wanted else None)
        if not self._app.store.lent(connection, loop).complete(outcome):
            raise ClaimLost(to_text(claim.token.id))
        self._completed[claim.token] = outcome._replace(written=True)

    def close(self) -> None:
        self._recorder.close()
        self.deadlines.close()

    # Performing.

    def isolated(self, claim: Claim) -> Outcome:
        """In a process of its own, which the slot's thread waits for."""
        assert self._pool is not None
        task = task_of(self._app, claim)
        if claim.token in self.orders:
            return self.kept(claim, self.orders.pop(claim.token).outcome(None))
        policy = RetryPolicy() if task is None else task.policy
        outcome = self._pool.perform(claim, policy, self.orders)
        self._forget(claim.token)
        if (order := self.orders.pop(claim.token, None)) is not None:
            outcome = order.heeded(outcome)
        return self.kept(claim, outcome)

    def in_thread(self, claim: Claim, seat: Seat) -> Outcome:
        failpoint("slot.before_perform")
        performing.set(None)  # until it begins; the thread may have performed another job before
        made_in = forks.generation
        prepared = self._prepare(claim)
        if isinstance(prepared, Outcome):
            return prepared
        task, context, args, kwargs, timeout = prepared
        performing.set(context)
        began = time.monotonic_ns()
        if timeout is not None:
            self._set_deadline(claim.token, timeout)
        run = contextvars.copy_context().run
        try:
            if self._app.performing:
                value = seat.call(claim.token, run, self._wrapped, prepared)
            else:
                value = seat.call(claim.token, run, task.function, *args, **kwargs)
        except BaseException as error:  # a task may also raise SystemExit; the slot must live on
            seat.rise()
            outcome = self._as_completed(claim, prepared, began, error) or self._raised(claim, prepared, error, began)
        else:
            if value is not None and (inspect.iscoroutine(value) or inspect.isgenerator(value)):
                value.close()
                outcome = self._raised(claim, prepared, _undone(value), began)
            else:
                outcome = self._as_completed(claim, prepared, began) or self._returned(claim, prepared, value, began)
        if self._recorder.has(claim.token):
            self._settle(claim.token, made_in)
        return outcome

    def _settle(self, token: Token, made_in: int) -> None:
        if forks.generation != made_in:  # what encodes a result may fork, too
            forks.end_copy()
        self._recorder.settle(token)

    async def in_loop(self, claim: Claim) -> Outcome:
        failpoint("slot.before_perform")
        try:
            prepared = self._prepare(claim, on_loop=True)
        except MustAsk:
            try:
                prepared = await asyncio.to_thread(self._prepare, claim)
            except asyncio.CancelledError:
                return self._unbegun(claim)
        if isinstance(prepared, Outcome):
            return prepared
        task, context, args, kwargs, timeout = prepared
        performing.set(context)
        began = time.monotonic_ns()
        if timeout is not None:
            self._set_deadline(claim.token, timeout)
        value, before = None, forks.generation
        try:
            try:
                if self._app.performing:
                    value = await self._wrapped_in_loop(prepared)
                else:
                    value = await task.function(*args, **kwargs)
            finally:
                if forks.generation != before:
                    forks.end_copy(sys.exception())
        except BaseException as error:
            completed = await self._as_completed_in_loop(claim, prepared, began, error)
            if completed is not None:
                outcome = completed
            elif isinstance(error, asyncio.CancelledError) and claim.token in self.orders:
                self._forget(claim.token)
                outcome = self.kept(claim, self.orders.pop(claim.token).outcome(_since(began)))
            else:
                outcome = self._raised(claim, prepared, error, began)
        else:
            completed = await self._as_completed_in_loop(claim, prepared, began)
            outcome = completed or self._returned(claim, prepared, value, began)
        if self._recorder.has(claim.token):
            await _to_the_end(self._settle, claim.token, before)
        return outcome

    def _set_deadline(self, token: Token, timeout: float) -> None:
        self.deadlines.set(token, timeout, Why.TIMEOUT)
        if self._began is not None:
            self._began(token, timeout)

    def _wrapped(self, prepared: Prepared) -> Any:
        task, context, args, kwargs, _ = prepared
        before = forks.generation
        with ExitStack() as stack:
            for middleware in self._app.performing:
                stack.enter_context(middleware.perform(context))
            try:
                return task.function(*args, **kwargs)
            finally:
                if forks.generation != before:  # middleware would take the end of a copy for that of the job
                    forks.end_copy(sys.exception())

    async def _wrapped_in_loop(self, prepared: Prepared) -> Any:
        task, context, args, kwargs, _ = prepared
        value, before = None, forks.generation
        with ExitStack() as stack:
            for middleware in self._app.performing:
                stack.enter_context(middleware.perform(context))
            try:
                value = await task.function(*args, **kwargs)
            finally:
                if forks.generation != before:
                    forks.end_copy(sys.exception())
        return value

    # Before.

    def _prepare(self, claim: Claim, *, on_loop: bool = False) -> Prepared | Outcome:
        """MustAsk where the store has to be asked for more, which would hold up a loop."""
        if self.orders and claim.token in self.orders:
            return self.kept(claim, self.orders.pop(claim.token).outcome(None))
        try:
            opened = self._open_job(claim.token.id, claim.task, claim.payload)
            if opened.expires != NEVER and opened.expires + SKEW < self._app.clock.now():
                return self.kept(claim, expire(claim.token))
            task = self._tasks.get(claim.task)
            if task is None or opened.version > task.stored.version:
                return self.kept(claim, self._strayed(claim, task))
            args, kwargs, metadata = task.read(opened, _not_here if on_loop else self._results)
            if USING in metadata:
                task = as_told(task, metadata[USING])
            if task.rules.merges:
                if on_loop:
                    raise MustAsk
                entries = self._app.store.entries(claim.token.id)
                args, kwargs = task.merged(args, kwargs, self._merged_into(claim.task, task, entries))
        except StoreUnavailable:  # nothing of the task has begun; whoever claims it next asks again
            return release(claim.token)
        except PayloadError as error:
            return self._refused(claim, error)
        context = Context(claim, metadata, self)
        if task.takes_context:
            args = [context, *args]
        if self._app.events.wants(EventKind.STARTED):
            self._tell_started(claim)
        return Prepared(task, context, args, kwargs, task.performed.timeout)

    def _unbegun(self, claim: Claim) -> Outcome:
        """It was to end while it still asked for its arguments."""
        self._forget(claim.token)
        order = self.orders.pop(claim.token, None)
        return release(claim.token) if order is None else self.kept(claim, order.outcome(None))

    def _results(self, said: Any) -> dict[str, Any]:
        """Of earlier jobs of the flow, by the arguments they are for."""
        try:
            return {name: self._result(*where) for name, where in said.items()}
        except (ValueError, TypeError, AttributeError) as error:
            raise PayloadError(f"It refers to results in a way that Packhorse does not write: {error}.") from None

    def _result(self, hex: str, first: int | list[int] | None = None, count: int = 0) -> Any:
        """Of a job; or of places of a flow, so many from the first, or each of a list."""
        if first is None:
            job = self._app.store.job(bytes.fromhex(hex))
            if job is None:
                raise PayloadError("The job before it is no longer kept, and its result with it.")
            return self._result_of(job)
        places = range(first, first + count) if isinstance(first, int) else first
        found: dict[int, Any] = dict.fromkeys(places)
        after, last = min(places, default=0) - 1, max(places, default=-1)
        while after < last and (page := self._app.store.members(bytes.fromhex(hex), after, RESULTS_AT_ONCE)):
            found |= {place: self._result_of(job) for place, job in page if place in found}
            after = page[-1][0]
        return [found[place] for place in places]

    def _result_of(self, job: StoredJob) -> Any:
        if job.state is not JobState.SUCCEEDED:
            return None
        if job.result_error is not None:
            raise PayloadError(f"The result of job {job.id} before it is not available: {job.result_error}")
        return self._app.inspection.result_of(job)

    def _merged_into(
        self, name: str, task: BaseTask[..., Any], entries: Iterable[Entry]
    ) -> list[tuple[list[Any], dict[str, Any]]]:
        """The arguments of later jobs that the one with these entries stands for."""
        later = []
        for kind, id, payload in entries:
            if kind == MERGED:
                opened = self._open_job(bytes.fromhex(id), name, payload)
                later.append(task.read(opened)[:2])
        return later

    def _strayed(self, claim: Claim, task: BaseTask[..., Any] | None) -> Outcome:
        error = _unknown(claim.task, self._app, task)
        outcome = stray(claim, error, self._stray_patience)
        level = logging.ERROR if outcome.state is JobState.FAILED else logging.INFO
        log.log(level, "job %s was not performed: %s", to_text(claim.token.id), error, extra=_extra(claim))
        return outcome

    def _refused(self, claim: Claim, error: PayloadError) -> Outcome:
        log.error("job %s was not performed: %s", to_text(claim.token.id), error, extra=_extra(claim))
        settings = self._app.settings
        # By the settings alone: its task's name is no more to be trusted than the rest of it.
        drop = settings.drop_undecodable or (isinstance(error, DeserializationError) and error.discard)
        keep = 0 if drop else default_keep(settings, JobState.FAILED)
        return refuse(claim, FailureKind.UNDECODABLE, error)._replace(keep=keep)

    def _tell_started(self, claim: Claim) -> None:
        now = to_datetime(self._app.clock.now())
        self._app.events.tell(Event(kind=EventKind.STARTED, at=now, **_names(claim)))

    # After.

    def _returned(self, claim: Claim, prepared: Prepared, value: Any, began: int) -> Outcome:
        duration = _since(began)
        failpoint("slot.after_perform")
        if self.orders:
            self.orders.pop(claim.token, None)  # it came too late
        if self.interrupted or prepared.timeout is not None:
            self._forget(claim.token)
        task, token = prepared.task, claim.token
        stored = task.stored
        keep = stored.keep[JobState.SUCCEEDED]
        if value is None or keep == 0 or not stored.results:
            return succeed(token, duration, None, keep=keep)
        try:
            result = self._sealed_result(task, token.id, value)
        except Exception as error:  # a value's own methods may raise anything while they are looked at
            shown = isinstance(error, PayloadError) and not self._app.seals.encrypted
            why = self._mask(claim, prepared)(str(error)) if shown else f"{type(error).__name__} while encoding it"
            log.warning(
                "job %s (%s) succeeded without a result: %s", to_text(token.id), claim.task, why, extra=_extra(claim)
            )
            return succeed(token, duration, None, storable(why, MESSAGE_CAP), keep=keep)
        return succeed(token, duration, result, keep=keep, result_ttl=stored.result_ttl)

    def _as_completed(
        self, claim: Claim, prepared: Prepared, began: int, error: BaseException | None = None
    ) -> Outcome | None:
        """Of a task that called `complete_with`: what it wrote, if that was committed, whatever it did afterwards.

        Else the attempt has failed, by the error or because the transaction came to nothing.
        """
        outcome = self._completed.pop(claim.token, None)
        if outcome is None:
            return None
        try:
            committed = patiently(self._app.store.finished, claim.token)
        except PutBack as unknown:  # it comes back later, unless it has finished: then that is refused
            return self._raised(claim, prepared, unknown, began)
        if not committed:
            return self._raised(claim, prepared, error or NotCommitted(), began)
        self._forget(claim.token)
        self.orders.pop(claim.token, None)
        if error is not None:
            text = "job %s (%s) had succeeded in its own transaction when it raised %s"
            log.warning(text, to_text(claim.token.id), claim.task, type(error).__name__, extra=_extra(claim))
        return outcome

    async def _as_completed_in_loop(
        self, claim: Claim, prepared: Prepared, began: int, error: BaseException | None = None
    ) -> Outcome | None:
        if claim.token not in self._completed:
            return None
        return await _to_the_end(self._as_completed, claim, prepared, began, error)

    def _sealed_result(self, task: BaseTask[..., Any], id: bytes, value: Any) -> bytes:
        app, foreign = self._app, task.stored.codec
        if foreign is not None:
            body = foreign.encode(value)
            if len(body) > app.settings.result_cap:
                raise PayloadError(f"The result takes {len(body):,} bytes, more than {app.settings.result_cap:,}.")
            return app.seals.result(id, Encoded(body, typed=False), foreign=True)
        if task.shapes is not None:
            value = task.shapes.dump_result(value)
        return app.seals.result(id, app.codec.encode_result(value))

    def _raised(self, claim: Claim, prepared: Prepared, error: BaseException, began: int) -> Outcome:
        duration = _since(began)
        failpoint("slot.after_perform")
        why = self._forget(claim.token)
        if why is Why.LEAVING and isinstance(error, Interrupted | asyncio.CancelledError):
            if claim.token not in self.orders:
                return release(claim.token)
        elif why is Why.TIMEOUT and isinstance(error, TimedOut | asyncio.CancelledError):
            text = f"The task has run longer than its timeout of {prepared.timeout:g} s."
            error = TimedOut(text).with_traceback(error.__traceback__)
        elif isinstance(error, DeserializationError):
            return self._refused(claim, error)
        task = prepared.task
        mask = self._mask(claim, prepared)
        skip = task.frames_around + (1 if task.is_coroutine else 2) + bool(self._app.performing)
        try:
            outcome = decide(claim, error, task.policy, duration, skip_frames=skip, mask=mask)
        except BaseException as broken:  # the task's own backoff, or a wait that is no length
            note = f"{type(error).__name__}, and the wait before the next attempt could not be found: {broken!r}"
            outcome = decide(claim, TypeError(note), RetryPolicy(), duration, mask=mask)
        order = self.orders.pop(claim.token, None)
        if order is not None:
            outcome = order.outcome(duration) if not outcome.state.finished else order.heeded(outcome)
        if outcome.failure is not None and self._app.error_reporters:
            told = ErrorReport(error, prepared.context, outcome.state is JobState.FAILED, mask)
            report(self._app.error_reporters, told)
        if isinstance(error, Cancel) and outcome.reason is not None and self._app.seals.encrypted:
            # A reason is stored as it is, and the task's own words may hold what is to be kept secret.
            said = Failure(FailureKind.ERROR, SEALED_REASON, outcome.reason).encode()
            outcome = outcome._replace(reason="cancelled", failure=said)
        _log_end(claim, outcome, error)
        return self.kept(claim, outcome)

    def _forget(self, token: Token) -> Why | None:
        """The job has ended; why it was asked to, if it was."""
        self.deadlines.drop(token)
        return self.interrupted.pop(token, None)

    def kept(self, claim: Claim, outcome: Outcome) -> Outcome:
        """With how long the task wants a job that ended so to be kept."""
        if outcome.keep is not None or not outcome.state.finished:
            return outcome
        task, settings = task_of(self._app, claim), self._app.settings
        keep = default_keep(settings, outcome.state) if task is None else task.stored.keep[outcome.state]
        return outcome if keep is None else outcome._replace(keep=keep)

    def _mask(self, claim: Claim, prepared: Prepared) -> Callable[[str], str]:
        """Hides what the arguments and the metadata hold, and what they held before the task took them apart."""
        task, context, args, kwargs, _ = prepared
        more = self._app.settings.sensitive_names
        now = task.named(args[1:] if task.takes_context else args, kwargs)
        secrets = secrets_in([now, context.metadata], more)
        try:
            opened = self._open_job(claim.token.id, claim.task, claim.payload)
            sent = [task.as_sent(opened)]
            if opened.typed and not opened.foreign:
                sent.append(self._app.codec.decode_arguments(opened.body, typed=False))  # looks into own types as well
            for args, kwargs, metadata in sent:
                secrets |= secrets_in([task.named(args, kwargs), metadata], more)
        except Exception:  # it was readable before; whatever it is now, the attempt ends
            pass
        return partial(mask_text, secrets=secrets) if secrets else str

    # Telling, once the store has it.

    def tell_ended(self, claim: Claim, outcome: Outcome) -> None:
        kind = _kind(outcome)
        if kind is None or not self._app.events.wants(kind):
            return
        failure = None
        if outcome.failure is not None and kind is not EventKind.CANCELLED:
            failure = self._app.open_failure(outcome.token.id, outcome.failure)
        duration = None if outcome.duration is None else outcome.duration / SECOND
        now = to_datetime(self._app.clock.now())
        self._app.events.tell(Event(kind=kind, at=now, duration=duration, failure=failure, **_names(claim)))


async def _to_the_end(function: Callable[..., T], *args: Any) -> T:
    """In a thread, though we be cancelled meanwhile: the task has ended, and how is known."""
    doing = asyncio.get_running_loop().run_in_executor(None, function, *args)
    while not doing.done():
        try:
            await asyncio.shield(doing)
        except asyncio.CancelledError:
            pass
    return doing.result()


def _not_here(said: Any) -> dict[str, Any]:
    raise MustAsk


def _kind(outcome: Outcome) -> EventKind | None:
    match outcome.state:
        case JobState.SUCCEEDED:
            return EventKind.SUCCEEDED
        case JobState.FAILED:
            return EventKind.FAILED
        case JobState.CANCELLED:
            return EventKind.CANCELLED
        case JobState.SCHEDULED:
            if outcome.strayed:
                return None
            return EventKind.RETRYING if outcome.failure is not None else EventKind.SNOOZED
    return None


def _names(claim: Claim) -> dict[str, Any]:
    id, attempt = to_text(claim.token.id), claim.attempts + 1
    return {"job_id": id, "task": claim.task, "queue_name": claim.queue, "attempt": attempt}


def _extra(claim: Claim) -> dict[str, Any]:
    return job_extra(to_text(claim.token.id), claim.task, claim.queue, claim.attempts + 1)


def _unknown(name: str, app: Packhorse, task: BaseTask[..., Any] | None) -> UnknownTask:
    if task is not None:
        return UnknownTask(
            f"its payload is newer than this worker's version of task {name!r}. Deploy the newer code here too."
        )
    return UnknownTask(
        f"there is no task {name!r} in application {app.name!r}. Start a worker whose code has it, or declare the name "
        "as an alias of the task it has become."
    )


def _undone(value: object) -> TypeError:
    return TypeError(
        f"the function returned a {type(value).__name__} instead of doing its work; "
        "if a decorator hides that it is a coroutine function, make the decorator's function async too"
    )


def _since(began: int) -> int:
    return (time.monotonic_ns() - began) // 1000


def _log_end(claim: Claim, outcome: Outcome, error: BaseException) -> None:
    id, attempt, extra = to_text(claim.token.id), claim.attempts + 1, _extra(claim)
    kind = type(error).__name__
    match outcome.state:
        case JobState.FAILED:
            log.error("job %s (%s) failed for good in attempt %d: %s", id, claim.task, attempt, kind, extra=extra)
        case JobState.SCHEDULED:
            wait = outcome.delay / SECOND
            text = "job %s (%s) ended attempt %d with %s; again in %.1f s"
            log.info(text, id, claim.task, attempt, kind, wait, extra=extra)
        case JobState.READY:
            log.info("job %s (%s) goes back in attempt %d: %s", id, claim.task, attempt, error, extra=extra)
        case _:
            log.info("job %s (%s) ended %s in attempt %d", id, claim.task, outcome.state, attempt, extra=extra)
