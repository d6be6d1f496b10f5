"""Background jobs for Python that nobody loses."""

from packhorse.app import Packhorse
from packhorse.errors import (
    Cancel,
    ConfigError,
    DuplicateTask,
    EnqueueError,
    JobCancelled,
    JobFailed,
    JobNotFound,
    NotFinished,
    PackhorseError,
    PayloadError,
    ResultUnavailable,
    Retry,
    Snooze,
    StoreError,
    TaskError,
)
from packhorse.handle import JobHandle
from packhorse.job import Attempt, Failure, FailureKind, Job, JobState
from packhorse.retry import Exponential, Fixed
from packhorse.runtime.embedded import Embedded
from packhorse.task import Call, CoroutineTask, Task

__version__ = "0.1.0.dev0"

__all__ = [
    "Attempt",
    "Call",
    "Cancel",
    "ConfigError",
    "CoroutineTask",
    "DuplicateTask",
    "Embedded",
    "EnqueueError",
    "Exponential",
    "Failure",
    "FailureKind",
    "Fixed",
    "Job",
    "JobCancelled",
    "JobFailed",
    "JobHandle",
    "JobNotFound",
    "JobState",
    "NotFinished",
    "Packhorse",
    "PackhorseError",
    "PayloadError",
    "ResultUnavailable",
    "Retry",
    "Snooze",
    "StoreError",
    "Task",
    "TaskError",
]
