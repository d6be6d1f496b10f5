"""`packhorse limits`: looking at the keys of limits and rates, changing the numbers of limits."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from packhorse import Packhorse
from packhorse.clock import SECOND
from packhorse.ids import new_id
from packhorse.job import NewJob
from packhorse.limits import Hold, Pace, Rate, Terms, rate, written
from packhorse.queues import EVERYTHING
from packhorse.stores.contract import ProcessInfo
from tests.skins.shops import FORBIDDEN, HOSTILE, Run, busy_shop, told


@pytest.fixture
def app(shop: Path) -> Iterator[Packhorse]:
    """Two jobs print, and one waits for the printer."""
    app = busy_shop(shop)
    limited(app, "printer/", "printer/", "printer/", to=2)
    yield app
    app.close()


def limited(app: Packhorse, *keys: str, to: int) -> None:
    """One job for each key; those that find room run."""
    for key in keys:
        app.store.insert([NewJob(new_id(), "busy_shop.double", b"", "default", terms=Terms((Hold(key, to),)))])
    me = new_id()
    app.store.enroll(ProcessInfo(me, "worker", "here", 1, "*"), 60 * SECOND)
    app.store.exchange(me, 1, [], EVERYTHING, 100)


def views(app: Packhorse) -> list[tuple[str, int | None, int, int]]:
    return [(view.key, view.to, view.holders, view.waiting) for view in app.inspection.limits()]


def test_limits_are_listed_with_holders_and_waiting_jobs(app: Packhorse, packhorse: Run):
    """A number only where somebody set one."""
    app.control.set_limit("shop.night/", 0)
    output = packhorse("limits", "list", "busy_shop").output
    assert [line.split() for line in output.splitlines()[-2:]] == [
        ["printer/", "·", "2", "1"],
        ["shop.night/", "0", "·", "·"],
    ]
    assert told(packhorse("limits", "list", "--json")) == {
        "limits": [
            {"key": "printer/", "to": None, "holders": 2, "waiting": 1},
            {"key": "shop.night/", "to": 0, "holders": 0, "waiting": 0},
        ],
        "after": None,
    }


def test_limits_are_listed_page_by_page(app: Packhorse, packhorse: Run):
    """In the order of their keys."""
    limited(app, *(f"rooms/{number:03}" for number in range(130)), to=1)
    first = told(packhorse("limits", "list", "--limit", "120", "--json"))
    second = told(packhorse("limits", "list", "--limit", "120", "--after", first["after"], "--json"))
    keys = [view["key"] for page in (first, second) for view in page["limits"]]
    assert keys == ["printer/", *(f"rooms/{number:03}" for number in range(130))]
    assert (len(first["limits"]), second["after"]) == (120, None)
    result = packhorse("limits", "list", "--limit", "1")
    assert "There are more: --after 'printer/'" in result.stderr


def test_no_limits_are_no_table(shop: Path, packhorse: Run):
    app = busy_shop(shop)
    app.control.migrate()
    app.close()
    assert "No limit has holders" in packhorse("limits", "list").output


def test_a_number_is_set_and_taken_back(app: Packhorse, packhorse: Run):
    """And both are kept in the audit."""
    on = ("--app", "busy_shop", "--reason", "out of paper", "--actor", "ann")
    result = packhorse("limits", "set", "printer/", "1", *on)
    assert result.output == "Limit printer/ is 1 from now on; 2 jobs have their permit already.\n"
    app.store.promote(100)  # whoever waits is judged by the new number
    assert views(app) == [("printer/", 1, 2, 1)]
    assert packhorse("limits", "set", "printer/", "5", *on).output == "Limit printer/ is 5 from now on.\n"
    assert packhorse("limits", "reset", "printer/", *on).output == (
        "Limit printer/ is no longer 5: its tasks' number counts.\n"
    )
    assert packhorse("limits", "reset", "printer/").output == "Limit printer/ had no number set by hand.\n"
    assert [audit[1:4] for audit in app.inspection.audit()[1:]] == [("ann", "set_limit", "out of paper")] * 3


def test_scripts_get_the_number_and_the_one_before(app: Packhorse, packhorse: Run):
    """None where the tasks' own counts."""
    assert told(packhorse("limits", "set", "printer/", "7", "--json")) == {"key": "printer/", "to": 7, "was": None}
    assert told(packhorse("limits", "reset", "printer/", "--json")) == {"key": "printer/", "to": None, "was": 7}


def test_a_key_without_jobs_may_be_a_slip(app: Packhorse, packhorse: Run):
    """Its number is set all the same: its jobs may be on their way."""
    result = packhorse("limits", "set", "pritner/", "0")
    assert result.exit_code == 0
    assert "Limit pritner/ has no jobs now. Is the key right?" in result.stderr
    assert ("pritner/", 0, 0, 0) in views(app)


@pytest.mark.parametrize(
    ("args", "status", "message"),
    [
        (["set", "printer", "0"], 1, "Did you mean 'printer/'?"),
        (["set", "a printer/", "0"], 1, "cannot be a group"),
        (["set", f"printer/{'x' * 200}", "0"], 1, "at most 200 letters"),
        (["set", f"printer/{HOSTILE}", "0"], 1, "cannot be a limit key"),
        (["set", "printer/\udcff", "0"], 1, "cannot be a limit key"),
        (["set", "printer/", "--", "-1"], 2, "0<=x<=100000"),
        (["set", "printer/", "many"], 2, "'many' is not a valid integer"),
        (["set", "printer/"], 2, "Missing argument"),
        (["reset"], 2, "Missing argument"),
        (["reset", "printer"], 1, "Did you mean 'printer/'?"),
    ],
)
def test_a_wrong_word_is_explained(app: Packhorse, packhorse: Run, args: list[str], status: int, message: str):
    """And no number is changed."""
    result = packhorse("limits", *args)
    assert result.exit_code == status, result.output
    assert message in result.output
    assert not set(result.output) & set(FORBIDDEN)
    assert app.store.audit() == []


@pytest.mark.parametrize("key", ["printer/", "printer/x", "printer/0", "printer-b/", "printerb/1", "printe/r"])
def test_one_limit_is_found_among_its_neighbours(app: Packhorse, key: str):
    """Also where others begin with it, or come right before it."""
    others = ["printer-b/", "printer./", "printer/.", "printer/0", "printer/0/", "printer/\u00ff", "printer0/", "z/"]
    for number, other in enumerate(others):
        app.control.set_limit(other, number)
    found = app.inspection.limit(key)
    assert found.key == key
    assert found.to == (others.index(key) if key in others else None)
    assert (found.holders, found.waiting) == ((2, 1) if key == "printer/" else (0, 0))


# Rates.

MINUTE = 60 * SECOND


def rated(app: Packhorse, key: str, tokens: int, period: int, *, burst: int = 1, jobs: int = 1) -> None:
    """So many jobs of a rate; those that find a token run."""
    terms = Terms(paces=(Pace(key, tokens, period, burst),))
    app.store.insert([NewJob(new_id(), "busy_shop.double", b"", "default", terms=terms) for _ in range(jobs)])
    me = new_id()
    app.store.enroll(ProcessInfo(me, "worker", "here", 1, "*"), 60 * SECOND)
    app.store.exchange(me, 1, [], EVERYTHING, 100)


def test_rates_are_listed_with_the_next_token_and_who_waits(app: Packhorse, packhorse: Run):
    """In the words in which a rate is written."""
    rated(app, "api/", 1, 120 * MINUTE, jobs=3)
    rated(app, "mail/ann", 600, MINUTE, burst=50)
    output = packhorse("limits", "rates", "busy_shop").output
    assert [line.split() for line in output.splitlines()[-2:]] == [
        ["api/", "1/2h,", "burst", "1", "in", "119m", "2"],
        ["mail/ann", "600/min,", "burst", "50", "now", "·"],
    ]
    found = told(packhorse("limits", "rates", "--json"))
    assert 7_000 < found["rates"][0].pop("opens_in") <= 7_200
    assert found == {
        "rates": [
            {"key": "api/", "rate": "1/2h", "burst": 1, "waiting": 2},
            {"key": "mail/ann", "rate": "600/min", "burst": 50, "opens_in": 0, "waiting": 0},
        ],
        "after": None,
    }


def test_rates_are_listed_page_by_page(app: Packhorse, packhorse: Run):
    """In the order of their keys."""
    for number in range(5):
        rated(app, f"api/{number}", 1, MINUTE)
    first = told(packhorse("limits", "rates", "--limit", "3", "--json"))
    second = told(packhorse("limits", "rates", "--limit", "3", "--after", first["after"], "--json"))
    assert [view["key"] for page in (first, second) for view in page["rates"]] == [f"api/{n}" for n in range(5)]
    assert (len(first["rates"]), second["after"]) == (3, None)
    assert "There are more: --after 'api/0'" in packhorse("limits", "rates", "--limit", "1").stderr


def test_no_rates_are_no_table(app: Packhorse, packhorse: Run):
    assert packhorse("limits", "rates").output == "No rate was used of late, and nobody waits for one.\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("5/s", "5/s"),
        ("100 / min", "100/min"),
        ("60/60s", "60/min"),
        ("1/90 seconds", "1/90s"),
        ("1000/2h", "1000/2h"),
        ("7/48 hours", "7/2d"),
        ("10/day", "10/d"),
    ],
)
def test_a_rate_is_written_as_it_is_read(text: str, words: str):
    """In the largest unit that fits."""
    made: Rate = rate(text)
    assert written(made) == words
    assert rate(words) == made
