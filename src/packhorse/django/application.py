"""The Packhorse application behind an alias of `TASKS`: its store, its tasks, and whose connection it uses."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import TYPE_CHECKING, Any

from django.db import connections
from django.utils import timezone

from packhorse.app import Packhorse
from packhorse.clock import Clock
from packhorse.django import compat, options, tasks
from packhorse.django.arguments import InvalidArgument, teach
from packhorse.django.decorators import recurrent
from packhorse.django.performing import DISCARD_MISSING, performed_by
from packhorse.django.places import guest_of, open_alias, place_of
from packhorse.errors import ConfigError, PayloadError
from packhorse.hooks import Occasion
from packhorse.lending import lent_to
from packhorse.stores import Store
from packhorse.stores.contract import Lent
from packhorse.task import BaseTask, Using, make_task

if TYPE_CHECKING:
    from packhorse.django.backend import PackhorseBackend

NAME = "django"  # the same for all aliases: several may share a database, and each must trust the others' jobs
NOT_YET: Any = object()
USING = [name for name in Using.__annotations__ if name != "run_after"]

_made: dict[str, Application] = {}
_making = RLock()


def application(backend: PackhorseBackend) -> Application:
    """One for each alias, as long as its settings are the same."""
    app = _made.get(backend.alias)
    if app is not None and app.params is backend.params:
        return app
    with _making:
        app = _made.get(backend.alias)
        if app is None or app.params != backend.params:
            before, app = app, Application(backend)
            _made[backend.alias] = app
            if before is not None:
                before.close()
        app.params = backend.params
        return app


def application_at(database: str) -> Application:
    """One whose jobs are in that database."""
    for alias in compat.task_backends.settings:
        backend = compat.task_backends[alias]
        if hasattr(backend, "application") and backend.application.backend_options.database == database:
            return backend.application
    raise ConfigError(f"No entry of TASKS keeps jobs in the database {database!r}.")


class Application(Packhorse):
    def __init__(self, backend: PackhorseBackend) -> None:
        self.alias = backend.alias
        self.path = f"packhorse.django.discovery:{backend.alias}"
        self.params = backend.params
        self.backend_class = type(backend)
        self.backend_options = found = options.read(backend.options)
        self._place: tuple[Any, ...] | None = None
        self._opened: Any = NOT_YET
        self._guest: Store | None = None
        self.borrows = False  # the connections of whoever performs jobs
        self._works_here = False
        super().__init__(NAME, NOT_YET if found.store is None else found.store, **found.settings)
        teach(self.codec)
        self.hook("start", role="worker")(self._begin_working)

    # Where the jobs are.

    @property
    def store(self) -> Store:
        """Opened at its first use: test runners give an alias another database after tasks were imported."""
        if self._guest is not None:
            return self._guest
        alias = self.backend_options.database
        if alias is None:
            return self._opened
        place = place_of(alias)
        if place != self._place:
            with _making:
                if place != self._place:
                    before, self._opened, self._place = self._opened, open_alias(alias), place
                    if before is not NOT_YET:
                        before.close()
        return self._opened

    @store.setter
    def store(self, store: Store) -> None:
        self._opened = store

    @contextmanager
    def through_django(self, clock: Clock) -> Iterator[None]:
        """Meanwhile all goes through Django's connection of this thread, in its transaction, and by this clock."""
        alias, clock_before = self.backend_options.database, self.clock
        if alias is not None:
            self._guest = guest_of(alias, clock)
        self.clock, self.borrows = clock, True
        try:
            yield
        finally:
            self._guest, self.clock, self.borrows = None, clock_before, False

    def close(self) -> None:
        if self._opened is not NOT_YET:
            super().close()

    def _begin_working(self, occasion: Occasion) -> None:
        self._works_here = True

    @property
    def lent(self) -> Lent | None:
        return lent_to(self) or self._by_django()

    @property
    def looking(self) -> Store | Lent:
        return self._by_django() or self.store

    def _by_django(self) -> Lent | None:
        """Django's own connection: a site opens none of ours, and sees what its transaction has written.

        A worker has connections of ours, which are faster, and uses Django's only where a task is in a transaction. On
        an event loop Django forbids its own.
        """
        alias = self.backend_options.database
        if alias is None or on_loop():
            return None
        connection = connections[alias]
        if self._works_here and not _in_transaction(connection):
            return None
        return self.store.lent(connection)

    def waits_for(self, on_commit: bool | None) -> str | None:
        """The database whose commit is to be waited for before a job is enqueued; None: none."""
        found = self.backend_options
        if on_commit is None:
            on_commit = found.enqueue_on_commit
        asked = on_commit is True
        if on_commit is None:
            on_commit = found.commit_database != found.database
        if not on_commit or on_loop():
            return None
        for alias in (found.commit_database, found.database if asked else None):
            if alias is not None and connections[alias].in_atomic_block:
                return alias
        return None

    # Tasks.

    def native(self, task: Any) -> BaseTask[..., Any]:
        """What a Django task is to a worker; made at the first use."""
        known = self.tasks.get(task.module_path)
        if known is not None:
            return known
        with _making:
            first = tasks.as_ours(task).declared
            if first.module_path not in self.tasks:
                self._register(self._made_of(first))
            return self.tasks[first.module_path]

    def _made_of(self, task: tasks.Task[..., Any]) -> BaseTask[..., Any]:
        given: Any = task.given([name for name in tasks.OPTIONS if name not in tasks.OF_THE_DJANGO_SIDE])
        self._set_callbacks(given)
        given |= {"name": task.module_path, "queue_name": task.queue_name, "priority": int(task.priority)}
        native = make_task(self, performed_by(self, task), given, takes_context=True)
        native.frames_around = 1
        return native

    def _set_callbacks(self, given: dict[str, Any]) -> None:
        for name in tasks.CALLBACKS:
            if isinstance(given.get(name), compat.Task):
                given[name] = self.native(given[name])

    def call(self, task: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tasks.Call[Any]:
        ours = tasks.as_ours(task)
        try:
            call = self._varied(ours).call(*args, **kwargs)
        except PayloadError as error:
            raise InvalidArgument(str(error)) from None
        return tasks.Call(call.task, call.encoded, call.terms, call.references, django_task=ours)

    def _varied(self, task: tasks.Task[..., Any]) -> BaseTask[..., Any]:
        """With what `using` has changed."""
        native = self.native(task)
        if task is task.declared:
            return native
        changes: Any = task.changed(USING)
        self._set_callbacks(changes)
        if "priority" in changes:
            changes["priority"] = int(changes["priority"])
        if task.run_after is not None:
            aware = timezone.is_aware(task.run_after)
            changes["run_after"] = task.run_after if aware else timezone.make_aware(task.run_after)
        if "discard_missing" in task.changed(["discard_missing"]):
            metadata = changes.get("metadata", native.options.metadata)
            changes["metadata"] = {**metadata, DISCARD_MISSING: task.discard_missing}
        return native.using(**changes)

    def register_declared(self) -> None:
        """Before a worker or a scheduler begins: all tasks there are, and the schedules that belong here.

        Several entries of TASKS may share a place. What is saved from one of them must be what is saved from each.
        """
        for task in list(tasks.declared.values()):
            self.native(task)
        known = {it.key for it in self.schedules.declared}
        for key, it in recurrent.items():
            backend = it.task.get_backend()
            if key in known or not hasattr(backend, "application"):
                continue
            other = backend.application.backend_options
            if (other.database, other.store) == (self.backend_options.database, self.backend_options.store):
                put = self.schedules.declare(it.rule, key, it.args, it.kwargs, it.queue_name, it.priority, it.bounds)
                put(self.native(it.task))


def on_loop() -> bool:
    """Where Django forbids its connections."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _in_transaction(connection: Any) -> bool:
    return connection.in_atomic_block or (connection.connection is not None and not connection.autocommit)
