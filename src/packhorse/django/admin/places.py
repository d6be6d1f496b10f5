"""Which jobs a page is about: one place for all entries of TASKS whose jobs are in the same store."""

from __future__ import annotations

from typing import NamedTuple

from django.http import Http404

from packhorse.django import compat, discovery
from packhorse.django.application import Application
from packhorse.django.backend import PackhorseBackend
from packhorse.errors import ConfigError


class Place(NamedTuple):
    """A store, under the first of its aliases."""

    aliases: list[str]
    queues: list[str]
    """Those that TASKS name."""

    @property
    def alias(self) -> str:
        return self.aliases[0]

    @property
    def name(self) -> str:
        return ", ".join(self.aliases)

    def application(self) -> Application:
        """With all tasks: it is they who know the names of arguments, and which of them are secret."""
        app: Application = getattr(discovery, self.alias)
        return app


def places() -> list[Place]:
    """Those of the default entry first."""
    found: dict[object, Place] = {}
    for alias in sorted(compat.task_backends.settings, key=lambda alias: alias != "default"):
        backend = compat.task_backends[alias]
        if isinstance(backend, PackhorseBackend):
            told = backend.application.backend_options
            place = found.setdefault((told.database, told.store), Place([], []))
            place.aliases.append(alias)
            place.queues.extend(backend.queues)
    return list(found.values())


def chosen(known: list[Place], alias: str | None) -> Place:
    if not known:
        raise ConfigError("No entry of TASKS has the backend packhorse.django.PackhorseBackend.")
    for place in known:
        if alias is None or alias in place.aliases:
            return place
    raise Http404(f"There is no entry {alias!r} of TASKS with jobs of Packhorse.")
