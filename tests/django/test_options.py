"""Our options on Django's tasks, and the decorators above them."""

import os
import threading
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connections
from django.test import TestCase

from packhorse import ConfigError, JobState, ResultUnavailable, TimedOut, chain, chord, limit, unique
from packhorse.django import compat, limits_concurrency, recurring, task
from packhorse.django.tasks import Declared, Task, Using
from tests.django.helpers import WorkingTestCase, application, ended, performed
from tests.django.shop import tasks
from tests.django.shop.models import Order
from tests.waiting import wait_until


def module_level(number: int) -> None:
    pass


class Declaring(TestCase):
    def test_options_reach_the_worker(self):
        native = application().native(tasks.book)
        assert (native.performed.timeout, native.options.tags) == (30, ("money",))
        assert native.options.expires == timedelta(hours=1)
        apart = application().native(tasks.apart)
        assert (apart.performed.isolate, apart.options.queue_name, apart.options.priority) == (True, "mail", 7)
        assert application().native(tasks.never).policy.retries == 1

    def test_every_option_of_ours_is_one_of_the_decorator(self):
        """Besides the name, which is the import path, and two that are no matter of a site."""
        from packhorse.task import Declared as Native

        assert set(Native.__annotations__) - set(Declared.__annotations__) == {"name", "local", "codec"}
        assert set(Using.__annotations__) <= {*Declared.__annotations__, "run_after"}

    def test_an_unknown_option_names_the_nearest(self):
        with pytest.raises(TypeError, match="Did you mean 'retries'"):
            task(retrys=1)  # type: ignore[call-overload]
        with pytest.raises(TypeError, match=r"using\(run_after"):
            task(run_after=1)  # type: ignore[call-overload]

    def test_it_is_a_task_of_django(self):
        made = task(module_level)
        assert isinstance(made, compat.Task)
        assert (made.name, made.module_path) == ("module_level", f"{__name__}.module_level")
        assert made.call(1) is None
        assert hash(made) == hash(task(metadata={"not": ["hashable"]})(module_level))
        with pytest.raises(compat.InvalidTask):
            task(lambda: None)

    def test_options_of_a_job(self):
        expiring = tasks.double.using(expires=timedelta(minutes=5), tags=("a",), share="ann", metadata={"x": 1})
        job = expiring.enqueue(1).job.look()
        assert (job.tags, job.share) == (("a",), "ann")
        assert job.expires_at is not None
        assert isinstance(expiring, Task)

    def test_rules_of_a_job(self):
        once = tasks.double.using(unique=unique("the one"))
        assert once.enqueue(1).id == once.enqueue(2).id
        limited = tasks.double.using(limit=limit("the one"))
        assert limited.enqueue(1).job.state == JobState.WAITING
        assert tasks.double.enqueue(1).job.state == JobState.READY
        assert tasks.once.using(unique=None).enqueue(5).id != tasks.once.using(unique=None).enqueue(5).id

    def test_1B_7_using_takes_what_the_decorator_takes_but_for_what_cannot_travel(self):
        """Classes and functions cannot, nor what all jobs of a task share."""
        left = {"retry_for", "give_up_on", "upgrade", "aliases", "version"}
        assert set(Declared.__annotations__) - set(Using.__annotations__) == left
        from packhorse.task import Using as Native

        assert set(Native.__annotations__) <= set(Using.__annotations__)

    def test_what_belongs_to_the_task_is_not_of_a_job(self):
        with pytest.raises(TypeError, match="classes cannot travel with a job"):
            tasks.double.using(retry_for=ValueError)
        with pytest.raises(ConfigError, match="function, which cannot travel"):
            tasks.double.using(backoff=lambda attempt, error: 1).enqueue(1)
        with pytest.raises(TypeError, match="It takes share"):
            tasks.double.using(nonsense=1)

    def test_copies_keep_what_was_there(self):
        copy = tasks.double.using(priority=5).using(queue_name="mail")
        assert (copy.priority, copy.queue_name, copy.func) == (5, "mail", tasks.double.func)
        assert copy.using(priority=None).priority == 5

    def test_1C_21_groups_are_part_of_the_key(self):
        """Section 5, test 8: different groups are independent."""
        assert tasks.withdraw.later("ann").terms.holds[0].key == tasks.transfer.later("ann").terms.holds[0].key
        keys = {it.later("ann").terms.holds[0].key for it in (tasks.withdraw, tasks.look_at)}
        assert len(keys) == 2

    def test_1F_7_a_model_is_named_by_class_and_key(self):
        order = Order.objects.create()
        [hold] = tasks.one_of_two.later(order).terms.holds
        assert hold.key == f"{tasks.one_of_two.module_path}/shop.order:{order.pk}"
        assert (hold.to, hold.conflict) == (2, "block")
        assert tasks.transfer.later("ann").terms.holds[0].conflict == "discard"

    def test_decorators_go_above_the_task(self):
        for decorator in (limits_concurrency(), recurring("0 4 * * *")):
            with pytest.raises(TypeError, match="above @task"):
                decorator(module_level)  # type: ignore[type-var]
        for known in (tasks.keep, tasks.recur):
            with pytest.raises(ConfigError, match="'often' already"):
                recurring("0 4 * * *", key="often")(known)

    def test_1B_30_schedules_are_declared_by_all_who_share_the_place(self):
        application("any_queue").register_declared()
        application("elsewhere").register_declared()
        found = {it.key: it for it in application("any_queue").schedules.declared}
        assert found.keys() == {"often", "at_four"}
        assert (found["at_four"].queue_name, found["at_four"].priority) == ("mail", -5)
        assert found["often"].priority is None  # the task's own
        assert application("elsewhere").schedules.declared == []


class Performing(WorkingTestCase):
    def test_1B_30_a_task_recurs(self):
        tasks.moments.clear()
        wait_until(lambda: tasks.moments.count("often") >= 2, "two moments")
        assert {it.key for it in application().schedules.all()} == {"often", "at_four"}
        job = next(job for job in application().inspection.jobs() if job.task == tasks.recur.module_path)
        assert (job.queue, job.priority) == ("default", 3)

    def test_1F_8_no_more_than_so_many_of_one_key_at_once(self):
        order = Order.objects.create()
        results = [tasks.one_of_two.enqueue(order) for _ in range(3)]
        wait_until(lambda: [it.job.look().started_at is not None for it in results].count(True) == 2, "two of three")
        found = [tasks.one_of_two.get_result(it.id).status for it in results]
        assert sorted(found) == ["READY", "RUNNING", "RUNNING"]
        tasks.gate.set()
        for result in results:
            assert ended(result).status == "SUCCESSFUL"

    def test_1B_7_options_of_a_job_are_those_of_its_attempts(self):
        more, none = tasks.never.using(retries=2, backoff=0), tasks.never.using(retries=0)
        assert [len(performed(task).errors) for task in (tasks.never, more, none)] == [2, 3, 1]
        away = performed(tasks.whose_process.using(isolate=True)).return_value
        assert (performed(tasks.whose_process).return_value, away != os.getpid()) == (os.getpid(), True)
        bare = performed(tasks.anything.using(results=False), 5)
        assert bare.status == "SUCCESSFUL"
        with pytest.raises(ResultUnavailable):
            _ = bare.return_value
        late = performed(tasks.look_again.using(timeout=0.1))
        assert late.errors[0].exception_class is TimedOut

    def test_task_finished_is_sent_when_the_retries_of_a_job_are_used_up(self):
        told: list[Any] = []
        compat.task_finished.connect(listen := lambda task_result, **kwargs: told.append(task_result.attempts))
        try:
            performed(tasks.never.using(retries=2, backoff=0))
        finally:
            compat.task_finished.disconnect(listen)
        assert told == [3]

    def test_flows_of_django_tasks(self):
        flow = chain(tasks.double.later(2), tasks.keep.later("after")).enqueue()
        wait_until(lambda: flow.finished, "the chain")
        assert tasks.seen[-1] == (("after",), {})

    def test_flows_give_a_django_task_the_results_before_it(self):
        """Whose own `call` would perform it where the flow is made."""
        before = len(tasks.seen)
        flows = [
            chain(tasks.double.later(2), tasks.double, tasks.keep_one),
            chord([tasks.double.later(number) for number in (1, 2, 3)], tasks.keep_one),
        ]
        assert len(tasks.seen) == before
        handles = [flow.enqueue() for flow in flows]
        wait_until(lambda: all(handle.finished for handle in handles), "the flows")
        assert [args for args, _ in tasks.seen[before:]] in ([(8,), ([2, 4, 6],)], [([2, 4, 6],), (8,)])
        with pytest.raises(ConfigError, match="made of calls and tasks, not of function"):
            chain(tasks.double.later(2), tasks.keep.func)

    def test_language_and_time_zone_do_not_outlast_a_job(self):
        assert [performed(tasks.leak).return_value for _ in range(12)] == [["en", "UTC"]] * 12

    def test_1C_28_stale_connections_are_closed_around_each_job(self):
        """What a server closed meanwhile must not fail the next task; connections of age 0 do not outlast one."""
        closed: list[Any] = []
        result = performed(tasks.connections_in_use, 2)
        assert result.return_value >= 1
        for _ in range(10):
            closed.append(performed(tasks.connections_in_use, 0).return_value)
        assert closed == [0] * 10
        assert threading.current_thread() is threading.main_thread()
        assert connections["default"].connection is not None

    def test_a_user_can_be_passed(self):
        assert performed(tasks.anything, User.objects.create(username="ann")).status == "SUCCESSFUL"
