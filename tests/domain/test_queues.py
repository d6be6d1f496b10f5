"""Queue names and lists of queues."""

from typing import Any

import pytest

from packhorse.errors import ConfigError
from packhorse.queues import EVERYTHING, Entry, check_name, parse_queues


def test_a_list_keeps_its_order():
    """Names, prefixes and the lone star, as a text or as a list; repeated entries count once."""
    expected = (Entry("mail", False), Entry("report", True), Entry("", True))
    assert parse_queues("mail, report*,,mail,*") == expected
    assert parse_queues(["mail", "report*", "*"]) == expected
    assert ",".join(map(str, expected)) == "mail,report*,*"
    assert parse_queues("*") == EVERYTHING


def test_an_entry_matches_its_queue_or_its_prefix():
    """A star stands for anything, also for nothing."""
    mail, reports = parse_queues("mail,report*")
    assert [mail.matches(queue) for queue in ("mail", "mail2", "mai")] == [True, False, False]
    assert [reports.matches(queue) for queue in ("report", "reports.daily", "repo")] == [True, True, False]


@pytest.mark.parametrize("entry", ["*mail", "ma*il", "mail**", "*mail*"])
def test_a_star_elsewhere_is_warned_of_and_ignored(entry: str):
    """The other entries are served all the same."""
    with pytest.warns(UserWarning, match=r"is ignored: a star may only stand at its end"):
        assert parse_queues(f"{entry},default") == (Entry("default", False),)


@pytest.mark.parametrize("queues", ["", " , ", []])
def test_no_queue_at_all_is_refused(queues: Any):
    """A worker without a queue would wait for ever."""
    with pytest.raises(ConfigError, match="No queue is left to serve"):
        parse_queues(queues)


def test_a_list_of_ignored_entries_is_refused_too():
    """After the warning nothing is left."""
    with pytest.warns(UserWarning, match="is ignored"), pytest.raises(ConfigError, match="No queue is left"):
        parse_queues("a*b")


@pytest.mark.parametrize("name", ["", "a b", "a*", "ü", "x" * 129, "a\n", None, 7])
def test_a_name_of_other_signs_is_refused(name: Any):
    """The message says what a name may hold."""
    with pytest.raises(ConfigError, match="cannot be a queue name: use 1 to 128 letters, digits"):
        check_name(name, "queue name")


@pytest.mark.parametrize("name", ["a", "A-z_0.9:x", "x" * 128])
def test_a_good_name_is_taken_as_it_is(name: str):
    """Names are not folded or trimmed."""
    assert check_name(name, "queue name") == name
