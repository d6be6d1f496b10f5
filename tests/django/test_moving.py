"""The guide's page on moving in: what it shows of ours runs in a fresh project, beside the old system."""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import django
import pytest

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "moving.md"
BLOCKS = {
    name or text.split("\n")[0]: text
    for name, text in re.findall(r"^```(?:python file=(\S+)|py)\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
}
SYSTEMS = sorted(name[:-3] for name in BLOCKS if re.fullmatch(r"from_\w+(?<!_settings)\.py", name))
SHELL = ["manage.py", "shell", *(["-v0"] if django.VERSION >= (6,) else []), "-c"]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    run(tmp_path, "-m", "django", "startproject", "mysite", ".")
    run(tmp_path, "manage.py", "startapp", "polls")
    return tmp_path


def with_settings(project: Path, name: str) -> None:
    settings = project / "mysite" / "settings.py"
    settings.write_text(settings.read_text() + with_app(BLOCKS[name]))
    run(project, "manage.py", "migrate", "-v0")


def with_app(text: str) -> str:
    text = text.replace("INSTALLED_APPS =", "INSTALLED_APPS +=")
    return text if "INSTALLED_APPS" in text else text + 'INSTALLED_APPS += ["packhorse.django", "polls"]\n'


def run(folder: Path, *words: str) -> str:
    """In the folder, with none of what the other tests have set."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PACKHORSE_", "DJANGO_"))}
    done = subprocess.run([sys.executable, *words], cwd=folder, env=kept, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def counts(project: Path) -> dict[str, int]:
    """Jobs by their states."""
    queues = json.loads(run(project, "manage.py", "packhorse", "status", "--json"))["queues"]
    states = ("scheduled", "waiting", "ready", "succeeded", "failed", "cancelled")
    return {state: sum(queue[state] for queue in queues) for state in states}


def test_what_became_of_their_tasks_runs(project: Path):
    """All of them in one site; a job that is to begin later is left."""
    for name in SYSTEMS:
        (project / "polls" / f"{name}.py").write_text(BLOCKS[f"{name}.py"])
    (project / "polls" / "tasks.py").write_text(f"from polls import {', '.join(SYSTEMS)}  # noqa\n")
    with_settings(project, "from_rq_settings.py")
    run(project, *SHELL, "from polls.tasks import *; " + "; ".join(f"{name}.used()" for name in SYSTEMS))
    run(project, "manage.py", "packhorse", "worker", "--burst", "--in-process")
    found = counts(project)
    assert len(SYSTEMS) == 4
    assert (found["scheduled"], found["ready"], found["waiting"], found["failed"]) == (2, 0, 0, 0)
    assert found["succeeded"] >= 9


def test_the_settings_pass_the_checks(project: Path):
    settings = project / "mysite" / "settings.py"
    given = settings.read_text()
    for name in (name for name in BLOCKS if name.endswith("_settings.py")):
        settings.write_text(given + with_app(BLOCKS[name]))
        run(project, "manage.py", "check", "--fail-level", "WARNING")


@pytest.mark.skipif(not find_spec("django_tasks_db"), reason="not installed here")
def test_two_backends_side_by_side_and_jobs_carried_over(project: Path):
    (project / "polls" / "tasks.py").write_text(BLOCKS["side_by_side_tasks.py"])
    with_settings(project, "moving_settings.py")
    enqueue = "from polls.tasks import moved, staying; print(moved.enqueue(1).id, staying.enqueue(1).id)"
    ids = run(project, *SHELL, enqueue).split()[-2:]
    run(project, "manage.py", "db_worker", "--backend", "old", "--batch", "--no-startup-delay")
    run(project, "manage.py", "packhorse", "worker", "--burst", "--in-process")
    look = "from polls.tasks import moved, staying; print(*(task.get_result(id).return_value for task, id in zip("
    assert run(project, *SHELL, f"{look}(moved, staying), {ids})))").split()[-2:] == ["2", "3"]

    run(project, *SHELL, "from polls.tasks import staying; staying.enqueue(7)")
    recipe = BLOCKS["from django.db import transaction"].replace(".select_for_update(skip_locked=True)", "")
    (project / "carry_over.py").write_text(recipe)
    run(project, *SHELL, "import carry_over")
    assert counts(project)["ready"] == 1
    run(project, "manage.py", "packhorse", "worker", "--burst", "--in-process")
    assert counts(project)["succeeded"] == 2
