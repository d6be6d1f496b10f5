"""What the tests of the site share."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.test import TransactionTestCase

from packhorse import Act, Change, Embedded, Selection
from packhorse.django import TaskResult, compat
from packhorse.django.application import Application
from packhorse.ids import from_text
from tests.django import settings
from tests.waiting import PATIENCE, wait_until

Status = compat.TaskResultStatus
DUMMY = f"{type(compat.task_backends).__module__}.backends.dummy.DummyBackend"


def application(alias: str = "default") -> Application:
    app = compat.task_backends[alias].application
    assert isinstance(app, Application)
    return app


@contextmanager
def working(alias: str = "default") -> Iterator[None]:
    """Jobs are performed meanwhile; afterwards there are none. The test itself goes on as the site does."""
    app = application(alias)
    app.register_declared()
    try:
        with Embedded(app):
            wait_until(lambda: app._works_here, "the worker")
            app._works_here = False
            yield
    finally:
        app._works_here = False
        app.control.act(Selection(), Change(Act.DISCARD))
        app.close()


class CommittingTestCase(TransactionTestCase):
    databases = {"default", "other"}
    available_apps = settings.INSTALLED_APPS  # spares making every permission anew after each test

    def tearDown(self):
        self.close_stores()

    def close_stores(self):
        for alias in ("default", "elsewhere"):
            application(alias).close()


class WorkingTestCase(CommittingTestCase):
    """A worker performs what its tests commit."""

    def close_stores(self):
        """The worker needs them."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.enterClassContext(working())


def ended(result: TaskResult, patience: float = PATIENCE) -> TaskResult:
    """The result of a job that workers perform meanwhile."""
    app = result.task.get_backend().application
    assert app.store.wait_jobs([from_text(result.id)], patience), f"{result.task.module_path} does not end"
    result.refresh()
    return result


def performed(task: Any, *args: Any, **kwargs: Any) -> TaskResult:
    return ended(task.enqueue(*args, **kwargs))
