"""What can be wrong around a database file, seen from outside: version, owners and modes, space, journal."""

from __future__ import annotations

import glob
import os
import shutil
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

from packhorse.stores import sqlite_holders
from packhorse.stores.contract import OWN_KEY, Finding, Level

WAL_WARNING = 256 << 20
SPACE_WARNING = 1 << 30
SPACE_PROBLEM = 100 << 20
BESIDE = ("", "-wal", "-shm", "-lock", "-ballast", "-key")

# The WAL-reset bug (docs/decisions/0002).
BROKEN_FROM, FIXED_FROM = (3, 7, 0), (3, 51, 3)
FIXED_IN: dict[tuple[int, ...], int] = {(3, 44): 6, (3, 50): 7}


def examine(path: Path) -> list[Finding]:
    return [
        _version(sqlite3.sqlite_version_info),
        *_modes(path),
        *_key(path),
        _space(path),
        _journal(path),
        *_lost(path),
        *_held(path),
    ]


def resets_wal_safely(version: tuple[int, ...]) -> bool:
    patch = FIXED_IN.get(version[:2])
    return version < BROKEN_FROM or version >= FIXED_FROM or (patch is not None and version[2] >= patch)


def _version(version: tuple[int, ...]) -> Finding:
    text = f"SQLite is {'.'.join(map(str, version))}"
    if resets_wal_safely(version):
        return Finding(Level.OK, "sqlite", f"{text}.")
    return Finding(
        Level.OK,
        "sqlite",
        f"{text}, which has the WAL-reset bug. Packhorse's own writers are safe from it by their lock.",
        "Let no other program write to the file, or use SQLite 3.51.3 or later in all of them.",
    )


def _modes(path: Path) -> Iterator[Finding]:
    found = {Path(f"{path}{end}"): seen for end in BESIDE if (seen := _seen(f"{path}{end}")) is not None}
    bad = [finding for file, seen in found.items() if (finding := _mode(file, seen)) is not None]
    owners = {seen.st_uid for seen in found.values()}
    if len(owners) > 1:
        text = f"The files of {path} belong to several users (uids {', '.join(map(str, sorted(owners)))})."
        remedy = f"Give them to the one that runs the workers: chown USER {path}*."
        bad.append(Finding(Level.PROBLEM, "files", text, remedy))
    yield from bad or [Finding(Level.OK, "files", f"The files of {path} are for their owner alone.")]


def _mode(file: Path, seen: os.stat_result) -> Finding | None:
    mode = stat.S_IMODE(seen.st_mode)
    if not mode & 0o077:
        return None
    what = "written" if mode & 0o022 else "read"
    level = Level.PROBLEM if mode & 0o022 or file.name.endswith("-key") else Level.WARNING
    return Finding(level, "files", f"{file} can be {what} by others (mode {mode:04o}).", f"Run chmod 600 {file}.")


def _key(path: Path) -> Iterator[Finding]:
    if _seen(f"{path}-key") is not None:
        text = "There is a key beside the database, for applications that were given none."
        yield Finding(Level.OK, OWN_KEY, text)


def _space(path: Path) -> Finding:
    free = shutil.disk_usage(path.parent).free
    text = f"{size(free)} are free on the disk of {path}."
    if free >= SPACE_WARNING:
        return Finding(Level.OK, "disk", text)
    level = Level.PROBLEM if free < SPACE_PROBLEM else Level.WARNING
    return Finding(level, "disk", text, "Free some space: on a full disk nothing can be enqueued.")


def _journal(path: Path) -> Finding:
    seen = _seen(f"{path}-wal")
    length = seen.st_size if seen is not None else 0
    text = f"The write-ahead log has {size(length)}, the database {size(path.stat().st_size)}."
    if length <= WAL_WARNING:
        return Finding(Level.OK, "journal", text)
    remedy = "Some program reads the database without an end: find it, and let it end its transaction."
    return Finding(Level.WARNING, "journal", text, remedy)


def _lost(path: Path) -> Iterator[Finding]:
    for file in sorted(path.parent.glob(f"{glob.escape(path.name)}-wal-lost-*")):
        text = (
            f"{file} is a log that was taken away while it was in use: jobs that were acknowledged may be in it only."
        )
        remedy = "See what the guide says of it, under deploying; then delete it."
        yield Finding(Level.PROBLEM, "lost-log", text, remedy)


def _held(path: Path) -> Iterator[Finding]:
    if sqlite_holders.is_held(path):
        text = f"{sqlite_holders.named(path)} holds the write lock of {path}, and nobody else can write."
        remedy = "Commit or roll back soon after jobs were enqueued or completed in a transaction; end a forgotten one."
        yield Finding(Level.WARNING, "held up", text, remedy)


def _seen(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except FileNotFoundError:
        return None


def size(count: int) -> str:
    number = float(count)
    for unit in ("bytes", "KiB", "MiB"):
        if number < 1024:
            return f"{number:.0f} {unit}"
        number /= 1024
    return f"{number:.1f} GiB"
