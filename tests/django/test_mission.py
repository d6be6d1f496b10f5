"""What Robust Queue and Steady Queue promise, where no other test of the site has the line in its name."""

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import django
import pytest
from django.db import connection, transaction
from django.test import Client, TestCase, override_settings

import packhorse
from packhorse import Act, Change, Embedded, Exponential, Packhorse, Selection, limit
from packhorse.clock import SECOND
from packhorse.django import PackhorseBackend, ProcessPrunedError, compat, enqueue_many, options, recurring
from packhorse.django.decorators import recurrent
from packhorse.django.models import Job
from packhorse.django.testing import drain
from packhorse.ids import new_id, to_text
from packhorse.job import Claim
from packhorse.outcome import release, succeed
from packhorse.queues import parse_queues
from packhorse.runtime.worker import new_nonce
from packhorse.stores.contract import ProcessInfo
from tests.django import settings as site
from tests.django.helpers import CommittingTestCase, Status, application, ended, working
from tests.django.shop import tasks
from tests.django.shop.models import Order
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]


def enrolled(lease: float = 30) -> bytes:
    """A worker that does nothing by itself."""
    application().store.enroll(
        ProcessInfo(id := new_id(), "worker", socket.gethostname(), os.getpid(), "*"), int(lease * SECOND)
    )
    return id


def claimed(worker: bytes, queues: str = "*", most: int = 100) -> list[Claim]:
    store = application().store
    return store.exchange(worker, new_nonce(), [], parse_queues(queues), most, starting=most).claims


@contextmanager
def here() -> Iterator[Packhorse]:
    """Whatever is done goes through the connection of the test."""
    app = application()
    with app.through_django(app.clock):
        yield app


class InATransaction(TestCase):
    def setUp(self):
        drain()  # what tests before have committed

    def tearDown(self):
        application().close()

    def test_1B_1_the_licence(self):
        assert (ROOT / "LICENSE").read_text().startswith("MIT License\n")
        assert 'license = "MIT"' in (ROOT / "pyproject.toml").read_text()

    def test_1B_3_what_is_claimed(self):
        """Delayed, limited, recurring, paused, urgent and many at once; how each works is told by tests of its own."""
        later = tasks.keep.using(run_after=timedelta(hours=1)).enqueue("later")
        tasks.keep.using(queue_name="mail").enqueue("paused")
        enqueue_many(tasks.keep.using(priority=number).later(number) for number in range(3))
        tasks.keep.using(limit=limit("one"), priority=-1).enqueue("limited")
        with here() as app:
            app.control.pause("mail")
        drain()
        assert [args for (args, _) in tasks.seen] == [(2,), (1,), (0,), ("limited",)]
        with here() as app:
            app.control.resume("mail")
        drain()
        assert tasks.seen.pop() == (("paused",), {})
        assert later.job.look().state == "scheduled"
        assert {"often", "at_four"} <= recurrent.keys()

    def test_1B_8_priorities_may_be_counted_the_other_way_round(self):
        """Larger is sooner, as Django has it; a setting keeps the numbers of who comes from there valid."""
        assert (tasks.keep.priority, tasks.keep.queue_name, tasks.keep.backend) == (0, "default", "default")
        for order, first in (("higher_first", 5), ("lower_first", 1)):
            given = {**site.TASKS["default"], "OPTIONS": {"priority_order": order}}
            with override_settings(TASKS={"default": given}):
                results = [tasks.keep.using(priority=number).enqueue(number) for number in (3, 1, 5)]
                drain()
                assert [it.job.look().priority for it in results] == [3, 1, 5]
            assert tasks.seen[0][0] == (first,)
            tasks.seen.clear()

    def test_1B_19_1C_5_queue_order_beats_priority_and_priority_beats_age(self):
        made = [
            tasks.double.using(queue_name=queue, priority=priority).enqueue(1).id
            for queue, priority in (("default", 9), ("mail", 0), ("default", 0), ("mail", 5), ("mail", 0))
        ]
        with here():
            found = [to_text(claim.token.id) for claim in claimed(enrolled(), "mail,default")]
            one_by_one = [made[3], made[1], made[4], made[0], made[2]]
            assert found == one_by_one
            assert claimed(enrolled(), "def*") == []

    def test_1B_33_what_was_not_offered(self):
        """Retry policies, and rules by exception."""
        assert application().native(tasks.picky).policy.give_up_on == (KeyError,)
        results = [tasks.picky.enqueue("KeyError"), tasks.picky.enqueue("ValueError")]
        drain()
        for result in results:
            result.refresh()
        assert [len(result.errors) for result in results] == [1, 3]
        assert isinstance(application().native(tasks.keep).policy.backoff, Exponential)

    def test_1B_34_public_names(self):
        assert issubclass(PackhorseBackend, compat.BaseTaskBackend)
        read = options.read({"dispatchers": [{"batch_size": 5}], "workers": [{"queues": "a"}]})
        assert (read.dispatchers[0].batch_size, read.workers[0].queues) == (5, ("a",))
        assert callable(recurring)
        for name in ("DeserializationError", "ProcessPrunedError", "ProcessExitError"):
            assert issubclass(getattr(packhorse.django, name), packhorse.PackhorseError)
        assert callable(Job.objects.clear_finished_in_batches)

    def test_1B_35_the_backport_is_needed_where_django_has_no_tasks(self):
        needs = compat.BaseTaskBackend.__module__.partition(".")[0]
        assert needs == ("django" if django.VERSION >= (6,) else "django_tasks")
        assert isinstance(tasks.double, packhorse.django.Task)  # though its decorator is Django's

    def test_1C_7_who_waits_for_a_limit_goes_on_when_another_ends_the_most_urgent_first(self):
        alone = tasks.keep.using(limit=limit("one"))
        results = [alone.using(priority=number).enqueue(number) for number in (0, -5, 5)]
        assert {result.job.look().state for result in results} == {"waiting"}
        drain()
        assert [args for (args, _) in tasks.seen] == [(5,), (0,), (-5,)]

    def test_1C_10_how_values_are_written(self):
        order = Order.objects.create()
        call = tasks.keep.later(datetime(2026, 3, 29, tzinfo=UTC), date(2026, 3, 30), timedelta(minutes=2), order)
        text = call.encoded.body.decode()
        assert "2026-03-29T00:00:00" in text
        assert "2026-03-30" in text
        assert '"shop.order"' in text
        assert str(order.number) in text
        assert "Order object" not in text

    def test_1C_23_an_end_that_is_told_twice_lifts_no_limit(self):
        alone = tasks.keep.using(limit=limit("one"))
        for number in range(3):
            alone.enqueue(number)
        with here() as app:
            worker = enrolled()
            [first] = claimed(worker)
            ending = succeed(first.token, 1, None)
            for accepted in (True, False):
                told = app.store.exchange(worker, new_nonce(), [ending], parse_queues("*"), 0)
                assert (told.refused == []) is accepted
            [second] = claimed(worker)
            assert claimed(worker) == []
            app.store.exchange(worker, new_nonce(), [release(second.token)], parse_queues("*"), 0)

    def test_1C_31_what_was_accepted_and_ignored(self):
        """Both places of enqueue_on_commit, the documented interval, the task's own priority; ties go by age."""
        assert options.read({}).dispatchers[0].concurrency_maintenance_interval == 600
        assert recurrent["often"].priority is None
        for task in (tasks.after_commit, tasks.keep.using(enqueue_on_commit=True)):
            with self.captureOnCommitCallbacks() as callbacks:
                task.enqueue(1)
            assert len(callbacks) == 1
        with connection.cursor() as cursor:
            found = connection.introspection.get_constraints(cursor, Job._meta.db_table)
        columns = [it["columns"] for it in found.values() if it["index"] and it["columns"][:1] == ["queue"]]
        assert ["queue", "rank", "order_key", "id"] in columns


class Committing(CommittingTestCase):
    def tearDown(self):
        application().control.act(Selection(), Change(Act.DISCARD))
        super().tearDown()

    def test_1B_4_1C_6_nobody_waits_for_a_row_that_another_has(self):
        """Where the database passes over locked rows; SQLite has one writer at a time, and no row locks."""
        locked, free = tasks.keep.enqueue(1), tasks.keep.enqueue(2)
        worker = enrolled()
        found: set[str] = set()
        if connection.vendor == "postgresql":
            with transaction.atomic():
                Job.objects.select_for_update().get(id=locked.id)
                found = {to_text(claim.token.id) for claim in claimed(worker)}
            assert found == {free.id}
        assert found | {to_text(claim.token.id) for claim in claimed(worker)} == {locked.id, free.id}
        assert claimed(worker) == []
        application().store.leave(worker)

    def test_1B_18_1C_2_no_more_run_at_once_than_there_are_threads(self):
        app = application()
        app.register_declared()
        results = [tasks.wait.enqueue() for _ in range(5)]
        with Embedded(app, concurrency=3):
            wait_until(lambda: [it.job.look().started_at is not None for it in results].count(True) == 3, "three")
            assert [it.job.look().started_at is not None for it in results].count(True) == 3
            tasks.gate.set()
            assert {ended(result).status for result in results} == {Status.SUCCESSFUL}
        app._works_here = False

    def test_1B_24_1C_8_a_worker_that_vanished(self):
        """Its job fails with the reason when its lease is over, and its permit goes to the next; or it runs again."""
        strict = tasks.keep.using(on_worker_lost="fail", limit=limit("one"), priority=9).enqueue("lost")
        following = tasks.keep.using(limit=limit("one")).enqueue("next")
        again = tasks.keep.using(priority=9).enqueue("again")
        worker = enrolled(lease=0.5)
        assert {to_text(claim.token.id) for claim in claimed(worker)} == {strict.id, again.id}
        wait_until(
            lambda: all(it.lease_left <= 0 for it in application().inspection.processes()), "the end of its lease"
        )
        with working():
            assert [ended(it).status for it in (strict, following, again)] == ["FAILED", "SUCCESSFUL", "SUCCESSFUL"]
            assert again.job.look().losses == 1
        assert strict.errors[0].exception_class is ProcessPrunedError
        assert "stopped beating" in strict.errors[0].traceback
        assert (("lost",), {}) not in tasks.seen

    def test_1B_36_a_worker_beside_the_web_server_in_one_process(self):
        with working():
            made = Client().get("/order/?number=7").json()
            assert ended(tasks.keep.get_result(made["id"])).status == Status.SUCCESSFUL
        assert tasks.seen == [((Order.objects.get().pk,), {})]

    def test_1B_37_hooks_reports_logs_and_failed_jobs(self):
        """The sections that were left to be written."""
        app = application()
        began: list[Any] = []
        reports: list[Any] = []
        app.hook("start", role="worker")(began.append)
        app.error_reporters.append(reports.append)
        records = logging.getLogger("packhorse.jobs")
        try:
            with working(), self.assertLogs(records, "ERROR") as logged:
                failed = ended(tasks.never.using(retries=0).enqueue("why"))
                assert failed.job.retry()
                assert ended(failed).status == Status.FAILED
                wait_until(lambda: len(reports) == 2, "both reports")
        finally:
            app.error_reporters.remove(reports.append)
        assert len(began) == 1
        assert {type(it.error) for it in reports} == {ValueError}
        assert failed.id in logged.output[0]
        with pytest.raises(packhorse.EnqueueError), transaction.atomic():
            connection.cursor().execute("alter table packhorse_payload rename to gone")
            tasks.keep.enqueue(1)
