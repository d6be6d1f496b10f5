"""What others may ask of a supervisor from outside: whether it works, and whether it is the only one."""

from __future__ import annotations

import fcntl
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self
from urllib.parse import parse_qs, urlsplit

from packhorse import forks
from packhorse.errors import ConfigError

log = logging.getLogger("packhorse.supervisor")

WITHIN = 10.0


class Probe:
    """Answers GET /health: 200 where jobs could be claimed within 10 s (`?within=` other seconds), else 503 and why."""

    def __init__(self, address: str | None, could_claim: Callable[[float], str]) -> None:
        self._server = None if address is None else _serve(address, could_claim)

    @property
    def port(self) -> int | None:
        return None if self._server is None else self._server.server_address[1]

    def __enter__(self) -> Self:
        if self._server is not None:
            threading.Thread(target=self._server.serve_forever, name="packhorse-probe", daemon=True).start()
            log.info("the probe answers on %s:%d", *self._server.server_address[:2])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()


def _serve(address: str, could_claim: Callable[[float], str]) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            if url.path != "/health":
                self._answer(404, "Ask for /health.")
                return
            try:
                within = float(parse_qs(url.query).get("within", [str(WITHIN)])[0])
            except ValueError:
                self._answer(400, "within is a number of seconds.")
                return
            why = could_claim(within)
            self._answer(503 if why else 200, why or "ok")

        def _answer(self, status: int, text: str) -> None:
            body = f"{text}\n".encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Probes come every few seconds."""

    host, port = parse_address(address)
    try:
        return forks.keep_private(ThreadingHTTPServer((host, port), Handler))
    except OSError as error:
        raise ConfigError(f"The probe cannot listen on {host}:{port}: {error.strerror}.") from None


def parse_address(text: str) -> tuple[str, int]:
    """On this machine alone unless a host is named."""
    host, _, port = text.rpartition(":")
    if not port.isdigit() or int(port) > 65_535:
        raise ConfigError(f"{text!r} is no address for the probe. Write a port, or host:port.")
    return host or "127.0.0.1", int(port)


@contextmanager
def held(path: str | None) -> Iterator[None]:
    """Hold a lock file. The kernel lets go of it when the process ends, however that happens, so it is never stale."""
    if path is None:
        yield
        return
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    with forks.keep_private(os.fdopen(fd, "rb+", buffering=0)):  # a child that a task left behind must not hold it on
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.read(fd, 20).decode(errors="replace").strip() or "unknown"
            raise ConfigError(f"Another supervisor, with pid {pid}, holds {path}. Stop it first.") from None
        os.truncate(fd, 0)
        os.write(fd, f"{os.getpid()}\n".encode())
        yield
