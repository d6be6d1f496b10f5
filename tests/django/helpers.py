"""What the tests of the site share."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.test import TransactionTestCase

from packhorse import Act, Change, Embedded, Selection
from packhorse.django import TaskResult, compat
from packhorse.django.application import Application
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


class WorkingTestCase(TransactionTestCase):
    """A worker performs what its tests commit."""

    databases = {"default", "other"}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.enterClassContext(working())


def ended(result: TaskResult, patience: float = PATIENCE) -> TaskResult:
    """The result of a job that workers perform meanwhile."""

    def finished() -> bool:
        result.refresh()
        return bool(result.is_finished)

    wait_until(finished, f"the end of {result.task.module_path}", patience)
    return result


def performed(task: Any, *args: Any, **kwargs: Any) -> TaskResult:
    return ended(task.enqueue(*args, **kwargs))
