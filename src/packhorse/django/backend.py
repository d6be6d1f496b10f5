"""`PackhorseBackend`, for the `TASKS` setting."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from django.core import checks
from django.db import transaction

from packhorse.control import known_id
from packhorse.django import compat, tasks
from packhorse.django.application import Application, application
from packhorse.django.results import TaskResult, enqueued_at, new_result, result_of
from packhorse.errors import JobNotFound
from packhorse.ids import to_text
from packhorse.job import NewJob, StoredJob


class PackhorseBackend(compat.BaseTaskBackend):
    """An instance costs nothing and there may be many, as Django makes one for each thread and asyncio task.

    All of one alias share an application, which is made at its first use.
    """

    task_class = tasks.Task
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self.params = params

    @property
    def application(self) -> Application:
        return application(self)

    # Enqueueing. The async names are Django's own: they do it in the thread that has Django's connection.

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> TaskResult:
        self.validate_task(task)
        call = self.call(task, tuple(args), dict(kwargs))
        [result] = self.enqueue_calls([call])
        return result

    def call(self, task: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tasks.Call[Any]:
        return self.application.call(task, args, kwargs)

    def enqueue_calls(self, calls: list[tasks.Call[Any]]) -> list[TaskResult]:
        """All or none, now or after the commit that their tasks wait for."""
        app = self.application
        made: dict[str | None, list[Pending]] = {}
        results = []
        for call in calls:
            job = call.new_job()
            arguments = app.codec.decode_arguments(call.encoded.body, typed=call.encoded.typed)
            result = new_result(call.django_task, to_text(job.id), arguments)
            results.append(result)
            made.setdefault(app.waits_for(_on_commit(call.django_task)), []).append((call, job, result))
        for database, pending in made.items():
            if database is None:
                self._insert(pending)
            else:
                for _, _, result in pending:
                    object.__setattr__(result, "enqueued_at", None)
                transaction.on_commit(partial(self._insert, pending), using=database)
        return results

    def _insert(self, pending: list[Pending]) -> None:
        calls: list[Any] = [call for call, _, _ in pending]
        jobs = [job for _, job, _ in pending]
        ids = self.application.write(calls, lambda: jobs)
        for (_, _, result), id in zip(pending, map(to_text, ids), strict=True):
            object.__setattr__(result, "id", id)  # another's, where a unique key says so
            object.__setattr__(result, "enqueued_at", enqueued_at(id))
            compat.task_enqueued.send(sender=type(self), task_result=result)

    # Looking.

    def get_result(self, result_id: str) -> TaskResult:
        app = self.application
        try:
            stored = app.looking.job(known_id(result_id))
        except JobNotFound:
            stored = None
        if stored is None or (task := self._task(stored)) is None:
            raise compat.TaskResultDoesNotExist(result_id)
        return result_of(app, task, stored)

    def _task(self, job: StoredJob) -> tasks.Task[..., Any] | None:
        """As the job stands. None where no task of that name is declared, by the modules that are to declare them."""
        if job.task not in tasks.declared:
            from packhorse.django.discovery import discover

            discover()
        if (task := tasks.declared.get(job.task)) is None:
            return None
        stands: dict[str, Any] = {
            "backend": self.alias,
            "queue_name": job.queue,
            "priority": self.application.stored_priority(job.priority),
            "run_after": job.run_at if not job.attempts else None,
        }
        if all(getattr(task, name) == value for name, value in stands.items()):
            return task
        try:
            return replace(task, **stands)
        except compat.InvalidTask:  # an operator may have moved it to any queue
            return replace(task, **stands | {"queue_name": task.queue_name})

    def check(self, **kwargs: Any) -> Iterable[checks.CheckMessage]:
        from packhorse.django.checks import check_backend

        return check_backend(self)


Pending = tuple[tasks.Call[Any], NewJob, TaskResult]


def _on_commit(task: tasks.Task[..., Any]) -> bool | None:
    return None if task.enqueue_on_commit is tasks.NOT_GIVEN else task.enqueue_on_commit


def enqueue_many(calls: Iterable[tasks.Call[Any]]) -> list[TaskResult]:
    """Enqueue calls made with `task.later(...)`; those of one backend are written together, all or none."""
    given = list(calls)
    by_alias: dict[str, list[int]] = {}
    for place, call in enumerate(given):
        by_alias.setdefault(call.django_task.backend, []).append(place)
    results: dict[int, TaskResult] = {}
    for places in by_alias.values():
        backend = given[places[0]].django_task.get_backend()
        for place, result in zip(places, backend.enqueue_calls([given[it] for it in places]), strict=True):
            results[place] = result
    return [results[place] for place in range(len(given))]


async def aenqueue_many(calls: Iterable[tasks.Call[Any]]) -> list[TaskResult]:
    from asgiref.sync import sync_to_async

    return await sync_to_async(enqueue_many, thread_sensitive=True)(calls)
