"""`manage.py packhorse import`, from the tables that the other packages make."""

import json
from contextlib import redirect_stderr
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any, ClassVar
from unittest.mock import patch

import pytest
from django.apps import apps
from django.core.management import call_command
from django.test import override_settings

from packhorse.ids import from_text
from tests.django.helpers import CommittingTestCase, application

NEXT = datetime(2031, 1, 31, 8, 30, tzinfo=UTC)
KEEP = "tests.django.shop.tasks.keep"


class Importing(CommittingTestCase):
    system: ClassVar[str]

    def tearDown(self) -> None:
        for key in self.schedules():
            application().schedules.remove(key)
        super().tearDown()

    def imported(self, *words: str) -> tuple[int, dict[str, str]]:
        """The exit status, and the line about each of theirs."""
        with (
            patch("sys.stdout", StringIO()) as out,
            redirect_stderr(StringIO()),
            pytest.raises(SystemExit) as left,
        ):
            call_command("packhorse", "import", self.system, *words)
        lines = [line.strip() for line in out.getvalue().splitlines()[2:]]
        return int(left.value.code or 0), {line.split("  ")[0]: line for line in lines if line}

    def schedules(self) -> dict[str, Any]:
        return {it.key: it for it in application().schedules.all() if it.key.startswith(self.system)}

    def arguments(self, key: str) -> tuple[Any, Any]:
        """Of a job that it enqueues."""
        app = application()
        job = app.schedules.run_now(key)
        stored = app.store.job(from_text(job.id))
        assert stored is not None
        found = app.inspection.arguments(stored)
        job.cancel()
        return tuple(found.args), found.kwargs


@override_settings(TIME_ZONE="Europe/Berlin")
class FromDjangoQ(Importing):
    system = "django-q"

    def make(self, **fields: Any) -> str:
        model = apps.get_model("django_q", "Schedule")
        [row] = model.objects.bulk_create([model(**{"func": KEEP, "next_run": NEXT, **fields})])  # looks at no cron
        return f"django-q.{row.pk}"

    def test_each_kind_becomes_a_rule(self):
        kinds = {
            "O": "once at 2031-01-31T08:30:00Z",
            "H": "every 3600s from 2031-01-31T08:30:00Z",
            "D": "daily from 2031-01-31T09:30:00",
            "W": "weekly from 2031-01-31T09:30:00",
            "BW": "biweekly from 2031-01-31T09:30:00",
            "M": "monthly from 2031-01-31T09:30:00",
            "BM": "bimonthly from 2031-01-31T09:30:00",
            "Q": "quarterly from 2031-01-31T09:30:00",
            "Y": "yearly from 2031-01-31T09:30:00",
        }
        wanted = {self.make(schedule_type=kind): rule for kind, rule in kinds.items()}
        wanted[self.make(schedule_type="I", minutes=20)] = "every 1200s from 2031-01-31T08:30:00Z"
        crons = self.make(schedule_type="C", cron="15 9 * * 1-5")
        wanted[crons] = "cron: 15 9 * * 1-5"
        status, _ = self.imported()
        assert status == 0
        found = self.schedules()
        assert {key: it.rule for key, it in found.items()} == wanted
        assert {it.zone for it in found.values()} == {"Europe/Berlin"}
        assert {key: it.misfire for key, it in found.items() if it.misfire != "all"} == {crons: "once"}
        calendar = [it for it in found.values() if it.key != crons]
        assert {it.next_at for it in calendar} == {NEXT}

    def test_arguments_queue_and_repeats(self):
        one = self.make(schedule_type="H", args="1, 'two'", kwargs="three=3, four=[4]", cluster="mail", repeats=7)
        two = self.make(schedule_type="H", args="5", kwargs="{'six': 6}")
        assert self.imported()[0] == 0
        assert self.arguments(one) == ((1, "two"), {"three": 3, "four": [4]})
        assert self.arguments(two) == ((5,), {"six": 6})
        found = self.schedules()
        assert [(found[key].queue_name, found[key].repeats) for key in (one, two)] == [("mail", 7), (None, None)]

    def test_again_changes_nothing(self):
        key = self.make(schedule_type="H", name="often")
        self.imported()
        application().schedules.edit(key, rule="every 2h", reason="they asked for it")
        status, lines = self.imported()
        assert (status, lines["often"].endswith("is there")) == (0, True)
        assert self.schedules()[key].rule == "every 7200s"

    def test_a_dry_run_makes_nothing(self):
        key = self.make(schedule_type="D", name="daily")
        status, lines = self.imported("--dry-run")
        assert status == 0
        assert lines["daily"].endswith(f"would become {key}")
        assert "every day at 09:30" in lines["daily"]
        assert not self.schedules()

    def test_what_cannot_be_carried_over_is_told(self):
        rows: dict[str, dict[str, Any]] = {
            "no task": {"func": "shop.gone"},
            "hook": {"hook": "shop.hooks.told"},
            "date": {"intended_date_kwarg": "day"},
            "options": {"kwargs": "q_options={'timeout': 5}"},
            "bad args": {"args": "open('/etc/passwd')"},
            "bad kwargs": {"kwargs": "1, 2"},
            "bad cron": {"schedule_type": "C", "cron": "61 * * * *"},
            "no queue": {"cluster": "unheard-of"},
            "wrong call": {"func": "tests.django.shop.tasks.double", "args": "1, 2"},
        }
        for name, fields in rows.items():
            self.make(**{"schedule_type": "H", "name": name, **fields})
        self.make(schedule_type="H", name="over", repeats=0)
        good = self.make(schedule_type="H", name="good")
        status, lines = self.imported()
        assert status == 1
        assert {name for name, line in lines.items() if "refused: " in line} == set(rows)
        assert "put @task on it" in lines["no task"]
        assert "left out: it has no repeats left" in lines["over"]
        assert list(self.schedules()) == [good]


class FromCeleryBeat(Importing):
    __test__ = apps.is_installed("django_celery_beat")  # which does not know Django 6.1 yet
    system = "celery-beat"

    def make(self, name: str, **fields: Any) -> None:
        self.model("PeriodicTask").create(**{"name": name, "task": KEEP, **fields})

    def model(self, name: str) -> Any:
        return apps.get_model("django_celery_beat", name).objects

    def crontab(self, **fields: Any) -> Any:
        return self.model("CrontabSchedule").create(timezone="America/New_York", **fields)

    def interval(self, every: int = 10, period: str = "seconds") -> Any:
        return self.model("IntervalSchedule").create(every=every, period=period)

    def test_each_kind_becomes_a_rule(self):
        ran = datetime(2026, 1, 1, 12, tzinfo=UTC)
        self.make("cron", crontab=self.crontab(minute="0, 30", hour="*/2", day_of_week="mon-fri"))
        self.make("often", interval=self.interval(), last_run_at=ran)
        self.make("new", interval=self.interval(3, "days"))
        self.make("at", clocked=self.model("ClockedSchedule").create(clocked_time=NEXT), one_off=True)
        assert self.imported()[0] == 0
        found = self.schedules()
        assert {key: (it.rule, it.zone) for key, it in found.items()} == {
            "celery-beat.cron": ("cron: 0,30 */2 * * MON-FRI", "America/New_York"),
            "celery-beat.often": ("every 10s from 2026-01-01T12:00:10Z", "UTC"),
            "celery-beat.new": ("every 259200s", "UTC"),
            "celery-beat.at": ("once at 2031-01-31T08:30:00Z", "UTC"),
        }

    def test_arguments_queue_and_bounds(self):
        self.make(
            "a b",
            interval=self.interval(),
            args=json.dumps([1, "two"]),
            kwargs=json.dumps({"three": 3}),
            queue="mail",
            one_off=True,
            start_time=NEXT,
            expires=NEXT + timedelta(days=1),
        )
        self.make("a-b", interval=self.interval())
        assert self.imported()[0] == 0
        found = self.schedules()
        assert len(found) == 2
        [key] = found.keys() - {"celery-beat.a-b"}
        it = found[key]
        assert (it.queue_name, it.repeats, it.start, it.end) == ("mail", 1, NEXT, NEXT + timedelta(days=1))
        assert self.arguments(key) == ((1, "two"), {"three": 3})
        assert self.imported()[0] == 0
        assert self.schedules() == found

    def test_what_cannot_be_carried_over_is_told(self):
        solar = self.model("SolarSchedule").create(event="sunset", latitude=52, longitude=13)
        rows: dict[str, dict[str, Any]] = {
            "sunset": {"interval": None, "solar": solar},
            "both days": {"interval": None, "crontab": self.crontab(day_of_month="13", day_of_week="fri")},
            "priority": {"priority": 5},
            "headers": {"headers": '{"x": 1}'},
            "expiring": {"expire_seconds": 5},
            "bad args": {"args": "{}"},
            "no task": {"task": "proj.celery.debug"},
        }
        for name, fields in rows.items():
            self.make(name, **{"interval": self.interval(), **fields})
        self.make("off", interval=self.interval(), enabled=False)
        self.make("celery.backend_cleanup", crontab=self.crontab(hour="4"), task="celery.backend_cleanup")
        status, lines = self.imported()
        assert status == 1
        assert {name for name, line in lines.items() if "refused: " in line} == set(rows)
        assert {name for name, line in lines.items() if "left out: " in line} == {"off", "celery.backend_cleanup"}
        assert not self.schedules()

    def test_the_setting_too(self):
        from celery.schedules import crontab, schedule, solar

        entries = {
            "cron": {"task": KEEP, "schedule": crontab(minute=5, day_of_week="sun"), "args": (1,), "kwargs": {"a": 2}},
            "seconds": {"task": KEEP, "schedule": 90.0, "options": {"queue": "mail"}},
            "delta": {"task": KEEP, "schedule": timedelta(hours=3)},
            "object": {"task": KEEP, "schedule": schedule(timedelta(hours=4))},
            "sun": {"task": KEEP, "schedule": solar("sunrise", 52, 13)},
            "copied": {"task": KEEP, "schedule": 90.0},
        }
        self.make("copied", interval=self.interval(7))
        with override_settings(CELERY_BEAT_SCHEDULE=entries, CELERY_TIMEZONE="Europe/Paris"):
            status, lines = self.imported()
        assert (status, "refused" in lines["sun"]) == (1, True)
        found = self.schedules()
        assert {key.partition(".")[2]: it.rule for key, it in found.items()} == {
            "cron": "cron: 5 * * * SUN",
            "seconds": "every 90s",
            "delta": "every 10800s",
            "object": "every 14400s",
            "copied": "every 7s",
        }
        assert {it.zone for it in found.values()} == {"Europe/Paris"}
        assert found["celery-beat.seconds"].queue_name == "mail"
        assert self.arguments("celery-beat.cron") == ((1,), {"a": 2})
