"""Finding tasks: the module `tasks` of each installed app, and the applications that commands name.

`packhorse worker packhorse.django.discovery:default` is how a worker process loads the application of an alias.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

import django
from django.apps import apps
from django.utils.module_loading import module_has_submodule

from packhorse.django import compat, tasks

if TYPE_CHECKING:
    from packhorse.django.application import Application


def discover() -> None:
    """Import them. A module that cannot be imported is the site's own error."""
    for config in apps.get_app_configs():
        if config.module is not None and module_has_submodule(config.module, "tasks"):
            module = import_module(f"{config.name}.tasks")
            for task in tasks.stock_tasks(module):
                tasks.as_ours(task)


def __getattr__(alias: str) -> Application:
    """The application of an alias of TASKS, with all tasks."""
    if alias.startswith("__"):
        raise AttributeError(alias)
    if not apps.ready:
        django.setup()
    discover()
    app: Application = compat.task_backends[alias].application
    app.register_declared()
    return app
