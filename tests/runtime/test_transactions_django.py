"""Through Django's own connection: what is enqueued inside `atomic` is there when it commits."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import django
import pytest
from django.conf import settings
from django.db import connections, transaction

from packhorse import Embedded, Packhorse
from tests.servers.postgres import Server

KEY = "a key that only these tests ever sign with"


@pytest.fixture(params=["sqlite", "postgres"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Packhorse]:
    tmp_path.chmod(0o700)
    database: dict[str, Any] = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "jobs.db")}
    url = f"sqlite:///{tmp_path}/jobs.db?synchronous=normal"
    if request.param == "postgres":
        server: Server = request.getfixturevalue("postgres")
        database = {"ENGINE": "django.db.backends.postgresql", "NAME": "postgres", "USER": "postgres"}
        database["HOST"] = str(server.folder)
        url = server.url("postgres", schema="django_shop")
    if not settings.configured:
        settings.configure(DATABASES={"default": database}, USE_TZ=True)
        django.setup()
    connections.settings = connections.configure_settings({"default": database})
    app = Packhorse("shop", url, heartbeat=0.05, polling_interval=30, keys=[KEY])
    app.control.migrate()
    yield app
    connections["default"].close()
    del connections["default"]
    app.close()


def test_atomic(shop: Packhorse):
    @shop.task(name="double")
    def double(number: int) -> int:
        return 2 * number

    connection = connections["default"]
    with transaction.atomic(), shop.on(connection):
        double.enqueue(1)
        transaction.set_rollback(True)
    with transaction.atomic(), shop.on(connection):
        with transaction.atomic():
            double.enqueue(2)
            transaction.set_rollback(True)
        job = double.enqueue(3)
        assert list(shop.inspection.jobs()) == []
    assert [it.id for it in shop.inspection.jobs()] == [job.id]
    with shop.on(connection):
        at_once = double.enqueue(4)
    with Embedded(shop):
        assert [job.result(timeout=20), at_once.result(timeout=20)] == [6, 8]
