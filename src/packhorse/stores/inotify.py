"""The kernel's notice that a file was written: no polling, and no word needed from the writer."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

IN_MODIFY = 0x2


class FileEvents:
    """Readable (as a file descriptor) once the file was written to. OSError where the system has no such thing."""

    def __init__(self, path: Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        if not hasattr(libc, "inotify_init1"):
            raise OSError("this system has no inotify")
        self.fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        if libc.inotify_add_watch(self.fd, os.fsencode(path), IN_MODIFY) < 0:
            error = ctypes.get_errno()
            self.close()
            raise OSError(error, "inotify_add_watch", str(path))

    def drain(self) -> bool:
        """Forget the notices so far; True where there were any."""
        try:
            return bool(os.read(self.fd, 65536))
        except BlockingIOError:
            return False

    def close(self) -> None:
        os.close(self.fd)
