"""`packhorse queues`: looking at queues, pausing and resuming them."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from packhorse import Packhorse
from tests.skins.shops import Run, busy_shop, told


@pytest.fixture
def app(shop: Path):
    app = busy_shop(shop)
    app.tasks["busy_shop.mail"].enqueue("ann")
    app.tasks["busy_shop.double"].enqueue(1)
    yield app
    app.close()


def pause_of(app: Packhorse, name: str):
    return {queue.queue: queue.pause for queue in app.inspection.queues()}[name]


def test_queues_are_listed_with_their_pauses(app: Packhorse, packhorse: Run):
    """Who paused it, and why."""
    app.control.pause("mail", reason="the server moves", actor="ann")
    result = packhorse("queues", "list", "busy_shop")
    assert "mail (paused)" in result.output
    assert "Queue mail is paused until somebody resumes it, by ann: the server moves" in result.output
    default, mail = told(packhorse("queues", "list", "--json"))
    assert (default["queue"], default["paused"], default["ready"]) == ("default", None, 1)
    assert mail["paused"] == {"until": None, "reason": "the server moves", "actor": "ann"}


def test_a_queue_is_paused_for_good_for_a_while_or_until_a_time(app: Packhorse, packhorse: Run):
    """A time without a zone is this machine's."""
    on = ("--app", "busy_shop")
    assert "until somebody resumes it" in packhorse("queues", "pause", "mail", *on, "--actor", "bob").output
    assert (pause_of(app, "mail").until, pause_of(app, "mail").actor) == (None, "bob")
    packhorse("queues", "pause", "mail", "default", *on, "--for", "2h")
    for name in ("mail", "default"):
        assert timedelta(minutes=119) < pause_of(app, name).until - datetime.now(UTC) <= timedelta(hours=2)
    packhorse("queues", "pause", "mail", *on, "--until", "2199-12-24T18:00")
    assert pause_of(app, "mail").until == datetime(2199, 12, 24, 18).astimezone()
    [told_of] = told(packhorse("queues", "pause", "mail", *on, "--until", "2199-12-24T18:00+01:00", "--json"))
    assert told_of["paused"]["until"] == "2199-12-24T17:00:00+00:00"


def test_a_queue_is_resumed(app: Packhorse, packhorse: Run):
    """One that was not paused is no error."""
    app.control.pause("mail")
    result = packhorse("queues", "resume", "mail", "default", "--app", "busy_shop")
    assert result.output == "Queue mail goes on.\nQueue default was not paused.\n"
    assert pause_of(app, "mail") is None
    assert told(packhorse("queues", "resume", "mail", "--json")) == {"mail": False}


def test_a_queue_without_jobs_may_be_a_slip(app: Packhorse, packhorse: Run):
    """It is paused all the same: its jobs may be on their way."""
    result = packhorse("queues", "pause", "mial")
    assert result.exit_code == 0
    assert "Queue mial has no jobs now" in result.stderr


@pytest.mark.parametrize(
    ("args", "status", "message"),
    [
        (["pause", "mail", "--for", "2h", "--until", "2199-01-01T00:00"], 2, "not both"),
        (["pause", "mail", "--until", "2001-01-01T00:00"], 2, "is over already"),
        (["pause", "mail", "--until", "tomorrow"], 2, "'tomorrow' is no time"),
        (["pause", "mail", "--for", "2 hours"], 2, "is no duration"),
        (["pause"], 2, "Missing argument"),
        (["pause", "no spaces"], 1, "cannot be a queue name"),
        (["resume", "mail", "*"], 1, "cannot be a queue name"),
    ],
)
def test_a_wrong_word_is_explained(app: Packhorse, packhorse: Run, args: list[str], status: int, message: str):
    """And no queue is paused or resumed."""
    result = packhorse("queues", *args)
    assert result.exit_code == status
    assert message in result.output
    assert app.store.audit() == []
