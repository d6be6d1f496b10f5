"""`packhorse doctor`: what may be wrong with the running thing."""

import json
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from packhorse import Embedded, Packhorse
from packhorse.clock import SECOND, ManualClock
from packhorse.doctor import examine
from packhorse.ids import new_id
from packhorse.queues import EVERYTHING
from packhorse.stores import sqlite_health
from packhorse.stores.contract import Finding, Level, ProcessInfo
from packhorse.stores.memory import MemoryStore
from packhorse.stores.sqlite_health import resets_wal_safely
from tests.skins.shops import Run, busy_shop, performed, planted, told

OLD_KEY, NEW_KEY = secrets.token_urlsafe(32), secrets.token_urlsafe(32)


@pytest.fixture
def app(shop: Path) -> Iterator[Packhorse]:
    app = busy_shop(shop)
    app.store.migrate()
    yield app
    app.close()


def about(app: Packhorse, subject: str, *, level: Level | None = None) -> list[Finding]:
    return [it for it in examine(app) if it.about == subject and level in (None, it.level)]


def troubles(app: Packhorse) -> dict[str, Level]:
    return {finding.about: finding.level for finding in examine(app) if finding.level is not Level.OK}


def enrolled(app: Packhorse, role: str = "worker", queues: str = "*", lease: float = 60) -> bytes:
    id = new_id()
    app.store.enroll(ProcessInfo(id, role, "elsewhere", 4711, queues), round(lease * SECOND))
    return id


def aged(app: Packhorse, seconds: int) -> None:
    """As if all jobs had been made so much earlier."""

    def age(c: Any) -> None:
        c.execute("update payload set created_at = created_at - ?", (seconds * SECOND,))
        c.execute("update job set run_at = run_at - ?, order_key = order_key - ?", (seconds * SECOND, seconds * SECOND))

    app.store._write(age)  # type: ignore[attr-defined]


def test_a_healthy_store_has_no_trouble(app: Packhorse, packhorse: Run):
    """Every finding is a sentence; status 0."""
    app.tasks["busy_shop.double"].enqueue(1)
    with Embedded(app):
        assert troubles(app) == {}
        result = packhorse("doctor", "busy_shop")
    assert result.exit_code == 0
    assert "0 problems, 0 warnings." in result.output
    found = told(packhorse("doctor", "busy_shop", "--json"))
    assert {finding["about"] for finding in found["findings"]} >= {
        "store",
        "sqlite",
        "files",
        "disk",
        "journal",
        "clock",
        "processes",
        "orphans",
        "queues",
        "failures",
    }
    assert all(finding["text"].endswith(".") for finding in found["findings"])


def test_looking_changes_nothing(app: Packhorse):
    """No key is made, no job is moved, nothing is audited."""
    planted(app, task="busy_shop.double", queue="default")
    before = app.inspection.queues()
    list(examine(app))
    assert app.inspection.queues() == before
    assert app.store.audit() == []
    assert not Path(f"{app.store.path}-key").exists()  # type: ignore[attr-defined]


def test_a_store_that_is_not_there_is_a_problem(shop: Path, packhorse: Run):
    """And none is made."""
    result = packhorse("doctor", "--store", f"sqlite:///{shop}/none.db", "--json")
    assert result.exit_code == 1
    [finding] = json.loads(result.stdout)["findings"]
    assert (finding["level"], finding["about"]) == ("problem", "store")
    assert not (shop / "none.db").exists()


def test_a_store_that_cannot_be_used_is_a_problem(shop: Path, packhorse: Run):
    (shop / "garbage.db").write_bytes(b"This is not a database." * 1000)
    result = packhorse("doctor", "--store", f"sqlite:///{shop}/garbage.db")
    assert result.exit_code == 1
    assert "file is not a database" in result.output


def test_files_that_others_can_read_or_write(app: Packhorse, shop: Path):
    """To be read is bad, to be written is worse, and the key is a secret."""
    app.tasks["busy_shop.double"].enqueue(1)
    (shop / "shop.db").chmod(0o640)
    [finding] = about(app, "files")
    assert finding.level is Level.WARNING
    assert "mode 0640" in finding.text
    assert "chmod 600" in finding.remedy
    (shop / "shop.db").chmod(0o620)
    (shop / "shop.db-key").chmod(0o644)
    assert [finding.level for finding in about(app, "files")] == [Level.PROBLEM, Level.PROBLEM]


def test_a_disk_nearly_full_and_a_journal_that_grows(app: Packhorse, monkeypatch: pytest.MonkeyPatch):
    """By how much is left, and by its size."""
    free = 200 << 20
    monkeypatch.setattr(shutil, "disk_usage", lambda path: type("Usage", (), {"free": free}))
    assert [finding.level for finding in about(app, "disk")] == [Level.WARNING]
    free = 50 << 20
    assert [finding.level for finding in about(app, "disk")] == [Level.PROBLEM]
    assert about(app, "disk")[0].text.startswith("50 MiB are free")
    app.store.migrate()
    monkeypatch.setattr(sqlite_health, "WAL_WARNING", -1)
    assert [finding.level for finding in about(app, "journal")] == [Level.WARNING]


@pytest.mark.parametrize(
    ("version", "safe"),
    [
        ((3, 40, 1), False),
        ((3, 44, 5), False),
        ((3, 44, 6), True),
        ((3, 45, 0), False),
        ((3, 50, 6), False),
        ((3, 50, 7), True),
        ((3, 51, 2), False),
        ((3, 51, 3), True),
        ((3, 52, 0), True),
    ],
)
def test_versions_of_sqlite_with_the_wal_reset_bug(version: tuple[int, ...], safe: bool):
    """docs/decisions/0002 has the list."""
    assert resets_wal_safely(version) == safe


def test_clocks_that_are_apart():
    """The store's own time against this machine's."""
    clock = ManualClock(Packhorse("x", MemoryStore()).clock.now() + 10 * SECOND)
    app = Packhorse("x", MemoryStore(clock))
    [finding] = about(app, "clock")
    assert finding.level is Level.WARNING
    clock.advance(3600)
    [finding] = about(app, "clock")
    assert finding.level is Level.PROBLEM
    assert "3,6" in finding.text


def test_a_queue_that_nobody_serves(app: Packhorse):
    """Only once its jobs have waited for a while, and unless it is paused."""
    app.tasks["busy_shop.mail"].enqueue("ann")
    enrolled(app, queues="default,report*")
    assert about(app, "queues", level=Level.PROBLEM) == []
    aged(app, 60)
    [finding] = about(app, "queues", level=Level.PROBLEM)
    assert "Queue mail has 1 ready job, and no live worker serves it." in finding.text
    app.control.pause("mail")
    assert about(app, "queues", level=Level.PROBLEM) == []
    app.control.resume("mail")
    enrolled(app, queues="ma*")
    assert about(app, "queues", level=Level.PROBLEM) == []


def test_a_worker_that_says_nonsense_serves_nobody(app: Packhorse):
    """Store data is hostile input."""
    app.tasks["busy_shop.mail"].enqueue("ann")
    aged(app, 60)
    enrolled(app, queues="mail;drop table")
    enrolled(app, queues="m*l")
    assert len(about(app, "queues", level=Level.PROBLEM)) == 1


def test_jobs_whose_process_is_gone(app: Packhorse):
    """A problem where nobody would adopt them."""
    app.tasks["busy_shop.double"].enqueue(1)
    app.store.exchange(enrolled(app), 1, [], EVERYTHING, 1)
    assert about(app, "orphans")[0].level is Level.OK
    app.store._write(lambda c: c.execute("update process set lease_until = 0"))  # type: ignore[attr-defined]
    [finding] = about(app, "orphans")
    assert finding.level is Level.PROBLEM
    assert "1 of 1 running job" in finding.text
    enrolled(app, "dispatcher", "")
    assert about(app, "orphans")[0].level is Level.WARNING


def test_processes_without_a_lease(app: Packhorse):
    """Each is named by its role, pid and host."""
    enrolled(app, lease=0)
    [none, over] = about(app, "processes")
    assert "No process lives" in none.text
    assert "worker with pid 4711 on elsewhere" in over.text
    assert over.level is Level.WARNING


def test_scheduled_jobs_without_a_dispatcher(app: Packhorse):
    """A problem once they are overdue."""
    app.tasks["busy_shop.double"].using(run_after=60).enqueue(1)
    assert about(app, "dispatcher")[0].level is Level.WARNING
    aged(app, 120)
    [finding] = about(app, "dispatcher")
    assert finding.level is Level.PROBLEM
    assert "1 of 1 scheduled job is overdue" in finding.text


def test_pauses_that_may_have_been_forgotten(app: Packhorse):
    """One that ends by itself is fine."""
    app.tasks["busy_shop.mail"].enqueue("ann")
    app.control.pause("mail", reason="the server moves", actor="bob")
    app.control.pause("night", until=3600)
    mail, night = about(app, "pauses")
    assert (mail.level, night.level) == (Level.WARNING, Level.OK)
    assert "paused by bob (the server moves), with 1 unfinished job" in mail.text
    assert "packhorse queues resume mail" in mail.remedy
    app.control.pause_task("busy_shop.mail", actor="bob")
    task = about(app, "pauses")[-1]
    assert (task.level, task.text) == (Level.WARNING, "Task busy_shop.mail is paused by bob, and without an end.")
    assert "packhorse tasks resume busy_shop.mail" in task.remedy


def test_a_remedy_can_be_copied_into_a_shell(app: Packhorse):
    """Whoever wrote the queue's name into the store must not write the operator's command."""
    planted(app, queue="x; rm -rf ~")
    app.store.pause("x; rm -rf ~", None, "ann", "")
    assert about(app, "pauses")[0].remedy.endswith("packhorse queues resume 'x; rm -rf ~'")
    app.store.resume("x; rm -rf ~", "ann", "")
    aged(app, 60)
    assert "--queues 'x; rm -rf ~'," in about(app, "queues")[0].remedy


def test_many_failures(app: Packhorse):
    """A few are life."""
    performed(app, "pay", *((number,) for number in range(9)))
    assert about(app, "failures")[0].level is Level.OK
    performed(app, "pay", (9,))
    [finding] = about(app, "failures")
    assert finding.level is Level.WARNING
    assert "10 failed and 0 succeeded" in finding.text


def test_tasks_that_this_application_does_not_know(app: Packhorse):
    """An alias is known."""
    planted(app, task="old.mail", queue="mail")
    assert about(app, "tasks")[0].level is Level.OK
    for number in range(7):
        planted(app, task=f"gone.task{number}", queue="mail")
    [finding] = about(app, "tasks")
    assert finding.level is Level.WARNING
    assert "gone.task0 (1)" in finding.text
    assert "and 2 more" in finding.text


def test_payloads_that_cannot_be_verified(app: Packhorse):
    """The first of them is named."""
    app.tasks["busy_shop.double"].enqueue(1)
    assert about(app, "signatures")[0].level is Level.OK
    forged = planted(app, task="busy_shop.double", queue="default")
    [finding] = about(app, "signatures")
    assert finding.level is Level.PROBLEM
    assert "1 of 2 unfinished jobs" in finding.text
    assert forged in finding.text


def test_a_key_that_is_gone_is_not_made_anew(app: Packhorse, shop: Path, packhorse: Run):
    """It would hide what happened, and verify nothing."""
    app.tasks["busy_shop.double"].enqueue(1)
    (shop / "shop.db-key").unlink()
    result = packhorse("doctor", "--app-name", "busy")
    assert result.exit_code == 1
    assert "no key to verify them with" in result.output
    assert not (shop / "shop.db-key").exists()


def keyed(shop: Path, *keys: str) -> Packhorse:
    return Packhorse("keyed", f"sqlite:///{shop}/keyed.db", keys=keys)


def test_which_keys_are_still_needed(shop: Path):
    """Told before an old one is taken out of the ring; a problem where it was."""
    old = keyed(shop, OLD_KEY)
    double = old.task(name="double")(lambda number: 2 * number)
    double.enqueue(1)
    double.enqueue(2)
    old.close()
    both = keyed(shop, NEW_KEY, OLD_KEY)
    new, former = about(both, "keys")
    assert "signed 0 of 2" in new.text
    assert "signed 2 of 2" in former.text
    assert former.remedy == "Keep it until they are done."
    both.close()
    too_early = keyed(shop, NEW_KEY)
    [finding] = about(too_early, "signatures")
    assert finding.level is Level.PROBLEM
    assert "put it back" in finding.remedy
    assert OLD_KEY not in str(list(examine(too_early)))
    too_early.close()


def test_without_an_application_its_part_is_left_out(app: Packhorse, packhorse: Run):
    """Tasks need the code, signatures the name."""
    planted(app, task="gone.task", queue="mail")

    def subjects(*args: str) -> set[Any]:
        return {finding["about"] for finding in json.loads(packhorse("doctor", "--json", *args).stdout)["findings"]}

    assert not subjects() & {"tasks", "signatures", "keys"}
    assert subjects("--app-name", "busy") >= {"keys"}
    assert subjects("busy_shop") >= {"keys", "tasks"}
    assert "Name the application" in packhorse("doctor").stderr


# Schedules.


def scheduled(app: Packhorse, *keys: str) -> None:
    for key in keys:
        app.schedules.add(app.tasks["busy_shop.double"].call(1), "every 60s", key=key)


def test_schedules_need_a_live_scheduler(app: Packhorse):
    """A warning as long as none is overdue; paused ones need nobody."""
    assert about(app, "schedules") == []
    scheduled(app, "a", "b")
    [found] = about(app, "schedules")
    assert (found.level, found.text) == (
        Level.WARNING,
        "There are schedules, but no scheduler lives that would enqueue their jobs.",
    )
    enrolled(app, "scheduler", queues="")
    assert [(it.level, it.text) for it in about(app, "schedules")] == [(Level.OK, "2 schedules are in time.")]
    for key in "ab":
        app.schedules.pause(key)
    assert about(app, "schedules") == []


def test_overdue_schedules_are_a_problem(app: Packhorse):
    """Whoever should have ticked them."""
    scheduled(app, "a", "b", "c")
    app.schedules.pause("c")
    row = app.store.schedule("b")
    assert row is not None
    app.store.tick(row, [], handled=None, next_at=app.clock.now() - 16 * SECOND, repeats=None)
    [found] = about(app, "schedules", level=Level.PROBLEM)
    assert found.text == "1 of 2 schedules are overdue, first of all b."
    assert "Start a worker" in found.remedy
    enrolled(app, "scheduler", queues="")
    [found] = about(app, "schedules", level=Level.PROBLEM)
    assert "log" in found.remedy


def test_schedules_with_an_error_are_a_problem(app: Packhorse):
    """A few of them by name."""
    scheduled(app, *(f"s{number}" for number in range(7)))
    enrolled(app, "scheduler", queues="")
    for row in app.store.schedules():
        app.store.tick(row, [], handled=None, next_at=row.next_at, repeats=None, error="no such bird")
    found = about(app, "schedules", level=Level.PROBLEM)
    assert found[0].text == "Schedule s0 gets no job: no such bird"
    assert [len(found), found[-1].text] == [6, "So it is with 2 more schedules."]
