"""Django's tasks framework: `django.tasks` from Django 6.0 on, its backport `django_tasks` before."""

from __future__ import annotations

from django.core.exceptions import ImproperlyConfigured

try:
    from django.tasks import task_backends
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
    from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist, TaskResultMismatch
    from django.tasks.signals import logger, task_enqueued, task_finished, task_started
except ImportError as missing:
    if missing.name != "django.tasks":
        raise
    try:
        from django_tasks import exceptions, task_backends
        from django_tasks.backends.base import BaseTaskBackend
        from django_tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
        from django_tasks.exceptions import TaskResultDoesNotExist, TaskResultMismatch
        from django_tasks.signals import logger, task_enqueued, task_finished, task_started
    except ModuleNotFoundError as absent:
        if absent.name != "django_tasks":
            raise
        raise ImproperlyConfigured(
            "Django has tasks from 6.0 on; before, the package django-tasks brings them. "
            "Run: pip install 'packhorse[django]' django-tasks"
        ) from None
    # Its main branch has taken over Django's name for this one; no release has yet.
    InvalidTask = getattr(exceptions, "InvalidTask", None) or exceptions.InvalidTaskError

__all__ = [
    "BaseTaskBackend",
    "InvalidTask",
    "Task",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultMismatch",
    "TaskResultStatus",
    "logger",
    "task_backends",
    "task_enqueued",
    "task_finished",
    "task_started",
]
