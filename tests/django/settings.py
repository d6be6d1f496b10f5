"""The settings of the site that the tests run; which database it has is said by the environment."""

import os
from importlib.util import find_spec
from pathlib import Path
from tempfile import gettempdir
from typing import Any

FOLDER = Path(os.environ.get("PACKHORSE_TEST_FOLDER") or gettempdir())
POSTGRES = os.environ.get("PACKHORSE_TEST_POSTGRES", "")
TEST_DATABASE = os.environ.get("PACKHORSE_TEST_DATABASE", "")  # worker processes: the very database of the tests

SECRET_KEY = "only these tests are ever signed with that 0b5e2f"
DEBUG = False
USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"


def database(name: str) -> dict[str, Any]:
    if POSTGRES:
        own = TEST_DATABASE and f"test_{name}"
        return {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": own or name,
            "USER": "postgres",
            "HOST": POSTGRES,
            "TEST": {"NAME": f"test_{name}"},
        }
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(FOLDER / f"{'test_' if TEST_DATABASE else ''}{name}.sqlite3"),
        "OPTIONS": {"transaction_mode": "IMMEDIATE"},
        "TEST": {"NAME": str(FOLDER / f"test_{name}.sqlite3")},
    }


DATABASES = {"default": database("site"), "other": database("other")}
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "packhorse.django",
    "tests.django.shop",
    # Of which schedules are imported; they are not there for every Django.
    *(app for app in ("django_q", "django_celery_beat") if find_spec(app)),
]
Q_CLUSTER = {"timeout": 30, "retry": 60}
QUICK = {"heartbeat": 0.25, "lease": 5, "polling_interval": 0.05}
TASKS = {
    "default": {"BACKEND": "packhorse.django.PackhorseBackend", "QUEUES": ["default", "mail"], "OPTIONS": QUICK},
    "any_queue": {"BACKEND": "packhorse.django.PackhorseBackend", "QUEUES": [], "OPTIONS": QUICK},
    "elsewhere": {
        "BACKEND": "packhorse.django.PackhorseBackend",
        "QUEUES": [],
        "OPTIONS": QUICK | {"database": "other"},
    },
}
ROOT_URLCONF = "tests.django.urls"
STATIC_URL = "static/"
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    }
]
