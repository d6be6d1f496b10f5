"""Async names: each is the sync one with an `a` in front, and does the same in a thread of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextvars import copy_context
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")


async def in_thread(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    import asyncio  # by those who enqueue and know no event loop it would take a third of the time to import Packhorse

    return await asyncio.to_thread(function, *args, **kwargs)


def hopping(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, R]]:
    """The async twin of a method, with the same parameters: `acancel = hopping(cancel)`."""

    @wraps(method)
    async def hop(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await in_thread(method, self, *args, **kwargs)

    hop.__name__ = f"a{method.__name__}"
    hop.__qualname__ = f"{method.__qualname__.removesuffix(method.__name__)}{hop.__name__}"
    return hop


async def hopping_each(pages: Iterable[Iterable[T]]) -> AsyncIterator[T]:
    """What is on the pages, with one hop for each page."""
    left = iter(pages)
    while (page := await in_thread(_next_page, left)) is not None:
        for item in page:
            yield item


def _next_page(pages: Iterator[Iterable[T]]) -> list[T] | None:
    page = next(pages, None)
    return None if page is None else list(page)


class Behind:
    """Does one thing in a thread of its own while its owner prepares the next; or `here`, where only this thread may.

    A block: nothing is left running behind it.
    """

    def __init__(self, *, here: bool) -> None:
        self._here = here
        self._threads: ThreadPoolExecutor | None = None
        self._pending: Callable[[], list[Any]] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._threads is not None:
            self._threads.shutdown()

    def do(self, work: Callable[[], list[T]]) -> None:
        from concurrent.futures import ThreadPoolExecutor

        if self._here:
            self._pending = work
            return
        if self._threads is None:
            self._threads = ThreadPoolExecutor(1, "packhorse-behind")
        self._pending = self._threads.submit(copy_context().run, work).result

    def collect(self) -> list[Any]:
        """What came of it, once; nothing, where nothing was to do."""
        pending, self._pending = self._pending, None
        return [] if pending is None else pending()
