"""UUIDv7 ids."""

import sys
import threading
import time
import uuid

import pytest

from packhorse import ids
from packhorse.ids import from_text, new_id, new_ids, to_text


def test_an_id_is_a_uuid_of_version_7():
    """Version, variant and time are where RFC 9562 has them."""
    before = time.time_ns() // 1_000_000
    made = uuid.UUID(bytes=new_id())
    after = time.time_ns() // 1_000_000
    assert (made.version, made.variant) == (7, uuid.RFC_4122)
    assert before <= made.int >> 80 <= after


def test_ids_ascend():
    """One by one or many at once, each is larger than the one before."""
    made = [new_id() for _ in range(2_000)] + new_ids(2_000) + [new_id()]
    assert made == sorted(made)
    assert len(set(made)) == len(made)


def test_ids_ascend_while_the_clock_stands_still_or_is_set_back(monkeypatch: pytest.MonkeyPatch):
    """Also within one millisecond, and after somebody set the clock."""
    now = time.time_ns()
    readings = iter([now] * 10_000 + [now - 3_600_000_000_000] * 10_000)
    monkeypatch.setattr(ids, "_sequence", ids._Sequence())
    monkeypatch.setattr(time, "time_ns", lambda: next(readings))
    made = [new_id() for _ in range(20_000)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)


def test_threads_never_make_the_same_id():
    """Each thread's ids ascend, and all of them differ."""
    made: list[list[bytes]] = [[] for _ in range(8)]

    def make(into: list[bytes]) -> None:
        into.extend(new_id() for _ in range(2_000))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=make, args=(into,)) for into in made]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert all(part == sorted(part) for part in made)
    assert len({id for part in made for id in part}) == 16_000


def test_text_and_bytes_are_two_forms_of_one_id():
    """The text is the usual one, and a UUID object does as well."""
    id = new_id()
    assert to_text(id) == str(uuid.UUID(bytes=id))
    assert from_text(to_text(id)) == from_text(uuid.UUID(bytes=id)) == id
    with pytest.raises(ValueError, match="badly formed"):
        from_text("not an id")
