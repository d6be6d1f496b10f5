"""Looking changes nothing, and meets whatever somebody wrote into the file."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from packhorse import Packhorse
from packhorse.errors import StoreError
from packhorse.job import FailureKind, JobState
from packhorse.stores import sql_jobs
from packhorse.stores.contract import Act, Change, Selection

KEYS = ("a-key-of-thirty-two-characters-or-more",)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


@pytest.fixture
def shop(folder: Path) -> Iterator[Packhorse]:
    app = Packhorse("shop", f"sqlite:///{folder}/jobs.db", keys=KEYS)
    app.task(name="work")(lambda number=0: None)
    yield app
    app.close()


def change(folder: Path, statement: str) -> None:
    with closing(sqlite3.connect(folder / "jobs.db", isolation_level=None)) as connection:
        connection.execute(statement)


def test_who_only_looks_makes_no_key(folder: Path, shop: Packhorse):
    job = shop.tasks["work"].enqueue()
    failure = shop.seals.failure(bytes(16), b"[]").hex()
    change(folder, f"insert into ending (id, failure, spent) select id, x'{failure}', 1 from job")
    change(folder, "update job set state = 6, finished_at = 1")
    looking = Packhorse("shop", f"sqlite:///{folder}/jobs.db")
    [seen] = looking.inspection.jobs()
    assert seen.failure is not None
    assert seen.failure.kind is FailureKind.UNDECODABLE
    assert looking.job(job.id).look().failure == seen.failure
    looking.close()
    assert not (folder / "jobs.db-key").exists()


@pytest.mark.parametrize(
    "damage",
    [
        "update payload set tags = '{['",
        "update payload set tags = '{\"a\": 1}'",
        "update payload set created_at = 9223372036854775807",
        "update payload set created_at = -9223372036854775808",
        "update job set expires_at = 9000000000000000000",
    ],
)
def test_a_row_somebody_damaged_is_still_shown(folder: Path, shop: Packhorse, damage: str):
    shop.tasks["work"].enqueue()
    change(folder, damage)
    [seen] = shop.inspection.jobs()
    assert seen.state is JobState.READY


def test_a_state_that_does_not_exist_is_named(folder: Path, shop: Packhorse):
    shop.tasks["work"].enqueue()
    change(folder, "update job set state = 9")
    for look in (shop.inspection.queues, lambda: list(shop.inspection.jobs())):
        with pytest.raises(StoreError, match="has the state 9"):
            look()


def test_many_jobs_of_a_state_are_selected_as_few_are(shop: Packhorse, monkeypatch: pytest.MonkeyPatch):
    """Beyond a number, pages walk along the ids instead of sorting the state's jobs again and again."""
    task = shop.tasks["work"]
    ids = [job.id for job in shop.enqueue_many(task.call(number) for number in range(30))]
    selection = Selection(states=[JobState.READY], tasks=["work"])
    for dense in (5_000, 10):
        monkeypatch.setattr(sql_jobs, "DENSE", dense)
        assert [job.id for job in shop.inspection.jobs(selection, page=7)] == sorted(ids)
    assert shop.control.act(selection, Change(Act.CANCEL)) == 30
