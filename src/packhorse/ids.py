"""UUIDv7 ids, made by the client: sixteen bytes inside, the usual dashed text outside."""

from __future__ import annotations

import hashlib
import os
import time
import uuid

_ORDER_BITS = 12


class _Sequence:
    """Ids of one process never go backwards, also within a millisecond and when the clock is set back."""

    def __init__(self) -> None:
        self._floor = 0

    def next(self) -> int:
        # A 60-bit instant: milliseconds and, below, 12 bits of fraction; raised by one where the clock did not move.
        instant = time.time_ns() * (1 << _ORDER_BITS) // 1_000_000
        self._floor = floor = instant if instant > self._floor else self._floor + 1
        return floor


_sequence = _Sequence()


def new_id() -> bytes:
    return _make(_sequence.next(), os.urandom(8))


def new_ids(count: int) -> list[bytes]:
    noise = os.urandom(8 * count)
    return [_make(_sequence.next(), noise[i : i + 8]) for i in range(0, 8 * count, 8)]


def _make(instant: int, noise: bytes) -> bytes:
    high = (instant >> _ORDER_BITS << 16) | 0x7000 | (instant & 0xFFF)
    return high.to_bytes(8, "big") + bytes((noise[0] & 0x3F | 0x80,)) + noise[1:]


def child_id(parent: bytes, name: str, place: int) -> bytes:
    """The same for the same job, name and place, whoever asks; as old as its parent, in the form of other ids."""
    digest = hashlib.sha256(b"%b\0%b\0%d" % (parent, name.encode("utf-8", "surrogatepass"), place)).digest()
    return parent[:6] + bytes([0x70 | digest[0] & 0x0F, digest[1], 0x80 | digest[2] & 0x3F]) + digest[3:10]


def to_text(id: bytes) -> str:
    digits = id.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def from_text(text: str | uuid.UUID) -> bytes:
    """The sixteen bytes of a job id; ValueError where the text is none."""
    return (text if isinstance(text, uuid.UUID) else uuid.UUID(text)).bytes
