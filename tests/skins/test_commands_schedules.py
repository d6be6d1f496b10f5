"""`packhorse schedules`: looking at schedules, making, editing, pausing and removing them."""

import importlib
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from packhorse import Packhorse, Selection
from packhorse.runtime.scheduler import Scheduler
from packhorse.scheduling import ScheduleView
from packhorse.stores.contract import StoredSchedule
from tests.skins.shops import FORBIDDEN, HOSTILE, Run, at_a_terminal, told

NIGHT_SHOP = """
from dataclasses import dataclass

from packhorse import Packhorse

app = Packhorse("night", time_zone="Asia/Tokyo")


@dataclass
class Range:
    first: int
    last: int


@app.recurring("30 2 * * *", key="nightly", args=("all",), zone="Europe/Berlin")
@app.task(queue_name="low")
def clean(what: str, password: str = "") -> None: ...


@app.task
def count(numbers: Range) -> int:
    return numbers.last - numbers.first
"""
ON = ("--app", "night_shop")


@pytest.fixture
def app(shop: Path) -> Iterator[Packhorse]:
    """Its scheduler has been here."""
    (shop / "night_shop.py").write_text(NIGHT_SHOP, encoding="utf-8")
    sys.modules.pop("night_shop", None)
    app: Packhorse = importlib.import_module("night_shop").app
    Scheduler(app).begin(None)  # type: ignore[arg-type]
    yield app
    app.close()


def added(packhorse: Run, key: str, rule: str, *more: str) -> Any:
    [view] = told(packhorse("schedules", "add", key, "night_shop.clean", rule, "all", *ON, "--json", *more))
    return view


def view(app: Packhorse, key: str) -> ScheduleView:
    return app.schedules.get(key)


def acts(app: Packhorse) -> list[tuple[str, str, str]]:
    return [(it.actor, it.act, it.reason) for it in app.inspection.audit()]


# Looking.


def test_schedules_are_listed_in_words(app: Packhorse, packhorse: Run):
    """With the next moment as the wall clock of the schedule shows it."""
    added(packhorse, "poll", "every 15m")
    app.schedules.pause("poll")
    output = packhorse("schedules", "list", "night_shop").output
    [nightly] = [line for line in output.splitlines() if line.startswith("nightly")]
    assert "every day at 02:30 (Europe/Berlin)" in nightly
    next_at = view(app, "nightly").next_at
    assert next_at is not None
    assert "02:30:00 CE" in nightly
    assert "(in " in nightly
    [poll] = [line for line in output.splitlines() if line.startswith("poll")]
    assert "poll (paused)" in poll
    assert poll.rstrip().endswith("·"), "a paused one does not come"
    found = told(packhorse("schedules", "list", "--json"))
    assert found["after"] is None
    [nightly, poll] = found["schedules"]
    assert (nightly["key"], nightly["declared"], nightly["source"]) == ("nightly", True, "night")
    assert nightly["next_at"] == next_at.isoformat()
    assert (poll["paused"], poll["next_at"], poll["declared"], poll["jitter"]) == (True, None, False, 0.0)


def test_schedules_are_listed_page_by_page(app: Packhorse, packhorse: Run):
    """In the order of their keys."""
    for number in range(130):
        app.schedules.add(app.tasks["night_shop.clean"].call("x"), "@daily", key=f"s{number:03}")
    first = told(packhorse("schedules", "list", "--limit", "120", "--json"))
    second = told(packhorse("schedules", "list", "--limit", "120", "--after", first["after"], "--json"))
    keys = [it["key"] for page in (first, second) for it in page["schedules"]]
    assert keys == ["nightly", *(f"s{number:03}" for number in range(130))]
    assert "There are more: --after 'nightly'" in packhorse("schedules", "list", "--limit", "1").stderr


def test_those_that_no_scheduler_saved_yet_are_pointed_out(shop: Path, packhorse: Run):
    """The store does not know them; nobody would enqueue their jobs."""
    (shop / "night_shop.py").write_text(NIGHT_SHOP, encoding="utf-8")
    sys.modules.pop("night_shop", None)
    packhorse("migrate")
    result = packhorse("schedules", "list", "night_shop")
    assert result.stdout == "No schedules.\n"
    assert "saved when a scheduler of it starts: nightly." in result.stderr
    assert packhorse("schedules", "list").stderr == ""


def test_one_is_shown_with_what_comes_and_what_was(app: Packhorse, packhorse: Run):
    """Its arguments where somebody asks for them, and no secrets."""
    start = datetime.now(UTC) - timedelta(minutes=5)
    row = added(packhorse, "often", f"every 60s from {start:%Y-%m-%dT%H:%M:%SZ}", "--misfire", "all", "password=s3cret")
    stored = app.store.schedule("often")
    assert stored is not None
    assert row["rule"].startswith("every 60s from")
    job = app.schedules.job_of(stored, 5_000_000)
    app.store.tick(stored, [(5_000_000, job)], handled=5_000_000, next_at=stored.next_at, repeats=None)
    output = packhorse("schedules", "show", "often", *ON, "--arguments").output
    assert "every minute from" in output
    assert "1970-01-01 09:00:05 JST" in output, "the last one, in the time zone of the application"
    assert app.schedules.ticks("often")[0].job is not None
    assert "s3cret" not in output
    assert '"what": "all"' in output
    assert '"what"' not in packhorse("schedules", "show", "often", *ON).output
    found = told(packhorse("schedules", "show", "often", *ON, "--json", "--arguments"))
    assert (found["arguments"]["what"], len(found["upcoming"]), len(found["ticks"])) == ("all", 5, 1)
    assert found["ticks"][0]["moment"] == "1970-01-01T00:00:05+00:00"
    declared = packhorse("schedules", "show", "nightly", *ON).output
    assert "in the code of night: it is changed there" in declared


def test_arguments_need_the_applications_name(app: Packhorse, packhorse: Run):
    """Their seal holds for it."""
    added(packhorse, "often", "every 60s")
    found = told(packhorse("schedules", "show", "often", "--arguments", "--json"))
    assert "arguments" not in found
    assert "ignature" in found["arguments_error"] or "signed" in found["arguments_error"]
    assert packhorse("schedules", "show", "often", "--arguments").exit_code == 0


def test_the_next_moments_are_those_of_its_own_wall_clock(app: Packhorse, packhorse: Run):
    """As many as wanted; a paused one says so."""
    result = packhorse("schedules", "next", "nightly", *ON, "--count", "3")
    lines = result.stdout.splitlines()
    assert lines[0] == "nightly: every day at 02:30 (Europe/Berlin)"
    assert len(lines) == 4
    assert all(" CE" in line for line in lines[1:])
    app.schedules.pause("nightly")
    assert "Schedule nightly is paused: these pass without a job." in packhorse("schedules", "next", "nightly").stderr
    found = told(packhorse("schedules", "next", "nightly", "--count", "400", "--json"))
    assert (found["zone"], found["paused"], len(found["upcoming"])) == ("Europe/Berlin", True, 400)
    added(packhorse, "never", "@daily", "--repeats", "0")
    assert "It never comes again." in packhorse("schedules", "next", "never").output


# Making.


def test_one_is_added_with_all_that_it_can_say(app: Packhorse, packhorse: Run):
    """The audit says who did it."""
    said = ("--zone", "Europe/Berlin", "--start", "2030-01-31T09:00", "--end", "2031-01-31T09:00+00:00")
    kind = ("--repeats", "3", "--jitter", "90s", "--misfire", "skip", "--grace", "1h", "--overlap", "queue")
    where = ("--queue", "slow", "--priority", "-7", "--actor", "ann", "--reason", "a trial")
    result = packhorse("schedules", "add", "s", "night_shop.clean", "0 7 * * MON", "all", *ON, *said, *kind, *where)
    assert result.exit_code == 0, result.output
    assert "Schedule s: " in result.output
    assert "Monday" in result.output
    assert "next at 2030-02-04 07:00:00 CET" in result.output
    it = view(app, "s")
    assert (it.zone, it.repeats, it.jitter, it.misfire) == ("Europe/Berlin", 3, timedelta(seconds=90), "skip")
    assert (it.grace, it.overlap, it.queue_name, it.priority) == (timedelta(hours=1), "queue", "slow", -7)
    assert it.start == datetime(2030, 1, 31, 8, tzinfo=UTC), "without a zone it is a time of the schedule's"
    assert it.end == datetime(2031, 1, 31, 9, tzinfo=UTC)
    assert acts(app) == [("ann", "schedule", "a trial")]


def test_arguments_are_given_as_to_enqueue(app: Packhorse, packhorse: Run):
    """JSON or text, by name or in one object; also where the function wants a dataclass."""
    packhorse("schedules", "add", "a", "night_shop.clean", "@daily", "all", 'password="42"', *ON)
    packhorse("schedules", "add", "b", "night_shop.count", "@daily", "--kwargs", '{"numbers": [1, 2]}', *ON)
    result = packhorse("schedules", "add", "c", "night_shop.count", "@daily", '{"first": 1, "last": 5}', *ON)
    assert result.exit_code == 0, result.output
    assert app.schedules.shown_arguments("a")["what"] == "all"
    assert app.schedules.shown_arguments("c") == {"numbers": {"first": 1, "last": 5}}
    assert app.store.schedule("b") is None
    id = packhorse("schedules", "run-now", "c", *ON).stdout.strip()
    assert app.job(id).look().task == "night_shop.count"


def test_the_applications_time_zone_counts_where_none_is_given(app: Packhorse, packhorse: Run):
    assert added(packhorse, "s", "@daily")["zone"] == "Asia/Tokyo"


def test_only_what_is_given_is_edited(app: Packhorse, packhorse: Run):
    """And none takes back."""
    added(packhorse, "s", "@daily", "--end", "2100-01-01T00:00", "--repeats", "3", "--grace", "5m", "--queue", "slow")
    before = view(app, "s")
    result = packhorse("schedules", "edit", "s", *ON, "--rule", "every 15m", "--priority", "4", "--reason", "sooner")
    assert "Schedule s: every 15 minutes, until 2100-01-01 00:00, 3 more times; next at 2" in result.output
    after = view(app, "s")
    assert (after.rule, after.priority, after.end, after.repeats) == ("every 900s", 4, before.end, 3)
    assert (after.queue_name, after.grace) == ("slow", timedelta(minutes=5))
    packhorse("schedules", "edit", "s", "--end", "none", "--repeats", "none", "--grace", "none", "--zone", "UTC")
    after = view(app, "s")
    assert (after.end, after.repeats, after.grace, after.zone) == (None, None, None, "UTC")
    assert (after.rule, after.priority) == ("every 900s", 4)
    assert acts(app)[1][2] == "sooner"


def test_one_is_paused_and_resumed(app: Packhorse, packhorse: Run):
    """Declared ones too."""
    added(packhorse, "poll", "every 15m")
    result = packhorse("schedules", "pause", "nightly", "poll", *ON, "--actor", "ann", "--reason", "no disk")
    assert result.output == (
        "Schedule nightly is paused until somebody resumes it.\nSchedule poll is paused until somebody resumes it.\n"
    )
    assert (view(app, "nightly").paused, view(app, "poll").paused) == (True, True)
    assert acts(app)[:2] == [("ann", "schedule", "no disk")] * 2
    result = packhorse("schedules", "resume", "nightly", "--reason", "there is one")
    assert result.output.startswith("Schedule nightly goes on, next at 2")
    assert acts(app)[0][2] == "there is one"
    [resumed] = told(packhorse("schedules", "resume", "poll", "--json"))
    assert (resumed["key"], resumed["paused"]) == ("poll", False)


def test_one_runs_now_besides_its_moments(app: Packhorse, packhorse: Run):
    """The id is printed; the audit says who and why."""
    before = view(app, "nightly").next_at
    job = app.job(packhorse("schedules", "run-now", "nightly", *ON).stdout.strip()).look()
    assert (job.task, job.queue, job.tags) == ("night_shop.clean", "low", ("schedule:nightly",))
    why = ("--reason", "the disk is empty", "--actor", "eve")
    assert app.job(told(packhorse("schedules", "run-now", "nightly", *ON, "--json", *why))["id"])
    assert view(app, "nightly").next_at == before
    [last, first] = app.inspection.audit()
    assert (last.actor, last.act, last.reason, last.jobs) == ("eve", "run_schedule", "the disk is empty", 1)
    assert (first.act, first.reason) == ("run_schedule", "")
    assert first.actor


def test_one_is_removed_after_asking(app: Packhorse, packhorse: Run, shop: Path):
    """Where nobody can be asked it needs --yes."""
    for key in "abc":
        added(packhorse, key, "@daily")
    result = packhorse("schedules", "remove", "a", "b", *ON)
    assert result.exit_code == 1
    assert "This would remove 2 schedules" in result.output
    status, seen = at_a_terminal(shop, "schedules", "remove", "c", *ON, answer="n\n")
    assert status == 1
    assert "Remove 1 schedule?" in seen
    assert len(list(app.schedules.all())) == 4
    assert packhorse("schedules", "remove", "a", "b", *ON, "--yes").output == "Removed 2 schedules.\n"
    assert told(packhorse("schedules", "remove", "c", "-y", "--json", "--actor", "bob")) == {"removed": ["c"]}
    assert acts(app)[0] == ("bob", "remove_schedule", "")
    assert [it.key for it in app.schedules.all()] == ["nightly"]


DECLARED = "Schedule 'nightly' is declared in the code of 'night': change it there, or pause it."


@pytest.mark.parametrize(
    ("args", "status", "message"),
    [
        (["edit", "nightly", "--repeats", "3"], 1, DECLARED),
        (["remove", "nightly", "--yes"], 1, DECLARED),
        (["add", "nightly", "night_shop.clean", "@daily", "all"], 1, "There is a schedule 'nightly' already"),
        (["show", "nihgtly"], 1, "nihgtly"),
        (["pause", "nightly", "unknown"], 1, "unknown"),
        (["resume", "unknown"], 1, "unknown"),
        (["remove", "unknown", "--yes"], 1, "unknown"),
        (["run-now", "unknown"], 1, "unknown"),
        (["edit", "nightly"], 2, "Say what is to change"),
        (["edit", "nightly", "--end", "tomorrow"], 2, "'tomorrow' is no time"),
        (["edit", "nightly", "--repeats", "many"], 2, "'many' is no whole number"),
        (["edit", "nightly", "--grace", "long"], 2, "'long' is no duration"),
        (["edit", "nightly", "--misfire", "never"], 2, "'never' is not one of"),
        (["edit", "nightly", "--priority", "1000"], 2, "-100<=x<=100"),
        (["add", "s", "night_shop.claen", "@daily"], 1, "Did you mean night_shop.clean"),
        (["add", "s", "night_shop.clean", "@daily"], 2, "cannot be called like this"),
        (["add", "s", "night_shop.clean", "99 * * * *", "all"], 1, "Cannot use the cron expression"),
        (["add", "s", "night_shop.clean", "now and then", "all"], 1, "is no rule of a schedule"),
        (["add", "s", "night_shop.clean", "@daily", "all", "--zone", "Europe/Berln"], 1, "Did you mean Europe/Berlin"),
        (["add", "s", "night_shop.clean", "@daily", "all", "--repeats", "-2"], 1, "repeats must be"),
        (["add", "s", "night_shop.clean", "@daily", "--kwargs", "["], 2, "--kwargs is not JSON"),
        (["add", "a key", "night_shop.clean", "@daily", "all"], 1, "cannot be a schedule key"),
        (["add", HOSTILE, "night_shop.clean", "@daily", "all"], 1, "cannot be a schedule key"),
        (["show", HOSTILE], 1, "evil"),
    ],
)
def test_a_wrong_word_is_explained(app: Packhorse, packhorse: Run, args: list[str], status: int, message: str):
    """And nothing is changed, not even what stands before it."""
    result = packhorse("schedules", *args, *ON)
    assert result.exit_code == status, result.output
    assert message in result.output
    assert not set(result.output) & set(FORBIDDEN)
    assert app.store.audit() == []
    assert list(app.inspection.jobs(Selection())) == []


@pytest.mark.parametrize("args", [["add", "s", "night_shop.clean", "@daily"], ["run-now", "nightly"]])
def test_some_need_the_code(app: Packhorse, packhorse: Run, args: list[str]):
    """A store knows no functions."""
    result = packhorse("schedules", *args)
    assert result.exit_code == 2
    assert "Name the application with --app" in result.output


def test_adding_makes_the_store(shop: Path, packhorse: Run):
    """As enqueueing does; looking does not."""
    (shop / "night_shop.py").write_text(NIGHT_SHOP, encoding="utf-8")
    sys.modules.pop("night_shop", None)
    assert "There is no store" in packhorse("schedules", "list", "night_shop").output
    assert added(packhorse, "s", "@daily")["key"] == "s"


def test_what_somebody_else_wrote_is_shown_and_can_be_mended(app: Packhorse, packhorse: Run):
    """Whatever it is."""
    far = 1 << 62
    rows = [
        StoredSchedule(key="rule", task="x", rule="cron: 99 * * * *", payload=b"", next_at=1),
        StoredSchedule(key="zone", task="x", rule="every 60s", payload=b"", zone="Mars/Base", next_at=5),
        StoredSchedule(
            key="far", task="x", rule="every 60s", payload=b"", next_at=far, start=far, end=-far, jitter=far
        ),
        StoredSchedule(key=HOSTILE, task=HOSTILE, rule=HOSTILE, payload=b"", error=HOSTILE, misfire=HOSTILE),
    ]
    for row in rows:
        assert app.store.put_schedule(row, "eve", "")
    for args in (["list"], *(["show", row.key, "--arguments"] for row in rows)):
        for more in ([], ["--json"]):
            result = packhorse("schedules", *args, *more)
            assert result.exit_code == 0, (result.output, result.exception)
            assert not set(result.output) & set(FORBIDDEN)
    assert "rule (error)" in packhorse("schedules", "list").output
    assert "Schedule rule gets no job: Cannot use the cron expression" in packhorse("schedules", "list").output
    assert packhorse("schedules", "pause", "rule").exit_code == 0
    assert packhorse("schedules", "edit", "rule", "--rule", "every 60s").exit_code == 0
    assert packhorse("schedules", "edit", "zone", "--zone", "UTC").exit_code == 0
    assert not view(app, "rule").error
