"""What the README says is true."""

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_first_example_runs_as_pasted(tmp_path: Path):
    """With nothing but SQLite, in an empty folder."""
    (tmp_path / "shop.py").write_text(BLOCKS[0], encoding="utf-8")
    ran = subprocess.run([sys.executable, "shop.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "photo 42 is small now\n", "")
    assert (tmp_path / "packhorse.db").exists()


async def test_the_other_examples_run_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Each builds on the ones before."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "readme"}
    for block in BLOCKS[1:]:
        code = compile(block, "README.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        if inspect.isawaitable(result := eval(code, names)):
            await result
    assert len(names["jobs"]) == 500
    names["app"].close()


@pytest.mark.parametrize("path", ["README.md", "CONTRIBUTING.md", "docs/internals.md"])
def test_links_lead_somewhere(path: str):
    """To files and headings that exist."""
    text = (ROOT / path).read_text(encoding="utf-8")
    headings = {re.sub(r"[^\w\- ]", "", line.lstrip("# ").lower()).replace(" ", "-") for line in text.splitlines()}
    for target in re.findall(r"\]\(([^)]+)\)", text):
        if target.startswith("#"):
            assert target[1:] in headings
        elif "://" not in target:
            assert (ROOT / path).parent.joinpath(target.partition("#")[0]).exists(), target


def test_the_internals_name_what_is_there():
    """Every file exists, and each name of a step is defined in one of the files beside it."""
    text = (ROOT / "docs" / "internals.md").read_text(encoding="utf-8")
    source = {
        path: (ROOT / "src" / "packhorse" / path).read_text(encoding="utf-8")
        for path in re.findall(r"`([\w/]+\.py)`", text)
    }
    for row in re.findall(r"^\| .* \| (`.*\.py`) \| (.*) \|$", text, re.MULTILINE):
        files, names = (re.findall(r"`([^`]+)`", cell) for cell in row)
        for name in names:
            defined = re.compile(rf"^\s*(async def|def|class) {name}\b", re.MULTILINE)
            assert any(defined.search(source[path]) for path in files), f"{name} is in none of {files}"
    everything = "\n".join(source.values())
    for name in re.findall(r"\(`([\w`, ]+)`\)", text):
        for part in re.findall(r"\w+", name):
            assert re.search(rf"\b{part}\b", everything), part


@pytest.mark.slow
def test_the_demo_ends_as_it_should():
    """It checks itself, without a terminal as well."""
    ran = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "demo.py")], capture_output=True, text=True, timeout=240
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "Every job ended as it should." in ran.stdout
    assert ran.stderr == ""
