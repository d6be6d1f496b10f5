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
    Interrupted,
    JobCancelled,
    JobFailed,
    JobNotFound,
    NotFinished,
    PackhorseError,
    PayloadError,
    PutBack,
    ResultUnavailable,
    Retry,
    ScheduleNotFound,
    SignalTimeout,
    Snooze,
    StoreError,
    TaskError,
    TimedOut,
)
from packhorse.events import Event, EventKind
from packhorse.flow import Batch, Flow, FlowHandle, Mapped, chain, chord, group
from packhorse.handle import JobHandle
from packhorse.hooks import Occasion
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
    from packhorse.crontab import cron
    from packhorse.moments import (
        bimonthly,
        biweekly,
        daily,
        every,
        hourly,
        minutes,
        monthly,
        once,
        quarterly,
        weekly,
        yearly,
    )
    from packhorse.runtime.embedded import Embedded
    from packhorse.schedule import make_schedule
    from packhorse.scheduling import ScheduleView
else:
    _RULES = (
        *("bimonthly", "biweekly", "cron", "daily", "every", "hourly", "minutes", "monthly", "once", "quarterly"),
        *("weekly", "yearly"),
    )

    def __getattr__(name: str) -> object:
        """Whoever only enqueues needs neither a worker nor a calendar, so these are imported when they are named."""
        if name == "Embedded":
            from packhorse.runtime.embedded import Embedded as found
        elif name == "ScheduleView":
            from packhorse.scheduling import ScheduleView as found
        elif name == "make_schedule":
            from packhorse.schedule import make_schedule as found
        elif name in _RULES:
            from packhorse import moments

            found = getattr(moments, name)
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = found
        return found


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
    "Interrupted",
    "Job",
    "JobCancelled",
    "JobFailed",
    "JobHandle",
    "JobNotFound",
    "JobState",
    "JobsNotFinished",
    "Mapped",
    "Middleware",
    "NoJob",
    "NotFinished",
    "Occasion",
    "Packhorse",
    "PackhorseError",
    "PayloadError",
    "Progress",
    "PutBack",
    "ResultUnavailable",
    "Retry",
    "ScheduleNotFound",
    "ScheduleView",
    "Secret",
    "Selection",
    "SignalTimeout",
    "Snooze",
    "StoreError",
    "Task",
    "TaskError",
    "TimedOut",
    "aas_completed",
    "agather",
    "as_completed",
    "await_jobs",
    "bimonthly",
    "biweekly",
    "chain",
    "chord",
    "cron",
    "current_context",
    "daily",
    "debounce",
    "every",
    "gather",
    "group",
    "hourly",
    "limit",
    "make_schedule",
    "minutes",
    "monthly",
    "once",
    "quarterly",
    "rate",
    "throttle",
    "unique",
    "wait_jobs",
    "weekly",
    "yearly",
]
