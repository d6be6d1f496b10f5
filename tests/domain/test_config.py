"""Settings are checked where they are made."""

from typing import Any

import pytest

from packhorse import Packhorse
from packhorse.clock import SECOND
from packhorse.config import Settings
from packhorse.errors import ConfigError, StoreURLError


@pytest.mark.parametrize(("name", "near"), [("heart_beat", "heartbeat"), ("keep_success", "keep_succeeded")])
def test_an_unknown_setting_names_the_nearest(name: str, near: str):
    """A typing error is met at once, with the cure."""
    with pytest.raises(ConfigError, match=f"There is no setting '{name}'. Did you mean '{near}'?"):
        Settings.of(**{name: 1})
    with pytest.raises(ConfigError, match="Did you mean 'heartbeat'"):
        Packhorse("shop", "memory://", heartbeats=1)


def test_a_setting_like_no_other_lists_the_known_ones():
    """Where nothing is near, all are named."""
    with pytest.raises(ConfigError, match=r"Known settings: heartbeat, lease, .*priority_order"):
        Settings.of(zzz=1)


def test_a_lease_must_outlast_four_beats():
    """One late beat must not cost a living process its jobs."""
    assert Settings(heartbeat=5, lease=20).lease == 20
    with pytest.raises(ConfigError, match=r"lease=19 is too short for heartbeat=5.*Use lease=20 or more"):
        Settings(heartbeat=5, lease=19)


@pytest.mark.parametrize(
    "given",
    [
        {"heartbeat": 0},
        {"heartbeat": -1},
        {"heartbeat": "5"},
        {"heartbeat": True},
        {"heartbeat": float("nan")},
        {"lease": float("inf")},
        {"shutdown_timeout": None},
        {"polling_interval": 0},
        {"lookahead": -1},
        {"lookahead": 1001},
        {"batch_size": 0},
        {"batch_size": 1.5},
        {"keep_succeeded": "7 days"},
        {"keep_failed": -1},
        {"keep_cancelled": float("nan")},
        {"on_worker_lost": "panic"},
        {"priority_order": "random"},
    ],
    ids=str,
)
def test_a_value_that_makes_no_sense_is_refused_by_name(given: dict[str, Any]):
    """The message begins with the setting."""
    [name] = given
    with pytest.raises(ConfigError, match=rf"^{name} must be "):
        Settings.of(**given)


def test_retention_is_handed_on_in_microseconds():
    """None keeps jobs for good."""
    retention = Settings(keep_succeeded=1, keep_failed=None, keep_cancelled=0).retention
    assert (retention.succeeded, retention.failed, retention.cancelled) == (SECOND, None, 0)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("shop.db", "it has no scheme"),
        ("carrier-pigeon://", "there is no store for 'carrier-pigeon'"),
        ("sqlite://shop.db", "three slashes before a relative path"),
        ("sqlite:///", "it names no file"),
        ("sqlite:///:memory:", "use memory://"),
        ("sqlite:///shop.db?journal=off", "there is no option 'journal'"),
        ("sqlite:///shop.db?synchronous=off", "synchronous must be full or normal"),
        ("sqlite://[", "Cannot use the store URL"),
    ],
)
def test_a_store_url_that_cannot_be_used_says_why(url: str, why: str):
    """And shows what a good one looks like."""
    with pytest.raises(StoreURLError) as caught:
        Packhorse("shop", url)
    assert why in str(caught.value)
    assert "sqlite:///packhorse.db" in str(caught.value)


def test_the_store_comes_from_the_environment_where_none_is_given(monkeypatch: pytest.MonkeyPatch):
    """So that a deployment needs no change of code."""
    monkeypatch.setenv("PACKHORSE_STORE", "memory://here")
    assert Packhorse("shop").store.url == "memory://here"
    assert Packhorse("shop", "memory://there").store.url == "memory://there"
