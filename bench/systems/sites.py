"""Backends for Django's tasks on PostgreSQL: ours and its peers, each in an environment of its own."""

from __future__ import annotations

from collections.abc import Iterable

from bench import site
from bench.lab import Lab
from bench.sizes import CONCURRENCY
from bench.systems.ours import PackhorseSystem
from bench.systems.peers import PSYCOPG, PeerSystem

DJANGO = ("Django==6.1.3", *PSYCOPG)


class SiteSystem(PeerSystem):
    """`size` is the number of threads in each process."""

    needs = (3, 12)


class DjQueueSystem(SiteSystem):
    name = "dj_queue"
    module = "dj_queue"
    pace = "slow"
    requirements = ("dj-queue==0.14.2", *DJANGO)
    processes = 1  # a supervisor, which has two workers
    size = 32
    words = "two processes with 32 threads, quicker than 5, 8 and 16; LISTEN/NOTIFY"
    left = "select count(*) from dj_queue_jobs where finished_at is null"


class DjangoTasksDbSystem(SiteSystem):
    name = "django_tasks_db"
    module = "django_tasks_db"
    pace = "slow"
    requirements = ("django-tasks-db==0.13.0", *DJANGO)
    size = 1
    words = "two processes, interval 0.1 s"
    left = "select count(*) from django_tasks_database_dbtaskresult where status in ('READY', 'RUNNING')"


class SteadyQueueSystem(SiteSystem):
    name = "steady_queue"
    module = "steady_queue"
    pace = "slowest"
    requirements = ("steady-queue==0.3.0", *DJANGO)
    processes = 1  # a supervisor, which has two workers
    size = 32
    words = "two processes with 32 threads, quicker than 5; polling every 0.1 s"
    left = "select count(*) from steady_queue_job where finished_at is null"


class PackhorseSite(SiteSystem):
    """The site that enqueues for us."""

    name = "packhorse_django"
    module = "packhorse_django"
    requirements = ("click==8.5.1", "rich==15.0.0", "cronsim==2.8", *DJANGO)
    size = CONCURRENCY
    words = f"two processes with {CONCURRENCY} threads"
    left = ""


class NativeSystem(PackhorseSystem):
    """Without Django, in the environment that has it, so that both have the same Python."""

    name = "native"

    def command(self) -> list[str]:
        return [str(PackhorseSite.python), "-m", "packhorse", *self.words()]


class PackhorseDjangoSystem(PackhorseSystem):
    """Through Django's own calls and `manage.py packhorse`; only watched and held as other applications are."""

    name = "packhorse_django"

    def __init__(self, lab: Lab, database: str | None = None) -> None:
        self.site = PackhorseSite(lab, database)
        super().__init__(lab, self.site.database)

    def where(self) -> str:
        return f"{super().where()}&schema=public&prefix=packhorse_"

    def command(self) -> list[str]:
        return [str(PackhorseSite.python), "-m", "django", "packhorse", "--verbosity", "0"]

    def environment(self) -> dict[str, str]:
        return site.environment(self.site.module, self.lab.store.url(self.database), self.site.size)

    def enqueue(self, number: int) -> int:
        return self.site.enqueue(number)

    def fill(self, numbers: Iterable[int]) -> None:
        self.site.fill(numbers)

    def close(self) -> None:
        self.site.close()
        super().close()
