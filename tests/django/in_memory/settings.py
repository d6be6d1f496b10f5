"""The tests' site as most have it: Django's test runner moves its database into memory."""

from tests.django.settings import *  # noqa: F403

DATABASES = {
    "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "unused.sqlite3"},
    "other": {"ENGINE": "django.db.backends.sqlite3", "NAME": "unused_too.sqlite3"},
}
