"""Time, read through a clock that is handed in."""

import time
from datetime import UTC, datetime, timedelta, timezone

from hypothesis import given
from hypothesis import strategies as st

from packhorse.clock import SECOND, ManualClock, SystemClock, length, to_datetime, to_microseconds


def test_the_system_clock_tells_the_time():
    """Wall time is near Python's own, ticks never go back, the boot has a name."""
    clock = SystemClock()
    assert abs(clock.now() - time.time_ns() // 1000) < 5 * SECOND
    first, second = clock.ticks(), clock.ticks()
    assert first <= second
    assert clock.boot() == SystemClock().boot() != ""


def test_a_manual_clock_moves_only_when_told():
    """Passing time moves both; setting the wall clock does not move the ticks; a reboot starts them anew."""
    clock = ManualClock()
    now, ticks, boot = clock.now(), clock.ticks(), clock.boot()
    clock.advance(1.5)
    assert (clock.now(), clock.ticks()) == (now + 1_500_000, ticks + 1_500_000)
    clock.step(-60)
    assert (clock.now(), clock.ticks()) == (now + 1_500_000 - 60 * SECOND, ticks + 1_500_000)
    clock.reboot()
    assert clock.ticks() == ticks
    assert clock.boot() != boot


@given(st.integers(-62_135_596_800 * SECOND, 253_402_300_799 * SECOND))
def test_every_stored_moment_comes_back_exactly(microseconds: int):
    """No float is in between, so not a microsecond is lost."""
    assert to_microseconds(to_datetime(microseconds)) == microseconds


def test_a_moment_is_the_same_in_every_time_zone():
    """What is stored is UTC."""
    noon = datetime(2030, 1, 1, 12, tzinfo=UTC)
    assert to_microseconds(noon) == to_microseconds(noon.astimezone(timezone(timedelta(hours=5, minutes=30))))
    assert to_datetime(to_microseconds(noon)) == noon


def test_lengths_are_seconds_or_timedeltas():
    """Both become whole microseconds."""
    assert length(1) == length(1.0) == length(timedelta(seconds=1)) == SECOND
    assert length(0.000_001) == 1
    assert length(timedelta(days=-1)) == -86_400 * SECOND
