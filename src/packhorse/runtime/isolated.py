"""Jobs in processes of their own, one at a time in each: the only kind that can be ended for certain.

The pool lives in the worker. What runs in the processes is `isolated_child`.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import select
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal, NamedTuple, NoReturn

from packhorse import forks
from packhorse.app import Packhorse
from packhorse.clock import SECOND, length
from packhorse.errors import TimedOut
from packhorse.ids import to_text
from packhorse.job import Claim, JobState, Token
from packhorse.outcome import Awaits, Outcome, decide, decide_lost, release
from packhorse.retry import RetryPolicy
from packhorse.runtime.exits import exit_error, how_ended
from packhorse.runtime.loading import environment, existing, python
from packhorse.runtime.seats import Why
from packhorse.stores.contract import Order
from packhorse.varying import task_of

log = logging.getLogger("packhorse.worker")

BOOT_PAUSE = 5.0  # seconds before another process is tried where one could not begin


class Plan(NamedTuple):
    """What a child is to be, on its command line."""

    app: str
    fd: int
    log_level: str
    log_format: Literal["text", "json"]
    memory_limit: int | None
    folder: str


class Died(Exception):
    """The child is gone, or does not answer as it should."""


class Child:
    """A process that performs one job after the other."""

    def __init__(self, plan: Plan, boot_timeout: float) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            given = json.dumps(plan._replace(fd=theirs.fileno()))
            self.process = subprocess.Popen(
                python("packhorse.runtime.isolated_child", given),
                cwd=existing(plan.folder),
                env=environment(plan.folder),
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        self._line = forks.keep_private(ours)
        self._readable = select.poll()
        self._readable.register(ours, select.POLLIN)
        self._lock = threading.Lock()  # so that nobody meets the next job who means this one
        self._unread = b""
        self._ready_by = time.monotonic() + boot_timeout
        self.performed = 0
        self.memory = 0
        self.token: Token | None = None
        self.ended_for: Why | None = None

    def wait_ready(self) -> None:
        if self._receive(self._ready_by) is None:
            self.kill()
            raise Died

    def perform(self, claim: Claim, ending: float) -> Outcome:
        with self._lock:
            self.token = claim.token
            self._send({"claim": encode_claim(claim)})
        job, deadline = encode_token(claim.token), None
        while True:
            message = self._receive(deadline)
            if message is None:
                self.end(claim.token, Why.TIMEOUT)
                deadline = None
            elif message.get("job") != job:
                self._reject(message)
            elif "timeout" in message:
                deadline = time.monotonic() + message["timeout"] + ending
            else:
                with self._lock:
                    self.token = None
                self.performed += 1
                self.memory = message["memory"]
                return decode_outcome(claim.token, message["outcome"])

    def _reject(self, message: dict[str, Any]) -> NoReturn:
        """Whatever it performs, nothing it says can be taken for the end of a job."""
        log.error(
            "the isolated process with pid %d spoke of a job that it does not have: it is ended", self.process.pid
        )
        raise Died

    def tell(self, order: Order) -> None:
        with self._lock, suppress(Died):
            if self.token == order.token:
                self._send({"job": encode_token(order.token), "order": order.kind, "reason": order.reason})

    def interrupt(self, token: Token, why: Why) -> bool:
        with self._lock, suppress(Died):
            if self.token == token:
                self._send({"job": encode_token(token), "interrupt": why})
                return True
        return False

    def end(self, token: Token, why: Why) -> None:
        """By force, if it still performs that job."""
        with self._lock:
            if self.token == token:
                self.ended_for = why
                self.kill()

    def tell_leaving(self, seconds: float) -> None:
        with self._lock, suppress(Died):
            self._send({"leaving": seconds})

    def kill(self) -> None:
        with suppress(OSError):
            self.process.kill()

    def bury(self) -> str:
        """How it ended, as the end of a sentence about it."""
        self._line.close()
        return how_ended(self.process.wait())

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._line.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            raise Died from None

    def _receive(self, deadline: float | None) -> dict[str, Any] | None:
        """The next message; None where the deadline has passed before one came."""
        while b"\n" not in self._unread:
            left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
            if not self._readable.poll(left):
                return None
            try:
                data = self._line.recv(1 << 16)
            except OSError:
                data = b""
            if not data:
                raise Died
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message


class Pool:
    """The processes of a worker. They are started as they are lacking, and whoever waits takes the first that is idle.

    `warm` of them are kept from the beginning; more come when they are needed, at most one for each slot.
    """

    def __init__(
        self,
        app: Packhorse,
        path: str,
        folder: str,
        log_level: str = "WARNING",
        log_format: Literal["text", "json"] = "text",
    ) -> None:
        """`path` of the application is found from the folder, and so are relative entries of $PYTHONPATH."""
        self._app = app
        self._plan = Plan(path, 0, log_level, log_format, app.settings.isolated_memory_limit, folder)
        self._idle: deque[Child] = deque()
        self._busy: dict[Token, Child] = {}
        self._warm = 0
        self._waiting = 0
        self._failed = 0
        self._closed = False
        self._lock = threading.Lock()
        self._came = threading.Condition(self._lock)  # one is idle
        self._lacks = threading.Condition(self._lock)  # for the nursery
        self._nursery: threading.Thread | None = None
        self.mark_begun: Callable[[Token], None] | None = None

    def warm(self, count: int) -> None:
        with self._lock:
            self._warm = count
            self._want()

    def _want(self) -> None:
        """One more may be needed."""
        if self._nursery is None:
            self._nursery = threading.Thread(target=self._nurse, name="packhorse-nursery", daemon=True)
            self._nursery.start()
        self._lacks.notify()

    def _nurse(self) -> None:
        """Starts all of them, since the kernel ends a child together with the thread that started it."""
        while True:
            with self._lock:
                self._lacks.wait_for(lambda: self._closed or self._lacking > 0)
                if self._closed:
                    return
                count = min(self._lacking, os.cpu_count() or 1)
            if (error := self._boot(count)) is not None:
                log.error("an isolated process could not begin: %s", error)
                with self._lock:
                    self._failed += 1
                    self._came.notify_all()
                    self._lacks.wait_for(lambda: self._closed, BOOT_PAUSE)

    @property
    def _lacking(self) -> int:
        return max(self._warm - len(self._idle) - len(self._busy), self._waiting - len(self._idle))

    def _boot(self, count: int) -> str | None:
        """Start some at once; what went wrong with the last one that did not begin."""
        error = None
        children = []
        try:
            for _ in range(count):
                children.append(Child(self._plan, self._app.settings.boot_timeout))
        except OSError as refused:
            error = str(refused)
        for child in children:
            try:
                child.wait_ready()
            except Died:
                error = f"it {child.bury()}"
            else:
                self._give_back(child)
        return error

    @property
    def performing(self) -> list[Token]:
        return list(self._busy)

    def has(self, token: Token) -> bool:
        return token in self._busy

    def perform(self, claim: Claim, policy: RetryPolicy, orders: dict[Token, Order]) -> Outcome:
        began = time.monotonic_ns()
        try:
            child = self._take(claim.token)
        except Died:
            log.error("job %s has to wait: there is no process for it", to_text(claim.token.id))
            return Outcome(claim.token, JobState.SCHEDULED, spent=False, delay=length(BOOT_PAUSE))
        if (order := orders.get(claim.token)) is not None:  # while it waited
            self._give_back(child, claim.token)
            return order.outcome(None)
        if self.mark_begun is not None:
            self.mark_begun(claim.token)
        try:
            outcome = child.perform(claim, self._app.settings.ending_timeout)
        except Died:
            return self._died(claim, child, policy, (time.monotonic_ns() - began) // 1000, orders)
        self._give_back(child, claim.token)
        return outcome

    def tell(self, order: Order) -> None:
        if (child := self._busy.get(order.token)) is not None:
            child.tell(order)

    def interrupt(self, token: Token, why: Why) -> bool:
        child = self._busy.get(token)
        return child is not None and child.interrupt(token, why)

    def end(self, token: Token, why: Why) -> None:
        if (child := self._busy.get(token)) is not None:
            child.end(token, why)

    def tell_leaving(self, seconds: float) -> None:
        for child in list(self._busy.values()):
            child.tell_leaving(seconds)

    def close(self) -> None:
        """Whatever still runs is ended: nobody would hear of it."""
        with self._lock:
            self._closed = True
            self._came.notify_all()
            self._lacks.notify()
            idle, busy = list(self._idle), list(self._busy.values())
            self._idle.clear()
        for child in [*idle, *busy]:
            child.kill()
        for child in idle:
            child.bury()

    def _take(self, token: Token) -> Child:
        """One that is ready and lives."""
        with self._lock:
            failed = self._failed
            self._waiting += 1
            try:
                while True:
                    while self._idle:
                        child = self._idle.pop()
                        if child.process.poll() is None:
                            self._busy[token] = child
                            return child
                        log.warning("an isolated process %s while it was idle", child.bury())
                    if self._closed or self._failed > failed:
                        raise Died
                    self._want()
                    self._came.wait()
            finally:
                self._waiting -= 1

    def _give_back(self, child: Child, token: Token | None = None) -> None:
        settings = self._app.settings
        used_up = settings.isolated_max_jobs is not None and child.performed >= settings.isolated_max_jobs
        too_large = settings.isolated_max_memory is not None and child.memory > settings.isolated_max_memory
        with self._lock:
            if token is not None:
                del self._busy[token]
            keeps = not (self._closed or used_up or too_large)
            if keeps:
                self._idle.append(child)
                self._came.notify()
            else:
                self._lacks.notify()
        if not keeps:
            child.kill()
            child.bury()

    def _died(
        self, claim: Claim, child: Child, policy: RetryPolicy, duration: int, orders: dict[Token, Order]
    ) -> Outcome:
        child.kill()
        how = child.bury()
        with self._lock:
            del self._busy[claim.token]
            self._lacks.notify()
        match child.ended_for:
            case Why.TIMEOUT:
                seconds = f"{duration / SECOND:.1f}"
                error = TimedOut(f"The task ran {seconds} s, longer than its timeout, and did not end when asked.")
                return decide(claim, error, policy, duration)
            case Why.ORDERED if claim.token in orders:
                return orders[claim.token].outcome(duration)
            case Why.LEAVING:
                return release(claim.token)
        when = self._app.clock.now()
        lost = exit_error("isolated process", child.process.pid, socket.gethostname(), how, when)
        task = task_of(self._app, claim)
        strict = task is not None and task.performed.on_worker_lost == "fail"
        log.warning("job %s (%s) lost its process: %s", to_text(claim.token.id), claim.task, lost)
        return decide_lost(claim, lost, fail_at_once=strict, duration=duration)


# How claims and outcomes travel.


def encode_token(token: Token) -> list[Any]:
    """What names the claim of a job in every message about it."""
    return [token.process.hex(), token.nonce, token.id.hex(), token.epoch]


def decode_token(said: list[Any]) -> Token:
    process, nonce, id, epoch = said
    return Token(bytes.fromhex(process), nonce, bytes.fromhex(id), epoch)


def encode_claim(claim: Claim) -> list[Any]:
    return [encode_token(claim.token), claim.task, _text(claim.payload), *claim[3:]]


def decode_claim(said: list[Any]) -> Claim:
    token, task, payload, *rest = said
    return Claim(decode_token(token), task, _bytes(payload) or b"", *rest)


def encode_outcome(outcome: Outcome) -> dict[str, Any]:
    said = {name: value for name, value in outcome._asdict().items() if value != Outcome._field_defaults.get(name)}
    del said["token"]
    for name in ("result", "failure", "owner"):
        if name in said:
            said[name] = _text(said[name])
    if outcome.after:
        said["after"] = [id.hex() for id in outcome.after]
    return said


def decode_outcome(token: Token, said: dict[str, Any]) -> Outcome:
    values = dict(said, state=JobState(said["state"]))
    for name in ("result", "failure", "owner"):
        if name in values:
            values[name] = _bytes(values[name])
    if "after" in values:
        values["after"] = tuple(bytes.fromhex(id) for id in values["after"])
    if values.get("awaits") is not None:
        values["awaits"] = Awaits(*values["awaits"])
    return Outcome(token, **values)


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
