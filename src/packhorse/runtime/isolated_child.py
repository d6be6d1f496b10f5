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
from typing import Any

from packhorse.job import Claim, Token
from packhorse.logs import configure
from packhorse.outcome import Outcome, broken
from packhorse.runtime.isolated import Plan, decode_claim, encode_outcome
from packhorse.runtime.loading import load_app
from packhorse.runtime.perform import Performer
from packhorse.runtime.process import memory_now
from packhorse.runtime.seats import Seat, Why
from packhorse.stores.contract import Order, OrderKind

PR_SET_PDEATHSIG = 1
NUDGE = signal.SIGUSR2


class Isolated:
    def __init__(self, plan: Plan) -> None:
        self._line = socket.socket(fileno=plan.fd)
        self._writing = threading.Lock()
        self._claims: SimpleQueue[Claim] = SimpleQueue()
        self._leave_by: float | None = None
        self._seat = Seat()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Outcome] | None = None
        self._app = load_app(plan.app)
        self._performer = Performer(self._app, lambda: self._leave_by, self._ask, self._force, began=self._began)

    def run(self) -> None:
        threading.Thread(target=self._listen, name="packhorse-line", daemon=True).start()
        self._say({"ready": True})
        while True:
            claim = self._claims.get()
            try:
                outcome = self._perform(claim)
            except BaseException as error:  # whatever happens, the job ends
                outcome = broken(claim.token, error)
            if self._app.events:
                self._app.events.flush()
            self._say({"outcome": encode_outcome(outcome), "memory": memory_now()})

    def _perform(self, claim: Claim) -> Outcome:
        if not self._performer.is_coroutine(claim):
            return self._performer.in_thread(claim, self._seat)
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        self._task = self._loop.create_task(self._performer.in_loop(claim), context=contextvars.Context())
        try:
            return self._loop.run_until_complete(self._task)
        finally:
            self._task = None

    def _began(self, token: Token, timeout: float | None) -> None:
        if timeout is not None:
            self._say({"timeout": timeout})

    def _listen(self) -> None:
        with suppress(OSError, ValueError), self._line.makefile("rb") as lines:  # a killed worker breaks off anywhere
            for line in lines:
                message = json.loads(line)
                if "claim" in message:
                    self._performing = decode_claim(message["claim"])
                    self._claims.put(self._performing)
                elif "leaving" in message:
                    self._leave_by = time.monotonic() + message["leaving"]
                elif "order" in message:
                    self._obey(OrderKind(message["order"]), message["reason"])
                else:
                    self._performer.deadlines.set(self._performing.token, 0, Why(message["interrupt"]))
        os._exit(1)

    def _obey(self, kind: OrderKind, reason: str) -> None:
        """A coroutine ends at its next await; a function may look, until it is interrupted."""
        token = self._performing.token
        self._performer.orders[token] = Order(kind, token, reason)
        if (task := self._task) is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(task.cancel)

    def _ask(self, token: Token, why: Why) -> bool:
        self._performer.interrupted[token] = why
        if (task := self._task) is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(task.cancel)
        elif self._seat.interrupt(token, why.error):
            signal.pthread_kill(threading.main_thread().ident or 0, NUDGE)
        else:
            self._performer.interrupted.pop(token, None)
            return False
        return True

    def _force(self, token: Token, why: Why) -> None:
        """The worker does that."""

    def _say(self, message: dict[str, Any]) -> None:
        with self._writing:
            self._line.sendall(json.dumps(message).encode() + b"\n")


def main() -> None:
    plan = Plan(*json.loads(sys.argv[1]))
    _die_with_parent()
    configure(plan.log_level, plan.log_format)
    # The terminal sends INT to everybody; the supervisor alone decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(NUDGE, lambda *_: None)
    if plan.memory_limit is not None:
        resource.setrlimit(resource.RLIMIT_AS, (plan.memory_limit, plan.memory_limit))
    try:
        Isolated(plan).run()
    except (BrokenPipeError, ConnectionResetError):
        os._exit(1)


def _die_with_parent() -> None:
    """At once, also while a task holds the interpreter lock: nobody would renew the lease of its job."""
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    main()
