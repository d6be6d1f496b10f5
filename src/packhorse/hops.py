"""Async names: each is the sync one with an `a` in front, and does the same in a thread of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

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
