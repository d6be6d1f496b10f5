"""A process under a supervisor: `python -m packhorse.runtime.child '{...}'`, started by nobody else.

Standard input is the line to the supervisor: orders come in on it, and its end means that the supervisor is gone.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from dataclasses import asdict, dataclass
from typing import IO, Literal

from packhorse.app import Packhorse
from packhorse.job import Token
from packhorse.logs import configure
from packhorse.queues import parse_queues
from packhorse.runtime.dispatcher import Dispatcher
from packhorse.runtime.loading import load_app
from packhorse.runtime.process import Process, Role
from packhorse.runtime.scheduler import Scheduler
from packhorse.runtime.worker import Worker
from packhorse.stores.contract import Order, OrderKind

UNDRAINED = 3  # exit status of a process that had to stop while jobs still ran


@dataclass(frozen=True)
class Plan:
    """What a child is to be, on its command line."""

    app: str
    role: Literal["worker", "dispatcher", "scheduler"]
    queues: str = "*"
    concurrency: int = 8
    burst: bool = False
    max_jobs: int | None = None
    log_level: str = "WARNING"
    log_format: Literal["text", "json"] = "text"

    def command(self, id: bytes, supervisor: bytes) -> list[str]:
        plan = json.dumps(asdict(self) | {"id": id.hex(), "supervisor": supervisor.hex()})
        return [sys.executable, "-m", "packhorse.runtime.child", plan]

    def make_role(self, app: Packhorse) -> Role:
        if self.role == "dispatcher":
            return Dispatcher(app)
        if self.role == "scheduler":
            return Scheduler(app)
        return Worker(app, parse_queues(self.queues), self.concurrency, burst=self.burst, max_jobs=self.max_jobs)


def encode_order(order: Order) -> bytes:
    """One line that a pipe takes whole or not at all, hence the short reason."""
    process, nonce, id, epoch = order.token
    return json.dumps([order.kind, process.hex(), nonce, id.hex(), epoch, order.reason[:300]]).encode() + b"\n"


def decode_order(line: bytes) -> Order:
    kind, process, nonce, id, epoch, reason = json.loads(line)
    return Order(OrderKind(kind), Token(bytes.fromhex(process), nonce, bytes.fromhex(id), epoch), reason)


def main() -> None:
    given = json.loads(sys.argv[1])
    id, supervisor = bytes.fromhex(given.pop("id")), bytes.fromhex(given.pop("supervisor"))
    plan = Plan(**given)
    configure(plan.log_level, plan.log_format)
    line = _own_input()
    app = load_app(plan.app)
    process = Process(app, plan.make_role(app), id=id, supervisor=supervisor)
    # The terminal sends INT to everybody; the supervisor alone decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: process.stop())
    threading.Thread(target=_listen, args=(line, process), name="packhorse-line", daemon=True).start()
    process.run()
    logging.shutdown()
    sys.stdout.flush()
    # A task's stray threads must not keep a stopped process alive.
    os._exit(0 if process.role.drained else UNDRAINED)


def _own_input() -> IO[bytes]:
    """Keep the line for ourselves; tasks that read standard input find it empty."""
    line = os.fdopen(os.dup(0), "rb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return line


def _listen(line: IO[bytes], process: Process) -> None:
    for text in line:
        process.role.obey([decode_order(text)])
    process.beat_alone()  # running jobs may still take a while
    process.stop()


if __name__ == "__main__":
    main()
