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

from packhorse.django.management.commands.packhorse import plans, with_application
from tests.django import settings as site
from tests.django.helpers import DUMMY, CommittingTestCase, application, ended, working
from tests.django.shop import tasks
from tests.django.shop.models import Order

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


class Running(CommittingTestCase):
    def test_1B_5_one_command_starts_everything_for_all_queues(self):
        order = Order.objects.create(number=3)
        results = [tasks.pay.enqueue(order), tasks.double.using(queue_name="mail").enqueue(2), tasks.adouble.enqueue(2)]
        apart = tasks.apart.enqueue(5)
        app = application()
        with supervised():
            assert [ended(result, BOOTING).return_value for result in results] == [3, 4, 4]
            assert ended(apart, BOOTING).return_value == -5
            roles = sorted(process.role for process in app.inspection.processes())
            assert roles == ["dispatcher", "scheduler", "supervisor", "worker"]
        order.refresh_from_db()
        assert order.paid
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
