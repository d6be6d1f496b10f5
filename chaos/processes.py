"""What the kernel knows of processes."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def descendants(pid: int) -> list[int]:
    """Return the descendants of a process, as the kernel knows them."""
    parents: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError):
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                parents.setdefault(int(fields[1]), []).append(int(entry))
    found: list[int] = []
    todo = [pid]
    while todo:
        children = parents.get(todo.pop(), [])
        found += children
        todo += children
    return found
