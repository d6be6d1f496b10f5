"""`packhorse backup`: a copy of a SQLite store that is in use."""

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from packhorse import Packhorse
from packhorse.ids import from_text
from packhorse.stores import sqlite_backup
from tests.servers.postgres import Server
from tests.skins.shops import Run, busy_shop


@pytest.fixture
def app(shop: Path) -> Iterator[Packhorse]:
    app = busy_shop(shop)
    app.tasks["busy_shop.double"].enqueue(1)
    yield app
    app.close()


def said(text: str) -> str:
    return " ".join(text.split())


def jobs(copy: Path) -> int:
    with closing(sqlite3.connect(copy)) as connection:
        assert connection.execute("pragma integrity_check").fetchall() == [("ok",)]
        return int(connection.execute("select count(*) from job").fetchone()[0])


def test_the_copy_is_a_store_with_its_key(app: Packhorse, packhorse: Run, tmp_path: Path):
    """It holds the jobs, its signatures hold, and nobody else can read it."""
    result = packhorse("backup", "copy.db", "--app", "busy_shop")
    assert result.exit_code == 0, result.output
    copy = Path("copy.db").absolute()
    assert f"to {copy}" in said(result.output)
    assert f"The key is in {copy}-key" in said(result.output)
    assert [path.stat().st_mode & 0o777 for path in (copy, Path(f"{copy}-key"))] == [0o600, 0o600]
    assert sorted(path.name for path in copy.parent.glob("*copy.db*")) == ["copy.db", "copy.db-key"]
    assert jobs(copy) == 1
    restored = Packhorse("busy", f"sqlite:///{copy}")
    [job] = restored.inspection.jobs()
    stored = restored.inspection.stored(job.id)
    restored.seals.open_job(from_text(stored.id), stored.task, stored.payload)
    restored.close()
    app.tasks["busy_shop.double"].enqueue(2)
    assert jobs(copy) == 1


def test_for_scripts(app: Packhorse, packhorse: Run):
    told = json.loads(packhorse("backup", "copy.db", "--app", "busy_shop", "--json").output)
    assert told["files"] == [str(Path("copy.db").absolute()), str(Path("copy.db-key").absolute())]
    assert told["bytes"] == os.path.getsize("copy.db")


def test_nothing_is_overwritten_unasked(app: Packhorse, packhorse: Run):
    """Neither a database nor a key; and with --force the old ones are there until the new ones are complete."""
    Path("copy.db").write_text("precious")
    refused = packhorse("backup", "copy.db", "--app", "busy_shop")
    assert refused.exit_code == 1
    assert "There already is a file" in refused.output
    assert Path("copy.db").read_text() == "precious"
    Path("other.db-key").write_text("precious")
    assert "There already is a file" in packhorse("backup", "other.db", "--app", "busy_shop").output
    assert not Path("other.db").exists()
    assert packhorse("backup", "copy.db", "--app", "busy_shop", "--force").exit_code == 0
    assert jobs(Path("copy.db")) == 1


def test_places_where_no_copy_can_be(app: Packhorse, packhorse: Run):
    """The store itself, what another program has open, a folder, a folder that is not there."""
    own = app.store.path  # type: ignore[attr-defined]
    for target, words in [
        (str(own), "is a file of the store itself"),
        (f"{own}-wal", "is a file of the store itself"),
        ("used.db", "a program uses that database or has not closed it"),
        (".", "is a folder"),
        ("missing/copy.db", "does not exist. Create it"),
    ]:
        Path("used.db-wal").touch()
        result = packhorse("backup", target, "--app", "busy_shop", "--force")
        assert result.exit_code == 1, target
        assert words in said(result.output)
    assert app.store.schema_version() > 0


def test_an_interrupted_backup_leaves_nothing(app: Packhorse, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sqlite_backup, "PAGES_AT_ONCE", 1)

    def interrupt(done: int, total: int) -> None:
        assert done <= total
        if done > 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        app.control.backup("copy.db", progress=interrupt)
    assert not list(Path().glob("*copy.db*"))
    app.tasks["busy_shop.double"].enqueue(2)


def test_progress_is_told(app: Packhorse, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sqlite_backup, "PAGES_AT_ONCE", 5)
    told: list[tuple[int, int]] = []
    app.control.backup("copy.db", progress=lambda done, total: told.append((done, total)))
    assert [done for done, _ in told[:2]] == [5, 10]
    assert len({total for _, total in told}) == 1
    assert told[-1][0] == told[-1][1]


def test_a_commit_of_another_does_not_make_it_begin_anew(app: Packhorse, monkeypatch: pytest.MonkeyPatch):
    """The copy is of the moment in which it began."""
    monkeypatch.setattr(sqlite_backup, "PAGES_AT_ONCE", 5)
    told: list[int] = []

    def write(done: int, total: int) -> None:
        assert done > max(told, default=0)
        told.append(done)
        app.tasks["busy_shop.double"].enqueue(done)

    app.control.backup("copy.db", progress=write)
    assert jobs(Path("copy.db")) == 1


def test_other_stores_have_other_ways(packhorse: Run):
    result = packhorse("backup", "copy.db", "--store", "memory://")
    assert result.exit_code == 1
    assert "there is nothing to back up" in said(result.output)


@pytest.mark.servers
def test_a_server_is_backed_up_by_its_own_means(packhorse: Run, postgres: Server):
    url = postgres.url("postgres", schema="backed_up")
    assert packhorse("migrate", "--store", url).exit_code == 0
    result = packhorse("backup", "copy.db", "--store", url)
    assert result.exit_code == 1
    assert "pg_dump" in said(result.output)
