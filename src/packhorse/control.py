"""What an operator does, on every store."""

from __future__ import annotations

import getpass
import uuid
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from packhorse.clock import length, to_microseconds
from packhorse.errors import ConfigError, JobNotFound
from packhorse.ids import from_text
from packhorse.queues import check_name
from packhorse.stores.contract import Act, Change, Selection
from packhorse.task import Options

if TYPE_CHECKING:
    from packhorse.app import Packhorse

IDS_AT_ONCE = 1_000


class Control:
    def __init__(self, app: Packhorse) -> None:
        self._app = app

    def cancel(self, ids: Iterable[str], *, reason: str = "cancelled", actor: str | None = None) -> int:
        return self._on(ids, Change(Act.CANCEL), reason, actor)

    def retry(self, ids: Iterable[str], *, reason: str = "", actor: str | None = None) -> int:
        return self._on(ids, Change(Act.RETRY), reason, actor)

    def run_now(self, ids: Iterable[str], *, reason: str = "", actor: str | None = None) -> int:
        return self._on(ids, Change(Act.RUN_NOW), reason, actor)

    def discard(self, ids: Iterable[str], *, reason: str = "", actor: str | None = None) -> int:
        return self._on(ids, Change(Act.DISCARD), reason, actor)

    def _on(self, ids: Iterable[str], change: Change, reason: str, actor: str | None) -> int:
        if isinstance(ids, str):
            raise ConfigError("Give a list of job ids, even of one: [job.id].")
        raw = [known_id(id) for id in ids]
        parts = (Selection(ids=raw[start : start + IDS_AT_ONCE]) for start in range(0, len(raw), IDS_AT_ONCE))
        return sum(self.act(part, change, reason=reason, actor=actor) for part in parts)

    def change(
        self,
        ids: Iterable[str],
        *,
        queue_name: str | None = None,
        priority: int | None = None,
        reason: str = "",
        actor: str | None = None,
    ) -> int:
        """Another queue or priority for jobs that do not run yet."""
        options = Options(queue_name=queue_name or "default", priority=priority or 0)
        stored = None if priority is None else self._app.stored_priority(options.priority)
        return self._on(ids, Change(Act.CHANGE, queue_name, stored), reason, actor)

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
        check_name(queue, "queue name")
        if isinstance(until, datetime):
            if until.tzinfo is None:
                raise ConfigError(f"until={until} has no time zone. Use an aware datetime, or a timedelta.")
            return self._app.store.pause(queue, to_microseconds(until), actor or _me(), reason)
        lasting = None if until is None else length(until)
        return self._app.store.pause(queue, None, actor or _me(), reason, length=lasting)

    def resume(self, queue: str, *, reason: str = "", actor: str | None = None) -> bool:
        return self._app.store.resume(check_name(queue, "queue name"), actor or _me(), reason)


def known_id(id: str | uuid.UUID) -> bytes:
    """The bytes of a job id; JobNotFound where the text cannot be one."""
    try:
        return from_text(id)
    except (ValueError, TypeError, AttributeError):
        raise JobNotFound(str(id)) from None


def _me() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's uid need not have a name
        return "unknown"
