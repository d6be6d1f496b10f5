"""`manage.py packhorse`: the supervisor with its processes, and the other commands."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from typing import Any
from unittest.mock import patch

import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings

from packhorse.django import ProcessExitError
from packhorse.django.management.commands.packhorse import plans, with_application
from packhorse.django.testing import drain
from tests.django import settings as site
from tests.django.helpers import DUMMY, CommittingTestCase, application, ended, working
from tests.django.shop import tasks
from tests.django.shop.models import Order
from tests.waiting import wait_until

BOOTING = 60.0  # four fresh Pythons that import Django
PATH = "packhorse.django.discovery:default"
MANAGE = [sys.executable, "-m", "django", "packhorse"]


def environment() -> dict[str, str]:
    return {**os.environ, "PACKHORSE_TEST_DATABASE": "the tests' own", "PYTHONPATH": os.getcwd()}


@contextmanager
def supervised(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([*MANAGE, *words], env=environment(), stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=30)
            sys.stderr.write(said.decode())
    assert process.returncode == 0


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class Running(CommittingTestCase):
    def test_1B_5_1B_13_1B_14_1C_1_one_command_starts_everything_for_all_queues(self):
        """Each role in a process of its own."""
        order = Order.objects.create(number=3)
        results = [tasks.pay.enqueue(order), tasks.double.using(queue_name="mail").enqueue(2), tasks.adouble.enqueue(2)]
        apart = tasks.apart.enqueue(5)
        app = application()
        with supervised():
            assert [ended(result, BOOTING).return_value for result in results] == [3, 4, 4]
            assert ended(apart, BOOTING).return_value == -5
            found = {process.role: process.pid for process in app.inspection.processes()}
            assert sorted(found) == ["dispatcher", "scheduler", "supervisor", "worker"]
            assert len(set(found.values())) == 4
        order.refresh_from_db()
        assert order.paid
        app.close()

    def held(self, result: Any) -> None:
        wait_until(lambda: Order.objects.get().number > 0, "the job to begin", BOOTING)
        result.refresh()

    def test_1B_22_1B_25_1C_3_1C_24_1C_27_a_worker_is_killed_and_the_next_one_is_asked_to_stop(self):
        """Section 5, tests 3 and 1: a named error with signal and pid; then one run, and nothing else left."""
        order = Order.objects.create()
        killed = tasks.hold.using(on_worker_lost="fail").enqueue(order)
        app = application()
        with supervised() as process:
            self.held(killed)
            owner = killed.job.look().process
            [worker] = [it.pid for it in app.inspection.processes() if it.id == owner]
            os.kill(worker, signal.SIGKILL)
            ended(killed, BOOTING)
            assert killed.errors[0].exception_class is ProcessExitError
            assert f"pid {worker}" in killed.errors[0].traceback
            assert "SIGKILL" in killed.errors[0].traceback
            Order.objects.update(number=0)
            running = tasks.hold.enqueue(order)
            self.held(running)
            process.send_signal(signal.SIGTERM)
            Order.objects.update(paid=True)
            assert process.wait(BOOTING) == 0
        running.refresh()
        assert (running.status, running.attempts, Order.objects.get().number) == ("SUCCESSFUL", 1, 1)
        assert running.job.look().state == "succeeded"
        assert app.inspection.processes() == []
        app.close()

    def test_1B_23_1C_9_1C_25_on_quit_the_code_really_stops_and_the_job_goes_back(self):
        """Section 5, test 2: it runs again exactly once, later."""
        order = Order.objects.create()
        result = tasks.hold.enqueue(order)
        app = application()
        with supervised() as process:
            self.held(result)
            pids = [it.pid for it in app.inspection.processes()]
            process.send_signal(signal.SIGQUIT)
            process.wait(BOOTING)
        wait_until(lambda: not any(map(is_alive, pids)), "its processes to be gone")
        job = result.job.look()
        assert (job.state, job.attempts, job.losses, Order.objects.get().number) == ("ready", 0, 0, 1)
        Order.objects.update(paid=True)
        assert [it.status for it in drain() if it.id == result.id] == ["SUCCESSFUL"]
        assert Order.objects.get().number == 2
        app.close()

    def test_its_other_words_are_the_commands_of_packhorse(self):
        tasks.double.enqueue(2)
        with patch("sys.stdout", StringIO()) as out, pytest.raises(SystemExit) as left:
            call_command("packhorse", "status", "--json")
        assert left.value.code == 0
        assert '"queue": "default"' in out.getvalue()
        with working():
            pass

    def test_an_unknown_backend(self):
        with override_settings(TASKS={"default": {"BACKEND": DUMMY}}), pytest.raises(CommandError, match="another"):
            call_command("packhorse")


class Planning(CommittingTestCase):
    def planned(self, **options: Any) -> list[Any]:
        with override_settings(TASKS={"default": {**site.TASKS["default"], "OPTIONS": options}}):
            return plans(application(), PATH, ("worker", "dispatcher", "scheduler"), "INFO")

    def test_1B_15_missing_sections_get_their_defaults(self):
        worker, dispatcher, scheduler = self.planned()
        assert (worker.role, worker.queues, worker.concurrency) == ("worker", "*", 3)
        assert (dispatcher.role, scheduler.role) == ("dispatcher", "scheduler")
        assert [plan.role for plan in self.planned(dispatchers=[])] == ["worker", "scheduler"]

    def test_1B_6_some_machines_run_only_workers(self):
        assert [plan.role for plan in plans(application(), PATH, ("worker",), "INFO")] == ["worker"]
        found = self.planned(workers=[], dispatchers=[{}])
        assert [plan.role for plan in found] == ["dispatcher", "scheduler"]

    def test_1B_17_workers_have_queues_threads_and_processes(self):
        workers = [{"queues": ["mail*", "default"], "threads": 5, "processes": 2}, {"queues": "slow"}]
        first, second, third, *_ = self.planned(workers=workers)
        assert first == second
        assert (first.queues, first.concurrency) == ("mail*,default", 5)
        assert (third.queues, third.concurrency) == ("slow", 3)

    def test_the_application_is_put_where_a_command_takes_one(self):
        assert with_application(["status", "--json"], PATH) == ["status", PATH, "--json"]
        assert with_application(["jobs", "list"], PATH) == ["jobs", "list", PATH]
        assert with_application(["jobs", "cancel", "x"], PATH) == ["jobs", "cancel", "--app", PATH, "x"]
        assert with_application(["failpoints"], PATH) == ["failpoints"]
        assert with_application(["nonsense"], PATH) == ["nonsense"]
