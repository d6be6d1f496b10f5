"""What an application puts into envelopes: jobs, results, failures, entries, each bound to its job; orders, signals."""

from __future__ import annotations

import struct
from typing import NamedTuple

from packhorse.codec import Encoded
from packhorse.errors import PayloadError
from packhorse.job import Failure
from packhorse.signing import FOREIGN, NO_RESULT, TYPED, VARIED, Envelopes, Purpose

NEVER = -1
_head = struct.Struct(">qqH")  # created, expires (both by the enqueuing program's clock), payload version
_moment = struct.Struct(">q")
_short = struct.Struct(">H").pack


class OpenedJob(NamedTuple):
    body: bytes
    flags: int
    created: int
    expires: int
    version: int

    @property
    def typed(self) -> bool:
        return self.flags & TYPED != 0

    @property
    def foreign(self) -> bool:
        """The task's own codec wrote the body."""
        return self.flags & FOREIGN != 0

    @property
    def no_result(self) -> bool:
        """The task keeps no results."""
        return self.flags & NO_RESULT != 0


def is_varied(payload: bytes) -> bool:
    """Whether a job says that it has options of its own. Open it before you believe it."""
    return type(payload) is bytes and len(payload) > 1 and payload[1] & VARIED != 0


class OpenedResult(NamedTuple):
    body: bytes
    typed: bool
    foreign: bool


class OpenedValue(NamedTuple):
    """What a job kept, or a signal brought, and when."""

    body: bytes
    typed: bool
    at: int


class Seals:
    def __init__(self, envelopes: Envelopes) -> None:
        self._seal = envelopes.seal
        self._open = envelopes.open
        self.signed = envelopes.signed
        self.encrypted = envelopes.encrypted

    def job(
        self,
        id: bytes,
        task: str,
        encoded: Encoded,
        *,
        created: int,
        expires: int | None,
        version: int,
        foreign: bool = False,
        no_result: bool = False,
        varied: bool = False,
    ) -> bytes:
        flags = (TYPED if encoded.typed else 0) | (FOREIGN if foreign else 0)
        flags |= (NO_RESULT if no_result else 0) | (VARIED if varied else 0)
        head = _head.pack(created, NEVER if expires is None else expires, version)
        return self._seal(Purpose.JOB, id + task.encode(), encoded.body, head=head, flags=flags)

    def open_job(self, id: bytes, task: str, payload: bytes) -> OpenedJob:
        flags, head, body = self._open(Purpose.JOB, id + task.encode(), payload, _head.size)
        return OpenedJob(body, flags, *_head.unpack(head))

    def without_expiry(self, id: bytes, task: str, payload: bytes) -> bytes:
        """The same job, signed anew, for an operator who sends an expired one round again."""
        flags, head, body = self._open(Purpose.JOB, id + task.encode(), payload, _head.size)
        created, _, version = _head.unpack(head)
        kept = flags & (TYPED | FOREIGN | NO_RESULT | VARIED)
        return self._seal(Purpose.JOB, id + task.encode(), body, head=_head.pack(created, NEVER, version), flags=kept)

    def template(self, key: str, task: str, encoded: Encoded, *, version: int, foreign: bool = False) -> bytes:
        """The arguments that each job of a schedule will have."""
        flags = (TYPED if encoded.typed else 0) | (FOREIGN if foreign else 0)
        return self._seal(Purpose.SCHEDULE, _texts(key, task), encoded.body, head=_short(version), flags=flags)

    def open_template(self, key: str, task: str, data: bytes) -> OpenedJob:
        flags, head, body = self._open(Purpose.SCHEDULE, _texts(key, task), data, 2)
        return OpenedJob(body, flags, 0, NEVER, int.from_bytes(head))

    def result(self, id: bytes, encoded: Encoded, *, foreign: bool = False) -> bytes:
        flags = (TYPED if encoded.typed else 0) | (FOREIGN if foreign else 0)
        return self._seal(Purpose.RESULT, id, encoded.body, flags=flags)

    def open_result(self, id: bytes, data: bytes) -> OpenedResult:
        flags, _, body = self._open(Purpose.RESULT, id, data)
        return OpenedResult(body, flags & TYPED != 0, flags & FOREIGN != 0)

    def failure(self, id: bytes, failure: bytes) -> bytes:
        return self._seal(Purpose.FAILURE, id, failure)

    def open_failure(self, id: bytes, data: bytes) -> Failure:
        return Failure.decode(self._open(Purpose.FAILURE, id, data)[2])

    def entry(self, id: bytes, kind: str, name: str, data: bytes) -> bytes:
        return self._seal(Purpose.ENTRY, _entry_subject(id, kind, name), data)

    def open_entry(self, id: bytes, kind: str, name: str, data: bytes) -> bytes:
        return self._open(Purpose.ENTRY, _entry_subject(id, kind, name), data)[2]

    def value(self, id: bytes, kind: str, name: str, encoded: Encoded, at: int) -> bytes:
        """An entry that holds a value."""
        flags = TYPED if encoded.typed else 0
        return self._seal(
            Purpose.ENTRY, _entry_subject(id, kind, name), encoded.body, head=_moment.pack(at), flags=flags
        )

    def open_value(self, id: bytes, kind: str, name: str, data: bytes) -> OpenedValue:
        return _value(*self._open(Purpose.ENTRY, _entry_subject(id, kind, name), data, _moment.size))

    def signal(self, name: str, encoded: Encoded, at: int) -> bytes:
        """Not bound to a job, since whoever waits for it gets it."""
        flags = TYPED if encoded.typed else 0
        return self._seal(Purpose.SIGNAL, name.encode(), encoded.body, head=_moment.pack(at), flags=flags)

    def open_signal(self, name: str, data: bytes) -> OpenedValue:
        return _value(*self._open(Purpose.SIGNAL, name.encode(), data, _moment.size))

    def order(self, kind: str, reason: str) -> bytes:
        """Not bound to a job, since one stroke of the store asks for many."""
        return self._seal(Purpose.CONTROL, _texts(kind, reason), b"")

    def is_order(self, kind: str, reason: object, seal: object) -> bool:
        """Whatever their types: they come from the store as they are."""
        if type(reason) is not str or type(seal) is not bytes:
            return False
        try:
            self._open(Purpose.CONTROL, _texts(kind, reason), seal)
        except (PayloadError, ValueError, struct.error):  # too long, or no text that can be encoded
            return False
        return True


def _value(flags: int, head: bytes, body: bytes) -> OpenedValue:
    return OpenedValue(body, flags & TYPED != 0, *_moment.unpack(head))


def _entry_subject(id: bytes, kind: str, name: str) -> bytes:
    return id + _texts(kind, name)


def _texts(one: str, other: str) -> bytes:
    return _short(len(one.encode())) + one.encode() + other.encode()
