"""A small file system of our own, to be filled up."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

BLOCK = 1 << 20
GRAIN = 4096


class SmallDisk:
    """A tmpfs. Needs the right to mount; `mounted` tells whether there is one."""

    def __init__(self, folder: Path, megabytes: int) -> None:
        self.folder = folder
        folder.mkdir(mode=0o700)
        command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=0700", "tmpfs", str(folder)]
        try:
            self.mounted = subprocess.run(command, capture_output=True).returncode == 0
        except OSError:
            self.mounted = False

    @property
    def _ballast(self) -> Path:
        return self.folder / "others-data"

    def fill(self) -> None:
        """Nothing more fits."""
        fd = os.open(self._ballast, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            size, step = os.fstat(fd).st_size, 64 * BLOCK
            while step >= GRAIN:
                try:
                    os.posix_fallocate(fd, size, step)
                    size += step
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    step //= 4
        finally:
            os.close(fd)

    def free(self) -> None:
        self._ballast.unlink(missing_ok=True)

    def end(self) -> None:
        if self.mounted:
            subprocess.run(["umount", "--lazy", str(self.folder)], check=True)
            self.mounted = False
