"""Cron expressions, and wall clocks that are changed. `test_clock_changes` has all changes of all zones."""

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packhorse.clock import SECOND, to_datetime, to_microseconds
from packhorse.crontab import WORDS, cron
from packhorse.errors import ConfigError
from packhorse.zones import zone_named

BERLIN = ZoneInfo("Europe/Berlin")


def moments(expression: str, after: str, zone: str, count: int) -> list[str]:
    """On the wall clock of the zone, with its offset."""
    rule, place = cron(expression), ZoneInfo(zone)
    moment, found = to_microseconds(datetime.fromisoformat(after).replace(tzinfo=place)), []
    for _ in range(count):
        following = rule.next_after(moment, place)
        assert following is not None
        assert following > moment
        moment = following
        found.append(f"{to_datetime(moment).astimezone(place):%m-%d %H:%M:%S%z}".removesuffix("00"))
    return found


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("0 3 * * *", ["01-31 03:00:00+00", "02-01 03:00:00+00"]),
        ("15 0 3 * * *", ["01-31 03:00:15+00", "02-01 03:00:15+00"]),
        ("*/20 * * * * *", ["01-31 00:00:20+00", "01-31 00:00:40+00"]),
        ("0 0 L * *", ["02-28 00:00:00+00", "03-31 00:00:00+00"]),
        ("0 0 LW * *", ["02-27 00:00:00+00", "03-31 00:00:00+00"]),
        ("0 0 * * FRI#2", ["02-13 00:00:00+00", "03-13 00:00:00+00"]),
        ("0 0 * * 5L", ["02-27 00:00:00+00", "03-27 00:00:00+00"]),
        ("0 0 13 * 5", ["02-06 00:00:00+00", "02-13 00:00:00+00"]),
        ("@hourly", ["01-31 01:00:00+00", "01-31 02:00:00+00"]),
        ("@daily", ["02-01 00:00:00+00", "02-02 00:00:00+00"]),
        ("@midnight", ["02-01 00:00:00+00", "02-02 00:00:00+00"]),
        ("@weekly", ["02-01 00:00:00+00", "02-08 00:00:00+00"]),
        ("@MONTHLY", ["02-01 00:00:00+00", "03-01 00:00:00+00"]),
        ("@yearly", ["01-01 00:00:00+00", "01-01 00:00:00+00"]),
        ("@annually", ["01-01 00:00:00+00", "01-01 00:00:00+00"]),
    ],
)
def test_expressions(expression: str, expected: list[str]):
    """Five fields, six with seconds in front, words, the last day, weekdays by number."""
    assert moments(expression, "2026-01-31T00:00", "UTC", 2) == expected


@pytest.mark.parametrize(
    ("zone", "before", "expression", "expected"),
    [
        # Skipped: once, right behind the gap.
        ("Europe/Berlin", "2026-03-28T12:00", "30 2 * * *", ["03-29 03:00:00+02", "03-30 02:30:00+02"]),
        ("Europe/Berlin", "2026-03-28T12:00", "15 30 2 * * *", ["03-29 03:00:00+02", "03-30 02:30:15+02"]),
        ("Europe/Berlin", "2026-03-28T12:00", "0,30 2,3 * * *", ["03-29 03:00:00+02", "03-29 03:30:00+02"]),
        ("America/Sao_Paulo", "2017-10-14T12:00", "@daily", ["10-15 01:00:00-02", "10-16 00:00:00-02"]),
        ("Pacific/Apia", "2011-12-29T13:00", "0 12 * * *", ["12-31 00:00:00+14", "12-31 12:00:00+14"]),
        # Shown twice: the first time only.
        ("Europe/Berlin", "2026-10-24T12:00", "30 2 * * *", ["10-25 02:30:00+02", "10-26 02:30:00+01"]),
        ("Europe/Berlin", "2026-10-24T12:00", "0 30 2 * * *", ["10-25 02:30:00+02", "10-26 02:30:00+01"]),
        # With a star: whenever the clock matches.
        ("Europe/Berlin", "2026-03-29T01:30", "*/30 2,3 * * *", ["03-29 03:00:00+02", "03-29 03:30:00+02"]),
        ("Europe/Berlin", "2026-03-29T00:30", "0 */2 * * *", ["03-29 04:00:00+02", "03-29 06:00:00+02"]),
        (
            "Europe/Berlin",
            "2026-10-25T01:30",
            "@hourly",
            ["10-25 02:00:00+02", "10-25 02:00:00+01", "10-25 03:00:00+01"],
        ),
        ("Europe/Berlin", "2026-10-22T12:00", "*/40 2 * * 0", ["10-25 02:00:00+02", "10-25 02:40:00+02"]),
        ("Australia/Lord_Howe", "2026-04-05T01:40", "*/20 * * * *", ["04-05 01:40:00+1030", "04-05 02:00:00+1030"]),
    ],
)
def test_changes_of_clocks(zone: str, before: str, expression: str, expected: list[str]):
    """A named time comes once, come what may; a star means every match."""
    assert moments(expression, before, zone, len(expected)) == expected


def test_within_a_repeated_hour_nothing_lies_behind():
    """What the clock shows for the second time has had its turn, and is not given as a next moment in the past."""
    second_time = datetime(2026, 10, 25, 2, 15, fold=1, tzinfo=BERLIN)
    found = cron("30 2 * * *").next_after(to_microseconds(second_time), BERLIN)
    assert found == to_microseconds(datetime(2026, 10, 26, 2, 30, tzinfo=BERLIN))


@pytest.mark.parametrize("expression", ["*/7 */5 2 * * *", "5,35 */10 * * * *", "10 20 2 * * *", "30-40 59 1,2 * * *"])
@pytest.mark.parametrize("change", [datetime(2026, 3, 29, 1, tzinfo=UTC), datetime(2026, 10, 25, 1, tzinfo=UTC)])
def test_seconds_through_a_change(expression: str, change: datetime):
    """The same as with minutes: somebody watches the clock, second by second."""
    start, rule = change - timedelta(hours=2), cron(expression)
    parts = expression.split()
    wanted = [_values(part, top) for part, top in zip(parts[:3], (60, 60, 24), strict=True)]
    expected, seen = [], (start - timedelta(seconds=1)).astimezone(BERLIN).replace(tzinfo=None)
    for n in range(4 * 3600):
        now = start + timedelta(seconds=n)
        wall = now.astimezone(BERLIN).replace(tzinfo=None, fold=0)
        new = (
            [wall] if "*" in expression[:-6] else [seen + timedelta(seconds=s + 1) for s in range(_between(seen, wall))]
        )
        if any([it.second in wanted[0], it.minute in wanted[1], it.hour in wanted[2]] == [True] * 3 for it in new):
            expected.append(to_microseconds(now))
        seen = max(seen, wall)
    found, moment = [], to_microseconds(start) - 1
    while (moment := rule.next_after(moment, BERLIN) or 0) < to_microseconds(start + timedelta(hours=4)):
        found.append(moment)
    assert found == expected


def _between(earlier: datetime, later: datetime) -> int:
    return max(0, (later - earlier) // timedelta(seconds=1))


def _values(field: str, top: int) -> set[int]:
    if field.startswith("*"):
        return set(range(0, top, int(field[2:] or 1)))
    spans = (part.split("-") for part in field.split(","))
    return {n for span in spans for n in range(int(span[0]), int(span[-1]) + 1)}


@given(
    st.integers(0, 4 * 10**9), st.integers(0, SECOND - 1), st.sampled_from(["* * * * *", "30 2 * * *", "*/7 * * * * *"])
)
def test_the_next_moment_is_later_and_stays_the_next_until_then(second: int, rest: int, expression: str):
    """Whatever part of a second one asks at, and every time one asks."""
    rule, moment = cron(expression), second * SECOND + rest
    found = rule.next_after(moment, BERLIN)
    assert found is not None
    assert found > moment
    assert found % SECOND == 0
    assert rule.next_after(found - 1, BERLIN) == found
    assert rule.next_after((moment + found) // 2, BERLIN) == found or (moment + found) // 2 == found


def test_what_lies_in_gaps_only_is_not_looked_for_until_the_end_of_days():
    """In Beirut the first hour of the last Sunday of March is skipped every year."""
    assert (
        cron("*/5 0 * 3 0L").next_after(to_microseconds(datetime(2030, 1, 1, tzinfo=UTC)), ZoneInfo("Asia/Beirut"))
        is None
    )


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("0 3 * * *", "every day at 03:00 (Europe/Berlin)"),
        ("0 9 * * 1-5", "on Monday through Friday at 09:00 (Europe/Berlin)"),
        ("30 0 3 * * *", "every day at 03:00:30 (Europe/Berlin)"),
        ("@hourly", "at the start of every hour (Europe/Berlin)"),
        ("0 0 L * *", "on the last day of every month at 00:00 (Europe/Berlin)"),
    ],
)
def test_in_words(expression: str, words: str):
    """The day, then the time, then the zone."""
    assert cron(expression).words(BERLIN) == words


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("0 3 * *", "has 4 fields, but it takes five .* or six with seconds in front"),
        ("7", "has 1 field, but"),
        ("", "has 0 fields, but"),
        ("0 0 3 * * * 2026", "has 7 fields, and there is none for years: leave it out, and give the schedule a start"),
        ("* * * * * * * *", "has 8 fields, but"),
        ("60 * * * *", "its minute is not right"),
        ("60 * * * * *", "its second is not right"),
        ("* 24 * * *", "its hour is not right"),
        ("* * 32 * *", "its day-of-month is not right"),
        ("* * * FOO *", "its month is not right"),
        ("* * 31 13 *", "its month is not right"),
        ("* * * * 8", "its day-of-week is not right"),
        ("* * * * FRI#6", "its day-of-week is not right"),
        ("0 0 ? * *", "write \\* where other tools take a question mark"),
        ("0 0 30 2 *", "none of its months has such a day"),
        ("0 0 31 4,6,9,11 *", "none of its months has such a day"),
        ("0 0 LW * */7", "no day is ever like this"),
        ("@reboot", "There is no cron word '@reboot'. Use one of @hourly, @daily"),
        ("9" * 201, "of at most 200 characters"),
        (None, "is a text like '0 3 \\* \\* \\*'"),
        (5, "is a text like"),
    ],
)
def test_an_expression_that_makes_no_sense_is_refused(expression: Any, message: str):
    """At declaration, with a word on what to do."""
    with pytest.raises(ConfigError, match=message):
        cron(expression)


def test_rare_days_are_not_refused():
    """A leap day, and five Mondays in February."""
    assert moments("0 0 29 2 *", "2026-01-01T00:00", "UTC", 1) == ["02-29 00:00:00+00"]
    assert moments("0 0 * 2 MON#5", "2026-01-01T00:00", "UTC", 1) == ["02-29 00:00:00+00"]


@given(st.text("0123456789*/,-#LW@ JANMOFRISU\n¹٣", max_size=30) | st.text(max_size=30))
def test_any_text_is_a_cron_expression_or_a_clear_error(text: str):
    """And what is one can be said in words, and gives the same rule again."""
    try:
        rule = cron(text)
    except ConfigError:
        return
    assert rule.words(BERLIN)
    assert cron(rule.expression) == rule


def test_words_are_short_for_expressions():
    """So a rule has one text only."""
    assert {word: str(cron(word)) for word in WORDS} == {word: f"cron: {text}" for word, text in WORDS.items()}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Europe/Berln", "no time zone 'Europe/Berln'. Did you mean Europe/Berlin"),
        ("europe/berlin", "Did you mean Europe/Berlin\\?"),
        ("Berlin", "Did you mean Europe/Berlin\\?"),
        ("New York", "Did you mean America/New_York\\?"),
        ("", "Give a name like Europe/Berlin, or UTC"),
        ("../../etc/passwd", "There is no time zone"),
        ("/etc/localtime", "There is no time zone"),
        ("localtime", "There is no time zone"),
        ("Europe", "There is no time zone"),
        ("x" * 5000, "There is no time zone"),
        ("\0", "There is no time zone"),
        (None, "There is no time zone None"),
        (["UTC"], "There is no time zone"),
    ],
)
def test_an_unknown_zone_is_refused(name: Any, message: str):
    """With the nearest one, if there is one."""
    with pytest.raises(ConfigError, match=message):
        zone_named(name)


def test_a_machine_without_zones_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch):
    """As Windows is, unless tzdata is there."""
    monkeypatch.setattr("zoneinfo.available_timezones", set)
    with pytest.raises(ConfigError, match="pip install tzdata"):
        zone_named("Europe/Atlantis")
