"""Outcomes that somebody else's transaction keeps from being written."""

from itertools import count

from packhorse.clock import SECOND
from packhorse.job import JobState, Token
from packhorse.outcome import Outcome
from packhorse.runtime.put_off import FEW, LAST, MOST, PutOff
from tests.waiting import wait_until

_numbers = count(1)


def outcome() -> Outcome:
    return Outcome(Token(b"p", 1, next(_numbers).to_bytes(16, "big"), 1), JobState.SUCCEEDED, duration=SECOND)


def test_a_few_are_offered_and_then_the_others():
    put_off = PutOff()
    them = [outcome() for _ in range(2 * FEW)]
    put_off.note(0, them)
    first: list[Outcome] = wait_until(put_off.due, "some are due")
    assert first[::-1] == them[:FEW]
    assert len(put_off) == FEW
    put_off.note(len(first), [])  # all of them could be written
    assert put_off.rest == 0
    assert put_off.due()[::-1] == them[FEW:]


def test_as_long_as_none_can_be_written_pauses_grow_up_to_a_bound():
    put_off = PutOff()
    put_off.note(0, [outcome()])
    rests = []
    for _ in range(10):
        rests.append(put_off.rest)
        put_off.note(0, [outcome()])
    assert rests[0] < rests[1] < rests[2] < rests[-1] <= LAST
    assert put_off.due() == []


def test_with_none_there_is_nothing_to_wait_for():
    put_off = PutOff()
    assert put_off.due() == []
    assert put_off.rest == float("inf")
    put_off.note(5, [])
    assert put_off.rest == float("inf")


def test_there_is_a_bound():
    put_off = PutOff()
    put_off.note(0, [outcome() for _ in range(MOST)])
    assert put_off.is_full
