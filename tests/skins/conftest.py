"""A small application in a folder of its own, and the commands to run on it."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from packhorse.cli import main

SHOP = """
from packhorse import Packhorse

app = Packhorse("shop", heartbeat=0.2, lease=10)


@app.task
def double(number: int) -> int:
    return 2 * number


@app.task(queue_name="mail")
async def mail(to: str) -> str:
    return f"hello {to}"
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an application, the store of which is shop.db beside it; commands start here."""
    (tmp_path / "corner_shop.py").write_text(SHOP, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "corner_shop", raising=False)
    monkeypatch.setenv("PACKHORSE_STORE", f"sqlite:///{tmp_path}/shop.db")
    return tmp_path


@pytest.fixture
def packhorse() -> Callable[..., Result]:
    """Runs a command in this process."""

    def run(*args: str) -> Result:
        return CliRunner(env={"COLUMNS": "200"}).invoke(main, args, prog_name="packhorse")

    return run


@pytest.fixture
def command(shop: Path) -> "Iterator[Callable[..., subprocess.Popen[str]]]":
    """Starts a command as a user does, as a process of its own."""
    started: list[subprocess.Popen[str]] = []

    def start(*args: str) -> "subprocess.Popen[str]":
        started.append(
            subprocess.Popen(
                [sys.executable, "-m", "packhorse", *args],
                cwd=shop,
                env=os.environ | {"COLUMNS": "200"},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        with process:  # closes its pipes
            pass
