"""The places where a test can make the program fail."""

import ast
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from packhorse import failpoints
from packhorse.failpoints import POINTS, FailpointError, arm, failpoint

SOURCE = Path(failpoints.__file__).parent


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    arm("")


def used() -> set[str]:
    """Every name that the source passes to `failpoint`: plain text, or that of a stroke and where in it."""
    names, strokes, within = set[str](), set[str](), set[str]()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            match getattr(node.func, "id", getattr(node.func, "attr", "")), node.args:
                case "failpoint", [ast.Constant(str(name))]:
                    names.add(name)
                case "failpoint", [ast.JoinedStr([ast.FormattedValue(ast.Name("point")), ast.Constant(str(place))])]:
                    within.add(place)
                case "failpoint", _:
                    pytest.fail(f"{path.name}:{node.lineno}: name the place in plain text")
                case "_stroke", [ast.Constant(str(stroke)), *_]:
                    strokes |= {stroke} - {""}
                case "_stroke", _:
                    pytest.fail(f"{path.name}:{node.lineno}: name the stroke in plain text")
    return names | {stroke + place for stroke in strokes for place in within}


def test_every_place_in_the_source_is_listed():
    """A place that is not in POINTS could not be armed."""
    assert used() - set(POINTS) == set()


def test_every_listed_place_is_in_the_source():
    """A place that nobody reaches would make a test pass for nothing."""
    assert set(POINTS) - used() == set()


def test_an_armed_place_raises_each_time():
    """The others stay quiet."""
    arm("insert.after_commit=raise")
    for _ in range(2):
        with pytest.raises(FailpointError, match=r"insert\.after_commit"):
            failpoint("insert.after_commit")
    failpoint("insert.before_commit")


def test_a_place_can_wait_for_its_turn():
    """`@2` means the second time, and only that."""
    arm("insert.after_commit=raise@2")
    failpoint("insert.after_commit")
    with pytest.raises(FailpointError):
        failpoint("insert.after_commit")
    failpoint("insert.after_commit")


def test_several_places_are_armed_at_once_and_an_empty_text_disarms_all():
    """Spaces and a trailing semicolon do no harm."""
    arm(" insert.before_write=raise ; insert.after_commit=sleep(0)@1 ; ")
    failpoint("insert.after_commit")
    with pytest.raises(FailpointError):
        failpoint("insert.before_write")
    arm("")
    failpoint("insert.before_write")


def test_sleeping_waits_so_many_seconds(monkeypatch: pytest.MonkeyPatch):
    """Fractions included."""
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    arm("beat.after_commit=sleep(0.25)")
    failpoint("beat.after_commit")
    assert slept == [0.25]


@pytest.mark.parametrize(
    "text",
    [
        "nowhere=kill",
        "insert.after_commit",
        "insert.after_commit=explode",
        "insert.after_commit=kill@",
        "insert.after_commit=sleep(-1)",
        "insert.after_commit=kill,insert.before_write=kill",
    ],
)
def test_a_text_that_arms_nothing_is_refused(text: str):
    """A misspelt place must not look like a passed test."""
    with pytest.raises(ValueError, match="is no failpoint; `packhorse failpoints` lists them"):
        arm(text)


@pytest.mark.parametrize("action", ["kill", "stop"])
def test_the_environment_arms_any_process(action: str):
    """`kill` and `stop` are real signals to the process itself."""
    code = "from packhorse.failpoints import failpoint; failpoint('beat.after_commit'); print('lives')"
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        env=os.environ | {"PACKHORSE_FAILPOINTS": f"beat.after_commit={action}"},
        stdout=subprocess.PIPE,
    )
    if action == "stop":
        _, status = os.waitpid(child.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        child.kill()
    assert child.communicate()[0] == b""
    assert child.returncode == -signal.SIGKILL
