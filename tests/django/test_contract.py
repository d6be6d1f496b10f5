"""The contract of `django.tasks`, as Django 6.0 and 6.1 and the backport have it."""

import asyncio
import logging
import pickle
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import patch

import pytest
from asgiref.sync import async_to_sync
from django.db import connection
from django.test import TestCase, override_settings
from django.utils import timezone
from django.utils.log import RequireDebugTrue

from packhorse import JobState
from packhorse.django import PackhorseBackend, Task, compat
from tests.django.helpers import DUMMY, CommittingTestCase, Status, WorkingTestCase, application, ended, performed
from tests.django.shop import tasks


class Enqueueing(TestCase):
    def test_1B_2_a_task_backend_of_the_tasks_setting(self):
        backend = compat.task_backends["default"]
        assert isinstance(backend, PackhorseBackend)
        assert backend.queues == {"default", "mail"}
        result = tasks.double.enqueue(21)
        assert (result.status, result.args, result.kwargs, result.backend) == (Status.READY, [21], {}, "default")
        assert (result.started_at, result.finished_at, result.last_attempted_at) == (None, None, None)
        assert (result.errors, result.worker_ids, result.attempts) == ([], [], 0)
        assert timezone.now() - result.enqueued_at < timedelta(seconds=20)
        assert len(result.id) < 64

    def test_stock_and_own_decorators_make_the_same_kind_of_task(self):
        for task in (tasks.double, tasks.keep):
            assert type(task) is Task
            assert isinstance(task, compat.Task)

    def test_all_abilities_are_there(self):
        names = ("supports_defer", "supports_async_task", "supports_get_result", "supports_priority")
        assert all(getattr(PackhorseBackend, name) for name in names)

    def test_a_result_is_found_by_its_id_and_equal(self):
        result = tasks.double.enqueue(21)
        found = tasks.double.get_result(result.id)
        assert found == result
        assert found is not result

    def test_unknown_ids(self):
        for id in ("nonsense", "01a1ec42-0c01-7748-8bf7-513bd771a350"):
            with pytest.raises(compat.TaskResultDoesNotExist):
                tasks.double.get_result(id)

    def test_a_result_of_another_task(self):
        with pytest.raises(compat.TaskResultMismatch):
            tasks.keep.get_result(tasks.double.enqueue(1).id)

    def test_results_and_tasks_are_pickled(self):
        result = tasks.double.using(priority=5).enqueue(21)
        copy = pickle.loads(pickle.dumps(result))
        assert copy == result
        assert copy.task.priority == 5
        assert pickle.loads(pickle.dumps(tasks.book)) is not None  # its limit holds no function here, others may

    def test_no_result_before_the_end(self):
        with pytest.raises(ValueError, match="not finished"):
            _ = tasks.double.enqueue(1).return_value

    def test_1C_30_priority(self):
        result = tasks.double.using(priority=-100).enqueue(1)
        assert result.job.look().priority == -100
        assert tasks.double.using(priority=3.0).enqueue(1).job.look().priority == 3
        for wrong in (101, 1.5):
            with pytest.raises(compat.InvalidTask):
                tasks.double.using(priority=wrong)

    def test_1B_9_run_after_a_moment_or_a_length(self):
        at = datetime(2099, 1, 1, tzinfo=UTC)
        result = tasks.double.using(run_after=at).enqueue(1)
        assert result.status == Status.READY
        assert (result.job.look().state, result.job.look().run_at) == (JobState.SCHEDULED, at)
        soon = tasks.double.using(run_after=timedelta(hours=1)).enqueue(1)
        left = soon.job.look().run_at - timezone.now()
        assert timedelta(minutes=59) < left <= timedelta(hours=1)
        with pytest.raises(compat.InvalidTask):
            tasks.double.using(run_after=datetime(2099, 1, 1))

    def test_naive_moments_where_the_site_has_no_zones(self):
        with override_settings(USE_TZ=False):
            result = tasks.double.using(run_after=datetime(2099, 1, 1)).enqueue(1)
        assert result.job.look().run_at == datetime(2099, 1, 1, tzinfo=UTC)

    def test_queues(self):
        assert tasks.double.using(queue_name="mail").enqueue(1).job.look().queue == "mail"
        with pytest.raises(compat.InvalidTask):
            tasks.double.using(queue_name="elsewhere")
        assert (
            tasks.double.using(backend="any_queue", queue_name="elsewhere").enqueue(1).job.look().queue == "elsewhere"
        )

    def test_arguments_that_do_not_fit_are_met_by_the_caller(self):
        with pytest.raises(TypeError, match="cannot be called like this"):
            tasks.double.enqueue(1, 2)

    def test_1B_12_the_backend_is_chosen_per_task_and_call(self):
        assert tasks.at_once.backend == "elsewhere"
        result = tasks.double.using(backend="any_queue").enqueue(1)
        assert result.backend == "any_queue"
        assert tasks.double.get_result(result.id).id == result.id  # in one database, whichever alias asks

    def test_a_task_of_another_backend_is_used_with_ours(self):
        with override_settings(TASKS={**_TASKS(), "dummy": {"BACKEND": DUMMY}}):
            stock = compat.Task(
                func=tasks.double.func, priority=0, backend="dummy", queue_name="default", run_after=None
            )
            assert type(stock) is not Task
            result = stock.using(backend="default").enqueue(4)
            assert tasks.double.get_result(result.id).args == [4]

    def test_enqueued_is_told_with_the_class_as_sender(self):
        told: list[Any] = []

        def listen(sender: Any, task_result: Any, **kwargs: Any) -> None:
            told.append((sender, task_result.id, task_result.status))

        compat.task_enqueued.connect(listen)
        try:
            result = tasks.double.enqueue(1)
        finally:
            compat.task_enqueued.disconnect(listen)
        assert told == [(PackhorseBackend, result.id, Status.READY)]

    def test_1C_4_states_fold_into_four(self):
        scheduled = tasks.double.using(run_after=timedelta(hours=1)).enqueue(1)
        assert (scheduled.job.state, tasks.double.get_result(scheduled.id).status) == ("scheduled", "READY")
        waiting = tasks.book.enqueue("shop")
        assert (waiting.job.state, tasks.book.get_result(waiting.id).status) == ("waiting", "READY")


class NotPerformed(CommittingTestCase):
    def test_cancelled_shows_as_failed_and_says_why(self):
        result = tasks.double.enqueue(1)
        assert result.job.cancel("not wanted")
        result.refresh()
        assert (result.status, result.attempts) == (Status.FAILED, 0)
        [error] = result.errors
        assert (error.exception_class.__name__, error.traceback) == ("JobCancelled", "not wanted")
        application().close()

    def test_claimed_but_not_begun_shows_ready(self):
        result = tasks.double.enqueue(1)
        app = application()
        stored = app.looking.job(result.job._raw_id)
        assert stored is not None
        claimed = replace(
            stored, state=JobState.RUNNING, started_at=None, process="00000000-0000-7000-8000-000000000000"
        )
        with patch.object(type(app), "looking") as looking:
            looking.job.return_value = claimed
            assert tasks.double.get_result(result.id).status == Status.READY
            looking.job.return_value = replace(claimed, started_at=timezone.now())
            running = tasks.double.get_result(result.id)
        assert (running.status, running.attempts) == (Status.RUNNING, 1)


class Performing(WorkingTestCase):
    def test_1B_7_enqueued_and_performed(self):
        result = ended(tasks.double.enqueue(21))
        assert result.worker_ids == [result.job.look().process]
        assert (result.status, result.return_value, result.errors, result.attempts) == (Status.SUCCESSFUL, 42, [], 1)
        began, finished_at = result.started_at, result.finished_at
        assert result.enqueued_at is not None
        assert began is not None
        assert finished_at is not None
        assert result.enqueued_at <= finished_at + timedelta(milliseconds=1)
        assert began == result.last_attempted_at
        assert began <= finished_at

    def test_a_coroutine(self):
        assert performed(tasks.adouble, 21).return_value == 42

    def test_one_error_for_each_failed_attempt(self):
        result = performed(tasks.never, "in vain")
        assert (result.status, result.attempts) == (Status.FAILED, 2)
        assert [error.exception_class for error in result.errors] == [ValueError, ValueError]
        assert all("in vain" in error.traceback for error in result.errors)
        assert "performing.py" not in result.errors[0].traceback
        with pytest.raises(ValueError, match="Task failed"):
            _ = result.return_value

    def test_context_knows_the_attempts_before(self):
        result = performed(tasks.third_time_lucky)
        assert result.return_value == [3, 2, 3]
        assert (result.attempts, len(result.errors), len(result.worker_ids)) == (3, 2, 3)
        assert result.started_at is not None
        assert result.last_attempted_at is not None
        assert result.started_at < result.last_attempted_at

    def test_the_context_of_a_stock_task(self):
        result = performed(tasks.which_attempt, 1)
        assert result.return_value == [1, result.id, 0]

    def test_a_return_value_that_cannot_be_stored_fails_the_task(self):
        result = performed(tasks.unstorable)
        assert result.status == Status.FAILED
        assert "object cannot travel" in result.errors[0].traceback

    def test_started_and_finished_are_told_in_the_worker(self):
        told: list[Any] = []

        def listen(sender: Any, task_result: Any, signal: Any, **kwargs: Any) -> None:
            if task_result.task == tasks.recur:
                return  # its schedule goes on meanwhile
            name = "started" if signal is compat.task_started else "finished"
            told.append((sender, name, task_result.status, task_result.attempts, len(task_result.errors)))

        for signal in (compat.task_started, compat.task_finished):
            signal.connect(listen)
        try:
            performed(tasks.double, 1)
            assert told == [
                (PackhorseBackend, "started", Status.RUNNING, 1, 0),
                (PackhorseBackend, "finished", Status.SUCCESSFUL, 1, 0),
            ]
            told.clear()
            performed(tasks.never)
            assert told == [
                (PackhorseBackend, "started", Status.RUNNING, 1, 0),
                (PackhorseBackend, "started", Status.RUNNING, 2, 1),
                (PackhorseBackend, "finished", Status.FAILED, 2, 2),
            ]
            told.clear()
            performed(tasks.adouble, 1)
            assert [name for _, name, *_ in told] == ["started", "finished"]
        finally:
            for signal in (compat.task_started, compat.task_finished):
                signal.disconnect(listen)

    def test_django_writes_its_lines_where_somebody_sees_them(self):
        path = tasks.double.module_path
        with self.assertLogs(compat.logger, "INFO") as seen:
            id = performed(tasks.double, 1).id
        states = [f"INFO:{compat.logger.name}:Task id={id} path={path} state={it}" for it in ("RUNNING", "SUCCESSFUL")]
        assert [line for line in seen.output if id in line and "READY" not in line] == states
        with self.assertLogs(compat.logger, "ERROR") as seen:
            performed(tasks.never)
        assert len(seen.output) == 1

    def test_no_line_is_made_that_no_handler_takes(self):
        """As Django has it where DEBUG is off: its logger is at INFO, and of the handlers one waits for DEBUG."""
        made: list[str] = []
        logger, handler = compat.logger, logging.NullHandler()
        handler.addFilter(RequireDebugTrue())
        logger.setLevel(logging.INFO)

        def take(record: logging.LogRecord) -> bool:
            made.append(record.getMessage())
            return True

        def took(id: str) -> int:
            return sum(f"id={id}" in line and "READY" not in line for line in made)

        with (
            patch.object(logger, "handlers", [handler]),
            patch.object(logger, "propagate", False),
            patch.object(logger, "filters", [take]),
        ):
            assert took(performed(tasks.double, 1).id) == 0
            with self.settings(DEBUG=True):
                assert took(performed(tasks.double, 1).id) == 2
        logger.setLevel(logging.NOTSET)

    def test_a_receiver_that_fails_does_not_fail_the_job(self):
        def broken(**kwargs: Any) -> None:
            raise RuntimeError("of the receiver")

        compat.task_started.connect(broken)
        try:
            assert performed(tasks.double, 4).return_value == 8
        finally:
            compat.task_started.disconnect(broken)

    def test_results_from_any_thread(self):
        result = performed(tasks.double, 3)
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(_looked_at_in_a_thread(result.id)))
        thread.start()
        thread.join()
        assert found == [6]

    def test_our_job_is_behind_the_result(self):
        result = tasks.third_time_lucky.enqueue()
        assert result.job.result(20) == [3, 2, 3]
        progress = result.job.progress()
        assert progress is not None
        assert progress.note == "done"


class Instances(TestCase):
    def test_one_application_for_all_instances_of_an_alias(self):
        first = application()
        found: list[Any] = []

        def look() -> None:
            backend = compat.task_backends["default"]
            found.append((backend, backend.application))

        threads = [threading.Thread(target=look) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({id(backend) for backend, _ in found}) == 3
        assert {id(app) for _, app in found} == {id(first)}

    def test_asyncio_tasks_share_it_too(self):
        async def look() -> Any:
            return application()

        async def all_at_once() -> list[Any]:
            return list(await asyncio.gather(*(asyncio.create_task(look()) for _ in range(3))))

        assert {id(app) for app in async_to_sync(all_at_once)()} == {id(application())}

    def test_other_settings_are_another_application(self):
        first = application()
        with override_settings(TASKS=_TASKS(timeout=60)):
            assert application() is not first
            assert application().settings.timeout == 60
        assert application().settings.timeout is None

    def test_a_constructor_touches_nothing(self):
        with patch("packhorse.django.options.read", side_effect=AssertionError):
            backend = PackhorseBackend("default", {"BACKEND": "x", "OPTIONS": {"nonsense": 1}})
        assert backend.alias == "default"


def _TASKS(**more: Any) -> dict[str, Any]:
    from tests.django import settings

    default = settings.TASKS["default"]
    return {**settings.TASKS, "default": {**default, "OPTIONS": {**settings.QUICK, **more}}}


def _looked_at_in_a_thread(id: str) -> Any:
    try:
        return tasks.double.get_result(id).return_value
    finally:
        connection.close()
