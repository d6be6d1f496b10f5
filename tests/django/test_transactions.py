"""A queue in the site's own database joins the caller's transaction; one elsewhere waits for its commit."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connection, connections, transaction
from django.test import AsyncClient, Client, TestCase, override_settings

from packhorse import EnqueueError, Selection
from packhorse.django import aenqueue_many, compat, enqueue_many
from tests.django.helpers import CommittingTestCase, application, ended, working
from tests.django.shop import tasks
from tests.django.shop.models import Order


def is_there(result: Any) -> bool:
    """As another connection sees it: what is committed."""
    app = result.task.get_backend().application
    return app.store.job(result.job._raw_id) is not None


def can_be_seen(result: Any) -> bool:
    """As the site's own connection sees it."""
    try:
        result.task.get_result(result.id)
    except compat.TaskResultDoesNotExist:
        return False
    return True


class Committing(CommittingTestCase):
    def test_1B_28_a_job_is_there_if_and_only_if_the_transaction_commits(self):
        with transaction.atomic():
            order = Order.objects.create()
            kept = tasks.keep.enqueue(order.pk)
            assert can_be_seen(kept)
            assert not is_there(kept)
        assert is_there(kept)
        with pytest.raises(RuntimeError), transaction.atomic():
            Order.objects.create()
            lost = tasks.keep.enqueue(1)
            raise RuntimeError
        assert not is_there(lost)
        assert Order.objects.count() == 1

    def test_savepoints(self):
        with transaction.atomic():
            with pytest.raises(RuntimeError), transaction.atomic():
                lost = tasks.keep.enqueue(1)
                raise RuntimeError
            with transaction.atomic():
                kept = tasks.keep.enqueue(2)
        assert (is_there(lost), is_there(kept)) == (False, True)

    def test_outside_a_transaction_it_is_there_at_once(self):
        assert is_there(tasks.keep.enqueue(1))

    def test_without_autocommit(self):
        transaction.set_autocommit(False)
        try:
            lost = tasks.keep.enqueue(1)
            transaction.rollback()
            kept = tasks.keep.enqueue(2)
            transaction.commit()
        finally:
            transaction.set_autocommit(True)
        assert (is_there(lost), is_there(kept)) == (False, True)

    def test_1C_11_another_database_gets_it_after_the_commit(self):
        double = tasks.double.using(backend="elsewhere")
        with transaction.atomic():
            result = double.enqueue(1)
            assert (len(result.id), result.enqueued_at) == (36, None)
            assert not is_there(result)
        assert is_there(result)
        assert result.enqueued_at is not None
        assert double.get_result(result.id) == result
        with pytest.raises(RuntimeError), transaction.atomic():
            lost = double.enqueue(1)
            raise RuntimeError
        assert not is_there(lost)

    def test_another_database_joins_a_transaction_of_its_own(self):
        double = tasks.double.using(backend="elsewhere")
        with pytest.raises(RuntimeError), transaction.atomic(using="other"):
            lost = double.enqueue(1)
            assert can_be_seen(lost)
            raise RuntimeError
        assert not is_there(lost)

    def test_1B_29_enqueue_on_commit_of_a_task(self):
        told: list[Any] = []
        compat.task_enqueued.connect(listen := lambda task_result, **kwargs: told.append(task_result.id))
        try:
            with transaction.atomic():
                result = tasks.after_commit.enqueue(1)
                assert (can_be_seen(result), told) == (False, [])
        finally:
            compat.task_enqueued.disconnect(listen)
        assert is_there(result)
        assert told == [result.id]

    def test_1B_29_enqueue_on_commit_of_a_call(self):
        with transaction.atomic():
            later = tasks.keep.using(enqueue_on_commit=True).enqueue(1)
            now = tasks.after_commit.using(enqueue_on_commit=False).enqueue(1)
            assert (can_be_seen(later), can_be_seen(now)) == (False, True)
        assert is_there(later)

    def test_an_option_of_the_alias_is_the_default(self):
        site = {"BACKEND": "packhorse.django.PackhorseBackend", "OPTIONS": {"enqueue_on_commit": True}}
        with override_settings(TASKS={"default": site}), transaction.atomic():
            assert not can_be_seen(tasks.keep.enqueue(1))
            assert can_be_seen(tasks.keep.using(enqueue_on_commit=False).enqueue(1))

    def test_at_once_though_elsewhere(self):
        with pytest.raises(RuntimeError), transaction.atomic():
            result = tasks.at_once.enqueue(1)
            assert is_there(result)
            raise RuntimeError
        assert is_there(result)

    def test_a_store_that_is_no_database(self):
        site = {"BACKEND": "packhorse.django.PackhorseBackend", "OPTIONS": {"store": "memory://"}}
        with override_settings(TASKS={"default": site}):
            with transaction.atomic():
                result = tasks.keep.enqueue(1)
                assert not can_be_seen(result)
            assert can_be_seen(result)

    def test_a_unique_job_stands_for_a_second_one(self):
        first = tasks.once.enqueue(1)
        with transaction.atomic():
            second = tasks.once.enqueue(1)
            third = tasks.once.using(enqueue_on_commit=True).enqueue(1)
            assert second.id == first.id != third.id
        assert third.id == first.id
        first.job.cancel()

    def test_many_at_once_or_none(self):
        calls = [tasks.double.later(number) for number in range(3)]
        calls.insert(1, tasks.keep.using(priority=5).later("b"))
        with transaction.atomic():
            results = enqueue_many(calls)
            assert not any(map(is_there, results))
        assert all(map(is_there, results))
        assert [result.args for result in results] == [[0], ["b"], [1], [2]]
        assert [result.task.name for result in results] == ["double", "keep", "double", "double"]
        assert results[1].job.look().priority == 5

    def test_a_site_opens_no_connection_of_ours(self):
        application()._place = None  # as in a program that has just begun
        result = tasks.keep.enqueue(1)
        tasks.keep.get_result(result.id)
        result.job.look()
        idle = application().store._connections._idle  # type: ignore[attr-defined]
        assert idle == []

    def test_errors_of_the_store_are_enqueue_errors(self):
        with transaction.atomic():
            connection.cursor().execute(_RENAME)
            with pytest.raises(EnqueueError):
                tasks.keep.enqueue(1)
            assert Order.objects.count() == 0  # the transaction goes on
            transaction.set_rollback(True)

    def test_completion_inside_the_tasks_own_transaction(self):
        order = Order.objects.create(number=4)
        with working():
            result = ended(tasks.complete_inside.enqueue(order))
        order.refresh_from_db()
        assert (result.status, order.paid) == ("SUCCESSFUL", True)


CRASHING = """
import os, sys, django
django.setup()
from django.db import transaction
from tests.django.shop import tasks
from tests.django.shop.models import Order

backend, when, number = sys.argv[1:]
with transaction.atomic():
    Order.objects.create(number=int(number))
    if when == "committed":
        transaction.on_commit(lambda: os._exit(9))  # before that of the enqueueing, where there is one
    tasks.double.using(backend=backend).enqueue(int(number))
    if when == "inside":
        os._exit(9)
"""


class Crashing(CommittingTestCase):
    def crashed(self, backend: str, when: str, number: int) -> tuple[bool, bool]:
        """Whether the row is there, and whether the job is, after the program has died."""
        environment = {**os.environ, "PACKHORSE_TEST_DATABASE": "the tests' own", "PYTHONPATH": os.getcwd()}
        command = [sys.executable, "-c", CRASHING, backend, when, str(number)]
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        assert ran.returncode == 9, ran.stderr
        double = tasks.double.using(backend=backend)
        jobs = application(backend).inspection.jobs(Selection(tasks={double.module_path}))
        found = [double.get_result(job.id).args for job in jobs]
        return Order.objects.filter(number=number).exists(), [number] in found

    def test_F100_a_rollback_and_a_crash_at_the_commit(self):
        """In the site's database there is a job if and only if there is a row. Elsewhere the guide tells of the gap."""
        with pytest.raises(RuntimeError), transaction.atomic():
            Order.objects.create(number=5)
            results = [tasks.double.using(backend=alias).enqueue(5) for alias in ("default", "elsewhere")]
            raise RuntimeError
        assert [is_there(result) for result in results] == [False, False]
        assert not Order.objects.exists()
        assert self.crashed("default", "inside", 6) == (False, False)
        assert self.crashed("default", "committed", 7) == (True, True)
        assert self.crashed("elsewhere", "committed", 9) == (True, False)
        page = (Path(__file__).parents[2] / "docs" / "guide" / "django.md").read_text()
        assert "dies between the commit and that" in page


_RENAME = "alter table packhorse_payload rename to gone"


class Requests(CommittingTestCase):
    def test_atomic_requests(self):
        client = Client(raise_request_exception=False)
        connection.settings_dict["ATOMIC_REQUESTS"] = True
        try:
            assert client.get("/order/?number=1&fail=1").status_code == 500
            made = client.get("/order/?number=2").json()
        finally:
            connection.settings_dict["ATOMIC_REQUESTS"] = False
        assert [order.number for order in Order.objects.all()] == [2]
        assert application().job(made["id"]).state == "ready"
        assert len([job for job in application().inspection.jobs() if job.task.endswith("keep")]) >= 1

    async def test_an_async_view(self):
        found = (await AsyncClient().get("/adouble/?number=4")).json()
        assert found["status"] == "READY"

    async def test_a_sync_call_in_an_async_view_works_too(self):
        found = (await AsyncClient().get("/blocking/?number=4")).json()
        assert (await tasks.double.aget_result(found["id"])).args == [4]


class Testing(TestCase):
    databases = {"default", "other"}

    def test_rolled_back_with_the_test(self):
        result = tasks.keep.enqueue(1)
        assert can_be_seen(result)
        assert not is_there(result)

    def test_on_commit_callbacks_are_captured(self):
        with self.captureOnCommitCallbacks() as callbacks:
            result = tasks.after_commit.enqueue(1)
        assert (len(callbacks), can_be_seen(result)) == (1, False)
        with self.captureOnCommitCallbacks(execute=True):
            result = tasks.after_commit.enqueue(2)
        assert can_be_seen(result)

    def test_elsewhere_waits_for_a_commit_that_a_test_never_makes(self):
        result = tasks.double.using(backend="elsewhere").enqueue(1)
        assert not can_be_seen(result)
        with self.captureOnCommitCallbacks(execute=True):
            result = tasks.double.using(backend="elsewhere").enqueue(1)
        assert can_be_seen(result)

    async def test_async_tests_join_the_same_transaction(self):
        result = await tasks.keep.aenqueue(1)
        assert (await tasks.keep.aget_result(result.id)) == result
        await result.arefresh()
        [other] = await aenqueue_many([tasks.double.later(2)])
        assert (await tasks.double.aget_result(other.id)).args == [2]
        with pytest.raises(SynchronousOnlyOperation):
            connections["default"].cursor()

    def tearDown(self):
        for alias in ("default", "elsewhere"):
            application(alias).close()
