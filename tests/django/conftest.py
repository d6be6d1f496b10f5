"""A site with its databases, on the Django of this environment: `scripts/test-django` runs it on each."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import pytest

from tests.servers.postgres import Server

FOLDER = Path(mkdtemp(prefix="packhorse-django-"))
FOLDER.chmod(0o700)
os.environ["PACKHORSE_TEST_FOLDER"] = str(FOLDER)
os.environ["DJANGO_SETTINGS_MODULE"] = "tests.django.settings"
SERVER = Server() if os.environ.get("PACKHORSE_TEST_STORE") == "postgres" else None
if SERVER is not None:
    os.environ["PACKHORSE_TEST_POSTGRES"] = str(SERVER.folder)

import django  # noqa: E402

django.setup()

from django.test.runner import DiscoverRunner  # noqa: E402
from django.test.utils import setup_test_environment, teardown_test_environment  # noqa: E402

from packhorse.django import compat  # noqa: E402
from tests.django.shop import tasks  # noqa: E402


@pytest.fixture(scope="session", autouse=True)
def site() -> Iterator[None]:
    """Made by Django's own test runner."""
    if SERVER is not None:
        SERVER.start()
    setup_test_environment()
    runner = DiscoverRunner(interactive=False, verbosity=0)
    databases = runner.setup_databases(aliases={"default": True, "other": True}, serialized_aliases=set())
    applications = [compat.task_backends[alias].application for alias in ("default", "elsewhere")]
    for application in applications:
        application.inspection.schema_version()  # SQLite's journal becomes one beside which others can read
        application.close()
    yield
    for application in applications:
        application.close()
    runner.teardown_databases(databases)
    teardown_test_environment()
    if SERVER is not None:
        SERVER.remove()
    shutil.rmtree(FOLDER)


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    tasks.seen.clear()
    tasks.gate.clear()
