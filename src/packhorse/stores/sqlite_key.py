"""The key beside a database whose application was given none: whoever may read the one may read the other."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from packhorse.errors import StoreUnavailable, StoreUnsafe
from packhorse.signing import generate_secret

KEY_SIZE_CAP = 4096


def kept_key(database: Path, *, make: bool = True) -> bytes | None:
    """Made by the first who needs it; everybody else reads the same."""
    path = Path(f"{database}-key")
    try:
        return _read(path)
    except FileNotFoundError:
        if not make:
            return None
        _make(path)
        return _read(path)


def _read(path: Path) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StoreUnsafe(f"The key {path} cannot be read: {error.strerror}. Check its owner and mode.") from None
    with os.fdopen(fd, "rb") as file:
        if stat.S_IMODE(os.fstat(fd).st_mode) & 0o077:
            raise StoreUnsafe(f"The key {path} can be read by others. Run chmod 600 {path}, and better make a new one.")
        key = file.read(KEY_SIZE_CAP).strip()
    if len(key) < 32:
        raise StoreUnsafe(f"The key {path} is damaged: it has {len(key)} bytes. Put it back from a backup.")
    return key


def _make(path: Path) -> None:
    """Complete from the moment it has its name, and never twice."""
    draft = Path(f"{path}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:
            file.write(generate_secret() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(draft, path)
        folder = os.open(path.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
    except OSError as error:
        raise StoreUnavailable(f"The key {path} cannot be written: {error.strerror}. Check the folder.") from None
    finally:
        with suppress(OSError):
            draft.unlink()
