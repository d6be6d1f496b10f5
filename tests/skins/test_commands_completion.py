"""Completion in the shell."""

from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from packhorse import Packhorse
from packhorse.cli import main
from packhorse.task import Options
from tests.skins.shops import HOSTILE, Run, busy_shop, planted


@pytest.fixture
def app(shop: Path):
    app = busy_shop(shop)
    yield app
    app.close()


def offered(*words: str) -> list[str]:
    """What the shell offers for the last word."""
    completer = ShellComplete(main, {}, "packhorse", "_PACKHORSE_COMPLETE")
    return [item.value for item in completer.get_completions(list(words[:-1]), words[-1])]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_printed_with_what_to_do(packhorse: Run, shell: str):
    """As comments, so that it can be evaluated as it is."""
    result = packhorse("completion", shell)
    assert result.exit_code == 0
    assert result.stdout.startswith("# Completion for")
    assert f"packhorse completion {shell}" in result.stdout.splitlines()[0]
    assert f"_PACKHORSE_COMPLETE={shell}_complete" in result.stdout


def test_the_shell_is_the_users(packhorse: Run, monkeypatch: pytest.MonkeyPatch):
    """Where it is not known, it must be said."""
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    assert "for fish" in packhorse("completion").stdout
    monkeypatch.setenv("SHELL", "/bin/csh")
    result = packhorse("completion")
    assert result.exit_code == 2
    assert "bash, zsh, fish" in result.output


def test_commands_and_states_are_offered(shop: Path):
    assert offered("jobs", "") == [
        *("cancel", "discard", "list", "reload", "restart"),
        *("retry", "run-now", "show", "stop"),
    ]
    assert offered("jobs", "list", "--state", "s") == ["scheduled", "succeeded"]


def test_queues_and_tasks_of_the_application_are_offered(app: Packhorse):
    """Also queues that only the store knows."""
    assert offered("jobs", "list", "busy_shop", "--queue", "") == ["default", "mail", "till"]
    assert offered("queues", "pause", "--app", "busy_shop", "m") == ["mail"]
    app.tasks["busy_shop.double"].using(queue_name="night").enqueue(1)
    assert offered("queues", "pause", "") == ["night"]
    assert offered("queues", "pause", "--app", "busy_shop", "n") == ["night"]
    assert offered("enqueue", "busy_shop", "busy_shop.m") == ["busy_shop.mail", "busy_shop.mix"]
    assert offered("jobs", "retry", "--app", "busy_shop", "--task", "busy_shop.d") == ["busy_shop.double"]


def test_limit_keys_are_offered(app: Packhorse):
    """Those in use that begin so."""
    for number in range(120):
        app.control.set_limit(f"rooms/{number:03}", 1)
    app.control.set_limit("rooms/", 1)
    app.control.set_limit("printer/", 1)
    assert offered("limits", "set", "p") == ["printer/"]
    assert offered("limits", "reset", "rooms/11") == [f"rooms/11{number}" for number in range(10)]
    assert offered("limits", "set", "rooms/")[:2] == ["rooms/", "rooms/000"]
    assert offered("limits", "set", "\udcff") == []


def test_schedules_and_time_zones_are_offered(app: Packhorse):
    """Those that begin so."""
    for number in range(120):
        app.schedules.add(app.tasks["busy_shop.double"].call(1), "@daily", key=f"room.{number:03}")
    app.schedules.add(app.tasks["busy_shop.double"].call(1), "@daily", key="nightly")
    assert offered("schedules", "pause", "n") == ["nightly"]
    assert offered("schedules", "show", "--app", "busy_shop", "room.11") == [f"room.11{n}" for n in range(10)]
    assert offered("schedules", "edit", "nightly", "--zone", "Europe/Berl") == ["Europe/Berlin"]
    assert offered("schedules", "add", "k", "--app", "busy_shop", "busy_shop.d") == ["busy_shop.double"]


def test_shares_are_offered(app: Packhorse):
    """To take back only the weights that were set."""
    app.control.set_weight("ann", 2)
    app.tasks["busy_shop.mail"].options = Options(share="amy")
    assert offered("shares", "set", "--app", "busy_shop", "a") == ["amy", "ann"]
    assert offered("shares", "reset", "--app", "busy_shop", "") == ["ann"]
    assert offered("shares", "reset", "b") == []


def test_tasks_to_pause_and_to_resume_are_offered(app: Packhorse):
    """To resume only those that are paused."""
    app.control.pause_task("busy_shop.mail")
    app.control.pause("default")
    assert offered("tasks", "pause", "--app", "busy_shop", "busy_shop.m") == ["busy_shop.mail", "busy_shop.mix"]
    assert offered("tasks", "resume", "--app", "busy_shop", "") == ["busy_shop.mail"]
    assert offered("tasks", "resume", "") == ["busy_shop.mail"]


def test_trouble_offers_nothing_and_makes_nothing(shop: Path, app: Packhorse):
    """Somebody is just typing."""
    assert offered("jobs", "list", "no_such_shop", "--queue", "") == []
    assert offered("queues", "pause", "--store", "nonsense", "") == []
    assert offered("queues", "pause", "--store", f"sqlite:///{shop}/none.db", "") == []
    assert not (shop / "none.db").exists()


def test_hostile_names_are_not_offered(app: Packhorse):
    planted(app, queue=HOSTILE)
    assert offered("queues", "pause", "") == []
