"""Finding the application that a command names."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from packhorse.app import Packhorse
from packhorse.errors import ConfigError


def load_app(path: str) -> Packhorse:
    """`"shop.tasks:app"`; without a name behind the colon, the module's only Packhorse."""
    module_name, _, name = path.partition(":")
    if not module_name:
        raise ConfigError(f"{path!r} names no module. Write it like shop.tasks:app.")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
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
