"""`packhorse tasks`: looking at tasks, pausing and resuming them."""

import importlib
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from packhorse import Packhorse
from tests.skins.shops import FORBIDDEN, HOSTILE, Run, busy_shop, told

LIMITED_SHOP = """
from packhorse import Packhorse, debounce, limit, rate, throttle, unique

app = Packhorse("limited")


def by_room(room: str) -> str:
    return room


@app.task(name="orders", limit=limit("{account}", to=3))
def orders(account: int) -> None: ...


@app.task(name="poster", limit=[limit(group="printer"), limit(by_room, to=2_000)])
def poster(room: str) -> None: ...


@app.task(name="page", limit=limit(group="printer", on_conflict="discard"), unique=True, retries=None)
def page(number: int) -> None: ...


@app.task(name="index", limit=limit(on_conflict="replace"), unique=unique(arguments=["a", "b"], on_conflict="replace"))
def index(a: int, b: int) -> None: ...


@app.task(name="draft", queue_name="slow", unique=debounce("{user}"))
def draft(user: int) -> None: ...


@app.task(name="digest", unique=throttle(600, "{user}"))
def digest(user: int) -> None: ...


@app.task(name="crawl", limit=limit(to=2), rate=["5/s", rate("1000/2h", "{site}", burst=3, group="sites")])
def crawl(site: str) -> None: ...


@app.task(name="notify", share="ann", unique=unique("{user}", on_conflict="merge"))
def notify(user: int, lines: list[str]) -> None: ...
"""


@pytest.fixture
def app(shop: Path) -> Iterator[Packhorse]:
    app = busy_shop(shop)
    app.tasks["busy_shop.mail"].enqueue("ann")
    app.tasks["busy_shop.double"].enqueue(1)
    yield app
    app.close()


def pause_of(app: Packhorse, name: str):
    return {pause.name: pause for pause in app.inspection.pauses()}.get(name)


def test_tasks_are_listed_with_their_pauses(app: Packhorse, packhorse: Run):
    """Who paused it, and why. A queue's pause is not a task's."""
    app.control.pause("mail")
    app.control.pause_task("busy_shop.mail", reason="the server moves", actor="ann")
    result = packhorse("tasks", "list", "busy_shop")
    assert "busy_shop.mail (paused)" in result.output
    assert "Task busy_shop.mail is paused until somebody resumes it, by ann: the server moves" in result.output
    assert "unlimited" in result.output
    assert "Queue mail" not in result.output
    found = {task["name"]: task for task in told(packhorse("tasks", "list", "busy_shop", "--json"))}
    assert list(found) == list(app.tasks)
    assert found["busy_shop.mail"]["paused"] == {"until": None, "reason": "the server moves", "actor": "ann"}
    assert (found["busy_shop.pay"]["queue"], found["busy_shop.pay"]["retries"]) == ("till", 0)
    assert found["busy_shop.pay"]["paused"] is None


def test_limits_are_told_in_words(shop: Path, packhorse: Run):
    """With the keys that `packhorse limits` shows, but for the values; no store is made for that."""
    (shop / "limited_shop.py").write_text(LIMITED_SHOP, encoding="utf-8")
    sys.modules.pop("limited_shop", None)
    found = {task["name"]: task for task in told(packhorse("tasks", "list", "limited_shop", "--json"))}
    assert {name: (task["limits"], task["unique"]) for name, task in found.items()} == {
        "orders": (["at most 3 of orders/{account}"], None),
        "poster": (["at most 1 of printer/", "at most 2,000 of poster/by_room(…)"], None),
        "page": (["at most 1 of printer/, others are cancelled"], "unique by all arguments"),
        "index": (["at most 1 of index/, only the newest waits"], "unique by a, b, replaced by the next"),
        "draft": ([], "unique by draft/{user} until it starts, replaced by the next"),
        "digest": ([], "unique by digest/{user} for 600 s"),
        "crawl": (
            ["at most 2 of crawl/", "at most 5/s of crawl/", "at most 1000/2h of sites/{site}, burst 3"],
            None,
        ),
        "notify": ([], "unique by notify/{user} until it starts, merged with the next"),
    }
    assert [task["name"] for task in found.values() if task["share"] == "ann"] == ["notify"]
    output = packhorse("tasks", "list", "limited_shop").output
    assert "at most 1 of printer/, others are cancelled; unique by all arguments" in output
    assert "until it starts, merged with the next; share ann" in output
    assert not importlib.import_module("limited_shop").app.inspection.exists()


def test_paused_tasks_that_the_application_does_not_know_are_listed(app: Packhorse, packhorse: Run):
    """They may have been renamed since. Without an application there are no others."""
    app.control.pause_task("gone.away")
    assert "gone.away (paused)" in packhorse("tasks", "list", "busy_shop").output
    assert told(packhorse("tasks", "list", "busy_shop", "--json"))[-1]["known"] is False
    [only] = told(packhorse("tasks", "list", "--json"))
    assert (only["name"], only["known"], only["queue"]) == ("gone.away", False, None)
    app.control.resume_task("gone.away")
    assert packhorse("tasks", "list").output == "No tasks, and none is paused.\n"


def test_a_task_is_paused_for_good_for_a_while_or_until_a_time(app: Packhorse, packhorse: Run):
    """As queues are."""
    on = ("--app", "busy_shop")
    result = packhorse("tasks", "pause", "busy_shop.pay", *on, "--actor", "bob", "--reason", "no change")
    assert result.output == "Task busy_shop.pay is paused until somebody resumes it, by bob: no change\n"
    assert (pause_of(app, "busy_shop.pay").until, pause_of(app, "busy_shop.pay").actor) == (None, "bob")
    packhorse("tasks", "pause", "busy_shop.pay", "busy_shop.greet", *on, "--for", "2h")
    for name in ("busy_shop.pay", "busy_shop.greet"):
        assert timedelta(minutes=119) < pause_of(app, name).until - datetime.now(UTC) <= timedelta(hours=2)
    at = ("--until", "2199-12-24T18:00+01:00")
    [told_of] = told(packhorse("tasks", "pause", "busy_shop.pay", *on, *at, "--json"))
    assert (told_of["name"], told_of["paused"]["until"]) == ("busy_shop.pay", "2199-12-24T17:00:00+00:00")


def test_a_task_is_resumed(app: Packhorse, packhorse: Run):
    """One that was not paused is no error, nor one that has gone from the code."""
    on = ("--app", "busy_shop")
    app.control.pause_task("busy_shop.pay")
    app.control.pause_task("gone.away")
    result = packhorse("tasks", "resume", "busy_shop.pay", "busy_shop.mail", "gone.away", *on, "--reason", "change")
    assert result.output == (
        "Task busy_shop.pay goes on.\nTask busy_shop.mail was not paused.\nTask gone.away goes on.\n"
    )
    assert app.inspection.pauses() == []
    assert app.inspection.audit(1)[0].reason == "change"
    assert told(packhorse("tasks", "resume", "busy_shop.pay", "--json")) == {"busy_shop.pay": False}


def test_jobs_under_another_name_are_pointed_out(app: Packhorse, packhorse: Run):
    """A pause holds back one name; jobs from before a renaming have the old one."""
    result = packhorse("tasks", "pause", "busy_shop.mail", "--app", "busy_shop")
    assert "Jobs of busy_shop.mail that were enqueued as old.mail go on: pause that name too." in result.stderr
    result = packhorse("tasks", "pause", "old.mail", "--app", "busy_shop")
    assert "enqueued as busy_shop.mail go on" in result.stderr
    assert pause_of(app, "old.mail") is not None


def test_without_an_application_any_name_goes(app: Packhorse, packhorse: Run):
    """One without jobs may be a slip."""
    assert packhorse("tasks", "pause", "busy_shop.mail").stderr == ""
    result = packhorse("tasks", "pause", "busy_shop.mial")
    assert result.exit_code == 0
    assert "There are no jobs of task busy_shop.mial now. Is the name right?" in result.stderr
    assert pause_of(app, "busy_shop.mial") is not None


@pytest.mark.parametrize(
    ("args", "status", "message"),
    [
        (["pause", "busy_shop.mial", "--app", "busy_shop"], 1, "Did you mean busy_shop.mail"),
        (["pause", "busy_shop.pay", "pay", "--app", "busy_shop"], 1, "has no task 'pay'. Did you mean busy_shop.pay"),
        (["pause", "zzz", "--app", "busy_shop"], 1, "It has: busy_shop.double, busy_shop.greet"),
        (["resume", "mail", "--app", "busy_shop"], 1, "Did you mean busy_shop.mail"),
        (["pause", "busy_shop.pay", "--for", "2h", "--until", "2199-01-01T00:00"], 2, "not both"),
        (["pause", "busy_shop.pay", "--until", "2001-01-01T00:00"], 2, "is over already"),
        (["pause"], 2, "Missing argument"),
        (["pause", "no spaces"], 1, "cannot be a task name"),
        (["pause", HOSTILE], 1, "cannot be a task name"),
        (["resume", "busy_shop.pay", "*"], 1, "cannot be a task name"),
    ],
)
def test_a_wrong_word_is_explained(app: Packhorse, packhorse: Run, args: list[str], status: int, message: str):
    """And no task is paused or resumed, not even those before it."""
    result = packhorse("tasks", *args)
    assert result.exit_code == status, result.output
    assert message in result.output
    assert not set(result.output) & set(FORBIDDEN)
    assert app.store.audit() == []
