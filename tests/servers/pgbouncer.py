"""A private PgBouncer before a private server: it hands out a session of the server for each transaction."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path
from typing import IO

import psycopg

from tests.servers.postgres import PATIENCE, USER, Missing, Server

PORT = 6432
SETTINGS = """
[databases]
* = host={folder} user={user}
[pgbouncer]
listen_addr =
listen_port = {port}
unix_socket_dir = {folder}
auth_type = any
pool_mode = transaction
default_pool_size = 3
server_check_query =
logfile =
pidfile =
"""


class Pooler:
    def __init__(self, server: Server) -> None:
        program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
        if program is None:
            raise Missing("there is no PgBouncer here; scripts/install-for-tests installs one")
        self._server = server
        settings = Path(f"{server.folder}/pgbouncer.ini")
        settings.write_text(SETTINGS.format(folder=server.folder, port=PORT, user=USER))
        settings.chmod(0o644)
        self._log: IO[bytes] = open(f"{server.folder}/pgbouncer.log", "wb")  # noqa: SIM115
        command = server.as_user([program, str(settings)], "--pdeathsig", "INT")
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log)
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                psycopg.connect(self.conninfo).close()
                return
            except psycopg.OperationalError as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    self.end()
                    raise RuntimeError(f"PgBouncer does not start: {error}") from error
                time.sleep(0.01)

    @property
    def conninfo(self) -> str:
        return f"host={self._server.folder} port={PORT} dbname=postgres user={USER}"

    def url(self, **options: str) -> str:
        return self._server.url("postgres", port=str(PORT), **options)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()
