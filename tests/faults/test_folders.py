"""Which folder modules come from: the one in which the command was started, wherever a task or a hook goes later."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from packhorse import Packhorse
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

SHOP = """
import os, sys
from packhorse import Embedded, Packhorse

app = Packhorse("shop", os.environ["STORE"], isolated_max_jobs=1, polling_interval=0.2)

@app.task(name="move")
def move(folder: str) -> str:
    os.chdir(folder)
    return os.getcwd()

@app.task(name="apart", isolate=True)
def apart() -> str:
    return os.getcwd()

@app.task(name="fall")
def fall() -> int:
    if not os.path.exists(os.environ["FALLEN"]):
        open(os.environ["FALLEN"], "w").close()
        os._exit(9)
    return os.getpid()

if folder := os.environ.get("HOOK"):
    app.hook("start", role="supervisor")(lambda occasion: os.chdir(folder))

if __name__ == "__main__":
    with Embedded(app):
        sys.stdin.read()
"""
POISON = "import os, pathlib; pathlib.Path(os.environ['POISONED']).touch(); raise ImportError('not from here')\n"
SHADOWED = ("secrets", "json", "shop", "socket", "multiprocessing", "packhorse")  # names of modules that are needed
WORKER = ["-m", "packhorse", "worker", "shop:app"]


class Site:
    def __init__(self, folder: Path) -> None:
        self.folder, self.uploads, self.poisoned = folder / "site", folder / "uploads", folder / "poisoned"
        for made in (folder, self.folder, self.uploads):
            made.mkdir(mode=0o700, exist_ok=True)
        for name in SHADOWED:
            (self.uploads / f"{name}.py").write_text(POISON)
        self.store = f"sqlite:///{folder}/jobs.db"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PACKHORSE_", "PYTHONPATH"))}
        ours = {"STORE": self.store, "POISONED": str(self.poisoned), "FALLEN": str(folder / "fallen")}
        self.environment = kept | ours
        (self.folder / "shop.py").write_text(SHOP)

    @contextmanager
    def running(self, *command: str, **environment: str) -> Iterator[Packhorse]:
        process = subprocess.Popen(
            [sys.executable, *command],
            cwd=self.folder,
            env=self.environment | environment,
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        app = Packhorse("shop", self.store)
        for name in ("move", "apart", "fall"):
            app.task(name=name)(lambda *args: None)
        try:
            yield app
            assert process.stdin is not None
            process.stdin.close()
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) in (0, -signal.SIGTERM)
        finally:
            app.close()
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def check_fresh_ones(self, app: Packhorse) -> None:
        """Processes that are started after a task has gone elsewhere begin in the folder of the start."""
        elsewhere = str(self.uploads)
        assert app.tasks["move"].enqueue(elsewhere).result(60) == elsewhere
        for _ in range(3):  # each in a process of its own; some were kept warm before
            assert app.tasks["apart"].enqueue().result(60) == str(self.folder)
        assert not self.poisoned.exists()


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.mark.parametrize(
    "options", ["--processes 1", "--in-process", pytest.param("--processes 1 --preload", marks=pytest.mark.thorough)]
)
def test_nothing_is_imported_from_where_a_task_has_gone(site: Site, options: str):
    with site.running(*WORKER, *options.split()) as app:
        site.check_fresh_ones(app)


def test_nothing_is_imported_from_where_a_task_of_a_program_has_gone(site: Site):
    with site.running("shop.py") as app:
        site.check_fresh_ones(app)


@pytest.mark.parametrize("options", ["", pytest.param("--preload", marks=pytest.mark.thorough)])
def test_nor_from_where_a_hook_of_the_supervisor_has_gone(site: Site, options: str):
    """All its children are started after that, and one again when it has died."""
    with site.running(*WORKER, "--processes", "1", *options.split(), HOOK=str(site.uploads)) as app:
        before = app.tasks["apart"].enqueue().result(60)
        job = app.tasks["fall"].enqueue()
        assert job.result(60) > 0
        assert job.look().losses == 1
        assert before == app.tasks["apart"].enqueue().result(60) == str(site.folder)
    assert not site.poisoned.exists()


def test_relative_entries_of_the_import_path_mean_the_folder_of_the_start(site: Site):
    library = site.folder / "lib"
    library.mkdir()
    (site.folder / "shop.py").rename(library / "shop.py")
    (site.uploads / "lib").mkdir()
    (site.uploads / "lib" / "shop.py").write_text(POISON)
    with site.running(*WORKER, "--processes", "1", PYTHONPATH="lib:") as app:
        site.check_fresh_ones(app)
        pids = wait_until(lambda: [it.pid for it in app.inspection.processes() if it.role == "worker"])
        os.kill(pids[0], signal.SIGKILL)
        assert app.tasks["apart"].enqueue().result(60) == str(site.folder)
    assert not site.poisoned.exists()
