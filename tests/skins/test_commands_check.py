"""`packhorse check`: what is wrong before anything is started."""

import json
import secrets
import sys
from pathlib import Path
from typing import Any

import pytest

from packhorse.stores.contract import Store
from packhorse.stores.memory import MemoryStore
from tests.skins.shops import BUSY_SHOP, Run, told

KEY = secrets.token_urlsafe(32)


@pytest.fixture(autouse=True)
def busy(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (shop / "busy_shop.py").write_text(BUSY_SHOP, encoding="utf-8")
    monkeypatch.delitem(sys.modules, "busy_shop", raising=False)


def module(shop: Path, name: str, source: str) -> str:
    (shop / f"{name}.py").write_text(f"from packhorse import Packhorse\n{source}\n", encoding="utf-8")
    sys.modules.pop(name, None)
    return name


def problems(packhorse: Run, *args: str) -> list[str]:
    result = packhorse("check", *args, "--json")
    found: dict[str, Any] = json.loads(result.stdout)
    assert result.exit_code == (1 if found["problems"] else 0)
    return list(found["problems"])


def test_a_healthy_application_is_described(shop: Path, packhorse: Run):
    """Settings with their sources, and the tasks."""
    result = packhorse("check", "busy_shop")
    assert result.exit_code == 0
    assert "0 problems, 0 warnings." in result.output
    found = told(packhorse("check", "busy_shop", "--json"))
    settings = {row["name"]: (row["value"], row["source"]) for row in found["settings"]}
    assert settings["lease"] == ("10", "keyword")
    assert settings["signing"] == ("true", "default")
    assert settings["store"] == (f"sqlite:///{shop}/shop.db", "PACKHORSE_STORE")
    tasks = {task["name"]: task for task in found["tasks"]}
    assert tasks["busy_shop.mail"] == {
        "name": "busy_shop.mail",
        "queue": "mail",
        "retries": None,
        "coroutine": True,
        "aliases": ["old.mail"],
    }
    assert "unlimited" in result.output


def test_declared_schedules_are_checked(shop: Path, packhorse: Run):
    """What a scheduler would meet only when it starts."""
    source = """
app = Packhorse("shop")
task = app.task(name="work")(lambda what=None: None)
app.recurring("@daily", key="good", zone="Asia/Tokyo")(task)
app.recurring("@daily", key="bad", args=(object(),))(task)
"""
    name = module(shop, "schedule_shop", source)
    [problem] = problems(packhorse, name)
    assert problem.startswith("Schedule bad of task work cannot be used: Cannot store argument 'what'")
    found = json.loads(packhorse("check", name, "--json").stdout)["schedules"]
    assert found[0] == {
        "key": "good",
        "task": "work",
        "rule": "cron: 0 0 * * *",
        "words": "every day at 00:00 (Asia/Tokyo)",
    }
    assert "every day at 00:00 (Asia/Tokyo)" in packhorse("check", name).output
    assert not list(shop.glob("*.db*"))


def test_nothing_is_opened_or_made(shop: Path, packhorse: Run):
    """No store, no key, no lock."""
    before = set(shop.iterdir())
    packhorse("check", "busy_shop")
    packhorse("check")
    packhorse("check", "--store", f"sqlite:///{shop}/other.db")
    assert {path.name for path in set(shop.iterdir()) - before} <= {"__pycache__"}


def test_the_environment_alone_can_be_checked(packhorse: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PACKHORSE_LEASE", "60")
    settings = {row["name"]: row for row in told(packhorse("check", "--json"))["settings"]}
    assert settings["lease"] == {"name": "lease", "value": "60", "source": "PACKHORSE_LEASE"}


def test_every_problem_is_told_and_not_only_the_first(packhorse: Run, monkeypatch: pytest.MonkeyPatch):
    """And what the application does is shown all the same."""
    monkeypatch.setenv("PACKHORSE_BATCH_SIZE", "many")
    monkeypatch.setenv("PACKHORSE_LEESE", "60")
    monkeypatch.setenv("PACKHORSE_QQQQQQ", "1")
    monkeypatch.setenv("PACKHORSE_STORE", "nonsense")
    monkeypatch.setenv("PACKHORSE_ERROR_REPORTERS", "nobody, noone")
    monkeypatch.setenv("PACKHORSE_KEYS", "short")
    found = problems(packhorse, "busy_shop")
    for text in ("PACKHORSE_BATCH_SIZE", "PACKHORSE_LEESE", "PACKHORSE_QQQQQQ", "'nonsense'", "'nobody'", "'noone'"):
        assert [problem for problem in found if text in problem], text
    assert [problem for problem in found if "PACKHORSE_KEYS" in problem and "fewer than 32 bytes" in problem]
    assert len(found) == 7
    assert "busy_shop.double" in packhorse("check", "busy_shop").output


def test_what_keywords_make_good_is_no_problem(shop: Path, packhorse: Run, monkeypatch: pytest.MonkeyPatch):
    """The application's own settings count, not those of the environment alone."""
    monkeypatch.setenv("PACKHORSE_ENCRYPTION", "true")
    assert problems(packhorse) == [
        "PACKHORSE_ENCRYPTION: needs keys: give keys or keys_file, or switch encryption off."
    ]
    name = module(shop, "keyed_shop", f"app = Packhorse('keyed', keys=[{KEY!r}])")
    assert problems(packhorse, name) == []
    assert KEY not in packhorse("check", name).output


def test_an_application_that_does_not_load_is_told_of_with_the_place(shop: Path, packhorse: Run):
    """Without a traceback: one line says what and where."""
    module(shop, "broken_shop", "import no_such_library")
    [problem] = problems(packhorse, "broken_shop")
    assert "ModuleNotFoundError: No module named 'no_such_library'" in problem
    assert "broken_shop.py, line 2" in problem
    [problem] = problems(packhorse, "no_such_shop")
    assert "There is no module" in problem
    name = module(shop, "wrong_shop", "app = Packhorse('wrong', lease=1)")
    [problem] = problems(packhorse, name)
    assert "lease=1 is too short" in problem


def test_a_broken_application_does_not_hide_a_broken_environment(
    shop: Path, packhorse: Run, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PACKHORSE_LEASE", "long")
    module(shop, "broken_shop", "raise RuntimeError('no \\x1b[31m')")
    assert len(problems(packhorse, "broken_shop")) == 2
    assert "\x1b" not in packhorse("check", "broken_shop").output


def test_keys_in_a_file_are_looked_at(shop: Path, packhorse: Run, monkeypatch: pytest.MonkeyPatch):
    """Its mode, its length, its presence."""
    file = shop / "keys"
    monkeypatch.setenv("PACKHORSE_KEYS_FILE", str(file))
    assert "cannot be read" in problems(packhorse, "busy_shop")[0]
    file.write_text("short")
    file.chmod(0o600)
    sys.modules.pop("busy_shop", None)
    assert "fewer than 32 bytes" in problems(packhorse, "busy_shop")[0]
    file.write_text(KEY)
    file.chmod(0o644)
    assert "chmod 600" in problems(packhorse, "busy_shop")[0]
    file.chmod(0o600)
    assert problems(packhorse, "busy_shop") == []


def test_what_must_be_installed_is_looked_for(shop: Path, packhorse: Run, monkeypatch: pytest.MonkeyPatch):
    """cryptography for encryption, sentry-sdk for its reporter."""
    monkeypatch.setitem(sys.modules, "cryptography", None)
    monkeypatch.setitem(sys.modules, "sentry_sdk", None)
    monkeypatch.setenv("PACKHORSE_KEYS", KEY)
    monkeypatch.setenv("PACKHORSE_ENCRYPTION", "yes")
    monkeypatch.setenv("PACKHORSE_ERROR_REPORTERS", "sentry")
    found = problems(packhorse, "busy_shop")
    assert ["cryptography" in problem for problem in found] == [True, False]
    assert ["sentry-sdk" in problem for problem in found] == [False, True]


def test_a_store_without_a_key_of_its_own_needs_one(packhorse: Run, monkeypatch: pytest.MonkeyPatch):
    """Without it no job could be signed."""
    monkeypatch.setattr(MemoryStore, "own_key", Store.own_key)
    [problem] = problems(packhorse, "--store", "memory://")
    assert "PACKHORSE_KEYS" in problem
    monkeypatch.setenv("PACKHORSE_KEYS", KEY)
    assert problems(packhorse, "--store", "memory://") == []


def test_unwise_choices_are_warnings(shop: Path, packhorse: Run):
    """They end with status 0."""
    name = module(shop, "naive_shop", "app = Packhorse('naive', signing=False)")
    found = told(packhorse("check", name, "--json"))
    assert len(found["warnings"]) == 2
    assert "Signing is off" in found["warnings"][0]
    assert "has no tasks" in found["warnings"][1]


def test_passwords_and_keys_are_not_shown(shop: Path, packhorse: Run, monkeypatch: pytest.MonkeyPatch):
    """Neither in settings nor in problems."""
    monkeypatch.setenv("PACKHORSE_STORE", "sqlite://ann:pa55word@host/x.db")
    monkeypatch.setenv("PACKHORSE_KEYS", f"{KEY},{KEY}")
    result = packhorse("check", "busy_shop")
    assert result.exit_code == 1
    assert "pa55word" not in result.output
    assert KEY not in result.output
