"""What anyone looks at: the one read model of commands, dashboards and scripts."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, NamedTuple

from packhorse.clock import to_datetime
from packhorse.codec import Arguments
from packhorse.context import Progress
from packhorse.control import check_limit_key, known_id
from packhorse.errors import JobNotFound, PayloadError, TimedOut
from packhorse.hops import hopping, hopping_each
from packhorse.ids import from_text, to_text
from packhorse.job import Job, JobState, StoredJob
from packhorse.masking import MASK, masked
from packhorse.seals import OpenedJob
from packhorse.steps import KINDS, Step
from packhorse.stores.contract import (
    NOBODY,
    SIGNAL,
    Audit,
    LimitView,
    Pause,
    ProcessView,
    QueueCounts,
    RateView,
    Selection,
    Waiter,
)

if TYPE_CHECKING:
    from packhorse.app import Packhorse
    from packhorse.task import ForeignCodec


class Scan(NamedTuple):
    """What a bounded search found, among how many, and behind which job to go on; None where all were seen."""

    jobs: list[Job]
    looked_at: int
    after: str | None


class Awaited(NamedTuple):
    """A signal, and a job that waits for it."""

    signal: str
    job_id: str


class Inspection:
    def __init__(self, app: Packhorse) -> None:
        self._app = app

    def queues(self) -> list[QueueCounts]:
        return self._app.store.queues()

    def pauses(self) -> list[Pause]:
        return self._app.store.pauses()

    def limits(self, *, after: str = "") -> Iterator[LimitView]:
        """Every limit key that has holders, waiting jobs or a number set by hand, in their order, behind `after`."""
        return chain.from_iterable(self._pages_of_limits(after))

    def _pages_of_limits(self, after: str) -> Iterator[list[LimitView]]:
        while found := self._app.store.limits(after):
            yield found
            after = found[-1].key

    def rates(self, *, after: str = "") -> Iterator[RateView]:
        """Every key of a rate that was used of late or is waited for, in their order, behind `after`."""
        return chain.from_iterable(self._pages_of_rates(after))

    def _pages_of_rates(self, after: str) -> Iterator[list[RateView]]:
        while found := self._app.store.rates(after):
            yield found
            after = found[-1].key

    def weights(self) -> dict[str, int]:
        """The turns that shares get where others get one, as they were set."""
        return self._app.store.weights()

    def limit(self, key: str) -> LimitView:
        """One of them; a key that nobody uses has no holders and nobody waits."""
        found = next(iter(self._app.store.limits(just_before(check_limit_key(key)), 1)), None)
        return found if found is not None and found.key == key else LimitView(key, None, 0, 0)

    def processes(self) -> list[ProcessView]:
        return self._app.store.processes()

    def audit(self, limit: int = 100) -> list[Audit]:
        """What operators did, the newest first; `at` is in microseconds since 1970."""
        return self._app.store.audit(limit)

    def counts(self) -> dict[JobState, int]:
        queues = self.queues()
        return {state: sum(queue.of(state) for queue in queues) for state in JobState}

    def exists(self) -> bool:
        """Whether there is a store; looking creates none."""
        return self._app.store.exists()

    def schema_version(self) -> int:
        return self._app.store.schema_version()

    def jobs(
        self,
        selection: Selection | None = None,
        page: int = 500,
        *,
        after: str | None = None,
        newest_first: bool = False,
    ) -> Iterator[Job]:
        """Oldest first unless told otherwise, page by page: a million jobs need no more memory than one page."""
        start = None if after is None else known_id(after)
        return map(self._app.public, self.stored_jobs(selection or Selection(), page, start, newest_first=newest_first))

    def stored_jobs(
        self, selection: Selection, page: int, after: bytes | None = None, *, newest_first: bool = False
    ) -> Iterator[StoredJob]:
        return chain.from_iterable(self._pages(selection, page, after, newest_first))

    def _pages(
        self, selection: Selection, page: int, after: bytes | None, newest_first: bool = False
    ) -> Iterator[list[StoredJob]]:
        while True:
            found = self._app.store.jobs(selection, after, page, newest_first=newest_first)
            yield found
            if len(found) < page:
                return
            after = from_text(found[-1].id)

    def stored(self, id: str) -> StoredJob:
        """One job with all that is wide; JobNotFound where there is none."""
        job = self._app.store.job(known_id(id))
        if job is None:
            raise JobNotFound(id)
        return job

    def count(self, selection: Selection) -> int:
        """By the store's own counts where state and queue alone decide, else one by one."""
        if replace(selection, states=None, queues=None) != Selection():
            return sum(1 for _ in self.stored_jobs(selection, page=1_000))
        queues = [it for it in self.queues() if selection.queues is None or it.queue in selection.queues]
        states = JobState if selection.states is None else set(selection.states)
        return sum(queue.of(state) for queue in queues for state in states)

    def failed(self, selection: Selection, error: str, *, limit: int, scan: int, after: str | None = None) -> Scan:
        """Failed jobs whose error has that text in its type or message, in any case of letters.

        Failures are sealed, so no store can search them: at most `scan` jobs are looked at.
        """
        found: list[Job] = []
        looked_at, last, text = 0, after, error.casefold()
        failed = self.jobs(replace(selection, states={JobState.FAILED}), after=after)
        for job in islice(failed, scan):
            looked_at, last = looked_at + 1, job.id
            if job.failure is not None and text in str(job.failure).casefold():
                found.append(job)
                if len(found) == limit:
                    return Scan(found, looked_at, last)
        return Scan(found, looked_at, last if looked_at == scan else None)

    def progress(self, id: str) -> Progress | None:
        """What the job last said of itself."""
        raw = known_id(id)
        for entry in self._app.store.entries(raw):
            if (entry.kind, entry.name) == PROGRESS:
                return decode_progress(self._app.opening.open_entry(raw, *PROGRESS, entry.data))
        return None

    def steps(self, id: str) -> list[Step]:
        """What the job has kept for its next attempt, oldest first, without the values."""
        raw = known_id(id)
        entries = (entry for entry in self._app.store.entries(raw) if entry.kind in KINDS)
        return sorted((self._step(raw, *entry) for entry in entries), key=lambda step: step.at)

    def _step(self, id: bytes, kind: str, name: str, data: bytes) -> Step:
        if kind == SIGNAL:
            name = name.partition(" ")[0]
            return Step(kind, name, to_datetime(self._app.opening.open_signal(name, data).at))
        return Step(kind, name, to_datetime(self._app.opening.open_value(id, kind, name, data).at))

    def awaited(self, signal: str | None = None) -> Iterator[Awaited]:
        """Who waits for which signal, in the order of their names; or only for this one."""
        return chain.from_iterable(self._pages_of_waiters(signal))

    def _pages_of_waiters(self, signal: str | None) -> Iterator[list[Awaited]]:
        after = NOBODY if signal is None else Waiter(signal, b"")
        while found := self._app.store.waiters(after):
            yield [Awaited(it.signal, to_text(it.id)) for it in found if signal in (None, it.signal)]
            after = found[-1]
            if signal is not None and after.signal != signal:
                return

    def result_of(self, job: StoredJob) -> Any:
        """The return value of a job that succeeded; PayloadError where it was not kept or cannot be trusted."""
        raw, task = from_text(job.id), self._app.known_tasks.get(job.task)
        if job.result is None:
            if self._app.opening.open_job(raw, job.task, job.payload).no_result:
                raise PayloadError("the task keeps no results")
            return None
        opened = self._app.opening.open_result(raw, job.result)
        if opened.foreign:
            if task is None or task.stored.codec is None:
                raise PayloadError("it was written by a codec that this program does not have")
            return _decoded(task.stored.codec, opened.body)
        value = self._app.codec.decode_result(opened.body, typed=opened.typed)
        return value if task is None or task.shapes is None else task.shapes.load_result(value)

    def arguments(self, job: StoredJob) -> Arguments:
        """As they were enqueued, for showing; dataclasses and enums are the plain values they travel as."""
        return self._arguments(self._app.opening.open_job(from_text(job.id), job.task, job.payload))

    def _arguments(self, opened: OpenedJob) -> Arguments:
        if opened.foreign:
            raise PayloadError("They were written by the task's own codec, which only performing it reads.")
        return self._app.codec.decode_arguments(opened.body, typed=opened.typed)

    def shown_arguments(self, job: StoredJob) -> dict[str, Any]:
        """By name, with what is secret masked; and where the names are not known, all that has none."""
        return self.shown(job.task, self._app.opening.open_job(from_text(job.id), job.task, job.payload))

    def shown(self, name: str, opened: OpenedJob) -> dict[str, Any]:
        """The same of what was opened already."""
        arguments, task = self._arguments(opened), self._app.known_tasks.get(name)
        if task is not None and task.stored.version == opened.version:
            named = task.named(arguments.args, arguments.kwargs)
        else:
            named = {**{str(n): MASK for n in range(len(arguments.args))}, **arguments.kwargs}
        shown: dict[str, Any] = masked(named, self._app.settings.sensitive_names)
        return shown

    def shown_result(self, job: StoredJob) -> Any:
        """With what is secret masked. Who only looks decodes nothing with a task's own codec."""
        if job.result is not None and self._app.opening.open_result(from_text(job.id), job.result).foreign:
            raise PayloadError("It was written by the task's own codec, which only those who ask for the result read.")
        return masked(self.result_of(job), self._app.settings.sensitive_names)

    # The same for coroutines. What comes page by page is got so, one hop for each.

    aqueues = hopping(queues)
    apauses = hopping(pauses)
    alimit = hopping(limit)
    aweights = hopping(weights)
    aprocesses = hopping(processes)
    aaudit = hopping(audit)
    acounts = hopping(counts)
    aexists = hopping(exists)
    aschema_version = hopping(schema_version)
    astored = hopping(stored)
    acount = hopping(count)
    afailed = hopping(failed)
    aprogress = hopping(progress)
    asteps = hopping(steps)
    aresult_of = hopping(result_of)
    aarguments = hopping(arguments)
    ashown_arguments = hopping(shown_arguments)
    ashown_result = hopping(shown_result)

    def alimits(self, *, after: str = "") -> AsyncIterator[LimitView]:
        return hopping_each(self._pages_of_limits(after))

    def aawaited(self, signal: str | None = None) -> AsyncIterator[Awaited]:
        return hopping_each(self._pages_of_waiters(signal))

    def arates(self, *, after: str = "") -> AsyncIterator[RateView]:
        return hopping_each(self._pages_of_rates(after))

    def ajobs(
        self,
        selection: Selection | None = None,
        page: int = 500,
        *,
        after: str | None = None,
        newest_first: bool = False,
    ) -> AsyncIterator[Job]:
        start = None if after is None else known_id(after)
        pages = self._pages(selection or Selection(), page, start, newest_first)
        return hopping_each(map(self._app.public, found) for found in pages)

    def astored_jobs(
        self, selection: Selection, page: int, after: bytes | None = None, *, newest_first: bool = False
    ) -> AsyncIterator[StoredJob]:
        return hopping_each(self._pages(selection, page, after, newest_first))


def _decoded(codec: ForeignCodec, data: bytes) -> Any:
    try:
        return codec.decode(data)
    except (PayloadError, TimedOut):
        raise
    except Exception as error:
        raise PayloadError(f"the task's own codec raised {type(error).__name__}") from None


def just_before(key: str) -> str:
    """A text behind which that key comes first: no key has the last letter of all, which cannot be printed."""
    return key and f"{key[:-1]}{chr(max(0, ord(key[-1]) - 1))}{chr(sys.maxunicode)}"


PROGRESS = ("progress", "")


def encode_progress(progress: Progress, at: int) -> bytes:
    return json.dumps([progress.done, progress.total, progress.note, at], separators=(",", ":")).encode()


def decode_progress(data: bytes) -> Progress:
    try:
        done, total, note, at = json.loads(data)
        return Progress(float(done), None if total is None else float(total), str(note), to_datetime(at))
    except (ValueError, TypeError, OverflowError):
        raise PayloadError("It is no progress that Packhorse wrote.") from None
