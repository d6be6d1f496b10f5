"""Shops for the commands: an application with tasks that fail, and jobs of it in every state."""

import importlib
import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from click.testing import Result

from packhorse import Embedded, JobHandle, Packhorse, wait_jobs
from packhorse.ids import new_id, to_text
from packhorse.job import NewJob

Run = Callable[..., Result]

BUSY_SHOP = """
from dataclasses import dataclass
from enum import Enum

from packhorse import Packhorse

app = Packhorse("busy", heartbeat=0.2, lease=10)


class Colour(Enum):
    RED = "red"


@dataclass
class Paint:
    colour: Colour
    litres: float


@app.task
def double(number: int) -> int:
    return 2 * number


@app.task(queue_name="mail", aliases=("old.mail",), retries=None)
async def mail(to: str, password: str = "") -> dict[str, str]:
    return {"to": to, "password": password}


@app.task(queue_name="till")
def pay(amount: int, currency: str = "EUR") -> None:
    raise ValueError(f"the till has no {currency} {amount}")


@app.task(queue_name="till")
def greet(name: str) -> None:
    raise KeyError(name)


@app.task
def mix(paint: Paint) -> str:
    return f"{paint.litres:g} l of {paint.colour.name}"
"""

HOSTILE = "\x1b[31m[red]evil[/red]\x1b]0;pwned\x07\u202e\n\r\x9b2J\x7f"
FORBIDDEN = "\x1b\x07\x9b\r\x7f\u202e"


def busy_shop(folder: Path) -> Packhorse:
    """The application as this process sees it; commands that name busy_shop see the same."""
    (folder / "busy_shop.py").write_text(BUSY_SHOP, encoding="utf-8")
    sys.modules.pop("busy_shop", None)
    app: Packhorse = importlib.import_module("busy_shop").app
    return app


def performed(app: Packhorse, task: str, *calls: tuple[Any, ...]) -> list[str]:
    """The ids of finished jobs."""
    handles: list[JobHandle[Any]] = app.enqueue_many(app.tasks[f"busy_shop.{task}"].call(*args) for args in calls)
    with Embedded(app):
        assert not wait_jobs(handles, timeout=60)[1]
    return [handle.id for handle in handles]


def planted(app: Packhorse, *, task: str = HOSTILE, queue: str = HOSTILE, payload: bytes = b"forged") -> str:
    """A job that somebody wrote into the store by other means."""
    id = new_id()
    app.store.insert([NewJob(id, task, payload, queue)])
    return to_text(id)


def told(result: Result) -> Any:
    """What a command said as JSON."""
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def at_a_terminal(folder: Path, *args: str, answer: str = "") -> tuple[int, str]:
    """Exit status and what was on the screen of somebody who gave this answer."""
    ours, theirs = pty.openpty()
    env = os.environ | {"COLUMNS": "400", "LINES": "40", "TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, "-m", "packhorse", *args], cwd=folder, env=env, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    os.write(ours, answer.encode())
    seen = b""
    while True:
        try:
            if not (part := os.read(ours, 4096)):
                break
        except OSError:  # what Linux says when the other end is gone
            break
        seen += part
    os.close(ours)
    return process.wait(timeout=60), seen.decode()
