"""What a worker does around a Django task: connections, models, context, signals."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import close_old_connections
from django.utils import timezone
from django.utils.log import RequireDebugTrue

from packhorse.codec import Arguments
from packhorse.context import Context
from packhorse.django import compat
from packhorse.django.arguments import fetched, refers
from packhorse.django.results import Status, TaskResult, new_result, result_of, task_error
from packhorse.errors import DeserializationError, Interrupted
from packhorse.ids import to_text
from packhorse.job import Failure
from packhorse.outcome import decide
from packhorse.task import BaseTask
from packhorse.varying import task_of

if TYPE_CHECKING:
    from packhorse.django.application import Application
    from packhorse.django.tasks import Task

DISCARD_MISSING = "packhorse.discard_missing"  # where metadata tell it of a single job
PLAIN = (str, int, float, bool, type(None))


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskContext(compat.TaskContext):
    """Django's, with ours inside: progress, steps, logging, completing in a transaction."""

    if TYPE_CHECKING:
        task_result: TaskResult

        @property
        def attempt(self) -> int: ...

    packhorse: Context = field(compare=False)


def performed_by(app: Application, task: Task[..., Any]) -> Callable[..., Any]:
    """The function that a worker performs for a task; its first argument is our context."""
    function = task.func
    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def perform(context: Context, /, *args: Any, **kwargs: Any) -> Any:
            await sync_to_async(_close_old)(app)
            try:
                attempt = Attempt(app, task, context, args, kwargs)
                if attempt.refers:
                    await sync_to_async(attempt.fetch)()
                attempt.take_context()
                await attempt.atell(compat.task_started, Status.RUNNING)
                try:
                    value = await function(*attempt.args, **attempt.kwargs)
                    attempt.check(value)
                except BaseException as error:
                    if attempt.fails_with(error):
                        await attempt.atell(compat.task_finished, Status.FAILED)
                    raise
                await attempt.atell(compat.task_finished, Status.SUCCESSFUL, value)
                return value
            finally:
                await sync_to_async(_close_old)(app)
    else:

        @wraps(function)
        def perform(context: Context, /, *args: Any, **kwargs: Any) -> Any:
            _close_old(app)
            try:
                attempt = Attempt(app, task, context, args, kwargs)
                if attempt.refers:
                    attempt.fetch()
                attempt.take_context()
                attempt.tell(compat.task_started, Status.RUNNING)
                try:
                    value = function(*attempt.args, **attempt.kwargs)
                    attempt.check(value)
                except BaseException as error:
                    if attempt.fails_with(error):
                        attempt.tell(compat.task_finished, Status.FAILED)
                    raise
                attempt.tell(compat.task_finished, Status.SUCCESSFUL, value)
                return value
            finally:
                _close_old(app)

    perform.__signature__ = _with_context(function, task.takes_context)  # type: ignore[attr-defined]
    return perform


def _with_context(function: Callable[..., Any], takes_context: bool) -> inspect.Signature:
    signature = inspect.signature(function)
    if takes_context:
        return signature
    first = inspect.Parameter("packhorse_context", inspect.Parameter.POSITIONAL_ONLY)
    return signature.replace(parameters=[first, *signature.parameters.values()])


def _close_old(app: Application) -> None:
    """As requests do before and after; language and time zone are of the job's own context."""
    if not app.borrows:  # from a test, whose transaction would be lost
        close_old_connections()


class Attempt:
    """One attempt at a job of a Django task, as signals and context tell of it."""

    def __init__(
        self, app: Application, task: Task[..., Any], context: Context, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self._app = app
        self._task = task
        self._context = context
        self._given = args, kwargs
        self.args, self.kwargs = args, kwargs
        self.refers = refers(args) or refers(kwargs.values())
        self._result: TaskResult | None = None

    def fetch(self) -> None:
        try:
            self.args, self.kwargs = fetched(self.args), fetched(self.kwargs)
        except DeserializationError as error:
            if self._context.metadata.get(DISCARD_MISSING, self._task.discard_missing) is True:
                raise DeserializationError(str(error), discard=True) from None
            raise

    def take_context(self) -> None:
        if self._task.takes_context:
            self.args = (TaskContext(task_result=self.result, packhorse=self._context), *self.args)

    @property
    def result(self) -> TaskResult:
        """The job as it stands while it runs; those before are asked for only where there were any."""
        if self._result is None:
            claim = self._context._claim
            id = to_text(claim.token.id)
            stored = self._app.store.job(claim.token.id) if claim.attempts or claim.losses else None
            if stored is None:
                result = new_result(self._task, id, Arguments(list(self._given[0]), self._given[1], {}))
            else:
                result = result_of(self._app, self._task, replace(stored, started_at=None))
            now = timezone.now()
            _set(result, status=Status.RUNNING, started_at=result.started_at or now, last_attempted_at=now)
            result.worker_ids.append(to_text(claim.token.process))
            self._result = result
        return self._result

    @property
    def _native(self) -> BaseTask[..., Any]:
        """With the options of this very job."""
        return task_of(self._app, self._context._claim) or self._app.tasks[self._task.module_path]

    def check(self, value: Any) -> None:
        """A value that cannot be stored fails the task, as Django wants it."""
        if type(value) in PLAIN:
            return
        if (native := self._native).stored.results:
            self._app.codec.encode_result(value if native.shapes is None else native.shapes.dump_result(value))

    def fails_with(self, error: BaseException) -> bool:
        """Whether the error is the end of the job; then the result tells of it."""
        if isinstance(error, Interrupted) or not _watched(compat.task_finished, logging.ERROR):
            return False
        try:
            outcome = decide(self._context._claim, error, self._native.policy, 0)
        except Exception:  # the task's own backoff: that it cannot say when means that it fails
            outcome = None
        if outcome is not None and not outcome.state.finished:
            return False
        failure = Failure.decode(outcome.failure) if outcome is not None and outcome.failure is not None else None
        told = compat.TaskError(exception_class_path=_path(error), traceback=str(error))
        self.result.errors.append(told if failure is None else task_error(failure))
        return True

    def tell(self, signal: Any, status: Any, value: Any = None) -> None:
        if self._stands(signal, status, value):
            signal.send_robust(sender=self._app.backend_class, task_result=self.result)

    async def atell(self, signal: Any, status: Any, value: Any = None) -> None:
        if self._stands(signal, status, value):
            await signal.asend_robust(sender=self._app.backend_class, task_result=self.result)

    def _stands(self, signal: Any, status: Any, value: Any) -> bool:
        """Set the result for a signal, if anybody listens."""
        if not _watched(signal, logging.INFO if status != Status.FAILED else logging.ERROR):
            return False
        finished_at = None if status == Status.RUNNING else timezone.now()
        _set(self.result, status=status, finished_at=finished_at, _return_value=value)
        return True


def _watched(signal: Any, level: int) -> bool:
    """Django itself listens to each signal once, to write a line that often nobody would see."""
    return len(signal.receivers) > 1 or (compat.logger.isEnabledFor(level) and _seen(level))


def _seen(level: int) -> bool:
    """Whether a handler takes such a line. Where DEBUG is off, Django's own take none of a task that goes well."""
    if level > logging.INFO or vars(logging) is not logging.Logger.callHandlers.__globals__:
        return True  # failures are rare; and whoever has put something of theirs before the handlers sees all lines
    logger: logging.Logger | None = compat.logger
    while logger is not None:
        for handler in logger.handlers:
            if handler.level <= level and (settings.DEBUG or not _only_in_debug(handler)):
                return True
        logger = logger.parent if logger.propagate else None
    return False


def _only_in_debug(handler: logging.Handler) -> bool:
    return any(type(it) is RequireDebugTrue for it in handler.filters)


def _path(error: BaseException) -> str:
    return f"{type(error).__module__}.{type(error).__qualname__}"


def _set(result: TaskResult, **values: Any) -> None:
    for name, value in values.items():
        object.__setattr__(result, name, value)
