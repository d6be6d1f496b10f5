"""What `startproject` gives, with Packhorse as the backend of tasks."""

import os
from pathlib import Path

FOLDER = Path(os.environ.get("BAKERY_FOLDER") or Path(__file__).parent)

DEBUG = True
SECRET_KEY = os.environ.get("BAKERY_KEY", "django-insecure-good-enough-for-an-example")
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
ROOT_URLCONF = "bakery.urls"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
STATIC_URL = "static/"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "packhorse.django",
    "bakery",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
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
            ]
        },
    }
]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(FOLDER / "bakery.sqlite3"),
        "OPTIONS": {"transaction_mode": "IMMEDIATE"},
    }
}
TASKS = {"default": {"BACKEND": "packhorse.django.PackhorseBackend"}}
