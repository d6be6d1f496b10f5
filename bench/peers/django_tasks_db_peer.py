"""django-tasks-db: each worker process performs one job after the other."""

from __future__ import annotations

from bench.peers.site import SitePeer


class DjangoTasksDbPeer(SitePeer):
    backend = "django_tasks_db"
    command = ("db_worker", "--verbosity", "0", "--interval", "0.1", "--no-startup-delay")


PEER = DjangoTasksDbPeer
