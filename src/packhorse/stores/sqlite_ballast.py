"""Space kept for the day the disk is full: what has been done must still be written down."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

SIZE = 4 << 20


class Ballast:
    def __init__(self, database: Path) -> None:
        self._path = f"{database}-ballast"

    def keep(self) -> None:
        """Set the space aside, where there is some."""
        if os.path.exists(self._path):
            return
        with suppress(OSError):
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                os.posix_fallocate(fd, 0, SIZE)
            except OSError:
                os.unlink(self._path)
            finally:
                os.close(fd)

    def free(self) -> bool:
        """Give the space back; False where there was none."""
        try:
            os.unlink(self._path)
        except OSError:
            return False
        return True
