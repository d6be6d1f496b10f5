"""Who has the write lock of a database file, as the kernel tells it."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

log = logging.getLogger("packhorse.store")

WRITING = 120  # the byte of the index of the log that SQLite locks to write
SAMPLES, APART = 5, 0.05  # looks, and seconds between them: strokes of ours let go of it in between
TELL_EVERY = 60.0

_told: dict[int, float] = {}


def holders(path: Path) -> list[int]:
    """Their pids, 0 for one that is not seen from here; of ours too, for the moment that a stroke takes."""
    try:
        inode = str(os.stat(f"{path}-shm").st_ino)
        with open("/proc/locks") as file:
            found = [line.split() for line in file]
    except OSError:
        return []
    return [max(0, int(words[4])) for words in found if _is_writing(words, inode)]


def _is_writing(words: list[str], inode: str) -> bool:
    """As in `1: POSIX ADVISORY WRITE 4711 fe:01:1234 120 120`; one that waits has an arrow in the second place."""
    if len(words) < 8 or words[3] != "WRITE" or words[5].rpartition(":")[2] != inode:
        return False
    first, last = words[6:8]
    return int(first) <= WRITING and (last == "EOF" or int(last) >= WRITING)


def is_held(path: Path) -> bool:
    """Whether it was held each time that somebody looked: by one who keeps it, and not by those who take turns."""
    for number in range(SAMPLES):
        if number:
            time.sleep(APART)
        if not holders(path):
            return False
    return True


def named(path: Path) -> str:
    """As the subject of a sentence, whoever it is just now."""
    pids = holders(path)
    return ", ".join(_program(pid) for pid in pids) if any(pids) else "A program outside Packhorse"


def _program(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        name = os.path.basename(words[0]).decode(errors="replace")
    except OSError:
        name = ""
    return f"{name or 'A program'} (pid {pid})"


def tell(path: Path) -> str:
    """Say in the log who it is, not too often; its name."""
    who, now = named(path), time.monotonic()
    pid = next(iter(holders(path)), 0)
    if now - _told.get(pid, -TELL_EVERY) >= TELL_EVERY:
        _told.clear()
        _told[pid] = now
        log.warning("%s holds the write lock of %s: nobody can write until it has committed", who, path)
    return who
