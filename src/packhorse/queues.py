"""Queue names, and which queues a worker serves in what order."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable
from typing import NamedTuple

from packhorse.errors import ConfigError
from packhorse.ids import from_text, to_text

LOCAL = "~"  # how the name of a queue begins that one process alone serves; it sorts behind all others
_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


def check_name(name: object, what: str) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot be a {what}: use 1 to 128 letters, digits and the signs _ . : - (no spaces, no stars)."
        )
    return name


class Entry(NamedTuple):
    """One entry of a worker's list: a queue by its name, or all queues that begin with a prefix."""

    text: str
    wildcard: bool

    def matches(self, queue: object) -> bool:
        if not isinstance(queue, str):  # a store's file may hold anything
            return False
        return queue.startswith(self.text) and queue[:1] != LOCAL if self.wildcard else queue == self.text

    def __str__(self) -> str:
        return self.text + "*" * self.wildcard


Selected = tuple[Entry, ...]
EVERYTHING: Selected = (Entry("", True),)


def local_queue(process: bytes) -> str:
    return LOCAL + to_text(process)


def local_owner(queue: object) -> bytes | None:
    """The process that alone serves the queue; None where anybody may."""
    try:
        return from_text(queue[1:]) if isinstance(queue, str) and queue[:1] == LOCAL else None
    except ValueError:
        return None


def parse_queues(queues: str | Iterable[str]) -> Selected:
    """`"mail,report*,*"`: strict order, a star only at the end of an entry."""
    entries: list[Entry] = []
    for text in (part.strip() for part in (queues.split(",") if isinstance(queues, str) else queues)):
        if not text:
            continue
        stem, star = (text[:-1], True) if text.endswith("*") else (text, False)
        if "*" in stem:
            warnings.warn(f"Queue entry {text!r} is ignored: a star may only stand at its end.", stacklevel=2)
            continue
        if stem:
            check_name(stem, "queue name")
        entry = Entry(stem, star)
        if entry not in entries:
            entries.append(entry)
    if not entries:
        raise ConfigError("No queue is left to serve. Name some, as in --queues 'mail,report*', or '*' for all.")
    return tuple(entries)
