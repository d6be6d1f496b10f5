"""Waiting for many jobs at once: for all of them, for the first, or for each as it ends.

Those seen to have ended are not asked for again. Where all must end anyway (`wait_jobs`, `gather(return_errors=True)`)
it is enough to watch the last one of a chunk, and then to look what became of the others. Elsewhere any ending counts:

* up to `CHUNK` jobs in one store are all watched, and an ending is seen at once;
* of more jobs the first `CHUNK` unfinished ones are watched, for those tend to end next. From time to time all are
  looked at, so that an ending far down a list of 10,000 jobs is seen after about half a second;
* several stores are watched in turn, each for `TURN`: nothing can sleep in two stores at once.

The async twins do the same in threads, one short look at a time.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from itertools import islice
from typing import Any, Generic, Literal, NamedTuple, TypeVar, overload

from packhorse.errors import NotFinished, PackhorseError, StoreError
from packhorse.handle import WAIT_SLICE, JobHandle
from packhorse.hops import in_thread
from packhorse.job import StoredJob
from packhorse.stores import Store

R = TypeVar("R")

CHUNK = 500  # ids handed to a store at a time: SQLite needs 5 µs for each, whenever anything was written
REST = 0.000_05  # for each id looked at in vain, before the next look: thus looking takes a tenth of the time
TURN = 0.05


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
    for look in gathering.looks():
        gathering.take(look)
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
    for look in gathering.looks():
        await in_thread(gathering.take, look)
    return gathering.results(handles)


def wait_jobs(
    handles: Iterable[JobHandle[R]], timeout: float | None = None, *, first: bool = False
) -> tuple[list[JobHandle[R]], list[JobHandle[R]]]:
    """Wait until all have finished, or (`first`) at least one; those seen to have, and the others.

    Both in the order given, each job once. A job that is gone counts as finished. Time that is up is no error.
    """
    waiting = _Waiting(handles, timeout, any_counts=first)
    for look in waiting.looks():
        if waiting.take(look) and first:
            break
    return waiting.parted()


async def await_jobs(
    handles: Iterable[JobHandle[R]], timeout: float | None = None, *, first: bool = False
) -> tuple[list[JobHandle[R]], list[JobHandle[R]]]:
    waiting = _Waiting(handles, timeout, any_counts=first)
    for look in waiting.looks():
        if await in_thread(waiting.take, look) and first:
            break
    return waiting.parted()


def as_completed(handles: Iterable[JobHandle[R]], timeout: float | None = None) -> Iterator[JobHandle[R]]:
    """Each job once, as it is seen to end; one that is gone counts as ended.

    The time counts from this call on. Raises NotFinished when it is up, after the last of those that made it.
    """
    return _each(_Waiting(handles, timeout, any_counts=True))


def _each(waiting: _Waiting[R]) -> Iterator[JobHandle[R]]:
    for look in waiting.looks():
        yield from waiting.take(look)
    waiting.check()


def aas_completed(handles: Iterable[JobHandle[R]], timeout: float | None = None) -> AsyncIterator[JobHandle[R]]:
    """`async for handle in aas_completed(handles): ...`"""
    return _aeach(_Waiting(handles, timeout, any_counts=True))


async def _aeach(waiting: _Waiting[R]) -> AsyncIterator[JobHandle[R]]:
    for look in waiting.looks():
        for handle in await in_thread(waiting.take, look):
            yield handle
    waiting.check()


class _Look(NamedTuple):
    """What to ask of which store, and how long to wait for an answer."""

    store: Store
    ids: list[bytes]
    timeout: float


class _Waiting(Generic[R]):
    """The jobs not yet seen to have ended. `looks` plans and never waits; `take` acts, in whatever thread."""

    def __init__(self, handles: Iterable[JobHandle[R]], timeout: float | None, *, any_counts: bool) -> None:
        self._handles = list(dict.fromkeys(handles))
        self._timeout = math.inf if timeout is None else max(0.0, timeout)
        self._deadline = time.monotonic() + self._timeout
        self._rested_at = 0.0
        self._any_counts = any_counts
        self._left: dict[Store, dict[bytes, JobHandle[R]]] = {}
        for handle in self._handles:
            self._add(handle)

    def looks(self) -> Iterator[_Look]:
        """Until nothing is left or time is up, and then once more at what is left."""
        yield from self._all_in_view() if self._any_counts else self._one_chunk_after_another()
        yield from self._all_at_once()

    def take(self, look: _Look) -> list[JobHandle[R]]:
        """Those that have ended, in the order given; they are no longer waited for."""
        if look.timeout:  # where many end one by one, let a few come together
            time.sleep(self._at_most(self._rested_at - time.monotonic()))
        ended = look.store.wait_jobs(look.ids, self._at_most(look.timeout))
        if ended:
            self._rested_at = time.monotonic() + (len(look.ids) - len(ended)) * REST
        left = self._left[look.store]
        taken = [left.pop(id) for id in look.ids if id in ended]
        if not left:
            del self._left[look.store]
        return taken

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
        self._left.setdefault(handle._app.store, {})[handle._raw_id] = handle

    def _one_chunk_after_another(self) -> Iterator[_Look]:
        while self._goes_on():
            store = next(iter(self._left))
            chunk = self._front(store)
            yield _Look(store, chunk, 0)
            if still := [id for id in chunk if id in self._left.get(store, ())]:
                yield _Look(store, still[-1:], WAIT_SLICE)

    def _all_in_view(self) -> Iterator[_Look]:
        while self._goes_on():
            if all(len(left) <= CHUNK for left in self._left.values()):
                yield from self._fronts(WAIT_SLICE)
            else:
                yield from self._all_at_once()
                yield from self._fronts(REST * sum(map(len, self._left.values())))

    def _fronts(self, duration: float) -> Iterator[_Look]:
        until = time.monotonic() + duration
        while self._goes_on() and (rest := until - time.monotonic()) > 0:
            for store in tuple(self._left):
                yield _Look(store, self._front(store), TURN if len(self._left) > 1 else min(rest, WAIT_SLICE))

    def _all_at_once(self) -> Iterator[_Look]:
        for store, left in tuple(self._left.items()):
            ids = list(left)
            for start in range(0, len(ids), CHUNK):
                yield _Look(store, ids[start : start + CHUNK], 0)

    def _goes_on(self) -> bool:
        return bool(self._left) and time.monotonic() < self._deadline

    def _front(self, store: Store) -> list[bytes]:
        return list(islice(self._left[store], CHUNK))

    def _at_most(self, duration: float) -> float:
        return max(0.0, min(duration, self._deadline - time.monotonic()))


class _Gathering(_Waiting[R]):
    """Looks at each job that has ended, and keeps what came of it."""

    def __init__(self, handles: tuple[JobHandle[R], ...], timeout: float | None, return_errors: bool) -> None:
        for handle in handles:
            if not isinstance(handle, JobHandle):
                given = type(handle).__name__
                raise TypeError(f"gather(*jobs) takes the jobs one by one, with a star; it was given a {given}.")
        super().__init__(handles, timeout, any_counts=not return_errors)  # an error must not wait for its turn
        self._return_errors = return_errors
        self._outcomes: dict[JobHandle[R], R | PackhorseError] = {}

    def take(self, look: _Look) -> list[JobHandle[R]]:
        taken = super().take(look)
        ended = [(handle, job) for handle in taken if (job := self._finished(handle)) is not None]
        for handle, job in sorted(ended, key=lambda pair: pair[1].finished_at or pair[1].created_at):
            try:
                self._outcomes[handle] = handle._outcome(job)
            except PackhorseError as error:
                self._fail(handle, error)
        return taken

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
