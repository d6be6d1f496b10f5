"""A process for one job at a time: `python -m packhorse.runtime.isolated_child '[...]'`, started by a worker alone.

The task runs in the main thread, so that a signal interrupts also what waits for the system. The line to the worker is
read by another thread; its end means that the worker is gone.
"""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import json
import os
import resource
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from queue import SimpleQueue
from types import FrameType
from typing import Any

from packhorse import forks
from packhorse.errors import StoreError
from packhorse.job import Claim, Token
from packhorse.logs import configure
from packhorse.outcome import Outcome, broken
from packhorse.runtime.isolated import Plan, decode_claim, decode_token, encode_outcome, encode_token
from packhorse.runtime.loading import load_app
from packhorse.runtime.loops import new_loop
from packhorse.runtime.perform import Performer
from packhorse.runtime.process import memory_now
from packhorse.runtime.seats import Seat, Why
from packhorse.stores.contract import Order, OrderKind

PR_SET_PDEATHSIG = 1
NUDGE = signal.SIGUSR2


class Isolated:
    def __init__(self, plan: Plan) -> None:
        self._line = forks.keep_private(socket.socket(fileno=plan.fd))
        self._writing = threading.Lock()
        self._claims: SimpleQueue[Claim] = SimpleQueue()
        self._leave_by: float | None = None
        self._seat = Seat()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._performing: Token | None = None
        self._task: tuple[Token, asyncio.Task[Outcome]] | None = None
        self._app = load_app(plan.app, plan.folder)
        self._performer = Performer(self._app, lambda: self._leave_by, self._ask, self._force, began=self._began)

    def run(self) -> None:
        made_in = forks.generation
        threading.Thread(target=self._listen, name="packhorse-line", daemon=True).start()
        with suppress(StoreError):  # tasks meet it, too
            self._app.store.get_ready()
        self._say(None, {"ready": True})
        while True:
            claim = self._claims.get()
            try:
                outcome = self._perform(claim)
            except BaseException as error:  # whatever happens, the job ends
                if forks.generation != made_in:
                    forks.end_copy(error)
                outcome = broken(claim.token, error)
            if forks.generation != made_in:
                forks.end_copy()
            if self._app.events:
                self._app.events.flush()
            self._performing = None
            self._say(claim.token, {"outcome": encode_outcome(outcome), "memory": memory_now()})

    def _perform(self, claim: Claim) -> Outcome:
        if not self._performer.is_coroutine(claim):
            return self._performer.in_thread(claim, self._seat)
        if self._loop is None:
            self._loop = new_loop()
        task = self._loop.create_task(self._performer.in_loop(claim), context=contextvars.Context())
        self._task = claim.token, task
        try:
            return self._loop.run_until_complete(task)
        finally:
            self._task = None

    def _began(self, token: Token, timeout: float | None) -> None:
        if timeout is not None:
            self._say(token, {"timeout": timeout})

    def _listen(self) -> None:
        with suppress(OSError, ValueError), self._line.makefile("rb") as lines:  # a killed worker breaks off anywhere
            for line in lines:
                message = json.loads(line)
                if "claim" in message:
                    claim = decode_claim(message["claim"])
                    self._performing = claim.token
                    self._claims.put(claim)
                elif "leaving" in message:
                    self._leave_by = time.monotonic() + message["leaving"]
                elif (token := decode_token(message["job"])) != self._performing:
                    continue  # it has ended
                elif "order" in message:
                    self._obey(Order(OrderKind(message["order"]), token, message["reason"]))
                else:
                    self._performer.deadlines.set(token, 0, Why(message["interrupt"]))
        os._exit(1)

    def _obey(self, order: Order) -> None:
        """A coroutine ends at its next await; a function may look, until it is interrupted."""
        self._performer.orders[order.token] = order
        self._cancel(order.token)

    def _cancel(self, token: Token) -> bool:
        """False where that job is no coroutine, or has ended."""
        loop, running = self._loop, self._task
        if loop is None or running is None or running[0] != token:
            return False
        loop.call_soon_threadsafe(running[1].cancel)
        return True

    def _ask(self, token: Token, why: Why) -> bool:
        self._performer.interrupted[token] = why
        if self._cancel(token):
            return True
        if self._seat.interrupt(token, why.error):
            signal.pthread_kill(threading.main_thread().ident or 0, NUDGE)
        else:
            self._performer.interrupted.pop(token, None)
            return False
        return True

    def _force(self, token: Token, why: Why) -> None:
        """The worker does that."""

    def _say(self, token: Token | None, message: dict[str, Any]) -> None:
        if token is not None:
            message |= {"job": encode_token(token)}
        with self._writing:
            self._line.sendall(json.dumps(message).encode() + b"\n")


def main() -> None:
    plan = Plan(*json.loads(sys.argv[1]))
    _die_with_parent()
    configure(plan.log_level, plan.log_format)
    # The terminal sends INT to everybody; the supervisor alone decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    forks.handle(signal.SIGTERM, _heed_not)  # not ignored: that would hold for programs that a task starts, too
    forks.handle(NUDGE, _heed_not)
    if plan.memory_limit is not None:
        resource.setrlimit(resource.RLIMIT_AS, (plan.memory_limit, plan.memory_limit))
    try:
        Isolated(plan).run()
    except (BrokenPipeError, ConnectionResetError):
        os._exit(1)


def _heed_not(number: int, frame: FrameType | None) -> None:
    """The line to the worker says when to end."""


def _die_with_parent() -> None:
    """At once, also while a task holds the interpreter lock: nobody would renew the lease of its job."""
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    main()
