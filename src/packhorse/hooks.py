"""Hooks: what an application does when one of its processes starts, is asked to stop, or leaves."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

from packhorse.errors import ConfigError
from packhorse.forks import guarded

log = logging.getLogger("packhorse.hooks")

When = Literal["start", "stop", "exit"]
Role = Literal["supervisor", "worker", "dispatcher", "scheduler"]


@dataclass(frozen=True, slots=True)
class Occasion:
    """What a hook is told: which process it runs in, and why it is called."""

    when: When
    role: str
    process_id: str


Hook = Callable[[Occasion], object]
H = TypeVar("H", bound=Hook)


class Hooks:
    """Called in place, one after the other, in the process and the thread of the role. One that fails is reported."""

    def __init__(self) -> None:
        self._hooks: list[tuple[When, Role | None, Hook]] = []

    def add(self, when: When, role: Role | None, hook: H) -> H:
        if when not in get_args(When):
            raise ConfigError(f"A hook is for start, stop or exit, not for {when!r}.")
        if role is not None and role not in get_args(Role):
            raise ConfigError(f"A hook is for a {', '.join(get_args(Role))} or for all, not for a {role!r}.")
        self._hooks.append((when, role, hook))
        return hook

    def call(self, when: When, role: str, process_id: str) -> None:
        for its_when, its_role, hook in self._hooks:
            if its_when == when and its_role in (None, role):
                try:
                    guarded(hook, Occasion(when, role, process_id))
                except BaseException:  # even SystemExit: a hook decides nothing
                    log.exception("a hook at the %s of a %s failed: %s", when, role, getattr(hook, "__name__", hook))
