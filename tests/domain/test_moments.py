"""The rules of schedules other than cron, and the texts of all."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packhorse.clock import SECOND, to_datetime, to_microseconds
from packhorse.crontab import cron
from packhorse.errors import ConfigError
from packhorse.moments import (
    Calendar,
    Kind,
    Rule,
    bimonthly,
    biweekly,
    daily,
    every,
    hourly,
    minutes,
    monthly,
    once,
    parse_rule,
    quarterly,
    weekly,
    yearly,
)

BERLIN = ZoneInfo("Europe/Berlin")
NEW_YEAR = datetime(2026, 1, 1)

KINDS = [daily, weekly, biweekly, monthly, bimonthly, quarterly, yearly]


def walls(rule: Rule, after: datetime, count: int, zone: ZoneInfo = BERLIN) -> list[str]:
    moment, found = to_microseconds(after.replace(tzinfo=zone)), []
    for _ in range(count):
        following = rule.next_after(moment, zone)
        if following is None:
            break
        assert following > moment
        moment = following
        found.append(f"{to_datetime(moment).astimezone(zone):%Y-%m-%d %H:%M}")
    return found


# Elapsed time.


def test_an_interval_is_counted_from_its_anchor():
    """The anchor is the first moment; nothing comes before it."""
    rule = every(timedelta(minutes=40), NEW_YEAR)
    assert walls(rule, datetime(2025, 6, 1), 3) == ["2026-01-01 00:00", "2026-01-01 00:40", "2026-01-01 01:20"]
    assert walls(rule, datetime(2026, 1, 1, 0, 39), 1) == ["2026-01-01 00:40"]


def test_without_an_anchor_all_processes_agree():
    """Moments are counted from 1970 on, not from a start."""
    assert walls(every(600), datetime(2026, 1, 1, 9, 3), 2) == ["2026-01-01 09:10", "2026-01-01 09:20"]


def test_an_interval_does_not_care_for_clocks():
    """A day of 24 hours, when the wall clock has one of 23."""
    rule = every(timedelta(hours=24), datetime(2026, 3, 28, 12))
    assert walls(rule, datetime(2026, 3, 28), 2) == ["2026-03-28 12:00", "2026-03-29 13:00"]


def test_minutes_and_hours_are_intervals():
    """So they have no text of their own."""
    assert minutes(5) == every(300)
    assert hourly(NEW_YEAR) == every(3600, NEW_YEAR)


@given(st.integers(SECOND, 10**13), st.integers(0, 2**52), st.datetimes(datetime(1970, 1, 2), datetime(2100, 1, 1)))
def test_the_next_interval_is_at_most_one_away(length: int, moment: int, anchor: datetime):
    """And a whole number of them behind the anchor."""
    start = to_microseconds(anchor.replace(tzinfo=UTC))
    found = every(timedelta(microseconds=length), anchor.replace(tzinfo=UTC)).next_after(moment, BERLIN)
    assert found is not None
    assert (found - start) % length == 0
    assert found == start if moment < start else moment < found <= moment + length


# The calendar.


def test_the_day_of_the_anchor_is_kept():
    """A short month has its last day; the next one has the day of the anchor again."""
    assert walls(monthly(datetime(2027, 12, 31, 9)), datetime(2027, 12, 1), 5) == [
        "2027-12-31 09:00",
        "2028-01-31 09:00",
        "2028-02-29 09:00",
        "2028-03-31 09:00",
        "2028-04-30 09:00",
    ]


def test_a_leap_day_comes_back():
    """In other years it is the day before March."""
    found = walls(yearly(datetime(2024, 2, 29)), datetime(2024, 3, 1), 4)
    assert [day[:10] for day in found] == ["2025-02-28", "2026-02-28", "2027-02-28", "2028-02-29"]


@pytest.mark.parametrize(
    ("make", "second"),
    [
        (daily, "2026-01-02"),
        (weekly, "2026-01-08"),
        (biweekly, "2026-01-15"),
        (monthly, "2026-02-01"),
        (bimonthly, "2026-03-01"),
        (quarterly, "2026-04-01"),
        (yearly, "2027-01-01"),
    ],
)
def test_each_kind_has_its_step(make: Any, second: str):
    """From the anchor, which is the first moment."""
    assert walls(make(NEW_YEAR), datetime(2025, 12, 31), 2) == ["2026-01-01 00:00", f"{second} 00:00"]


def test_the_wall_clock_is_kept():
    """Through gaps and repeated hours, as with cron."""
    found = walls(daily(datetime(2026, 1, 1, 2, 30)), datetime(2026, 3, 28), 3)
    assert found == ["2026-03-28 02:30", "2026-03-29 03:00", "2026-03-30 02:30"]
    found = walls(weekly(datetime(2026, 10, 18, 2, 30)), datetime(2026, 10, 18, 3), 2)
    assert found == ["2026-10-25 02:30", "2026-11-01 02:30"]


def test_an_anchor_with_a_zone_is_a_moment():
    """Its wall time is that in the zone of the schedule."""
    rule = monthly(datetime(2026, 1, 31, 23, 30, tzinfo=UTC))
    assert walls(rule, datetime(2026, 1, 1), 2) == ["2026-02-01 00:30", "2026-03-01 00:30"]


@pytest.mark.parametrize(
    "zone", ["Europe/Berlin", "America/Havana", "Australia/Lord_Howe", "Pacific/Apia", "Asia/Beirut"]
)
@given(st.datetimes(datetime(2000, 1, 1), datetime(2030, 1, 1)), st.integers(0, 3 * 10**15 // SECOND))
def test_named_kinds_and_cron_agree(zone: str, anchor: datetime, later: int):
    """Every day, every week and every month, wherever cron can say the same."""
    anchor = anchor.replace(second=0, microsecond=0, day=min(28, anchor.day))
    place, time = ZoneInfo(zone), f"{anchor.minute} {anchor.hour}"
    moment = to_microseconds(anchor.replace(tzinfo=place)) + later * SECOND
    for rule, expression in (
        (daily(anchor), f"{time} * * *"),
        (weekly(anchor), f"{time} * * {anchor.isoweekday()}"),
        (monthly(anchor), f"{time} {anchor.day} * *"),
        (yearly(anchor), f"{time} {anchor.day} {anchor.month} *"),
    ):
        assert rule.next_after(moment, place) == cron(expression).next_after(moment, place)


@given(
    st.sampled_from(KINDS),
    st.datetimes(datetime(1971, 1, 1), datetime(2090, 1, 1)),
    st.integers(0, 4 * 10**15),
    st.sampled_from(["UTC", "Europe/Berlin", "Pacific/Apia", "Antarctica/Troll"]),
)
def test_the_next_moment_is_later_and_none_is_left_out(make: Any, anchor: datetime, moment: int, zone: str):
    """Right before it, it is still the next."""
    rule, place = make(anchor), ZoneInfo(zone)
    found = rule.next_after(moment, place)
    assert found > moment
    assert rule.next_after(found - 1, place) == found


# Once.


def test_once_is_once():
    """A wall time that is skipped comes behind the gap, as elsewhere."""
    assert walls(once(datetime(2026, 3, 29, 2, 30)), NEW_YEAR, 5) == ["2026-03-29 03:00"]
    assert once(NEW_YEAR).next_after(to_microseconds(datetime(2026, 1, 1, tzinfo=BERLIN)), BERLIN) is None


# Texts.


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (cron("0  3 * * mon"), "cron: 0 3 * * MON"),
        (cron("@daily"), "cron: 0 0 * * *"),
        (every(90), "every 90s"),
        (every(timedelta(seconds=1.5), NEW_YEAR), "every 1.5s from 2026-01-01T00:00:00"),
        (
            every(60, datetime(2026, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))),
            "every 60s from 2026-01-01T00:00:00Z",
        ),
        (once(datetime(2026, 1, 1, 9, 30, 5)), "once at 2026-01-01T09:30:05"),
        (biweekly(NEW_YEAR), "biweekly from 2026-01-01T00:00:00"),
        (monthly(datetime(2026, 1, 31, tzinfo=UTC)), "monthly from 2026-01-31T00:00:00Z"),
    ],
)
def test_a_rule_has_one_text(rule: Rule, text: str):
    """Which reads back as the rule."""
    assert str(rule) == text
    assert parse_rule(text) == rule


TIMES = st.datetimes(datetime(1971, 1, 1), datetime(8990, 1, 1), timezones=st.one_of(st.none(), st.timezones()))


@given(
    TIMES.map(once)
    | st.builds(
        lambda length, at: every(timedelta(microseconds=length), at), st.integers(SECOND, 10**15), st.none() | TIMES
    )
    | st.builds(lambda make, at: make(at), st.sampled_from(KINDS), TIMES)
    | st.sampled_from(["0 3 * * *", "*/5 * * * * *", "0 0 L * *", "0 0 * * fri#2"]).map(cron)
)
def test_every_rule_reads_back(rule: Rule):
    """Also with a zone in its time, which becomes UTC."""
    assert parse_rule(str(rule)) == rule
    assert parse_rule(f"  {rule} ") == rule
    assert str(parse_rule(str(rule))) == str(rule)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("*/5 * * * *", cron("*/5 * * * *")),
        ("@hourly", cron("@hourly")),
        ("cron:@daily", cron("@daily")),
        ("every 15m", every(900)),
        ("every 1.5h", every(5400)),
        ("every 999999999999h", every(timedelta(days=36500))),
        ("daily from 2026-01-01", daily(NEW_YEAR)),
        ("once at 2026-01-01 09:00+01:00", once(datetime(2026, 1, 1, 8, tzinfo=UTC))),
    ],
)
def test_people_may_write_shorter(text: str, rule: Rule):
    """Or with a space where the text has a T."""
    assert parse_rule(text) == rule


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("montly from 2026-01-01", "is no rule of a schedule. Write one like 'cron: 0 3"),
        ("", "has 0 fields"),
        ("every", "is no rule"),
        ("every 5 parsecs", "is no rule"),
        ("every ٣s", "is no rule"),
        ("every 0.5s", "at least one second"),
        ("once at noon", "'noon' is no time. Write it like 2026-01-31T09:00"),
        ("once at 1066-10-14T09:00", "between the years 1970 and 9000"),
        ("weekly from", "is no rule"),
        ("weekly from 2026-13-01T00:00", "is no time"),
        ("cron: 0 0 30 2 *", "none of its months has such a day"),
        (None, "made by cron"),
        (timedelta(minutes=5), "made by cron"),
    ],
)
def test_a_text_that_is_no_rule_is_refused(text: Any, message: str):
    """With what could be meant."""
    with pytest.raises(ConfigError, match=message):
        parse_rule(text)


@given(
    st.text(max_size=40) | st.from_regex(r"(every|once at|monthly from|cron:) [-0-9TZ:.smh+ ]{0,20}", fullmatch=True)
)
def test_any_text_is_a_rule_or_a_clear_error(text: str):
    """Rows of a store may hold anything."""
    try:
        rule = parse_rule(text)
    except ConfigError:
        return
    assert parse_rule(str(rule)) == rule


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: every(0), "at least one second"),
        (lambda: every(0.999), "at least one second"),
        (lambda: every(float("nan")), "at least one second"),
        (lambda: every(float("inf")), "at least one second"),
        (lambda: every(True), "at least one second"),
        (lambda: every("5m"), "at least one second"),  # type: ignore[arg-type]
        (lambda: every(60, anchor="now"), "anchor takes a datetime"),  # type: ignore[arg-type]
        (lambda: minutes(0), "whole number from 1 on"),
        (lambda: minutes(1.5), "whole number from 1 on"),  # type: ignore[arg-type]
        (lambda: once(None), "at takes a datetime"),  # type: ignore[arg-type]
        (lambda: once(NEW_YEAR.date()), "at takes a datetime"),  # type: ignore[arg-type]
        (lambda: daily(datetime(9000, 1, 1)), "between the years 1970 and 9000"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(make: Any, message: str):
    """Where it is made."""
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (every(90), "every 90 seconds"),
        (every(1), "every second"),
        (every(1.25), "every 1.25 seconds"),
        (minutes(5), "every 5 minutes"),
        (hourly(), "every hour"),
        (every(timedelta(days=1), NEW_YEAR), "every 24 hours from 2026-01-01 00:00 (Europe/Berlin)"),
        (once(datetime(2026, 3, 29, 2, 30)), "once at 2026-03-29 03:00 (Europe/Berlin)"),
        (daily(datetime(2026, 1, 1, 9, 0, 30)), "every day at 09:00:30 (Europe/Berlin)"),
        (weekly(NEW_YEAR), "every week on Thursday at 00:00 (Europe/Berlin)"),
        (biweekly(NEW_YEAR), "every second week on Thursday at 00:00 (Europe/Berlin)"),
        (monthly(NEW_YEAR), "every month on day 1 at 00:00 (Europe/Berlin)"),
        (quarterly(datetime(2026, 1, 31)), "every 3 months on day 31 or the last one at 00:00 (Europe/Berlin)"),
        (yearly(datetime(2026, 12, 31)), "every year on December 31 at 00:00 (Europe/Berlin)"),
        (yearly(datetime(2024, 2, 29)), "every year on February 29 or the last one at 00:00 (Europe/Berlin)"),
        (daily(datetime(2026, 1, 1, 8, tzinfo=UTC)), "every day at 09:00 (Europe/Berlin)"),
    ],
)
def test_in_words(rule: Rule, words: str):
    """For people who look at a list of schedules."""
    assert rule.words(BERLIN) == words


def test_every_kind_has_a_function():
    """And the texts of all are read."""
    assert {make(NEW_YEAR).kind for make in KINDS} == set(Kind)
    assert all(parse_rule(f"{kind} from 2026-01-01") == Calendar(kind, NEW_YEAR) for kind in Kind)
