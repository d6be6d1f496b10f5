"""Settings are checked where they are made."""

import copy
import pickle
import secrets
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path
from typing import Any

import pytest

from packhorse import Packhorse
from packhorse.clock import SECOND
from packhorse.config import Settings
from packhorse.errors import ConfigError, StoreURLError
from packhorse.masking import masked_url

KEY, OTHER_KEY = "f3Xk-0pQ9mVt7LwZ2sRb8NcY5hGd1JaE6uKo", "aB4-nM8vC2xZ6lK0jH5gF9dS3qW7eR1tY-uI"


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
        {"priority_order": ["higher_first"]},
        {"polling_interval": 1e300},
        {"shutdown_timeout": 10**400},
        {"lookahead": True},
        {"result_ttl": -1},
        {"unknown_task_timeout": None},
        {"signing": 1},
        {"encryption": "yes"},
        {"debug": None},
        {"drop_undecodable": 0},
        {"compress_above": -1},
        {"compress_above": 4096.0},
        {"payload_cap": 1023},
        {"payload_cap": 4_194_305},
        {"result_cap": 1023},
        {"result_cap": None},
        {"depth_cap": 0},
        {"depth_cap": 201},
        {"items_cap": 0},
        {"items_cap": 1_000_001},
        {"store": ""},
        {"store": Path("shop.db")},
        {"keys": KEY},
        {"keys": [KEY, ""]},
        {"keys": [KEY.encode()]},
        {"keys": None},
        {"keys_file": Path("keys")},
        {"keys_file": " "},
        {"error_reporters": "shop.report"},
        {"error_reporters": [None]},
        {"sensitive_names": {"iban"}},
        {"sensitive_names": ["iban", ""]},
    ],
    ids=lambda given: str(given)[:40],
)
def test_a_value_that_makes_no_sense_is_refused_by_name(given: dict[str, Any]):
    """The message begins with the setting, and types are taken strictly."""
    [name] = given
    with pytest.raises(ConfigError, match=rf"^{name} must be "):
        Settings.of(**given)


@pytest.mark.parametrize(
    "given",
    [
        {"lookahead": 0},
        {"lease": 100},
        {"keep_succeeded": 0, "keep_failed": None},
        {"result_ttl": 0},
        {"unknown_task_timeout": 0},
        {"compress_above": 0},
        {"compress_above": None},
        {"payload_cap": 1024, "result_cap": 4_194_304, "depth_cap": 200, "items_cap": 1_000_000},
        {"signing": False, "debug": True, "drop_undecodable": True},
        {"keys": (KEY, OTHER_KEY), "encryption": True},
        {"keys_file": "keys", "encryption": True},
        {"store": None, "error_reporters": ("shop.report",), "sensitive_names": ("iban",)},
    ],
    ids=lambda given: str(given)[:40],
)
def test_a_value_within_its_bounds_is_kept(given: dict[str, Any]):
    """The bounds themselves are allowed."""
    settings = Settings.of(**given)
    assert {name: getattr(settings, name) for name in given} == given


def test_the_defaults_are_those_of_the_design():
    """Each can be read off one object."""
    settings = Settings()
    assert (settings.store, settings.result_ttl, settings.unknown_task_timeout) == (None, None, 3600.0)
    assert (settings.signing, settings.encryption, settings.keys, settings.keys_file) == (True, False, (), None)
    assert (settings.payload_cap, settings.result_cap, settings.compress_above) == (262_144, 262_144, 4096)
    assert (settings.depth_cap, settings.items_cap) == (64, 10_000)
    assert (settings.debug, settings.drop_undecodable) == (False, False)
    assert (settings.error_reporters, settings.sensitive_names) == ((), ())


def test_lengths_become_floats_and_lists_become_tuples():
    """So that equal settings are equal, however they were written."""
    settings = Settings.of(lease=60, sensitive_names=["iban"], keys=[KEY])
    assert isinstance(settings.lease, float)
    assert settings.sensitive_names == ("iban",)
    assert settings == Settings(lease=60.0, sensitive_names=("iban",), keys=(KEY,))


def test_settings_are_values():
    """They compare, hash, copy and pickle, and nobody changes them; where they came from is no part of them."""
    settings = Settings.of(lease=60, keys=[KEY], store="memory://")
    environ = {"PACKHORSE_LEASE": "60", "PACKHORSE_KEYS": KEY, "PACKHORSE_STORE": "memory://"}
    same = Settings.load({}, app_name="shop", environ=environ)
    assert settings == same
    assert hash(settings) == hash(same)
    assert settings != Settings()
    for other in (pickle.loads(pickle.dumps(same)), copy.deepcopy(same)):
        assert other == same
        assert other.describe() == same.describe()
    with pytest.raises(FrozenInstanceError):
        settings.lease = 90  # type: ignore[misc]


def test_a_changed_copy_is_checked_and_does_not_name_the_old_source():
    """What `replace` is given are keywords."""
    settings = Settings.load({}, app_name="shop", environ={"PACKHORSE_LEASE": "60"})
    described = {name: source for name, _, source in replace(settings, lease=90.0).describe()}
    assert (described["lease"], described["heartbeat"]) == ("keyword", "default")
    with pytest.raises(ConfigError, match=r"^lease must be"):
        replace(settings, lease=-1)


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("short", "has fewer than 32 bytes"),
        ("x" * 31, "has fewer than 32 bytes"),
        ("é" * 15 + "x", "has fewer than 32 bytes"),
        ("x" * 32, "is one character repeated"),
        ("django-insecure-" + KEY, "was made by Django for development only"),
        ("changeme" * 4, "is a sample"),
        ("change-me-" * 4, "is a sample"),
        ("Please_Change_This_Secret_Key_Please", "is a sample"),
        ("secret" * 6, "is a sample"),
        ("this-is-a-very-secret-key-0123456789", "is a sample"),
        ("0123456789abcdef" * 2, "is a sample"),
        (f" {KEY}", "begins or ends with white space"),
        (f"{KEY}\n", "begins or ends with white space"),
        (f"{KEY}\udce9", "is not UTF-8 text"),
    ],
)
def test_a_weak_key_is_refused_and_never_shown(key: str, why: str):
    """The message counts the keys instead."""
    with pytest.raises(ConfigError, match=f"^keys cannot be used, as key 2 {why}") as caught:
        Settings.of(keys=[KEY, key])
    for text in (KEY, key, key.strip()):
        assert text not in str(caught.value)
    assert caught.value.__context__ is None or caught.value.__suppress_context__


def test_a_key_is_given_once():
    """Twice is a slip of the one who rotates."""
    with pytest.raises(ConfigError, match="key 3 is there twice: remove it"):
        Settings.of(keys=[KEY, OTHER_KEY, KEY])


@pytest.mark.parametrize("key", ["django-insecure-" + KEY, "x" * 32, "changeme" * 4])
def test_debug_takes_a_guessable_key(key: str):
    """Nobody should need a secret to try things out."""
    assert Settings.of(keys=[key], debug=True).key_ring() == (key.encode(),)


def test_debug_does_not_take_a_short_key():
    """A key that is too short would stay when debug goes."""
    with pytest.raises(ConfigError, match="fewer than 32 bytes"):
        Settings.of(keys=["short"], debug=True)


def test_a_random_key_is_taken():
    """Also one that is named, and one of few characters in many bytes."""
    for _ in range(1000):
        for key in (secrets.token_urlsafe(24), secrets.token_hex(16), f"secret-key-{secrets.token_hex(12)}"):
            assert Settings.of(keys=[key]).keys == (key,)
    assert Settings.of(keys=["馬車運搬夜行列車東西南"]).key_ring() == ("馬車運搬夜行列車東西南".encode(),)


def test_the_key_ring_has_the_keys_in_their_order():
    """The first signs."""
    assert Settings.of(keys=[OTHER_KEY, KEY]).key_ring() == (OTHER_KEY.encode(), KEY.encode())
    assert Settings().key_ring() == ()


def test_keys_come_from_one_place():
    """Which of two would sign?"""
    with pytest.raises(ConfigError, match=r"^keys and keys_file are both given: keep one"):
        Settings.of(keys=[KEY], keys_file="keys")


def test_encryption_needs_signing_and_keys():
    """A key that lies beside the data hides nothing."""
    with pytest.raises(ConfigError, match=r"^encryption needs signing: switch signing on"):
        Settings.of(encryption=True, signing=False, keys=[KEY])
    with pytest.raises(ConfigError, match=r"^encryption needs keys: give keys or keys_file"):
        Settings.of(encryption=True)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgres://shop:hunter2@db:5432/shop", "postgres://shop:•••@db:5432/shop"),
        ("redis://:hunter2@cache/0", "redis://:•••@cache/0"),
        ("postgres://shop:hun@ter2/hunter2@db/shop", "postgres://shop:•••@db/shop"),
        ("postgres://shop:hunter2@[::1]:5432/shop", "postgres://shop:•••@[::1]:5432/shop"),
        ("postgres://shop:hunter2@db:port/shop", "postgres://shop:•••@db:port/shop"),
        ("shop:hunter2@db/shop", "shop:•••@db/shop"),
        ("postgres:/shop:hunter2@db", "postgres:•••@db"),
        ("postgres://db/shop?user=shop&password=hunter2", "postgres://db/shop?user=shop&password=•••"),
        ("redis://c/0?Auth_Token=hunter2#hunter2&db=1", "redis://c/0?Auth_Token=•••&db=1"),
        ("host=db password = hunter2", "host=db password =•••"),
    ],
)
def test_a_masked_url_hides_the_password(url: str, shown: str):
    """Also in one that no driver would take."""
    assert masked_url(url) == shown


@pytest.mark.parametrize(
    "url",
    [
        "memory://",
        "sqlite:///packhorse.db",
        "sqlite:////home/me@work/a:b@c.db?synchronous=normal",
        "postgres://shop@db:5432/shop?sslmode=require",
        "redis://cache:6379/0",
        "postgres://[::1]:5432/keys?application_name=shop",
    ],
)
def test_a_masked_url_without_password_stays(url: str):
    """A path may hold any sign."""
    assert masked_url(url) == url


def test_a_repr_shows_what_was_changed_without_secrets():
    """It goes to logs."""
    settings = Settings.of(store="postgres://shop:hunter2@db/shop", keys=[KEY], lease=60)
    assert repr(settings) == "Settings(lease=60.0, store='postgres://shop:•••@db/shop')"
    assert repr(Settings()) == "Settings()"


def told(**given: Any) -> str:
    try:
        settings = Settings.of(**given)
        return f"{settings!r} {settings.describe()}"
    except ConfigError as error:
        return str(error)


SECRET_URL = f"postgres://shop:{KEY}@db/shop"


@pytest.mark.parametrize("name", [field.name for field in fields(Settings) if field.init])
@pytest.mark.parametrize("value", [SECRET_URL, [SECRET_URL], (SECRET_URL, 1)], ids=["text", "list", "tuple"])
def test_no_setting_shows_a_password_that_strays_into_it(name: str, value: Any):
    """Refused or not."""
    assert KEY not in told(**{name: value})


@pytest.mark.parametrize("value", [KEY.encode(), [KEY, 1], [[KEY]], {KEY: 1}, Path(KEY)], ids=type)
@pytest.mark.parametrize("name", ["keys", "keys_file", "store"])
def test_a_key_of_the_wrong_type_is_not_shown(name: str, value: Any):
    """The message says what should be there, not what is."""
    with pytest.raises(ConfigError, match=f"^{name} must be ") as caught:
        Settings.of(**{name: value})
    assert KEY not in str(caught.value)


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
