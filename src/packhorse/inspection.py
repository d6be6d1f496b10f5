"""What anyone looks at: the one read model of commands, dashboards and scripts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from packhorse.ids import from_text
from packhorse.job import Job, JobState
from packhorse.stores.contract import ProcessView, QueueCounts, Selection

if TYPE_CHECKING:
    from packhorse.app import Packhorse


class Inspection:
    def __init__(self, app: Packhorse) -> None:
        self._app = app

    def queues(self) -> list[QueueCounts]:
        return self._app.store.queues()

    def processes(self) -> list[ProcessView]:
        return self._app.store.processes()

    def counts(self) -> dict[JobState, int]:
        queues = self.queues()
        return {state: sum(queue.of(state) for queue in queues) for state in JobState}

    def jobs(self, selection: Selection | None = None, page: int = 500) -> Iterator[Job]:
        """Oldest first, page by page, so that a million jobs need no more memory than one page."""
        after: bytes | None = None
        while True:
            found = self._app.store.jobs(selection or Selection(), after, page)
            yield from map(self._app.public, found)
            if len(found) < page:
                return
            after = from_text(found[-1].id)
