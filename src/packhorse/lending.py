"""`app.on(connection)`: what is enqueued inside goes through the caller's connection, and joins its transaction."""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import TYPE_CHECKING

from packhorse.errors import ConfigError
from packhorse.stores.lending import is_async

if TYPE_CHECKING:
    from packhorse.app import Packhorse
    from packhorse.stores.contract import Lent

_inside: ContextVar[tuple[Lending, ...]] = ContextVar("packhorse_lending", default=())


class Lending:
    """A block, entered once: `with` for a connection, `async with` for an async one.

    What the block starts belongs to it as long as it lasts (the tasks of `asyncio.gather`, a hop to a thread), and
    nobody else does: other threads and tasks do not see it.
    """

    def __init__(self, app: Packhorse, connection: object) -> None:
        self.app = app
        self._connection = connection
        self.lent: Lent | None = None
        self._before: Token[tuple[Lending, ...]] | None = None

    def __enter__(self) -> None:
        if is_async(self._connection):
            raise ConfigError("An async connection is lent with `async with app.on(connection)`.")
        self._enter(self.app.store.lent(self._connection))

    def __exit__(self, *error: object) -> None:
        self._leave()

    async def __aenter__(self) -> None:
        if not is_async(self._connection):
            raise ConfigError("A connection that is no async one is lent with `with app.on(connection)`.")
        import asyncio

        self._enter(self.app.store.lent(self._connection, asyncio.get_running_loop()))

    async def __aexit__(self, *error: object) -> None:
        self._leave()

    def _enter(self, lent: Lent) -> None:
        if self._before is not None:
            raise ConfigError("A block of `app.on(connection)` is entered once. Call `app.on` again.")
        self.lent = lent
        self._before = _inside.set((*_inside.get(), self))

    def _leave(self) -> None:
        assert self._before is not None
        self.lent = None  # for what the block has started and left running
        _inside.reset(self._before)


def lent_to(app: Packhorse) -> Lent | None:
    """By the innermost block around us."""
    for lending in reversed(_inside.get()):
        if lending.app is app and lending.lent is not None:
            return lending.lent
    return None
