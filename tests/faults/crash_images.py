"""What a disk may hold after the power went: rebuilt from a trace of the system calls of one process.

The model: a completed fsync or fdatasync makes all earlier writes and cuts of that file durable, an fsync of the folder
makes its entries durable. Anything later may be there or not, in any combination, in pieces of 512 bytes. After a
failed sync Linux forgets what was to be written: it never reaches the disk unless it is written again. The -shm file is
memory and never survives.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

SECTOR = 512
CALLS = (
    "openat,write,pwrite64,writev,pwritev,pwritev2,fsync,fdatasync,ftruncate,fallocate,rename,renameat2,unlink,unlinkat"
)
UNKNOWN = {"writev", "pwritev", "pwritev2", "fallocate", "rename", "renameat2"}  # SQLite does without; say so if not

_LINE = re.compile(r"(?P<call>\w+)\((?P<arguments>.*)\)\s+= (?P<value>-?\d+)")
SYNCS = ("fsync", "fdatasync")
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_PLACE = re.compile(r"(?P<fd>\d+|AT_FDCWD)<(?P<path>(?:\\x[0-9a-f]{2})*)>")


def strace(trace: Path, *more: str) -> list[str]:
    """The command to put before another one."""
    return ["strace", "-y", "-xx", "-s", "1000000", "-e", f"trace={CALLS}", *more, "-o", str(trace)]


@dataclass(frozen=True)
class Step:
    """One thing that happened: write, cut, sync, sync_failed, sync_folder, create, unlink or said."""

    what: str
    name: str = ""
    offset: int = 0
    data: bytes = b""


def read_trace(trace: Path, database: Path) -> list[Step]:
    """What the process did to the files of its database, and what it said on standard output."""
    with trace.open() as lines:
        return [step for line in lines for step in _steps(line, database)]


def _steps(line: str, database: Path) -> Iterator[Step]:
    match = _LINE.match(line)
    if match is None:
        return
    call, arguments, value = match["call"], match["arguments"], int(match["value"])
    if value < 0 and call not in SYNCS:
        return
    texts = [_plain(text) for text in _TEXT.findall(arguments)]
    place = _PLACE.match(arguments)
    if call == "write" and place is not None and place["fd"] == "1":
        yield Step("said", data=texts[0])
        return
    if call in ("openat", "unlink", "unlinkat"):
        path = Path(texts[0].decode())
        if _is_kept(path, database):
            if call != "openat":
                yield Step("unlink", path.name)
            elif "O_CREAT" in arguments:
                yield Step("create", path.name)
        return
    assert place is not None, line[:200]
    path = Path(_plain(place["path"]).decode())
    if call in SYNCS and path == database.parent and value == 0:
        yield Step("sync_folder")
    if not _is_kept(path, database):
        return
    assert call not in UNKNOWN, f"{call} needs a place in the model"
    match call:
        case "fsync" | "fdatasync":
            yield Step("sync" if value == 0 else "sync_failed", path.name)
        case "ftruncate":
            yield Step("cut", path.name, offset=int(arguments.rpartition(",")[2]))
        case "pwrite64":
            yield Step("write", path.name, offset=int(arguments.rpartition(",")[2]), data=texts[0][:value])
        case "write":
            raise AssertionError(f"a write without an offset needs a place in the model: {line[:200]}")


def _is_kept(path: Path, database: Path) -> bool:
    return path.parent == database.parent and path.name in (database.name, database.name + "-wal")


def _plain(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))


@dataclass
class File:
    durable: bytearray = field(default_factory=bytearray)
    pending: list[Step] = field(default_factory=list)

    def sync(self) -> None:
        for step in self.pending:
            _apply(self.durable, step)
        self.pending = []

    def content(self, chance: random.Random, likelihood: float) -> bytes:
        """The durable part, and of the rest each piece with that likelihood."""
        content = bytearray(self.durable)
        for step in self.pending:
            if step.what == "cut":
                if chance.random() < likelihood:
                    _apply(content, step)
                continue
            for start in range(0, len(step.data), SECTOR):
                if chance.random() < likelihood:
                    piece = step.data[start : start + SECTOR]
                    _apply(content, Step("write", step.name, step.offset + start, piece))
        return bytes(content)


def _apply(content: bytearray, step: Step) -> None:
    end = step.offset + len(step.data)
    if len(content) < end:
        content.extend(bytes(end - len(content)))
    if step.what == "cut":
        del content[step.offset :]
    else:
        content[step.offset : end] = step.data


class Disk:
    """The files as the process saw them, and as the disk is sure to have them."""

    def __init__(self) -> None:
        self._seen: dict[str, File] = {}
        self._sure: dict[str, File] = {}

    def take(self, step: Step) -> None:
        match step.what:
            case "create":
                self._seen.setdefault(step.name, File())
            case "unlink":
                del self._seen[step.name]
            case "sync_folder":
                self._sure = dict(self._seen)
            case "sync":
                self._seen[step.name].sync()
            case "sync_failed":
                self._seen[step.name].pending = []
            case "write" | "cut":
                self._seen[step.name].pending.append(step)

    def image(self, chance: random.Random, likelihood: float) -> dict[str, bytes]:
        """One legal state after a crash now."""
        files = {}
        for name in sorted(self._seen.keys() | self._sure.keys()):
            versions = (self._seen if chance.random() < likelihood else self._sure).get(name)
            if versions is not None:
                files[name] = versions.content(chance, likelihood)
        return files


def crashes(steps: Iterable[Step], chance: random.Random) -> Iterator[tuple[list[str], dict[str, bytes]]]:
    """For a crash before each write or sync: what had been said by then, and three images of the disk."""
    disk = Disk()
    said: list[str] = []
    for step in steps:
        if step.what == "said":
            said += step.data.decode().splitlines()
            continue
        for likelihood in (0.0, chance.random(), 1.0):
            yield list(said), disk.image(chance, likelihood)
        disk.take(step)
    yield said, disk.image(chance, 0.0)
