"""Finding the application that a command names."""

from __future__ import annotations

import importlib
import runpy
import sys
from pathlib import Path

from packhorse.app import Packhorse
from packhorse.errors import ConfigError


def load_app(path: str) -> Packhorse:
    """`"shop.tasks:app"`; without a name behind the colon, the module's only Packhorse.

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
    here = here_first()
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


def here_first() -> str:
    """Modules are found from the current folder."""
    here = str(Path.cwd())
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
