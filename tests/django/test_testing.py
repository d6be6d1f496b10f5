"""`packhorse.django.testing`: jobs performed inside a test, whose transaction is never committed."""

import os
import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import SynchronousOnlyOperation
from django.db import IntegrityError, transaction
from django.test import TestCase
from django.utils import timezone

from packhorse import Act, Change, FailureKind, Selection, chain, group, limit
from packhorse.django import DeserializationError, compat
from packhorse.django.testing import TooManyJobs, adrain, drain
from tests.django.helpers import CommittingTestCase, Status, application
from tests.django.shop import tasks
from tests.django.shop.models import Order, Parcel


class Draining(TestCase):
    databases = {"default", "other"}

    def setUp(self):
        for alias in ("default", "elsewhere"):
            drain(alias)  # what tests before have committed

    def tearDown(self):
        for alias in ("default", "elsewhere"):
            application(alias).close()

    def test_plain_functions_and_coroutines_see_the_rows_of_the_test(self):
        orders = [Order.objects.create(number=number) for number in (1, 2)]
        results = [tasks.pay.enqueue(orders[0]), tasks.apay.enqueue(orders[1])]
        found = drain()
        assert [(it.id, it.status, it.return_value) for it in found] == [
            (results[0].id, Status.SUCCESSFUL, 1),
            (results[1].id, Status.SUCCESSFUL, 2),
        ]
        assert Order.objects.filter(paid=True).count() == 2
        assert drain() == []
        results[0].refresh()
        assert results[0].status == Status.SUCCESSFUL

    def test_1C_29_section_5_test_6_the_same_values_in_one_row(self):
        order, parcel = Order.objects.create(), Parcel.objects.create()
        given = {"moment": timezone.now(), "length": timedelta(days=2), "order": order, "nested": [{"it": parcel}]}
        tasks.keep.enqueue(**given)
        assert len(drain(raise_errors=True)) == 1
        assert tasks.seen == [((), given)]

    def test_1C_28_section_5_test_5_a_missing_row_an_unknown_task_and_a_bad_payload(self):
        """Each fails with a kind of its own; the others go on, and the limit is free again."""
        order, there = Order.objects.create(), Order.objects.create(number=7)
        alone = tasks.pay.using(limit=limit("orders"), retries=3, backoff=0)
        missing = alone.enqueue(order)
        second = alone.enqueue(there)
        order.delete()
        app = application()
        job = tasks.double.later(1).new_job()
        app.write([], lambda: [job._replace(payload=b"nonsense")])
        call = tasks.double.later(1)
        sealed = call.payload(other := call.new_job().id, "tests.gone", {}, app.clock.now(), None)
        app.write([], lambda: [job._replace(id=other, task="tests.gone", payload=sealed)])
        drain()
        missing.refresh()
        second.refresh()
        assert (missing.status, len(missing.errors), second.return_value) == (Status.FAILED, 1, 7)
        assert missing.errors[0].exception_class is DeserializationError
        for days in range(1, 100):  # it is put back, less and less often
            drain(at=timezone.now() + timedelta(days=days))
        with app.through_django(app.clock):
            found = {it.task: app.public(it).failure for it in app.store.jobs(Selection())}
        kinds = {task: failure.kind for task, failure in found.items() if failure is not None}
        assert kinds[tasks.double.module_path] is FailureKind.UNDECODABLE
        assert kinds["tests.gone"] is FailureKind.UNKNOWN_TASK

    def test_errors_stay_in_the_results_or_come_out(self):
        tasks.never.enqueue("why")
        [first, second] = drain()
        assert [len(it.errors) for it in (first, second)] == [1, 2] or first.id == second.id
        assert second.status == Status.FAILED
        assert second.errors[0].exception_class is ValueError
        tasks.never.enqueue("why not")
        with pytest.raises(ValueError, match="why not"):
            drain(raise_errors=True)

    def test_a_statement_that_fails_breaks_no_transaction(self):
        order = Order.objects.create(number=4)
        result = tasks.take_number.enqueue(order)
        with pytest.raises(IntegrityError):
            drain(raise_errors=True)
        result.refresh()
        assert (result.status, Order.objects.filter(pk=order.pk).count()) == (Status.FAILED, 1)
        tasks.pay.enqueue(order)
        assert [it.return_value for it in drain()] == [4]

    def test_what_is_due_later(self):
        result = tasks.double.using(run_after=timedelta(hours=1)).enqueue(2)
        failing = tasks.never.using(retries=1, backoff=60).enqueue()
        assert [it.id for it in drain()] == [failing.id]
        soon = timezone.now() + timedelta(hours=2)
        assert [it.id for it in drain(at=soon)] == [failing.id, result.id]
        failing.refresh()
        assert (failing.status, len(failing.errors)) == (Status.FAILED, 2)

    def test_flows_and_limits(self):
        chain(tasks.double.later(2), tasks.keep.later("after")).enqueue()
        group([tasks.transfer.later("ann"), tasks.withdraw.later("ann")]).enqueue()
        assert len(drain(raise_errors=True)) == 4
        assert tasks.seen == [(("after",), {})]

    def test_steps_progress_and_enqueueing_in_a_coroutine(self):
        Order.objects.create()
        result = tasks.by_steps.enqueue(2)
        first, *others = drain(raise_errors=True)
        assert (first.id, first.return_value) == (result.id, 6)
        assert tasks.seen == [((4,), {})] * 2
        assert len(others) == 2

    def test_completion_in_the_tasks_own_transaction(self):
        order = Order.objects.create()
        tasks.complete_inside.enqueue(order)
        [result] = drain(raise_errors=True)
        order.refresh_from_db()
        assert (result.status, order.paid) == (Status.SUCCESSFUL, True)

    def test_what_a_task_commits_is_committed(self):
        """As far as its callbacks can tell."""
        tasks.tell_after_commit.enqueue("told")
        with self.captureOnCommitCallbacks() as callbacks:
            assert len(drain(raise_errors=True)) == 2
        assert tasks.seen == ["told", (("told",), {})]
        assert callbacks == []

    def test_what_the_test_itself_would_commit(self):
        with self.captureOnCommitCallbacks():
            tasks.after_commit.enqueue(1)
            assert drain() == []
        with self.captureOnCommitCallbacks(execute=True):
            tasks.after_commit.enqueue(2)
        assert [it.args for it in drain()] == [[2]]

    def test_inside_a_savepoint(self):
        with pytest.raises(RuntimeError), transaction.atomic():
            tasks.keep.enqueue(1)
            assert len(drain()) == 1
            raise RuntimeError
        with transaction.atomic():
            tasks.keep.enqueue(2)
        assert len(drain()) == 1

    def test_another_database(self):
        with transaction.atomic(using="other"):
            tasks.double.using(backend="elsewhere", enqueue_on_commit=False).enqueue(4)
        assert drain() == []
        assert [it.return_value for it in drain("elsewhere")] == [8]

    def test_a_store_that_is_no_database(self):
        site = {"BACKEND": "packhorse.django.PackhorseBackend", "OPTIONS": {"store": "memory://"}}
        with self.settings(TASKS={"default": site}), self.captureOnCommitCallbacks(execute=True):
            tasks.double.enqueue(4)
        with self.settings(TASKS={"default": site}):
            tasks.double.using(enqueue_on_commit=False).enqueue(4)
            assert [it.return_value for it in drain()][-1] == 8

    def test_a_task_that_never_stops(self):
        tasks.again.enqueue(0)
        with pytest.raises(TooManyJobs):
            drain(max_jobs=5)

    def test_signals_are_sent(self):
        told: list[Any] = []

        def listen(task_result: Any, **kwargs: Any) -> None:
            told.append((task_result.status, sys.exc_info()[0]))  # Django logs the one that is handled

        compat.task_finished.connect(listen)
        try:
            tasks.double.enqueue(1)
            drain()
        finally:
            compat.task_finished.disconnect(listen)
        assert told == [(Status.SUCCESSFUL, None)]

    async def test_async_tests(self):
        order = await Order.objects.acreate(number=3)
        result = await tasks.apay.aenqueue(order)
        await tasks.pay.aenqueue(order)
        assert [it.return_value for it in await adrain(raise_errors=True)] == [3, 3]
        await result.arefresh()
        assert result.status == Status.SUCCESSFUL
        with pytest.raises(SynchronousOnlyOperation, match="adrain"):
            drain()

    def test_no_connection_of_ours_is_opened(self):
        tasks.double.enqueue(1)
        drain()
        assert application().store._connections._idle == []  # type: ignore[attr-defined]


class Committed(CommittingTestCase):
    def test_in_a_transaction_test_case(self):
        application().control.act(Selection(), Change(Act.DISCARD))
        order = Order.objects.create(number=2)
        with transaction.atomic():
            results = [tasks.pay.enqueue(order), tasks.apay.enqueue(order), tasks.take_number.enqueue(order)]
        found = drain()
        assert [it.status for it in found] == ["SUCCESSFUL", "SUCCESSFUL", "FAILED"]
        assert {it.job.state for it in results} == {"succeeded", "failed"}  # as everybody sees it
        assert Order.objects.filter(number=2).count() == 2  # each statement by itself, as in a worker
        assert application().store.processes() == []


def test_sqlite_in_memory():
    """Django's own test runner, with its default for tests."""
    environment = {**os.environ, "PYTHONPATH": os.getcwd(), "DJANGO_SETTINGS_MODULE": "tests.django.in_memory.settings"}
    command = [sys.executable, "-m", "django", "test", "tests.django.in_memory.tests", "-v", "0"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert "Ran 2 tests" in ran.stderr
