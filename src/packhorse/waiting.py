"""Waiting for many jobs at once: for all of them, for the first, or for each as it ends.

The waiting room of each store (`stores/waiting_room.py`) is given all the ids at once, and tells which have ended. So a
wait for many jobs costs no more than one for a single job, and a wait in several stores sleeps in all of them. When the
time is up, whatever is left is looked at once more.

The async twins sleep in their event loop; only what reads the store is done in threads, a short piece at a time.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterable, Iterator
from contextlib import aclosing, closing
from functools import partial
from typing import Any, Generic, Literal, TypeVar, overload

from packhorse.errors import NotFinished, PackhorseError, StoreError
from packhorse.handle import JobHandle
from packhorse.hops import in_thread
from packhorse.job import StoredJob
from packhorse.stores import Store
from packhorse.stores.sleepers import AsyncSleeper, Sleeper, Wakeable
from packhorse.stores.waiting_room import POLL, Ticket, taken

R = TypeVar("R")

CHUNK = 500  # ids looked at in one go where time is up
READ = 50  # jobs read in one go in a thread that others need too


class JobsNotFinished(NotFinished):
    """Some of the jobs waited for; `ids` says which."""

    def __init__(self, ids: tuple[str, ...], total: int, waited: float):
        PackhorseError.__init__(
            self,
            f"{len(ids):,} of {total:,} jobs have not finished after {waited:g} s; the first of them is {ids[0]}. "
            "Wait longer, or look later.",
        )
        self.ids = ids
        self.id = ids[0]
        self.state = "unfinished"


@overload
def gather(*handles: JobHandle[R], timeout: float | None = None, return_errors: Literal[False] = False) -> list[R]: ...
@overload
def gather(*handles: JobHandle[R], timeout: float | None = None, return_errors: bool) -> list[R | PackhorseError]: ...
def gather(
    *handles: JobHandle[R], timeout: float | None = None, return_errors: bool = False
) -> list[R] | list[R | PackhorseError]:
    """Wait for the results, in the order given; a job given twice has its result there twice.

    Raises what `result()` would, for the job that is seen to end first in such a way; the others go on. With
    `return_errors` such errors stand in the list instead. Raises NotFinished where the time is up before.
    """
    gathering = _Gathering(handles, timeout, return_errors)
    for ended in gathering.each():
        gathering.keep(gathering.read(ended))
    return gathering.results(handles)


@overload
async def agather(
    *handles: JobHandle[R], timeout: float | None = None, return_errors: Literal[False] = False
) -> list[R]: ...
@overload
async def agather(
    *handles: JobHandle[R], timeout: float | None = None, return_errors: bool
) -> list[R | PackhorseError]: ...
async def agather(
    *handles: JobHandle[R], timeout: float | None = None, return_errors: bool = False
) -> list[R] | list[R | PackhorseError]:
    gathering = _Gathering(handles, timeout, return_errors)
    async with aclosing(gathering.aeach()) as each:
        async for ended in each:
            found: list[tuple[JobHandle[R], StoredJob]] = []
            for start in range(0, len(ended), READ):
                found += await in_thread(gathering.read, ended[start : start + READ])
            await in_thread(gathering.keep, found)
    return gathering.results(handles)


def wait_jobs(
    handles: Iterable[JobHandle[R]], timeout: float | None = None, *, first: bool = False
) -> tuple[list[JobHandle[R]], list[JobHandle[R]]]:
    """Wait until all have finished, or (`first`) at least one; those seen to have, and the others.

    Both in the order given, each job once. A job that is gone counts as finished. Time that is up is no error.
    """
    waiting = _Waiting(handles, timeout)
    with closing(waiting.each()) as each:
        for ended in each:
            if ended and first:
                break
    return waiting.parted()


async def await_jobs(
    handles: Iterable[JobHandle[R]], timeout: float | None = None, *, first: bool = False
) -> tuple[list[JobHandle[R]], list[JobHandle[R]]]:
    waiting = _Waiting(handles, timeout)
    async with aclosing(waiting.aeach()) as each:
        async for ended in each:
            if ended and first:
                break
    return waiting.parted()


def as_completed(handles: Iterable[JobHandle[R]], timeout: float | None = None) -> Iterator[JobHandle[R]]:
    """Each job once, as it is seen to end; one that is gone counts as ended.

    The time counts from this call on. Raises NotFinished when it is up, after the last of those that made it.
    """
    return _each(_Waiting(handles, timeout))


def _each(waiting: _Waiting[R]) -> Iterator[JobHandle[R]]:
    with closing(waiting.each()) as each:
        for ended in each:
            yield from ended
    waiting.check()


def aas_completed(handles: Iterable[JobHandle[R]], timeout: float | None = None) -> AsyncIterator[JobHandle[R]]:
    """`async for handle in aas_completed(handles): ...`"""
    return _aeach(_Waiting(handles, timeout))


async def _aeach(waiting: _Waiting[R]) -> AsyncIterator[JobHandle[R]]:
    async with aclosing(waiting.aeach()) as each:
        async for ended in each:
            for handle in ended:
                yield handle
    waiting.check()


class _Waiting(Generic[R]):
    """The jobs not yet seen to have ended."""

    def __init__(self, handles: Iterable[JobHandle[R]], timeout: float | None) -> None:
        self._handles = list(dict.fromkeys(handles))
        self._order = {handle: number for number, handle in enumerate(self._handles)}
        self._timeout = math.inf if timeout is None else max(0.0, timeout)
        self._deadline = time.monotonic() + self._timeout
        self._left: dict[Store, dict[bytes, JobHandle[R]]] = {}
        self._tickets: dict[Store, Ticket] = {}
        for handle in self._handles:
            self._add(handle)

    def each(self) -> Generator[list[JobHandle[R]], None, None]:
        """Those that have ended, as they are told, in the order given; at the end those that ended unseen."""
        sleeper = Sleeper()
        try:
            self._enter(sleeper)
            while self._goes_on():
                tickets = self._tickets.items()
                told = [handle for store, ticket in tickets for handle in self._pop(store, ticket.take())]
                if told:
                    yield self._sorted(told)
                else:
                    sleeper.nap(self._pause)
        finally:
            self._leave()
        for look in self._last_looks():
            yield look()

    async def aeach(self) -> AsyncGenerator[list[JobHandle[R]], None]:
        sleeper = AsyncSleeper()
        try:
            self._enter(sleeper)
            while self._goes_on():
                tickets = self._tickets.items()
                told = [handle for store, ticket in tickets for handle in self._pop(store, await taken(ticket))]
                if told:
                    yield self._sorted(told)
                else:
                    await sleeper.sleep(self._pause)
        finally:
            self._leave()
        for look in self._last_looks():
            yield await in_thread(look)

    def parted(self) -> tuple[list[JobHandle[R]], list[JobHandle[R]]]:
        unfinished = self._unfinished()
        missing = set(unfinished)
        return [handle for handle in self._handles if handle not in missing], unfinished

    def check(self) -> None:
        if unfinished := self._unfinished():
            raise JobsNotFinished(tuple(handle.id for handle in unfinished), len(self._handles), self._timeout)

    def _unfinished(self) -> list[JobHandle[R]]:
        return [handle for handle in self._handles if handle._raw_id in self._left.get(handle._app.store, ())]

    def _add(self, handle: JobHandle[R]) -> None:
        store = handle._app.store
        self._left.setdefault(store, {})[handle._raw_id] = handle
        if store in self._tickets:
            self._tickets[store].add([handle._raw_id])

    def _enter(self, sleeper: Wakeable) -> None:
        if not self._goes_on():
            return
        for store, left in self._left.items():
            ticket = self._tickets[store] = store.room.ticket(sleeper)
            ticket.add(list(left))

    def _leave(self) -> None:
        for ticket in self._tickets.values():
            ticket.leave()

    def _goes_on(self) -> bool:
        return bool(self._left) and time.monotonic() < self._deadline

    @property
    def _pause(self) -> float:
        left = self._deadline - time.monotonic()
        return min(left, POLL) if any(ticket.looks for ticket in self._tickets.values()) else left

    def _pop(self, store: Store, ids: Iterable[bytes]) -> list[JobHandle[R]]:
        """They are no longer waited for."""
        left = self._left.get(store, {})
        popped = [left.pop(id) for id in ids if id in left]
        if not left:
            self._left.pop(store, None)
        return popped

    def _sorted(self, handles: list[JobHandle[R]]) -> list[JobHandle[R]]:
        return sorted(handles, key=self._order.__getitem__)

    def _last_looks(self) -> Iterator[Callable[[], list[JobHandle[R]]]]:
        for store, left in tuple(self._left.items()):
            ids = list(left)
            for start in range(0, len(ids), CHUNK):
                yield partial(self._look, store, ids[start : start + CHUNK])

    def _look(self, store: Store, ids: list[bytes]) -> list[JobHandle[R]]:
        return self._sorted(self._pop(store, store.ended(ids)))


class _Gathering(_Waiting[R]):
    """Looks at each job that has ended, and keeps what came of it."""

    def __init__(self, handles: tuple[JobHandle[R], ...], timeout: float | None, return_errors: bool) -> None:
        for handle in handles:
            if not isinstance(handle, JobHandle):
                given = type(handle).__name__
                raise TypeError(f"gather(*jobs) takes the jobs one by one, with a star; it was given a {given}.")
        super().__init__(handles, timeout)
        self._return_errors = return_errors
        self._outcomes: dict[JobHandle[R], R | PackhorseError] = {}

    def read(self, ended: Iterable[JobHandle[R]]) -> list[tuple[JobHandle[R], StoredJob]]:
        return [(handle, job) for handle in ended if (job := self._finished(handle)) is not None]

    def keep(self, ended: Iterable[tuple[JobHandle[R], StoredJob]]) -> None:
        """What came of them, the first to end first: its error is the one that is raised."""
        for handle, job in sorted(ended, key=lambda pair: pair[1].finished_at or pair[1].created_at):
            try:
                self._outcomes[handle] = handle._outcome(job)
            except PackhorseError as error:
                self._fail(handle, error)

    def results(self, handles: Iterable[JobHandle[R]]) -> list[Any]:
        self.check()
        return [self._outcomes[handle] for handle in handles]

    def _finished(self, handle: JobHandle[R]) -> StoredJob | None:
        """The job, unless it is gone or an operator has sent it round again meanwhile."""
        try:
            job = handle._stored()
        except PackhorseError as error:
            self._fail(handle, error)
            return None
        if job.finished:
            return job
        self._add(handle)
        return None

    def _fail(self, handle: JobHandle[R], error: PackhorseError) -> None:
        if not self._return_errors or isinstance(error, StoreError):  # which says nothing of the job
            raise error
        self._outcomes[handle] = error
