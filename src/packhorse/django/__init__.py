"""Packhorse for Django sites: a backend for `TASKS`, and tasks with our options."""

from packhorse.django.arguments import InvalidArgument, ModelReference
from packhorse.django.backend import PackhorseBackend, aenqueue_many, enqueue_many
from packhorse.django.decorators import limits_concurrency, recurring
from packhorse.django.performing import TaskContext
from packhorse.django.results import TaskResult
from packhorse.django.tasks import Call, Task, task
from packhorse.errors import DeserializationError, ProcessExitError, ProcessPrunedError

__all__ = [
    "Call",
    "DeserializationError",
    "InvalidArgument",
    "ModelReference",
    "PackhorseBackend",
    "ProcessExitError",
    "ProcessPrunedError",
    "Task",
    "TaskContext",
    "TaskResult",
    "aenqueue_many",
    "enqueue_many",
    "limits_concurrency",
    "recurring",
    "task",
]
