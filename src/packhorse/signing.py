"""Envelopes: what is stored is signed, and verified before anything in it is decompressed, decoded or looked up.

An envelope is

    format 1 · flags 1 · key id 4 · MAC 16 · head (of a length its purpose knows) · body

and the MAC (HMAC-SHA-256, its first 128 bits) covers all of it but itself, and the subject: whose envelope it is. The
keys differ by purpose and application, so that a job's envelope is no result and another application's is none of ours.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import struct
import time
import zlib
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from packhorse.errors import ConfigError, PayloadError

FORMAT = 1
SIGNED, COMPRESSED, ENCRYPTED, TYPED, FOREIGN, NO_RESULT, VARIED = 1, 2, 4, 8, 16, 32, 64
PACKED = COMPRESSED | ENCRYPTED
KNOWN_FLAGS = SIGNED | COMPRESSED | ENCRYPTED | TYPED | FOREIGN | NO_RESULT | VARIED

RATIO_CAP = 100
MAC_SIZE = 16
PREFIX_SIZE = 6
HEAD_AT = PREFIX_SIZE + MAC_SIZE
UNSIGNED_ID, UNSIGNED_MAC = bytes(4), bytes(MAC_SIZE)
NONCE_SIZE = 12
DAY = 86_400

_length = struct.Struct(">I").pack


class Purpose(StrEnum):
    JOB = "job"
    RESULT = "result"
    FAILURE = "failure"
    ENTRY = "entry"
    CONTROL = "control"
    SCHEDULE = "schedule"
    SIGNAL = "signal"


class SignatureError(PayloadError):
    """The envelope was not signed by this application with a key we know, or was changed since."""


def derive(secret: bytes, salt: str, info: str) -> bytes:
    """HKDF-SHA-256 (RFC 5869) for one block of 32 bytes."""
    extracted = hmac.digest(salt.encode(), secret, "sha256")
    return hmac.digest(extracted, info.encode() + b"\x01", "sha256")


def key_id(secret: bytes) -> bytes:
    """Names a key in the open without telling anything of it."""
    return hmac.digest(secret, b"packhorse key id", "sha256")[:4]


def _begun(key: bytes) -> tuple[Any, Any]:
    """HMAC-SHA-256 (RFC 2104) up to the message, to be copied for each one.

    By hand because every job pays for it: the objects of `hmac` take half as long again, and `hmac.digest` also lets go
    of the interpreter lock, for which a worker's threads then queue.
    """
    padded = key.ljust(64, b"\0")
    return hashlib.sha256(bytes(b ^ 0x36 for b in padded)), hashlib.sha256(bytes(b ^ 0x5C for b in padded))


class _Key:
    """The keys that one secret gives one application."""

    def __init__(self, app: str, secret: bytes) -> None:
        self.id = key_id(secret)
        self._begun = {p: _begun(derive(secret, app, f"packhorse {p}")) for p in Purpose}
        self._encryption = {purpose: derive(secret, app, f"packhorse encryption {purpose}") for purpose in Purpose}
        self._ciphers: dict[tuple[Purpose, int], Any] = {}

    def mac(self, purpose: Purpose, message: bytes) -> bytes:
        inner, outer = self._begun[purpose]
        inner, outer = inner.copy(), outer.copy()
        inner.update(message)
        outer.update(inner.digest())
        mac: bytes = outer.digest()[:MAC_SIZE]
        return mac

    def cipher(self, purpose: Purpose, day: int) -> Any:
        """A key for each day, so that random nonces stay far from repeating."""
        if (cipher := self._ciphers.get((purpose, day))) is None:
            if len(self._ciphers) > 100:
                self._ciphers.clear()
            sub_key = hmac.digest(self._encryption[purpose], day.to_bytes(4), "sha256")
            cipher = self._ciphers[purpose, day] = _aead()(sub_key)
        return cipher


def _aead() -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise ConfigError("Encryption needs the package cryptography: pip install 'packhorse[crypto]'.") from None
    return AESGCM


class Envelopes:
    """Seals and opens for one application. The first secret signs, all verify; none at all means unsigned."""

    def __init__(
        self,
        app: str,
        ring: Sequence[bytes],
        *,
        encrypt: bool = False,
        compress_above: int | None = None,
        size_cap: int = 1 << 22,
    ) -> None:
        self._app = app
        self._first = _Key(app, ring[0]) if ring else None
        self._keys = {key.id: key for key in (_Key(app, secret) for secret in ring)}
        self._encrypt = encrypt
        self._compress_above = compress_above
        self._size_cap = size_cap
        self._prefixes = {flags: self._prefix(flags) for flags in range(KNOWN_FLAGS + 1)}
        if len(self._keys) < len(ring):
            raise ConfigError("Two of the keys look the same from outside. Leave one of them out.")
        if encrypt:
            if self._first is None:
                raise ConfigError("Encryption needs signing, and so a key. Give keys=… and leave signing on.")
            _aead()

    @property
    def signed(self) -> bool:
        return self._first is not None

    @property
    def encrypted(self) -> bool:
        return self._encrypt

    def _prefix(self, flags: int) -> bytes:
        return bytes((FORMAT, flags)) + (self._first.id if self._first is not None else UNSIGNED_ID)

    def seal(self, purpose: Purpose, subject: bytes, body: bytes, *, head: bytes = b"", flags: int = 0) -> bytes:
        if self._compress_above is not None and len(body) > self._compress_above:
            packed = zlib.compress(body, 1)
            if len(body) // RATIO_CAP < len(packed) < len(body):
                body, flags = packed, flags | COMPRESSED
        key = self._first
        if key is None:
            return self._prefixes[flags] + UNSIGNED_MAC + head + body
        if self._encrypt:
            flags |= ENCRYPTED
        prefix = self._prefixes[flags | SIGNED]
        bound = _length(len(subject)) + subject + head
        if self._encrypt:
            day, nonce = int(time.time()) // DAY, os.urandom(NONCE_SIZE)
            body = day.to_bytes(4) + nonce + key.cipher(purpose, day).encrypt(nonce, body, prefix + bound)
        return prefix + key.mac(purpose, prefix + bound + body) + head + body

    def open(self, purpose: Purpose, subject: bytes, data: bytes, head_size: int = 0) -> tuple[int, bytes, bytes]:
        """Flags, head and body; looks at nothing inside before the MAC is found right.

        Raises SignatureError or PayloadError.
        """
        if type(data) is not bytes or len(data) < HEAD_AT + head_size or data[0] != FORMAT or data[1] > KNOWN_FLAGS:
            raise PayloadError("It is not an envelope that this version of Packhorse reads.")
        flags = data[1]
        key = None
        if self._first is not None:
            key = self._verified(purpose, subject, data, flags)
        body_at = HEAD_AT + head_size
        head, body = data[HEAD_AT:body_at], data[body_at:]
        if flags & PACKED:
            if flags & ENCRYPTED:
                body = self._decrypt(key, purpose, data[:PREFIX_SIZE] + _length(len(subject)) + subject + head, body)
            if flags & COMPRESSED:
                body = self._decompress(body)
        return flags, head, body

    def _verified(self, purpose: Purpose, subject: bytes, data: bytes, flags: int) -> _Key:
        if not flags & SIGNED:
            raise SignatureError("It is not signed, and this application takes signed envelopes only.")
        prefix = data[:PREFIX_SIZE]
        key = self._keys.get(prefix[2:])
        if key is None:
            raise SignatureError(
                f"It was signed with the key {prefix[2:].hex()}, which application {self._app!r} does not have. "
                "Put the key back into the ring, behind the first."
            )
        mac = key.mac(purpose, prefix + _length(len(subject)) + subject + data[HEAD_AT:])
        if not hmac.compare_digest(mac, data[PREFIX_SIZE:HEAD_AT]):
            raise SignatureError(
                f"Its signature is wrong: it was changed, or made for something else than {purpose}s of "
                f"application {self._app!r}."
            )
        return key

    def _decrypt(self, key: _Key | None, purpose: Purpose, bound: bytes, body: bytes) -> bytes:
        if key is None:
            raise PayloadError("It is encrypted, and this application has no key.")
        day, nonce, text = int.from_bytes(body[:4]), body[4 : 4 + NONCE_SIZE], body[4 + NONCE_SIZE :]
        try:
            plain: bytes = key.cipher(purpose, day).decrypt(nonce, text, bound)
        except ConfigError as error:  # no package to decrypt with; one job's trouble, and it may be retried later
            raise PayloadError(f"It is encrypted. {error}") from None
        except Exception as error:  # of several kinds, and none says more than that it is damaged
            raise PayloadError(f"It cannot be decrypted ({type(error).__name__}).") from None
        return plain

    def _decompress(self, body: bytes) -> bytes:
        cap = min(self._size_cap, len(body) * RATIO_CAP)
        machine = zlib.decompressobj()
        try:
            plain = machine.decompress(body, cap + 1)
        except zlib.error:
            raise PayloadError("It cannot be decompressed.") from None
        if len(plain) > cap or not machine.eof or machine.unused_data:
            raise PayloadError(f"It is more than {cap:,} bytes when decompressed, or not whole.")
        return plain


def generate_secret() -> bytes:
    """A key as people write it down."""
    return secrets.token_hex(32).encode()
