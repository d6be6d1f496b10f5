"""An outsider's store proves itself with one line: a small project of its own, run by its own pytest."""

import os
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

import packhorse.testing.contract

SETTINGS = """
[pytest]
addopts = --strict-markers --strict-config
filterwarnings = error
"""
STORE = '''
"""A store that knows the memory store from the outside only."""

from packhorse.job import JobState
from packhorse.stores import Store
from packhorse.stores.memory import MemoryStore


def handed_on(name):
    return lambda self, *arguments, **options: getattr(self.inner, name)(*arguments, **options)


HandedOn = type("HandedOn", (Store,), {name: handed_on(name) for name in Store.__abstractmethods__})


class MyStore(HandedOn):
    def __init__(self, path, clock):
        self.url = f"mine:///{path}"
        self.inner = MemoryStore(clock)
'''
# The shortest history would take a minute to find, and any will do.
AS_FOUND = """
from hypothesis import Phase, settings

settings.register_profile("as found", phases=[Phase.generate])
settings.load_profile("as found")
"""
BROKEN = {
    "test_no_job_is_given_to_two": """
    def exchange(self, *arguments, **options):
        reply = self.inner.exchange(*arguments, **options)
        for claim in reply.claims[:1]:
            self.inner._jobs[claim.token.id].state = JobState.READY
        return reply
    """,
    "test_late_tokens_are_refused": """
    def exchange(self, process, nonce, outcomes, *arguments, **options):
        held = {token.id: token for token in self.inner.held(process)}
        outcomes = [outcome._replace(token=held.get(outcome.token.id, outcome.token)) for outcome in outcomes]
        return self.inner.exchange(process, nonce, outcomes, *arguments, **options)
    """,
    "test_a_job_that_is_not_kept_is_gone_at_once": """
    def exchange(self, process, nonce, outcomes, *arguments, **options):
        outcomes = [outcome._replace(keep=None) for outcome in outcomes]
        return self.inner.exchange(process, nonce, outcomes, *arguments, **options)
    """,
    "test_a_few_short_histories": """
    def insert(self, jobs):
        return self.inner.insert(jobs)[::-1]
    """,
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text(SETTINGS)
    (tmp_path / "my_store.py").write_text(STORE)
    (tmp_path / "test_my_store.py").write_text(recipe())
    return tmp_path


def recipe() -> str:
    """What the package tells an outsider to write, to the letter."""
    lines = (packhorse.testing.contract.__doc__ or "").splitlines(keepends=True)
    return dedent("".join(line for line in lines if line.startswith("    ") or not line.strip()))


def run(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """With plain pytest: none of our own settings, and no plugin that an outsider may not have."""
    ours = ("xdist", "timeout", "asyncio")
    without = [word for plugin in ours for word in ("-p", f"no:{plugin}")]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *without, "-p", "no:cacheprovider", *arguments],
        cwd=project,
        env={name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV", "CI"))},
        capture_output=True,
        text=True,
        timeout=500,
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_sound_store_passes(project: Path):
    """The whole suite, in a project that takes every warning for an error."""
    done = run(project, "-k", "not many_long")
    assert done.returncode == 0, done.stdout
    [passed] = re.findall(r"(\d+) passed", done.stdout)
    assert int(passed) > 500
    assert "skipped" not in done.stdout


@pytest.mark.parametrize(
    "caught_by",
    [name if number == 0 else pytest.param(name, marks=pytest.mark.slow) for number, name in enumerate(BROKEN)],
)
def test_a_broken_store_fails(project: Path, caught_by: str):
    """What the store breaks is caught by the test of that name, which shows both sides of its assertion."""
    (project / "my_store.py").write_text(STORE + BROKEN[caught_by])
    (project / "conftest.py").write_text(AS_FOUND)
    done = run(project, "-k", caught_by)
    assert done.returncode == 1, done.stdout
    assert re.search(rf"^FAILED test_my_store\.py::{caught_by}", done.stdout, re.MULTILINE)
    assert re.search(
        r"^E +(AssertionError: )?(assert .+ (==|is) |to insert the store answered)", done.stdout, re.MULTILINE
    )


@pytest.mark.parametrize("missing", ["pytest", "hypothesis"])
def test_what_is_missing_is_named(tmp_path: Path, missing: str):
    """Packhorse itself needs neither; whoever wants the suite is told what to install."""
    code = f"import sys; sys.modules[{missing!r}] = None; import packhorse.testing.contract"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "Run: pip install pytest hypothesis" in done.stderr.splitlines()[-1]
