"""The public API as two type checkers see it: right.py is right, and every mistake in wrong.py is found."""

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "typing"


def expected(wrong: Path) -> set[int]:
    lines = wrong.read_text(encoding="utf-8").splitlines()
    return {number for number, line in enumerate(lines, 1) if line.endswith("# error")}


def mypy(path: Path, folder: Path) -> set[int]:
    command = [sys.executable, "-m", "mypy", "--no-pretty", "--cache-dir", os.devnull, str(path.relative_to(ROOT))]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ran.stderr == ""
    return {int(line) for line in re.findall(rf"^{re.escape(command[-1])}:(\d+): error:", ran.stdout, re.MULTILINE)}


def pyright(path: Path, folder: Path) -> set[int]:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pyright"]
    # In a folder of its own, because the project's settings leave wrong.py out.
    config |= {"include": [path.name], "exclude": []}
    shutil.copy(path, folder)
    (folder / "pyrightconfig.json").write_text(json.dumps(config), encoding="utf-8")
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson", "-p", str(folder)]
    report = json.loads(subprocess.run(command, capture_output=True, text=True).stdout)
    assert report["summary"]["filesAnalyzed"] == 1
    found = [item for item in report["generalDiagnostics"] if item["severity"] == "error"]
    return {item["range"]["start"]["line"] + 1 for item in found}


@pytest.mark.parametrize("name", ["right.py", "right_django.py"])
@pytest.mark.parametrize("checker", [mypy, pyright])
def test_what_is_right_is_accepted(checker, name: str, tmp_path: Path):
    """And the types are those that it asserts."""
    assert checker(FOLDER / name, tmp_path) == set()


@pytest.mark.parametrize(("name", "mistakes"), [("wrong.py", 30), ("wrong_django.py", 14)])
@pytest.mark.parametrize("checker", [mypy, pyright])
def test_every_mistake_is_found_and_nothing_else(checker, name: str, mistakes: int, tmp_path: Path):
    """Line by line, as marked in the file."""
    assert len(expected(FOLDER / name)) > mistakes
    assert checker(FOLDER / name, tmp_path) == expected(FOLDER / name)


def test_what_is_right_also_runs():
    """The examples are not only well typed."""
    app = importlib.import_module("tests.typing.right").app
    assert sum(app.inspection.counts().values()) > 10
