"""Envelopes: nothing in them is looked at before their MAC is found right."""

import hmac
import random
import struct
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packhorse import signing
from packhorse.codec import Codec, Encoded
from packhorse.errors import ConfigError, PayloadError
from packhorse.ids import new_id
from packhorse.job import Failure, FailureKind
from packhorse.seals import Seals
from packhorse.signing import (
    ENCRYPTED,
    HEAD_AT,
    KNOWN_FLAGS,
    SIGNED,
    Envelopes,
    Purpose,
    SignatureError,
    derive,
    key_id,
)

ONE, TWO, THREE = (bytes([number]) * 32 for number in (1, 2, 3))
SUBJECT = b"0123456789abcdef" + b"shop.resize"
PLAIN = Envelopes("shop", [ONE])
UNSIGNED = Envelopes("shop", [])
ENCRYPTING = Envelopes("shop", [ONE], encrypt=True)


def test_keys_are_derived_as_rfc_5869_says():
    """Its first test case, cut to the one block that we use."""
    secret, salt, info = b"\x0b" * 22, bytes(range(13)).decode("latin-1"), bytes(range(0xF0, 0xFA))
    extracted = hmac.digest(salt.encode("latin-1"), secret, "sha256")
    assert extracted.hex() == "077709362c2e32df0ddc3f0dc47bba6390b6c73bb50f9c3122ec844ad7c2b3e5"
    block = hmac.digest(extracted, info + b"\x01", "sha256")
    assert block.hex() == "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf"
    ours = derive(secret, salt, "abc")
    assert ours == hmac.digest(hmac.digest(salt.encode(), secret, "sha256"), b"abc\x01", "sha256")


@given(st.binary(max_size=5_000), st.sampled_from(Purpose))
def test_the_mac_is_that_of_the_standard_library(message: bytes, purpose: Purpose):
    """Ours begins from copied hashes; it must be HMAC-SHA-256 all the same."""
    assert PLAIN._first is not None
    theirs = hmac.digest(derive(ONE, "shop", f"packhorse {purpose}"), message, "sha256")
    assert PLAIN._first.mac(purpose, message) == theirs[: signing.MAC_SIZE]


@given(st.binary(max_size=20_000), st.binary(max_size=40), st.binary(max_size=18), st.sampled_from(Purpose))
def test_what_is_sealed_comes_back(body: bytes, subject: bytes, head: bytes, purpose: Purpose):
    for envelopes in (PLAIN, UNSIGNED, ENCRYPTING, Envelopes("shop", [TWO], compress_above=100)):
        data = envelopes.seal(purpose, subject, body, head=head, flags=signing.TYPED)
        flags, its_head, its_body = envelopes.open(purpose, subject, data, len(head))
        assert (its_head, its_body, flags & signing.TYPED) == (head, body, signing.TYPED)


def test_a_key_id_tells_nothing_of_the_key():
    assert key_id(ONE) != ONE[:4]
    assert key_id(ONE) != key_id(TWO)


def refused(envelopes: Envelopes, data: bytes, purpose: Purpose = Purpose.JOB, subject: bytes = SUBJECT) -> bool:
    try:
        envelopes.open(purpose, subject, data, 4)
    except PayloadError:
        return True
    return False


SEALED = PLAIN.seal(Purpose.JOB, SUBJECT, b"the body", head=b"head")


def test_every_bit_counts():
    for place in range(len(SEALED)):
        for bit in range(8):
            changed = bytearray(SEALED)
            changed[place] ^= 1 << bit
            assert refused(PLAIN, bytes(changed)), f"bit {bit} of byte {place}"


def test_every_length_counts():
    assert all(refused(PLAIN, SEALED[:length]) for length in range(len(SEALED)))
    assert refused(PLAIN, SEALED + b"x")


@pytest.mark.parametrize("purpose", [purpose for purpose in Purpose if purpose is not Purpose.JOB])
def test_an_envelope_serves_one_purpose(purpose: Purpose):
    assert refused(PLAIN, SEALED, purpose)


def test_an_envelope_belongs_to_one_application():
    assert refused(Envelopes("bank", [ONE]), SEALED)


def test_an_envelope_belongs_to_its_subject():
    assert refused(PLAIN, SEALED, subject=SUBJECT + b"s")
    assert refused(PLAIN, SEALED, subject=b"1" + SUBJECT[1:])


def test_bytes_cannot_be_shifted_between_the_subject_and_the_head():
    moved = PLAIN.seal(Purpose.JOB, SUBJECT[:-4], b"the body", head=SUBJECT[-4:] + b"head")
    with pytest.raises(SignatureError):
        PLAIN.open(Purpose.JOB, SUBJECT, moved[:HEAD_AT] + moved[HEAD_AT + 4 :], 4)


def test_unsigned_envelopes_are_refused_where_keys_are():
    with pytest.raises(SignatureError, match="not signed"):
        PLAIN.open(Purpose.JOB, SUBJECT, UNSIGNED.seal(Purpose.JOB, SUBJECT, b"x"))


def test_switching_the_signed_flag_off_does_not_help():
    changed = bytearray(SEALED)
    changed[1] &= ~SIGNED
    assert refused(PLAIN, bytes(changed))


# The ring.


def test_the_first_key_signs_and_all_verify():
    both, turned = Envelopes("shop", [ONE, TWO]), Envelopes("shop", [TWO, ONE])
    for data in (SEALED, turned.seal(Purpose.JOB, SUBJECT, b"x", head=b"head")):
        assert not refused(both, data)
        assert not refused(turned, data)
    assert turned.seal(Purpose.JOB, SUBJECT, b"x")[2:6] == key_id(TWO)


def test_a_removed_key_is_named_by_its_id_alone():
    with pytest.raises(SignatureError, match=key_id(ONE).hex()) as caught:
        Envelopes("shop", [TWO]).open(Purpose.JOB, SUBJECT, SEALED, 4)
    assert ONE.hex() not in str(caught.value)


def test_a_key_id_cannot_be_exchanged_for_another_key_of_the_ring():
    both = Envelopes("shop", [TWO, ONE])
    assert refused(both, SEALED[:2] + key_id(TWO) + SEALED[6:])


# Compression.


def test_only_what_gets_smaller_is_compressed():
    envelopes = Envelopes("shop", [ONE], compress_above=100)
    noise = random.Random(1).randbytes(1_000)
    assert envelopes.seal(Purpose.JOB, SUBJECT, noise)[1] & signing.COMPRESSED == 0
    text = b"the quick brown fox and the lazy dog " * 20
    data = envelopes.seal(Purpose.JOB, SUBJECT, text)
    assert data[1] & signing.COMPRESSED
    assert len(data) < len(text)
    assert envelopes.seal(Purpose.JOB, SUBJECT, b"short" * 10)[1] & signing.COMPRESSED == 0


def test_what_would_look_like_a_bomb_is_not_compressed():
    envelopes = Envelopes("shop", [ONE], compress_above=100)
    data = envelopes.seal(Purpose.JOB, SUBJECT, bytes(200_000))
    assert data[1] & signing.COMPRESSED == 0


def bomb(body: bytes, cap: int = 1 << 20) -> bytes:
    """Sealed with the right key, so that only the caps stand in its way."""
    packed = Envelopes("shop", [ONE]).seal(Purpose.JOB, SUBJECT, body, flags=signing.COMPRESSED)
    return Envelopes("shop", [ONE], size_cap=cap).open(Purpose.JOB, SUBJECT, packed)[2]


@pytest.mark.parametrize(
    "body",
    [
        zlib.compress(bytes(10 << 20), 9),  # beyond both caps
        zlib.compress(bytes(200_000), 9),  # beyond the ratio alone
        zlib.compress(random.Random(2).randbytes(2 << 20)),  # beyond the size alone
        zlib.compress(b"first") + zlib.compress(b"second"),  # a second member behind the first
        zlib.compress(b"cut off")[:-3],
        b"no zlib at all",
        b"",
    ],
)
def test_a_bomb_is_refused(body: bytes):
    with pytest.raises(PayloadError):
        bomb(body)


def test_compression_does_not_nest():
    inner = zlib.compress(bytes(5_000))
    assert bomb(zlib.compress(inner)) == inner


# Before the MAC is right, nothing runs.


@pytest.fixture
def untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*args: object, **kwargs: object) -> None:
        raise AssertionError("something looked inside before the MAC was checked")

    monkeypatch.setattr(Envelopes, "_decompress", never)
    monkeypatch.setattr(Envelopes, "_decrypt", never)
    monkeypatch.setattr(Codec, "_load", never)


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("flags", range(KNOWN_FLAGS + 1))
def test_nothing_is_decompressed_decrypted_or_decoded_before(flags: int):
    forged = bytes([1, flags]) + key_id(ONE) + bytes(16) + struct.pack(">qqH", 0, -1, 1) + b'{"a":[],"k":{}}'
    with pytest.raises(SignatureError):
        Seals(PLAIN).open_job(SUBJECT[:16], "shop.resize", forged)


# Encryption.


def test_the_body_cannot_be_read_but_the_head_can():
    data = ENCRYPTING.seal(Purpose.JOB, SUBJECT, b"canary in a coal mine", head=b"head")
    assert b"canary" not in data
    assert data[HEAD_AT : HEAD_AT + 4] == b"head"
    assert data[1] & ENCRYPTED


def test_equal_bodies_look_different():
    assert len({ENCRYPTING.seal(Purpose.JOB, SUBJECT, b"same") for _ in range(100)}) == 100


def test_a_reader_needs_the_key_but_not_the_setting():
    data = ENCRYPTING.seal(Purpose.JOB, SUBJECT, b"secret")
    assert PLAIN.open(Purpose.JOB, SUBJECT, data)[2] == b"secret"
    with pytest.raises(PayloadError, match="no key"):
        UNSIGNED.open(Purpose.JOB, SUBJECT, data)


def test_the_cipher_binds_head_and_subject_by_itself(monkeypatch: pytest.MonkeyPatch):
    """Even for somebody who can make MACs: header and subject are associated data."""
    monkeypatch.setattr(hmac, "compare_digest", lambda one, other: True)
    data = ENCRYPTING.seal(Purpose.JOB, SUBJECT, b"secret", head=b"head")
    assert ENCRYPTING.open(Purpose.JOB, SUBJECT, data, 4)[2] == b"secret"
    for subject, changed in ((SUBJECT + b"x", data), (SUBJECT, data.replace(b"head", b"tail"))):
        with pytest.raises(PayloadError, match="cannot be decrypted"):
            ENCRYPTING.open(Purpose.JOB, subject, changed, 4)


def test_encryption_needs_a_key():
    with pytest.raises(ConfigError, match="Encryption needs signing"):
        Envelopes("shop", [], encrypt=True)


# Seals.


def make_job(seals: Seals, id: bytes, task: str, body: bytes) -> bytes:
    return seals.job(id, task, Encoded(body, False), created=5, expires=None, version=1)


def test_a_task_name_cannot_borrow_from_the_id():
    seals = Seals(PLAIN)
    id = new_id()
    with pytest.raises(SignatureError):
        seals.open_job(id, "resize", make_job(seals, id, "resized", b"{}"))


def test_a_forged_failure_or_entry_is_refused():
    seals, id = Seals(PLAIN), new_id()
    failure = Failure(FailureKind.EXCEPTION, "ValueError", "no", "")
    sealed = seals.failure(id, failure.encode())
    assert seals.open_failure(id, sealed) == failure
    for call in (
        lambda: seals.open_failure(new_id(), sealed),
        lambda: seals.open_failure(id, failure.encode()),
        lambda: seals.open_failure(id, seals.result(id, Encoded(failure.encode(), False))),
        lambda: seals.open_entry(id, "progress", "x", seals.entry(id, "progress", "", b"{}")),
    ):
        with pytest.raises(PayloadError):
            call()


def test_a_forged_order_is_none():
    seals = Seals(PLAIN)
    order = seals.order("cancel", "please")
    assert seals.is_order("cancel", "please", order)
    assert not seals.is_order("cancel", "pleased", order)
    assert not seals.is_order("stop", "please", order)
    assert not seals.is_order("cancel", "please", b"")
    assert not Seals(Envelopes("bank", [ONE])).is_order("cancel", "please", order)


Tamper = Callable[[random.Random, bytes, bytes], bytes]


def _flip(luck: random.Random, data: bytes, other: bytes) -> bytes:
    changed = bytearray(data)
    changed[luck.randrange(len(data))] ^= 1 << luck.randrange(8)
    return bytes(changed)


def _swap_part(luck: random.Random, data: bytes, other: bytes) -> bytes:
    """One field of another valid envelope in the place of ours: prefix, key id, MAC, head, body."""
    start, end = luck.choice([(0, 2), (2, 6), (6, 22), (22, 30), (30, 38), (38, 40), (40, None)])
    return data[:start] + other[start:end] + (b"" if end is None else data[end:])


def _shift(luck: random.Random, data: bytes, other: bytes) -> bytes:
    """Some bytes move to another place."""
    start, size = luck.randrange(len(data)), luck.randrange(1, 9)
    piece, rest = data[start : start + size], data[:start] + data[start + size :]
    place = luck.randrange(len(rest) + 1)
    return rest[:place] + piece + rest[place:]


def _truncate(luck: random.Random, data: bytes, other: bytes) -> bytes:
    return data[: luck.randrange(len(data))]


def _extend(luck: random.Random, data: bytes, other: bytes) -> bytes:
    return data + luck.randbytes(luck.randrange(1, 9))


def _whole(luck: random.Random, data: bytes, other: bytes) -> bytes:
    return other


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_million_tampered_envelopes_open_not_once():
    """Every field changed, swapped, shifted, cut; other applications', purposes' and removed keys' envelopes."""
    luck = random.Random(20261117)
    seals = Seals(Envelopes("shop", [ONE, TWO]))
    strangers = [Seals(Envelopes("bank", [ONE])), Seals(Envelopes("shop", [THREE])), Seals(UNSIGNED)]
    jobs = [(new_id(), f"shop.task{n % 7}", f'{{"a":[{n}],"k":{{}}}}'.encode()) for n in range(200)]
    ours = [make_job(seals, *job) for job in jobs]
    theirs = [make_job(luck.choice(strangers), *job) for job in jobs]
    theirs += [seals.result(id, Encoded(body, False)) for id, _, body in jobs]
    theirs += [seals.entry(id, task, "", body) for id, task, body in jobs]
    assert all(seals.open_job(*job[:2], data).body == job[2] for job, data in zip(jobs, ours, strict=True))
    ways: list[Tamper] = [_flip, _swap_part, _shift, _truncate, _extend, _whole]
    opened = tampered = 0
    while tampered < 1_000_000:
        place = luck.randrange(len(jobs))
        id, task, _ = jobs[place]
        other = luck.choice(ours if luck.random() < 0.5 else theirs)
        data = luck.choice(ways)(luck, ours[place], other)
        if luck.random() < 0.1:  # the row says something else than the envelope
            id, task = (new_id(), task) if luck.random() < 0.5 else (id, "shop.task8")
        elif data == ours[place]:
            continue
        tampered += 1
        try:
            seals.open_job(id, task, data)
            opened += 1
        except PayloadError:
            pass
    assert opened == 0
