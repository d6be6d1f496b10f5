"""Background jobs for Python that nobody loses."""

from typing import TYPE_CHECKING

from packhorse.app import Packhorse
from packhorse.context import Context, NoJob, Progress, current_context
from packhorse.errors import (
    Cancel,
    ClaimLost,
    ConfigError,
    DuplicateStep,
    DuplicateTask,
    EnqueueError,
    JobCancelled,
    JobFailed,
    JobNotFound,
    NotFinished,
    PackhorseError,
    PayloadError,
    PutBack,
    ResultUnavailable,
    Retry,
    SignalTimeout,
    Snooze,
    StoreError,
    TaskError,
)
from packhorse.events import Event, EventKind
from packhorse.flow import Batch, Flow, FlowHandle, chain, chord, group
from packhorse.handle import JobHandle
from packhorse.job import Attempt, Failure, FailureKind, Job, JobState
from packhorse.limits import debounce, limit, rate, throttle, unique
from packhorse.masking import Secret
from packhorse.middleware import Draft, Middleware
from packhorse.reporters import ErrorReport
from packhorse.retry import Exponential, Fixed
from packhorse.stores.contract import Act, Change, Selection
from packhorse.task import Call, CoroutineTask, Task
from packhorse.waiting import (
    JobsNotFinished,
    aas_completed,
    agather,
    as_completed,
    await_jobs,
    gather,
    wait_jobs,
)

if TYPE_CHECKING:
    from packhorse.runtime.embedded import Embedded
else:

    def __getattr__(name: str) -> object:
        """Whoever only enqueues needs no worker, so that one is imported when it is named."""
        if name != "Embedded":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from packhorse.runtime.embedded import Embedded

        globals()[name] = Embedded
        return Embedded


__version__ = "0.1.0.dev0"

__all__ = [
    "Act",
    "Attempt",
    "Batch",
    "Call",
    "Cancel",
    "Change",
    "ClaimLost",
    "ConfigError",
    "Context",
    "CoroutineTask",
    "Draft",
    "DuplicateStep",
    "DuplicateTask",
    "Embedded",
    "EnqueueError",
    "ErrorReport",
    "Event",
    "EventKind",
    "Exponential",
    "Failure",
    "FailureKind",
    "Fixed",
    "Flow",
    "FlowHandle",
    "Job",
    "JobCancelled",
    "JobFailed",
    "JobHandle",
    "JobNotFound",
    "JobState",
    "JobsNotFinished",
    "Middleware",
    "NoJob",
    "NotFinished",
    "Packhorse",
    "PackhorseError",
    "PayloadError",
    "Progress",
    "PutBack",
    "ResultUnavailable",
    "Retry",
    "Secret",
    "Selection",
    "SignalTimeout",
    "Snooze",
    "StoreError",
    "Task",
    "TaskError",
    "aas_completed",
    "agather",
    "as_completed",
    "await_jobs",
    "chain",
    "chord",
    "current_context",
    "debounce",
    "gather",
    "group",
    "limit",
    "rate",
    "throttle",
    "unique",
    "wait_jobs",
]
