"""The same site for every backend; `$BENCH_BACKEND` says which of them performs its task, `$BENCH_URL` where.

Each is configured as it was quickest: two processes, connections that stay open, nothing logged of jobs that succeed.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

from bench.sizes import PROCESSES

BACKEND = os.environ["BENCH_BACKEND"]
_url = urlsplit(os.environ["BENCH_URL"])

SECRET_KEY = "of a site that is measured and never served 6d0b1c"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _url.path.lstrip("/"),
        "USER": _url.username,
        "HOST": parse_qs(_url.query)["host"][0],
        "CONN_MAX_AGE": None,
    }
}
LOGGING = {"version": 1, "disable_existing_loggers": False, "loggers": {"django.tasks": {"level": "WARNING"}}}

_workers = {"threads": int(os.environ["BENCH_THREADS"]), "processes": PROCESSES}
_backends: dict[str, tuple[list[str], str, dict[str, Any]]] = {
    "packhorse_django": (["packhorse.django"], "packhorse.django.PackhorseBackend", {"workers": [_workers]}),
    "dj_queue": (["dj_queue"], "dj_queue.backend.DjQueueBackend", {"workers": [_workers]}),
    "django_tasks_db": (["django_tasks_db"], "django_tasks_db.DatabaseBackend", {}),
    "steady_queue": (["django.contrib.contenttypes", "steady_queue"], "steady_queue.backend.SteadyQueueBackend", {}),
}
_apps, _backend, _options = _backends[BACKEND]
INSTALLED_APPS = [*_apps, "bench.site"]
TASKS = {"default": {"BACKEND": _backend, "QUEUES": [], "OPTIONS": _options}}

if BACKEND == "steady_queue":
    from steady_queue.configuration import Configuration

    STEADY_QUEUE = Configuration.Options(
        workers=[Configuration.Worker(**_workers, polling_interval=timedelta(seconds=0.1))]
    )
