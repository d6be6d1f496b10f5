"""A TCP proxy between a program and its server that can be told to misbehave.

    with Proxy(("127.0.0.1", 5432)) as proxy:
        connect to proxy.address
        proxy.set(Mode.DELAY, seconds=0.2)
        proxy.cut()

It runs in a thread with a loop of its own; every method may be called from any other thread, and when it returns, what
was asked for is in force. A mode counts for connections that are open and for new ones.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Any, Self, TypeVar

CHUNK = 1 << 16
Bytes = bytes
T = TypeVar("T")


class Mode(StrEnum):
    PASS = "pass"
    REFUSE = "refuse"  # new connections are reset; open ones go on
    DELAY = "delay"  # each piece comes so many seconds later, both ways
    SWALLOW_REQUESTS = "swallow requests"  # what the client sends is lost; nobody is told
    SWALLOW_REPLIES = "swallow replies"  # what the server sends is lost; nobody is told
    LOSE_REPLY = "lose reply"  # the next answer is lost and its connection reset, after the server has acted
    TRUNCATE = "truncate"  # the next answer is cut after some bytes, and its connection closed


ONCE = (Mode.LOSE_REPLY, Mode.TRUNCATE)


@dataclass
class Order:
    """How to treat what comes along. For the modes that act once, `left` counts how often they still will.

    Where `holding` is given, they act on answers in which these bytes stand.
    """

    mode: Mode = Mode.PASS
    seconds: float = 0.0
    bytes: int = 0
    left: int = 0
    holding: Bytes = b""


@dataclass(eq=False)
class Pair:
    """One connection through the proxy: to the client and to the server."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    asked: bool = False  # something was sent to the server that was not answered yet
    deaf: bool = False  # the next answer is lost, and then it is dead
    dead: bool = False  # nothing comes through, and nobody is told


@dataclass
class Seen:
    """What went through, and what was done to it."""

    connections: int = 0
    refused: int = 0
    to_server: int = 0
    to_client: int = 0
    swallowed: int = 0
    lost_replies: int = 0
    truncated: int = 0


class Proxy:
    def __init__(self, server: tuple[str, int] | str) -> None:
        """Where the server is: host and port, or the path of its socket."""
        self._to = server
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="chaos-proxy", daemon=True)
        self._order = Order()
        self._pairs: set[Pair] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.seen = Seen()

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = self._call(self._listen())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._server.sockets[0].getsockname()[:2]
        return host, port

    # What it is told.

    def set(self, mode: Mode, *, seconds: float = 0.0, bytes: int = 0, times: int = 1, holding: Bytes = b"") -> None:
        """`seconds` are for DELAY, `bytes` for TRUNCATE. LOSE_REPLY and TRUNCATE act so many `times`."""
        self._call(self._set(Order(mode, seconds, bytes, times if mode in ONCE else 0, holding)))

    def cut(self) -> int:
        """Reset every open connection, on both sides; how many."""
        return self._call(self._cut())

    def close(self) -> int:
        """End every open connection in an orderly way; how many."""
        return self._call(self._close())

    def deafen(self) -> int:
        """Open connections die with their next answer: it is lost, and all that either side sends later, and neither is
        told; how many. New ones are good.
        """
        return self._call(self._deafen())

    @property
    def open(self) -> int:
        return self._call(self._count())

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        done: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return done.result(timeout=30)

    async def _set(self, order: Order) -> None:
        self._order = order

    async def _count(self) -> int:
        return len(self._pairs)

    async def _cut(self) -> int:
        pairs = list(self._pairs)
        for pair in pairs:
            _reset(pair.client)
            _reset(pair.server)
            self._pairs.discard(pair)
        return len(pairs)

    async def _deafen(self) -> int:
        for pair in self._pairs:
            pair.deaf = True
        return len(self._pairs)

    async def _close(self) -> int:
        pairs = list(self._pairs)
        for pair in pairs:
            pair.client.close()
            pair.server.close()
            self._pairs.discard(pair)
        return len(pairs)

    # What it does.

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._accept, "127.0.0.1", 0)

    async def _end(self) -> None:
        self._server.close()
        await self._cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        me = asyncio.current_task()
        assert me is not None
        self._tasks.add(me)
        me.add_done_callback(self._tasks.discard)
        if self._order.mode is Mode.REFUSE:
            self.seen.refused += 1
            _reset(to_client)
            return
        try:
            if isinstance(self._to, str):
                from_server, to_server = await asyncio.open_unix_connection(self._to)
            else:
                from_server, to_server = await asyncio.open_connection(*self._to)
        except OSError:
            _reset(to_client)
            return
        self.seen.connections += 1
        pair = Pair(to_client, to_server)
        self._pairs.add(pair)
        try:
            await asyncio.gather(self._requests(from_client, pair), self._replies(from_server, pair))
        except (OSError, asyncio.CancelledError):
            pass  # whoever was there is gone, or we are
        finally:
            self._pairs.discard(pair)
            for writer in (to_client, to_server):
                writer.close()

    async def _requests(self, reader: asyncio.StreamReader, pair: Pair) -> None:
        while piece := await reader.read(CHUNK):
            order = self._order
            if order.mode is Mode.DELAY:
                await asyncio.sleep(order.seconds)
            if pair.dead or order.mode is Mode.SWALLOW_REQUESTS:
                self.seen.swallowed += len(piece)
                continue
            self.seen.to_server += len(piece)
            pair.asked = True
            pair.server.write(piece)
            await pair.server.drain()
        if not pair.dead:
            _end_of_input(pair.server)

    async def _replies(self, reader: asyncio.StreamReader, pair: Pair) -> None:
        while piece := await reader.read(CHUNK):
            order = self._order
            if order.mode is Mode.DELAY:
                await asyncio.sleep(order.seconds)
            pair.dead = pair.deaf
            if pair.dead or order.mode is Mode.SWALLOW_REPLIES:
                self.seen.swallowed += len(piece)
                continue
            if order.left and pair.asked and order.holding in piece and self._spoil(order, piece, pair):
                return
            pair.asked = False
            self.seen.to_client += len(piece)
            pair.client.write(piece)
            await pair.client.drain()
        _end_of_input(pair.client)

    def _spoil(self, order: Order, piece: bytes, pair: Pair) -> bool:
        """The server has acted, and the client will not hear of it, or only the beginning."""
        order.left -= 1
        if order.mode is Mode.LOSE_REPLY:
            self.seen.lost_replies += 1
            _reset(pair.client)
        else:
            self.seen.truncated += 1
            pair.client.write(piece[: order.bytes])
            pair.client.close()
        _reset(pair.server)
        return True


def _reset(writer: asyncio.StreamWriter) -> None:
    """The other side sees a reset, not an end: what was on its way is lost."""
    sock = writer.get_extra_info("socket")
    if sock is not None:
        with suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def _end_of_input(writer: asyncio.StreamWriter) -> None:
    """One side has said all; the other may still answer."""
    with suppress(OSError, RuntimeError):
        if writer.can_write_eof():
            writer.write_eof()
