"""Packhorse is whole without Django: nothing outside packhorse.django asks for it, at whatever moment."""

import subprocess
import sys

CODE = """
import importlib, pkgutil, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("django", "django_tasks", "asgiref"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
import packhorse

LEFT_OUT = ("packhorse.django", "packhorse.__main__")
found = [it.name for it in pkgutil.walk_packages(packhorse.__path__, "packhorse.") if not it.name.startswith(LEFT_OUT)]
for name in found:
    importlib.import_module(name)
app = packhorse.Packhorse("shop", "memory://")
task = app.task(name="task")(lambda: 42)
with packhorse.Embedded(app):
    assert task.enqueue().result(timeout=60) == 42
assert not [name for name in sys.modules if name.partition(".")[0] in ("django", "django_tasks", "asgiref")]
print(len(found))
"""


def test_no_module_needs_django():
    ran = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) > 50
