"""The guide's first task, as a new user would try it: in a fresh project, with nothing set but what the page says."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import django
import pytest

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "django.md"
TESTS = """

class AddTest(TestCase):
    def test_enqueued_in_a_database_in_memory(self):
        result = add.enqueue(20, 22)
        self.assertEqual(add.get_result(result.id), result)
        self.assertEqual(result.job.look().state, "ready")
"""


def block(name: str) -> str:
    found = re.search(rf"^```python file={name}\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    run(tmp_path, "-m", "django", "startproject", "mysite", ".")
    run(tmp_path, "manage.py", "startapp", "polls")
    settings = tmp_path / "mysite" / "settings.py"
    settings.write_text(settings.read_text() + block("settings.py").replace("INSTALLED_APPS =", "INSTALLED_APPS +="))
    (tmp_path / "polls" / "tasks.py").write_text(block("tasks.py"))
    (tmp_path / "polls" / "tests.py").write_text(block("polls_tests") + TESTS)
    return tmp_path


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("PACKHORSE_", "DJANGO_"))}


def run(folder: Path, *words: str) -> str:
    """In the folder, with none of what the other tests have set."""
    command = [sys.executable, *words]
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextmanager
def performing(folder: Path, said: Path) -> Iterator[None]:
    with said.open("wb") as file:
        command = [sys.executable, "manage.py", "packhorse"]
        process = subprocess.Popen(command, cwd=folder, env=environment(), stderr=file, stdout=file)
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            status = process.wait(60)
    assert status == 0, said.read_text()


def test_in_debug_it_starts_anew_with_new_code_and_says_nothing_twice(project: Path, tmp_path: Path):
    run(project, "manage.py", "migrate", "-v0")
    said = tmp_path / "said.txt"
    script = """
import time
from polls.tasks import add
while (found := (result := add.enqueue(20, 22)).job.result(timeout=60)) != {wanted}:
    assert found == 42
    time.sleep(0.1)
print(result.id)
"""
    shell = ["manage.py", "shell", *(["-v0"] if django.VERSION >= (6,) else []), "-c"]
    with performing(project, said):
        first = run(project, *shell, script.format(wanted=42)).split()[-1]
        code = project / "polls" / "tasks.py"
        code.write_text(code.read_text().replace("one + other", "one + other + 1"))
        run(project, *shell, script.format(wanted=43))
    lines = said.read_text().splitlines()
    assert len([line for line in lines if "source files have changed" in line]) == 1
    told = [line for line in lines if first in line and "SUCCESSFUL" in line]
    assert len(told) == 1, told
    assert not [line for line in set(lines) if "packhorse" in line and lines.count(line) > 1]


def test_a_first_task_in_a_fresh_project(project: Path):
    run(project, "manage.py", "migrate", "-v0")
    shell = ["manage.py", "shell", *(["-v0"] if django.VERSION >= (6,) else []), "-c"]
    id = run(project, *shell, "from polls.tasks import add; print(add.enqueue(20, 22).id)").split()[-1]
    run(project, "manage.py", "packhorse", "worker", "--burst", "--in-process")
    look = f"from polls.tasks import add; result = add.get_result('{id}'); print(result.status, result.return_value)"
    assert run(project, *shell, look).split()[-2:] == ["SUCCESSFUL", "42"]
    run(project, "manage.py", "test", "-v0")
