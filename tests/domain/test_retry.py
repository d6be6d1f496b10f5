"""When to try again."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packhorse.clock import SECOND
from packhorse.errors import ConfigError
from packhorse.retry import Exponential, Fixed, RetryPolicy, make_policy

ERROR = ValueError("no")


def test_exponential_waits_grow_to_the_cap():
    """Without jitter the waits are base, twice, four times, then the cap for good."""
    backoff = Exponential(base=5, factor=2, cap=30, jitter=0)
    assert [backoff(attempt, ERROR) for attempt in range(1, 6)] == [5, 10, 20, 30, 30]


@given(st.integers(1, 60), st.floats(0, 1))
def test_jitter_is_only_added(attempt: int, drawn: float):
    """A wait is never shorter than the plain one and at most a quarter longer."""
    plain = Exponential(jitter=0)(attempt, ERROR)
    assert plain <= Exponential(draw=lambda: drawn)(attempt, ERROR) <= plain * 1.25


@pytest.mark.parametrize("factor", [2, 2.0, 1000.0, 10**6])
def test_a_late_attempt_does_not_overflow(factor: float):
    """A task without a limit may reach attempt ten thousand."""
    assert Exponential(factor=factor, jitter=0)(10_000, ERROR) == 3600


@pytest.mark.parametrize(
    ("retries", "attempt", "exhausted"), [(0, 1, True), (2, 2, False), (2, 3, True), (None, 1_000_000, False)]
)
def test_retries_are_counted_beyond_the_first_attempt(retries: int | None, attempt: int, exhausted: bool):
    """`retries=2` means three attempts; None means no limit."""
    assert RetryPolicy(retries).exhausted(attempt) is exhausted


def test_only_errors_to_retry_for_are_retried():
    """Others give up at the first attempt, and so do those named in `give_up_on`."""
    policy = make_policy(5, 1.0, (OSError, ValueError), UnicodeError)
    assert policy.wait(1, OSError()) == SECOND
    assert policy.wait(1, ValueError()) == SECOND
    assert policy.wait(1, UnicodeError()) is None
    assert policy.wait(1, KeyError()) is None


def test_by_default_no_exit_is_retried():
    """SystemExit and its like are not Exceptions."""
    assert make_policy(5, 0, Exception, ()).wait(1, SystemExit()) is None


@pytest.mark.parametrize("backoff", [2, 2.0, timedelta(seconds=2)])
def test_a_plain_length_is_a_fixed_backoff(backoff: Any):
    """Seconds and timedeltas mean the same."""
    assert make_policy(1, backoff, Exception, ()).backoff == Fixed(2.0)


def test_a_callable_backoff_sees_the_attempt_and_the_error():
    """It may answer in seconds or as a timedelta; less than nothing means at once."""
    seen = []

    def backoff(attempt: int, error: BaseException) -> timedelta:
        seen.append((attempt, error))
        return timedelta(seconds=-1)

    assert make_policy(None, backoff, Exception, ()).wait(3, ERROR) == 0
    assert seen == [(3, ERROR)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"retries": -1}, "retries must be a whole number"),
        ({"retries": True}, "retries must be a whole number"),
        ({"retries": 1.5}, "retries must be a whole number"),
        ({"backoff": -1}, "backoff must not be negative"),
        ({"backoff": "soon"}, "backoff must be seconds, a timedelta or a callable"),
        ({"retry_for": "ValueError"}, "retry_for takes exception classes"),
        ({"retry_for": (ValueError, 1)}, "retry_for takes exception classes"),
        ({"give_up_on": ERROR}, "give_up_on takes exception classes"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(changes: dict[str, Any], message: str):
    """At declaration, where the mistake is."""
    given = {"retries": 0, "backoff": None, "retry_for": Exception, "give_up_on": ()} | changes
    with pytest.raises(ConfigError, match=message):
        make_policy(**given)
