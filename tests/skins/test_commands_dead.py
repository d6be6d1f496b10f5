"""`packhorse dead`: the jobs that failed for good."""

from pathlib import Path

import pytest

from packhorse import JobState, Packhorse
from packhorse.cli import acting
from packhorse.clock import SystemClock
from tests.skins.shops import Run, busy_shop, performed, told


@pytest.fixture
def app(shop: Path):
    app = busy_shop(shop)
    yield app
    app.close()


def test_dead_jobs_are_listed_with_their_errors(app: Packhorse, packhorse: Run):
    """And no others."""
    [paid] = performed(app, "pay", (5,))
    performed(app, "double", (1,))
    result = packhorse("dead", "list", "busy_shop")
    assert paid in result.output
    assert "ValueError: the till has no EUR 5" in result.output
    assert len(result.stdout.splitlines()) == 3
    assert [job["id"] for job in told(packhorse("dead", "list", "busy_shop", "--json"))["jobs"]] == [paid]


def test_nothing_dead_is_said_in_words(app: Packhorse, packhorse: Run):
    performed(app, "double", (1,))
    assert packhorse("dead", "list", "busy_shop").output == "No failed job matches.\n"


def test_errors_are_found_by_type_and_by_text(app: Packhorse, packhorse: Run):
    """In any case of letters; it says how many were looked at."""
    paid = performed(app, "pay", (5, "EUR"), (6, "USD"))
    [greeted] = performed(app, "greet", ("ann",))

    def found(text: str) -> list[str]:
        return [job["id"] for job in told(packhorse("dead", "list", "busy_shop", "--error", text, "--json"))["jobs"]]

    assert found("ValueError") == paid
    assert found("keyerror") == [greeted]
    assert found("usd 6") == [paid[1]]
    assert found("no such text") == []
    assert "Looked at 3 failed jobs." in packhorse("dead", "list", "busy_shop", "--error", "KeyError").stderr


def test_a_search_is_bounded_and_says_where_to_go_on(app: Packhorse, packhorse: Run):
    """By how many are looked at, and by how many are found."""
    paid = performed(app, "pay", *((number,) for number in range(30)))
    search = ("dead", "list", "busy_shop", "--json", "--error")
    first = told(packhorse(*search, "EUR 29", "--scan", "20"))
    assert first == {"jobs": [], "looked_at": 20, "after": paid[19]}
    then = told(packhorse(*search, "EUR 29", "--scan", "20", "--after", first["after"]))
    assert ([job["id"] for job in then["jobs"]], then["looked_at"], then["after"]) == ([paid[29]], 10, None)
    few = told(packhorse(*search, "ValueError", "--limit", "2"))
    assert ([job["id"] for job in few["jobs"]], few["after"]) == (paid[:2], paid[1])


def test_a_failure_that_cannot_be_verified_is_not_searched(app: Packhorse, packhorse: Run):
    """What it says may be a lie."""
    performed(app, "pay", (5,))
    found = told(packhorse("dead", "list", "--app-name", "another", "--error", "EUR", "--json"))
    assert (found["jobs"], found["looked_at"]) == ([], 1)


def test_only_failed_jobs_are_shown(app: Packhorse, packhorse: Run):
    [paid] = performed(app, "pay", (5,))
    [doubled] = performed(app, "double", (1,))
    shown = packhorse("dead", "show", paid, "--app", "busy_shop", "--arguments")
    assert "the till has no EUR 5" in shown.output
    assert '{"amount": 5}' in shown.output
    refused = packhorse("dead", "show", doubled, "--app", "busy_shop")
    assert refused.exit_code == 1
    assert "is succeeded, not failed" in refused.output


def test_a_replay_starts_with_fresh_attempts(app: Packhorse, packhorse: Run):
    """A few first, then all of one error; the others stay."""
    paid = performed(app, "pay", (1,), (2,), (3,))
    [greeted] = performed(app, "greet", ("ann",))
    replay = ("dead", "replay", "--app", "busy_shop")
    assert packhorse(*replay, paid[0]).output == "Replayed 1 job.\n"
    assert app.job(paid[0]).look().attempts == 0
    some = (*replay, "--error", "ValueError", "--all-matching")
    asked = packhorse(*some)
    assert asked.exit_code == 1
    assert "This would replay 2 jobs" in asked.output
    assert packhorse(*some, "--limit", "1", "--yes").stdout == "Replayed 1 job.\n"
    assert packhorse(*some, "--yes").stdout == "Replayed 1 job.\n"
    assert [job.id for job in app.inspection.jobs() if job.state is JobState.FAILED] == [greeted]


@pytest.mark.parametrize("error", [[], ["--error", "ValueError"], ["--limit", "3"]], ids=["all", "error", "limit"])
def test_a_clock_that_was_set_back_hides_nothing(
    app: Packhorse, packhorse: Run, monkeypatch: pytest.MonkeyPatch, error: list[str]
):
    """What is listed is acted upon, though it ended in the future."""
    real = app.clock.now
    with monkeypatch.context() as ahead:
        ahead.setattr(SystemClock, "now", lambda clock: real() + 600_000_000)
        performed(app, "pay", (1,), (2,), (3,))
    assert len(told(packhorse("dead", "list", "busy_shop", "--json"))["jobs"]) == 3
    replayed = packhorse("dead", "replay", "--app", "busy_shop", *error, "--all-matching", "--yes")
    assert (replayed.exit_code, replayed.stdout) == (0, "Replayed 3 jobs.\n")
    cancelled = packhorse("jobs", "cancel", "--app", "busy_shop", "--all-matching", "--yes")
    assert (cancelled.exit_code, cancelled.stdout) == (0, "Cancelled 3 jobs.\n")


@pytest.mark.parametrize("limit", [[], ["--limit", "9"]], ids=["all", "limit"])
def test_only_what_was_asked_about_is_purged(
    app: Packhorse, packhorse: Run, monkeypatch: pytest.MonkeyPatch, limit: list[str]
):
    """Neither what failed since, nor what was replayed since."""
    first, _ = performed(app, "pay", (1,), (2,))
    since: list[str] = []

    def slow_answer(what: str, *, yes: bool) -> None:
        assert what == "purge 2 jobs"
        since.extend(performed(app, "greet", ("ann",)))
        app.control.retry([first])

    monkeypatch.setattr(acting, "confirm", slow_answer)
    purged = packhorse("dead", "purge", "--app", "busy_shop", *limit, "--all-matching")
    assert (purged.exit_code, purged.stdout) == (0, "Purged 1 job.\n")
    assert "1 job changed meanwhile, and was left alone." in purged.stderr
    assert [job.id for job in app.inspection.jobs()] == [first, *since]


def test_a_purge_deletes_after_asking(app: Packhorse, packhorse: Run):
    """By id too; and only what failed."""
    paid = performed(app, "pay", (1,), (2,), (3,))
    [doubled] = performed(app, "double", (1,))
    purge = ("dead", "purge", "--app", "busy_shop")
    assert packhorse(*purge, paid[0]).exit_code == 1
    assert packhorse(*purge, paid[0], "--yes").output == "Purged 1 job.\n"
    assert packhorse(*purge, "--older-than", "1h", "--all-matching", "--yes").output == "Purged 0 jobs.\n"
    assert packhorse(*purge, "--all-matching", "--yes").output == "Purged 2 jobs.\n"
    refused = packhorse(*purge, doubled, "--yes")
    assert refused.exit_code == 1
    assert "is succeeded: it would have to be failed" in refused.output
    assert [job.id for job in app.inspection.jobs()] == [doubled]
