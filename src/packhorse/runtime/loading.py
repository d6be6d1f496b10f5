"""Finding the application that a command names, from the folder in which the command was started and no later one."""

from __future__ import annotations

import importlib
import os
import runpy
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from packhorse.app import Packhorse
from packhorse.errors import ConfigError

ROOT = str(Path(__file__).parents[2])  # where this package was found


def start_folder() -> str:
    """To be asked at the start, since a task may change the folder later; empty where it is gone."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def fix_paths(folder: str) -> None:
    """Make what is relative on the import path absolute: no folder that this process changes to is looked into."""
    sys.path[:] = dict.fromkeys(map(_absolute(folder), sys.path))
    os.environ.update(environment(folder))


def environment(folder: str, given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Of a fresh Python, which is told not to import from its current folder, and may be started in any."""
    known = given["PYTHONPATH"].split(os.pathsep) if given.get("PYTHONPATH") else []
    paths = dict.fromkeys(map(_absolute(folder), known))
    if folder == ROOT:  # not installed: it was found there because the command was started there
        paths[ROOT] = None
    return {**given, "PYTHONPATH": os.pathsep.join(paths)} if paths else dict(given)


def python(module: str, given: str) -> list[str]:
    return [sys.executable, "-P", "-m", module, given]


def existing(folder: str) -> str | None:
    """To start a process in; None leaves it where its parent is."""
    return folder if os.path.isdir(folder) else None


def _absolute(folder: str) -> Callable[[str], str]:
    return lambda entry: os.path.normpath(os.path.join(folder, entry)) if isinstance(entry, str) and folder else entry


def load_app(path: str, folder: str | None = None) -> Packhorse:
    """`"shop.tasks:app"`; without a name behind the colon, the module's only Packhorse.

    Modules are looked for in the folder, or in the current one, and then wherever Python does.
    A path of a file, as `path_of` gives it for a script, is run under another name than `__main__`.
    """
    module_name, _, name = path.partition(":")
    if not module_name:
        raise ConfigError(f"{path!r} names no module. Write it like shop.tasks:app.")
    if module_name.endswith(".py"):
        sys.path.insert(0, str(Path(module_name).parent))
        found = runpy.run_path(module_name, run_name=Path(module_name).stem).get(name)
        if isinstance(found, Packhorse):
            return found
        raise ConfigError(f"{name} in {module_name} is not a Packhorse application.")
    here = here_first(folder)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name == error.name or module_name.startswith(error.name + ".")):
            raise
        raise ConfigError(
            f"There is no module {module_name!r} to be found from {here}. "
            "Start the command in the folder that holds it, or install your package."
        ) from None
    if name:
        app = getattr(module, name, None)
        if isinstance(app, Packhorse):
            return app
        raise ConfigError(f"{module_name}.{name} is not a Packhorse application.")
    apps = [value for value in vars(module).values() if isinstance(value, Packhorse)]
    if len(apps) == 1:
        return apps[0]
    raise ConfigError(f"{module_name} has {len(apps)} Packhorse applications. Say which: {module_name}:name.")


def here_first(folder: str | None = None) -> str:
    """Modules are found from this folder, or the current one."""
    here = folder or str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    return here


def path_of(app: Packhorse) -> str | None:
    """How another process can load the application that this one has; None where no module holds it."""
    if app.path is not None:
        return app.path
    for name, module in list(sys.modules.items()):
        for attribute, value in list(getattr(module, "__dict__", {}).items()):
            if value is not app:
                continue
            if name != "__main__":
                return f"{name}:{attribute}"
            if (spec := getattr(module, "__spec__", None)) is not None:
                return f"{spec.name}:{attribute}"
            if (file := getattr(module, "__file__", None)) is not None:
                return f"{Path(file).resolve()}:{attribute}"
    return None
