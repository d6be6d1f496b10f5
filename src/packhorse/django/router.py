"""For DATABASE_ROUTERS, where the jobs are in another database than the rest of the site."""

from __future__ import annotations

from typing import Any

from packhorse.django.apps import PackhorseConfig


class PackhorseRouter:
    """The tables of jobs belong into the databases that TASKS name, and nothing else does so because of it."""

    def _is_ours(self, model: Any) -> bool:
        return bool(model._meta.app_label == PackhorseConfig.label)

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        return databases()[0] if self._is_ours(model) and databases() else None

    db_for_write = db_for_read

    def allow_relation(self, one: Any, other: Any, **hints: Any) -> bool | None:
        return True if self._is_ours(one) and self._is_ours(other) else None

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        return db in databases() if app_label == PackhorseConfig.label else None


def databases() -> list[str]:
    """Those that entries of TASKS name, the default entry first."""
    from packhorse.django import options
    from packhorse.django.backend import PackhorseBackend
    from packhorse.django.compat import task_backends

    aliases = sorted(task_backends.settings, key=lambda alias: alias != "default")
    backends = [task_backends[alias] for alias in aliases]
    found = [options.read(it.options).database for it in backends if isinstance(it, PackhorseBackend)]
    return list(dict.fromkeys(alias for alias in found if alias is not None))
