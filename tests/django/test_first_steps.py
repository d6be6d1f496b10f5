"""The guide's first task, as a new user would try it: in a fresh project, with nothing set but what the page says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import django
import pytest

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "django.md"
TESTS = """
from django.test import TestCase
from polls.tasks import add


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
    (tmp_path / "polls" / "tests.py").write_text(TESTS)
    return tmp_path


def run(folder: Path, *words: str) -> str:
    """In the folder, with none of what the other tests have set."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PACKHORSE_", "DJANGO_"))}
    done = subprocess.run([sys.executable, *words], cwd=folder, env=kept, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_first_task_in_a_fresh_project(project: Path):
    run(project, "manage.py", "migrate", "-v0")
    shell = ["manage.py", "shell", *(["-v0"] if django.VERSION >= (6,) else []), "-c"]
    id = run(project, *shell, "from polls.tasks import add; print(add.enqueue(20, 22).id)").split()[-1]
    run(project, "manage.py", "packhorse", "worker", "--burst", "--in-process")
    look = f"from polls.tasks import add; result = add.get_result('{id}'); print(result.status, result.return_value)"
    assert run(project, *shell, look).split()[-2:] == ["SUCCESSFUL", "42"]
    run(project, "manage.py", "test", "-v0")
