"""Which moments of a schedule are due."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packhorse.clock import SECOND, to_datetime, to_microseconds
from packhorse.crontab import cron
from packhorse.errors import ConfigError
from packhorse.moments import daily, every, monthly, once
from packhorse.schedule import END, MOMENTS_CAP, Misfire, Overlap, Schedule, make_schedule

HOUR = 3600 * SECOND
DAY = 24 * HOUR
NOON = to_microseconds(datetime(2026, 6, 15, 12, tzinfo=UTC))  # a Monday
MISFIRES: tuple[Literal["skip", "once", "all"], ...] = ("skip", "once", "all")


def clock(moment: int) -> str:
    return f"{to_datetime(moment):%d. %H:%M:%S}"


# In time.


@pytest.mark.parametrize("misfire", MISFIRES)
def test_a_moment_in_time_is_due_once(misfire: Literal["skip", "once", "all"]):
    """Before it there is a wait, at it a job, behind it the next wait."""
    schedule = make_schedule("0 * * * *", misfire=misfire)
    handled = schedule.due(None, NOON - 10 * SECOND).handled
    assert schedule.due(handled, NOON - 1) == ((), handled, NOON, None, False)
    assert schedule.due(handled, NOON) == ((NOON,), NOON, NOON + HOUR, None, False)
    assert schedule.due(handled, NOON + SECOND) == ((NOON,), NOON, NOON + HOUR, None, False)
    assert schedule.due(NOON, NOON + SECOND) == ((), NOON, NOON + HOUR, None, False)


@pytest.mark.parametrize("misfire", MISFIRES)
def test_a_new_schedule_owes_nothing(misfire: Literal["skip", "once", "all"]):
    """But what is due at this very moment; and it is known from then on since when it owes."""
    schedule = make_schedule(daily(datetime(2020, 1, 1, 12)), misfire=misfire)
    assert schedule.due(None, NOON + 1) == ((), NOON, NOON + DAY, None, False)
    assert schedule.due(None, NOON) == ((NOON,), NOON, NOON + DAY, None, False)


def test_what_is_past_once_is_owed():
    """Unless it is too late for it."""
    at = to_datetime(NOON)
    assert make_schedule(once(at)).due(None, NOON + DAY) == ((NOON,), NOON, None, None, False)
    assert make_schedule(once(at), grace=60).due(None, NOON + DAY) == ((), NOON, None, None, True)
    assert make_schedule(once(at), misfire="skip").due(None, NOON + DAY).moments == ()
    assert make_schedule(once(at)).due(None, NOON - 5) == ((), NOON - 6, NOON, None, False)
    assert make_schedule(once(at)).due(NOON, NOON + DAY) == ((), NOON, None, None, False)


def test_a_clock_that_is_set_back_repeats_nothing():
    """What was handled stays handled."""
    assert make_schedule("0 * * * *").due(NOON, NOON - HOUR) == ((), NOON, NOON + HOUR, None, False)


# Missed.


@pytest.mark.parametrize(
    ("misfire", "grace", "late", "expected"),
    [
        ("skip", None, 60, ["15. 12:00:00"]),
        ("skip", None, 61, []),
        ("skip", 600, 600, ["15. 12:00:00"]),
        ("skip", 0, 1, []),
        ("once", None, 3599, ["15. 12:00:00"]),
        ("once", 60, 60, ["15. 12:00:00"]),
        ("once", 60, 61, []),
        ("once", timedelta(days=9), 5, ["15. 12:00:00"]),
        ("all", None, 5, ["15. 09:00:00", "15. 10:00:00", "15. 11:00:00", "15. 12:00:00"]),
        ("all", 7200, 0, ["15. 10:00:00", "15. 11:00:00", "15. 12:00:00"]),
        ("all", 7200, 1, ["15. 11:00:00", "15. 12:00:00"]),
        ("all", 60, 61, []),
    ],
)
def test_missed_moments(misfire: Any, grace: Any, late: int, expected: list[str]):
    """Of four missed hours: none that is late, the latest, or all; within the grace, oldest first."""
    schedule = make_schedule("0 * * * *", misfire=misfire, grace=grace)
    due = schedule.due(NOON - 4 * HOUR, NOON + late * SECOND)
    assert [clock(moment) for moment in due.moments] == expected
    assert (due.handled, due.next) == (NOON, NOON + HOUR)
    assert due.left_out is (len(expected) < 4)


def test_behind_the_end_the_last_one_is_owed_for_one_interval():
    """A schedule that is over does not come back after weeks."""
    schedule = make_schedule("0 * * * *", end=to_datetime(NOON))
    assert schedule.due(NOON - HOUR, NOON + HOUR).moments == (NOON,)
    assert schedule.due(NOON - HOUR, NOON + HOUR + 1) == ((), NOON, None, None, True)


def test_many_missed_moments_come_in_turns():
    """The next look is at once, as long as there are more."""
    schedule = make_schedule(every(1), misfire="all")
    last, now, got = NOON, NOON + 2500 * SECOND, []
    for _ in range(3):
        due = schedule.due(last, now)
        got.append(len(due.moments))
        assert due.next is not None
        assert (due.next <= now) is (len(due.moments) == MOMENTS_CAP)
        last = due.handled
    assert got == [1000, 1000, 500]


def test_the_latest_of_millions_is_found_quickly():
    """Also for cron, which cannot count."""
    for rule in (every(1), cron("* * * * * *"), cron("*/10 3-5 * * * 1-5")):
        due = make_schedule(rule).due(0, NOON)
        assert len(due.moments) == 1
        assert due.next is not None
        assert NOON - 3 * DAY < due.moments[0] <= NOON < due.next


def plainly(schedule: Schedule, last: int, now: int) -> tuple[list[int], bool]:
    """What is due, said the long way: go through all moments since the last."""
    missed, moment = [], last
    while (following := schedule.next_after(moment)) is not None and following <= now:
        missed.append(moment := following)
    if not missed:
        return [], False
    match schedule.misfire:
        case Misfire.ALL:
            chosen = [it for it in missed if schedule.grace is None or now - it <= schedule.grace]
        case Misfire.ONCE:
            unbounded = replace(schedule, end=None).next_after(missed[-1])
            grace = schedule.grace if schedule.grace is not None else (unbounded or END) - missed[-1]
            chosen = [it for it in missed[-1:] if now - it <= grace]
        case Misfire.SKIP:
            grace = 60 * SECOND if schedule.grace is None else schedule.grace
            chosen = [it for it in missed[-1:] if now - it <= grace]
    if schedule.repeats is not None:
        chosen = chosen[: schedule.repeats]
    return chosen, chosen[:1] != missed[:1]


@given(
    st.sampled_from(["*/10 * * * *", "0 3 * * *", "30 2 * * 0", "every 7m", "every 1.5h from 2026-10-24T10:07:30Z"]),
    st.sampled_from(MISFIRES),
    st.none() | st.integers(0, 10_000),
    st.integers(0, 3 * DAY),
    st.integers(0, 2 * DAY),
    st.none() | st.integers(1, 30),
    st.none() | st.integers(1, 3 * 86_400),
)
def test_due_and_the_long_way_agree(
    rule: str,
    misfire: Literal["skip", "once", "all"],
    grace: int | None,
    since: int,
    away: int,
    repeats: int | None,
    lasting: int | None,
):
    """Around a change of clocks, with and without an end."""
    begin = datetime(2026, 10, 24, tzinfo=UTC)
    end = None if lasting is None else begin + timedelta(days=7, seconds=lasting)
    schedule = make_schedule(rule, zone="Europe/Berlin", misfire=misfire, grace=grace, repeats=repeats, end=end)
    last = to_microseconds(begin) + since
    due = schedule.due(last, last + away)
    assert (list(due.moments), due.left_out) == plainly(schedule, last, last + away)
    assert due.repeats == (None if repeats is None else repeats - len(due.moments))
    assert last <= due.handled <= last + away
    assert due.repeats == 0 or due.next is None or due.next > last + away
    again = replace(schedule, repeats=due.repeats).due(due.handled, last + away)
    assert again.moments == ()


# Bounds.


def test_start_and_end_belong_to_the_schedule():
    """Times without a zone are those of its wall clock."""
    schedule = make_schedule(
        "0 * * * *", zone="Europe/Berlin", start=datetime(2026, 6, 15, 14), end=datetime(2026, 6, 15, 16)
    )
    assert schedule.upcoming(0) == [NOON, NOON + HOUR, NOON + 2 * HOUR]
    assert schedule.next_after(NOON + 2 * HOUR) is None


def test_repeats_are_counted_down():
    """Only by moments that got a job; then it is over."""
    schedule = make_schedule("0 * * * *", repeats=2, misfire="all", grace=HOUR / SECOND)
    assert len(schedule.upcoming(NOON)) == 2
    due = schedule.due(NOON - 5 * HOUR, NOON)
    assert due == ((NOON - HOUR, NOON), NOON, None, 0, True)
    assert replace(schedule, repeats=0).due(NOON, NOON + DAY) == ((), NOON, None, 0, False)


@pytest.mark.parametrize("repeats", [None, -1])
def test_no_number_of_repeats_is_for_ever(repeats: int | None):
    """Written in either way."""
    assert make_schedule("@daily", repeats=repeats).repeats is None


def test_upcoming_has_as_many_as_there_are():
    """And a bound."""
    assert make_schedule(once(to_datetime(NOON))).upcoming(NOON - 1) == [NOON]
    assert len(make_schedule("* * * * *").upcoming(NOON, 10**9)) == MOMENTS_CAP
    assert make_schedule("* * * * *").upcoming(NOON, -1) == []


@pytest.mark.parametrize("moment", [-(10**30), -1, 0, END - 1, END, 10**30])
@pytest.mark.parametrize(
    "rule", ["0 3 * * *", "*/5 * * * *", "every 90s", "monthly from 2026-01-31T00:00", "once at 2026-01-01"]
)
def test_no_moment_is_too_far_away(rule: str, moment: int):
    """To ask for the next one."""
    found = make_schedule(rule, zone="Pacific/Kiritimati").next_after(moment)
    assert found is None or max(-1, moment) < found <= END


# Jitter.


def test_jitter_is_the_same_wherever_it_is_asked_for():
    """It depends on the key and the moment: this number may never change while schedulers of two versions run."""
    schedule = make_schedule("0 * * * *", jitter=600)
    assert schedule.run_at("report", NOON) - NOON == 327_897_681
    assert schedule.run_at("report", NOON) != schedule.run_at("reports", NOON)
    assert schedule.run_at("report", NOON) != schedule.run_at("report", NOON + HOUR)


@given(st.text(), st.integers(0, END), st.integers(0, 10**6))
def test_jitter_is_only_added(key: str, moment: int, jitter: int):
    """At most as much as asked for."""
    schedule = make_schedule("@daily", jitter=jitter)
    assert moment <= schedule.run_at(key, moment) <= moment + jitter * SECOND


def test_jitter_spreads():
    """Over all of the time."""
    schedule = make_schedule("@daily", jitter=100)
    found = [(schedule.run_at(f"key{n}", NOON) - NOON) / SECOND for n in range(1000)]
    assert all(60 < sum(low <= it < low + 10 for it in found) < 140 for low in range(0, 100, 10))


# Made and shown.


def test_a_schedule_takes_a_rule_or_its_text():
    """With defaults that suit most."""
    assert make_schedule("cron: 0 3 * * *") == make_schedule(cron("0 3 * * *")) == Schedule(cron("0 3 * * *"))
    assert make_schedule("@daily").misfire is Misfire.ONCE
    assert make_schedule("@daily").overlap is Overlap.ALLOW
    assert make_schedule("@daily", overlap="queue").overlap is Overlap.QUEUE


def test_in_words():
    """The rule, then what bounds it."""
    assert make_schedule("0 3 * * *", zone="Europe/Berlin").describe() == "every day at 03:00 (Europe/Berlin)"
    bounded = make_schedule(
        monthly(datetime(2026, 1, 31, 9)), start=datetime(2026, 2, 1), end=datetime(2027, 1, 1), repeats=1
    )
    assert bounded.describe() == (
        "every month on day 31 or the last one at 09:00 (UTC), "
        "not before 2026-02-01 00:00, until 2027-01-01 00:00, 1 more time"
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rule": "0 0 30 2 *"}, "none of its months has such a day"),
        ({"rule": 5}, "made by cron"),
        ({"zone": "Mars/Base"}, "There is no time zone 'Mars/Base'"),
        ({"start": "today"}, "start takes a datetime"),
        ({"end": 5}, "end takes a datetime"),
        ({"start": datetime(2026, 2, 1), "end": datetime(2026, 1, 1)}, "no moment between start and end"),
        ({"start": datetime(2026, 1, 1, 4), "end": datetime(2026, 1, 1, 5)}, "no moment between start and end"),
        ({"rule": once(datetime(2026, 1, 1)), "start": datetime(2026, 2, 1)}, "no moment between start and end"),
        ({"repeats": -2}, "repeats must be a whole number"),
        ({"repeats": True}, "repeats must be a whole number"),
        ({"repeats": 1.0}, "repeats must be a whole number"),
        ({"jitter": -1}, "jitter must be a timedelta or a number of seconds"),
        ({"jitter": float("nan")}, "jitter must be a timedelta"),
        ({"grace": "an hour"}, "grace must be a timedelta"),
        ({"misfire": "never"}, "misfire must be one of skip, once, all, not 'never'"),
        ({"overlap": None}, "overlap must be one of allow, skip, queue"),
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused(changes: dict[str, Any], message: str):
    """Where it is made."""
    with pytest.raises(ConfigError, match=message):
        make_schedule(**{"rule": "0 3 * * *"} | changes)
