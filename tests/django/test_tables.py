"""One schema: the stores' own SQL files, applied by migrations or by `packhorse migrate`, and seen as models."""

import uuid
from datetime import timedelta
from io import StringIO

import pytest
from django.apps import apps
from django.core.management import call_command
from django.db import connection, connections
from django.test import TestCase, override_settings
from django.utils import timezone

from packhorse import JobState
from packhorse.django.models import Job, Pause, Payload, Process, Queue, ReadOnly, Schedule, Task
from packhorse.django.operations import LEDGER_TABLE, ApplySteps
from packhorse.django.router import PackhorseRouter, databases
from packhorse.stores.migrate import steps
from tests.django.helpers import CommittingTestCase, WorkingTestCase, application, performed
from tests.django.shop import tasks
from tests.django.shop.models import Order

ROUTERS = ["packhorse.django.router.PackhorseRouter"]


def tables(alias: str = "default") -> set[str]:
    return {name for name in connections[alias].introspection.table_names() if name.startswith("packhorse_")}


def applied(alias: str = "default") -> list[int]:
    with connections[alias].cursor() as cursor:
        cursor.execute(f"select number from {LEDGER_TABLE} order by number")
        return [number for (number,) in cursor.fetchall()]


class Migrations(CommittingTestCase):
    def test_there_is_a_migration_for_every_step(self):
        """Where this fails, a step was added: add a migration with ApplySteps up to its number."""
        from importlib import import_module
        from pathlib import Path

        import packhorse.django.migrations as package

        names = sorted(path.stem for path in Path(package.__path__[0]).glob("0*.py"))
        modules = [import_module(f"{package.__name__}.{name}") for name in names]
        found = [it for module in modules for it in module.Migration.operations if isinstance(it, ApplySteps)]
        assert (found[-1].sqlite, found[-1].postgres) == (steps("sqlite")[-1].number, steps("postgres")[-1].number)

    def test_nothing_is_left_to_migrate(self):
        call_command("makemigrations", check=True, dry_run=True, verbosity=0)
        call_command("migrate", check_unapplied=True, verbosity=0)

    def test_the_store_finds_its_schema_and_has_nothing_to_do(self):
        app = application()
        assert app.control.migrate() == []
        assert app.inspection.schema_version() == applied()[-1]

    def test_there_and_back_and_after_packhorse_migrate(self):
        """Whichever comes first: the ledger is one."""
        before = tables()
        assert "packhorse_job" in before
        call_command("migrate", "packhorse", "zero", verbosity=0)
        assert tables() == set()
        assert application().control.migrate() != []
        assert tables() == before
        call_command("migrate", "packhorse", verbosity=0)
        assert applied() == [step.number for step in steps(_dialect())]
        assert tables() == before

    def test_the_statements_can_be_read_before(self):
        out = StringIO()
        call_command("sqlmigrate", "packhorse", "0001", stdout=out)
        assert "create table packhorse_job (" in out.getvalue()

    def test_1F_1_a_separate_database_with_a_router(self):
        assert PackhorseRouter().db_for_read(Order) is None
        with override_settings(DATABASE_ROUTERS=ROUTERS):
            site = {"BACKEND": "packhorse.django.PackhorseBackend", "OPTIONS": {"database": "other"}}
            with override_settings(TASKS={"default": site}):
                assert databases() == ["other"]
                assert Job.objects.db == "other"
                router = PackhorseRouter()
                assert [router.allow_migrate(alias, "packhorse") for alias in ("default", "other")] == [False, True]
                assert router.allow_migrate("default", "shop") is None
                assert router.allow_relation(Job(), Payload())
                assert tasks.double.enqueue(1).job.look().state == "ready"
                application().close()


def _dialect() -> str:
    return "postgres" if connection.vendor == "postgresql" else "sqlite"


class Models(TestCase):
    def test_jobs_are_seen_as_they_are(self):
        result = tasks.double.using(priority=5, run_after=timedelta(hours=1)).enqueue(4)
        job = Job.objects.select_related("payload").get(id=result.id)
        assert (job.id, job.state, job.queue, job.rank) == (result.id, JobState.SCHEDULED, "default", -5)
        assert (job.payload.task, job.payload.job_id) == (tasks.double.module_path, job.n)
        assert abs(job.payload.created_at - timezone.now()) < timedelta(seconds=20)
        assert abs(job.run_at - timezone.now() - timedelta(hours=1)) < timedelta(seconds=20)
        assert str(job) == f"{result.id} (scheduled)"

    def test_they_are_found_by_what_python_calls_it(self):
        result = tasks.double.using(run_after=timedelta(hours=1)).enqueue(4)
        assert Job.objects.filter(state=JobState.SCHEDULED, run_at__gt=timezone.now()).filter(id=result.id).exists()
        assert Job.objects.filter(state="scheduled", id=uuid.UUID(result.id)).exists()
        assert not Job.objects.filter(state="ready", id=result.id).exists()
        assert not Job.objects.filter(id="nonsense").exists()
        assert Payload.objects.get(id=result.id).task == tasks.double.module_path

    def test_nobody_writes_through_them(self):
        tasks.double.enqueue(4)
        job = Job.objects.first()
        for write in (
            job.save,
            job.delete,
            Job.objects.all().delete,
            lambda: Job.objects.update(queue="x"),
            Job.objects.create,
        ):
            with pytest.raises(ReadOnly):
                write()

    def test_every_model_fits_its_table(self):
        for model in apps.get_app_config("packhorse").get_models():
            assert not model._meta.managed
            assert list(model.objects.all()[:1]) is not None
        views = {Job, Payload, Process, Schedule, Pause, Queue, Task}
        assert views == set(apps.get_app_config("packhorse").get_models())


class Clearing(WorkingTestCase):
    def test_1B_27_finished_jobs_are_cleared_in_batches(self):
        results = [performed(tasks.double, number) for number in range(5)]
        kept = performed(tasks.never)
        ids = [result.id for result in results]
        assert Job.objects.filter(id__in=ids).count() == 5
        assert Job.objects.clear_finished_in_batches() == 0  # all of them are of today
        pauses: list[int] = []
        soon = timezone.now() + timedelta(minutes=1)
        cleared = Job.objects.clear_finished_in_batches(2, soon, tasks.double.module_path, lambda: pauses.append(1))
        assert (cleared >= 5, len(pauses) >= 2) == (True, True)
        assert not Job.objects.filter(id__in=ids).exists()
        assert Job.objects.filter(id=kept.id).exists()

    def test_processes(self):
        assert {"worker", "dispatcher", "scheduler"} <= set(Process.objects.values_list("role", flat=True))
        assert "worker" in str(Process.objects.get(role="worker"))
