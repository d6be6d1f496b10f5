"""`TASKS[alias]["OPTIONS"]`, keys and system checks."""

import os
from typing import Any
from unittest.mock import patch

import pytest
from django.core.checks import run_checks
from django.test import SimpleTestCase, override_settings

from packhorse import ConfigError
from packhorse.django import PackhorseBackend, options, places
from packhorse.django.checks import check_backend
from packhorse.signing import generate_secret
from tests.django import settings as site
from tests.django.helpers import application
from tests.django.shop import tasks

INSECURE = "django-insecure-0b5e2f8a1c6d4e7f9a2b3c4d5e6f7a8b"


def backend(**given: Any) -> PackhorseBackend:
    return PackhorseBackend("default", {"OPTIONS": given})


def found(**given: Any) -> list[tuple[str, str]]:
    return [(message.id, str(message.msg)) for message in check_backend(backend(**given))]


class Options(SimpleTestCase):
    def test_1B_16_defaults(self):
        read = options.read({})
        [worker], [dispatcher] = read.workers, read.dispatchers
        assert (worker.queues, worker.threads, worker.processes, worker.polling_interval) == (("*",), 3, 1, 0.1)
        assert (dispatcher.polling_interval, dispatcher.batch_size) == (1, 500)
        assert (dispatcher.concurrency_maintenance, dispatcher.concurrency_maintenance_interval) == (True, 600)
        assert (read.settings["polling_interval"], read.settings["batch_size"]) == (0.1, 500)
        assert (read.database, read.commit_database, read.enqueue_on_commit) == ("default", "default", None)

    def test_1B_26_settings_under_their_former_names(self):
        read = options.read(
            {
                "process_heartbeat_interval": 2,
                "process_alive_threshold": 60,
                "shutdown_timeout": 5,
                "clear_finished_jobs_after": 86_400,
                "supervisor_pidfile": "pid",
            }
        )
        assert (read.settings["heartbeat"], read.settings["lease"], read.settings["shutdown_timeout"]) == (2, 60, 5)
        assert (read.settings["keep_succeeded"], read.supervisor_pidfile) == (86_400, "pid")
        assert options.read({"preserve_finished_jobs": False}).settings["keep_succeeded"] == 0

    def test_unknown_and_wrong_settings_are_told_with_the_nearest(self):
        wrong: list[tuple[dict[str, Any], str]] = [
            ({"hartbeat": 1}, "Did you mean 'heartbeat'"),
            ({"workers": [{"thread": 1}]}, "Did you mean 'threads'"),
            ({"workers": {"threads": 1}}, "list of dictionaries"),
            ({"workers": ["x"]}, "is none"),
            ({"workers": [{"threads": 0}]}, "whole number from 1"),
            ({"workers": [{"polling_interval": 0}]}, "seconds above 0"),
            ({"workers": [{"queues": ["a b"]}]}, "queue"),
            ({"dispatchers": [{"concurrency_maintenance": 1}]}, "True or False"),
            ({"database": "othr"}, "Did you mean 'other'"),
            ({"database": "other", "store": "memory://"}, "keep one of the two"),
            ({"enqueue_on_commit": "yes"}, "True, False or None"),
            ({"heartbeat": -1}, "heartbeat must be"),
        ]
        for given, message in wrong:
            [(id, said)] = found(**given)
            assert id == "packhorse.E001"
            assert message in said

    def test_the_environment_may_name_the_store(self):
        with patch.dict(os.environ, {"PACKHORSE_STORE": "memory://"}):
            assert (options.read({}).store, options.read({}).database) == ("memory://", None)

    def test_the_time_zone_is_that_of_the_site(self):
        with override_settings(TIME_ZONE="Europe/Berlin"):
            assert options.read({}).settings["time_zone"] == "Europe/Berlin"
        assert options.read({"time_zone": "Asia/Tokyo"}).settings["time_zone"] == "Asia/Tokyo"


class Keys(SimpleTestCase):
    def test_the_secret_key_signs_and_its_fallbacks_verify(self):
        first, second = generate_secret().decode(), generate_secret().decode()
        with override_settings(SECRET_KEY=first):
            old = application_with(keys_of=1)
            call = tasks.double.later(4)
            job = call.new_job()
        with override_settings(SECRET_KEY=second, SECRET_KEY_FALLBACKS=[first]):
            new = application_with(keys_of=2)
            assert new.settings.keys == (second, first)
            sealed = old.seals.job(job.id, job.task, call.encoded, created=0, expires=None, version=1)
            assert new.seals.open_job(job.id, job.task, sealed).body == call.encoded.body

    def test_a_key_for_development_is_refused_where_debug_is_off(self):
        with override_settings(SECRET_KEY=INSECURE), patch("packhorse.django.options.mail", object()):
            [(id, said)] = found()
            assert id == "packhorse.E002"
            assert INSECURE not in said
            with pytest.raises(ConfigError, match="development only"):
                application_with(keys_of=3)
            with override_settings(DEBUG=True):
                assert found() == []
        with override_settings(SECRET_KEY=INSECURE):  # Django's test runner switches DEBUG off
            assert found() == []

    def test_keys_of_ones_own(self):
        key = generate_secret().decode()
        assert options.read({"keys": [key]}).settings["keys"] == [key]
        with patch.dict(os.environ, {"PACKHORSE_KEYS": key}):
            assert "keys" not in options.read({}).settings


def application_with(**label: Any) -> Any:
    """A new one, as other settings make."""
    with override_settings(TASKS={"default": {**site.TASKS["default"], "LABEL": label}}):
        return application()


class Checks(SimpleTestCase):
    def test_the_site_is_well(self):
        assert run_checks() == []

    def test_the_app_must_be_installed(self):
        apps = [name for name in site.INSTALLED_APPS if name != "packhorse.django"]
        with override_settings(INSTALLED_APPS=apps):
            assert [id for id, _ in found()] == ["packhorse.E003"]
            assert found(store="memory://") == []

    def test_databases_that_keep_no_jobs(self):
        with patch("packhorse.django.checks.connections") as connections:
            connections.__getitem__.return_value.vendor = "oracle"
            assert [id for id, _ in found()] == ["packhorse.E004"]

    def test_a_database_in_memory(self):
        memory = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
        with patch("packhorse.django.checks.connections") as connections:
            connections.__getitem__.return_value.vendor = "sqlite"
            with patch("packhorse.django.checks.settings.DATABASES", {"default": memory}):
                assert found() == []  # where Django's test runner does so
                with patch("packhorse.django.options.mail", object()):
                    assert [id for id, _ in found()] == ["packhorse.E005"]


class Places(SimpleTestCase):
    def test_the_url_of_a_postgresql_database(self):
        told = {"NAME": "my db", "USER": "ann", "PASSWORD": "p&w", "HOST": "db", "PORT": 5433}
        url = places._postgres_url({**told, "OPTIONS": {"pool": True, "sslmode": "verify-full"}})
        assert url.startswith("postgresql:///my%20db?")
        for part in ("sslmode=verify-full", "host=db", "port=5433", "user=ann", "password=p%26w", "schema=public"):
            assert part in url
        assert "pool" not in url
        elsewhere = places._postgres_url({**told, "OPTIONS": {"options": "-c search_path=shop,public"}})
        assert "schema=shop" in elsewhere
        assert "sslmode=prefer" in elsewhere
