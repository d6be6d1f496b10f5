"""What an operator does, on every store."""

from __future__ import annotations

import getpass
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from packhorse.clock import length, to_microseconds
from packhorse.ids import from_text
from packhorse.queues import check_name
from packhorse.stores.contract import Act, Change, Selection

if TYPE_CHECKING:
    from packhorse.app import Packhorse


class Control:
    def __init__(self, app: Packhorse) -> None:
        self._app = app

    def cancel(self, ids: Iterable[str], *, reason: str = "cancelled", actor: str | None = None) -> int:
        return self.act(_these(ids), Change(Act.CANCEL), reason=reason, actor=actor)

    def retry(self, ids: Iterable[str], *, reason: str = "", actor: str | None = None) -> int:
        return self.act(_these(ids), Change(Act.RETRY), reason=reason, actor=actor)

    def run_now(self, ids: Iterable[str], *, reason: str = "", actor: str | None = None) -> int:
        return self.act(_these(ids), Change(Act.RUN_NOW), reason=reason, actor=actor)

    def discard(self, ids: Iterable[str], *, reason: str = "", actor: str | None = None) -> int:
        return self.act(_these(ids), Change(Act.DISCARD), reason=reason, actor=actor)

    def act(self, selection: Selection, change: Change, *, reason: str = "", actor: str | None = None) -> int:
        """Any act on any selection, in batches; how many jobs moved or will."""
        moved = self._app.store.move(selection, change, actor or _me(), reason)
        total = moved.jobs + moved.asked
        while moved.after is not None:
            moved = self._app.store.move(selection, change, actor or _me(), reason, after=moved.after)
            total += moved.jobs + moved.asked
        return total

    def pause(
        self,
        queue: str,
        *,
        until: datetime | timedelta | float | None = None,
        reason: str = "",
        actor: str | None = None,
    ) -> None:
        """No job of the queue is claimed until it is resumed, or until that time."""
        if until is not None:
            until = to_microseconds(until) if isinstance(until, datetime) else self._app.clock.now() + length(until)
        self._app.store.pause(check_name(queue, "queue name"), until, actor or _me(), reason)

    def resume(self, queue: str, *, reason: str = "", actor: str | None = None) -> bool:
        return self._app.store.resume(check_name(queue, "queue name"), actor or _me(), reason)


def _these(ids: Iterable[str]) -> Selection:
    return Selection(ids=[from_text(id) for id in ids])


def _me() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's uid need not have a name
        return "unknown"
