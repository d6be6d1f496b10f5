"""Settings come from keywords, then the environment, then a TOML file, then defaults."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from packhorse.config import Settings
from packhorse.errors import ConfigError

KEY, OTHER_KEY = "f3Xk-0pQ9mVt7LwZ2sRb8NcY5hGd1JaE6uKo", "aB4-nM8vC2xZ6lK0jH5gF9dS3qW7eR1tY-uI"

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str | bytes, name: str = "shop.toml", mode: int = 0o600) -> Path:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        path.chmod(mode)
        return path

    return write


def load(config: Path | str | None = None, environ: dict[str, str] | None = None, **given: Any) -> Settings:
    return Settings.load(given, app_name="shop", config=config, environ=environ or {})


def sources(settings: Settings) -> dict[str, str]:
    return {name: source for name, _, source in settings.describe()}


def values(settings: Settings) -> dict[str, str]:
    return {name: value for name, value, _ in settings.describe()}


# Precedence.


def test_the_nearest_source_wins(write: Write):
    """Keyword, variable, table of the application, top of the file, default."""
    names = ["depth_cap", "items_cap", "lookahead", "batch_size"]
    everywhere = "\n".join(f"{name} = 11" for name in names)
    path = write(f"{everywhere}\n[shop]\n" + "\n".join(f"{name} = 12" for name in names[:3]))
    environ = {"PACKHORSE_DEPTH_CAP": "13", "PACKHORSE_ITEMS_CAP": "13"}
    settings = load(path, environ, depth_cap=14)
    assert [getattr(settings, name) for name in [*names, "payload_cap"]] == [14, 13, 12, 11, 262_144]
    found = sources(settings)
    assert [found[name] for name in [*names, "payload_cap"]] == [
        "keyword",
        "PACKHORSE_ITEMS_CAP",
        str(path),
        str(path),
        "default",
    ]


def test_a_none_that_is_given_wins_over_a_value_behind_it(write: Write):
    """None is a value, not the lack of one."""
    path = write("keep_failed = 5\nkeep_succeeded = 5\nkeep_cancelled = 5\n[shop]\nkeep_cancelled = 'none'")
    settings = load(path, {"PACKHORSE_KEEP_FAILED": "none"}, keep_succeeded=None)
    assert (settings.keep_failed, settings.keep_succeeded, settings.keep_cancelled) == (None, None, None)


def test_values_of_different_sources_are_checked_together(write: Write):
    """And the message names all of them."""
    path = write("heartbeat = 10")
    with pytest.raises(ConfigError) as caught:
        load(path, {"PACKHORSE_LEASE": "39"})
    assert str(caught.value).startswith(
        f"PACKHORSE_LEASE and heartbeat in {path}: lease=39 is too short for heartbeat=10"
    )
    with pytest.raises(ConfigError, match=r"^PACKHORSE_HEARTBEAT: lease=30 is too short for heartbeat=10"):
        load(environ={"PACKHORSE_HEARTBEAT": "10"})
    with pytest.raises(ConfigError, match=r"^encryption and PACKHORSE_SIGNING: encryption needs signing"):
        load(environ={"PACKHORSE_SIGNING": "no"}, encryption=True)
    with pytest.raises(ConfigError, match=r"^PACKHORSE_KEYS and keys_file: keys and keys_file are both given"):
        load(environ={"PACKHORSE_KEYS": KEY}, keys_file="keys")


def test_keywords_alone_do_not_look_around(monkeypatch: pytest.MonkeyPatch):
    """`Settings.of` is for those who have everything in hand; `load` reads the real environment unless told."""
    monkeypatch.setenv("PACKHORSE_LEASE", "77")
    assert Settings.of().lease == 30
    assert Settings.load({}, app_name="shop").lease == 77


# The environment.


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("lease", "60", 60.0),
        ("lease", " 60.5 ", 60.5),
        ("lookahead", "0", 0),
        ("compress_above", "none", None),
        ("compress_above", "0", 0),
        ("keep_failed", "None", None),
        ("result_ttl", "1e3", 1000.0),
        ("debug", "true", True),
        ("debug", "Yes", True),
        ("debug", "1", True),
        ("signing", "FALSE", False),
        ("signing", "no", False),
        ("signing", "0", False),
        ("on_worker_lost", "fail", "fail"),
        ("store", "memory://here", "memory://here"),
        ("keys", f"{KEY}, {OTHER_KEY}", (KEY, OTHER_KEY)),
        ("keys", "none", ()),
        ("keys_file", "/run/secrets/keys", "/run/secrets/keys"),
        ("error_reporters", "shop.report,shop.page", ("shop.report", "shop.page")),
        ("sensitive_names", "iban", ("iban",)),
    ],
)
def test_a_variable_is_read_as_its_setting_asks(name: str, text: str, value: Any):
    """Numbers, yes and no, none, and lists with commas."""
    variable = f"PACKHORSE_{name.upper()}"
    settings = load(environ={variable: text})
    assert getattr(settings, name) == value
    assert sources(settings)[name] == variable


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("lease", "soon", "must be a number of seconds from 0 on, at most a hundred years, not 'soon'."),
        ("lease", "none", "must be a number of seconds from 0 on, at most a hundred years, not 'none'."),
        ("lease", "nan", "must be a number of seconds"),
        ("polling_interval", "0", "must be a number of seconds above 0"),
        ("keep_failed", "-1", "must be a number of seconds from 0 on, at most a hundred years, or None for good"),
        ("lookahead", "5.0", "must be a whole number from 0 to 1000, not '5.0'."),
        ("lookahead", "true", "must be a whole number"),
        ("debug", "maybe", "must be True or False, not 'maybe'."),
        ("debug", "2", "must be True or False"),
        ("on_worker_lost", "panic", "must be 'retry' or 'fail', not 'panic'."),
        ("keys", f"{KEY},", "must be a list of texts, none of them empty."),
        ("keys", f"{KEY},short", "cannot be used, as key 2 has fewer than 32 bytes: make another with `python -c "),
        ("encryption", "yes", "needs keys: give keys or keys_file"),
    ],
)
def test_a_variable_that_makes_no_sense_is_refused_by_its_name(name: str, text: str, complaint: str):
    """Whoever set it knows it by that name."""
    variable = f"PACKHORSE_{name.upper()}"
    with pytest.raises(ConfigError) as caught:
        load(environ={variable: text})
    assert str(caught.value).startswith(f"{variable}: {complaint}")


@pytest.mark.parametrize(
    ("variable", "near"),
    [
        ("PACKHORSE_LEASES", "PACKHORSE_LEASE"),
        ("PACKHORSE_lease", "PACKHORSE_LEASE"),
        ("PACKHORSE_KEY", "PACKHORSE_KEYS"),
        ("PACKHORSE_STORE_", "PACKHORSE_STORE"),
        ("PACKHORSE_CONFG", "PACKHORSE_CONFIG"),
    ],
)
def test_an_unknown_variable_names_the_nearest(variable: str, near: str):
    """A typing error is met at once, though its value be empty or secret."""
    for value in ("", KEY):
        with pytest.raises(ConfigError) as caught:
            load(environ={variable: value})
        assert str(caught.value) == f"There is no setting {variable}. Did you mean {near}?"


def test_a_variable_like_no_other_lists_the_known_ones():
    """Where nothing is near, all are named."""
    with pytest.raises(ConfigError, match=r"^There is no setting PACKHORSE_ZZZ\. Known settings: heartbeat, lease, "):
        load(environ={"PACKHORSE_ZZZ": "1"})


def test_variables_of_others_are_left_alone():
    """Those of tests and of failpoints are read elsewhere."""
    names = ["PACKHORSE_FAILPOINTS", "PACKHORSE_TEST_POSTGRES", "PACKHORSE", "PACKHORSES_LEASE", "LEASE"]
    assert load(environ=dict.fromkeys(names, "x")) == Settings()


def test_an_empty_variable_is_not_given(write: Write):
    """As where a compose file passes on what is unset."""
    path = write("lease = 60")
    environ = dict.fromkeys(["PACKHORSE_LEASE", "PACKHORSE_STORE", "PACKHORSE_KEYS", "PACKHORSE_DEBUG"], "")
    settings = load(path, {**environ, "PACKHORSE_KEEP_FAILED": "  ", "PACKHORSE_CONFIG": " "})
    assert settings == Settings(lease=60)


# The file.


def test_a_file_gives_settings_for_all_applications_and_for_one(write: Write):
    """Other applications' tables are ignored, whatever they hold."""
    path = write(
        """
        store = "memory://all"
        lease = 60
        sensitive_names = ["iban"]
        [shop]
        lease = 90
        [mail]
        lease = "long"
        colour = "red"
        """
    )
    settings = load(path)
    assert settings == Settings(store="memory://all", lease=90, sensitive_names=("iban",))
    assert Settings.load({}, app_name="news", config=path, environ={}).lease == 60


def test_a_dotted_application_finds_its_table_with_and_without_quotes(write: Write):
    """TOML reads the second as a table in a table."""
    for head in ('["shop.web"]', "[shop.web]"):
        path = write(f"[shop]\nlease = 60\n{head}\nlease = 90")
        assert load(path).lease == 60
        assert Settings.load({}, app_name="shop.web", config=path, environ={}).lease == 90


def test_an_application_may_be_named_like_a_setting(write: Write):
    """A table is never a value."""
    path = write("lease = 60\n[store]\nlease = 90")
    assert Settings.load({}, app_name="store", config=path, environ={}) == Settings(lease=90)


def test_the_file_is_named_by_keyword_or_variable_and_never_found(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """What lies about in a folder changes nothing."""
    path, other = write("lease = 60"), write("lease = 90", "other.toml")
    write("lease = 1", "packhorse.toml")
    write("[tool.packhorse]\nlease = 1", "pyproject.toml")
    monkeypatch.chdir(tmp_path)
    assert load() == Settings()
    assert load(environ={"PACKHORSE_CONFIG": str(path)}).lease == 60
    assert load(str(other), {"PACKHORSE_CONFIG": str(path)}).lease == 90
    assert sources(load("shop.toml"))["lease"] == "shop.toml"


def test_pyproject_has_a_table_for_it(write: Write):
    """The rest of the file belongs to others."""
    path = write(
        "lease = 1\n[project]\nname = 'shop'\n[tool.packhorse]\nlease = 60\n[tool.packhorse.shop]\ndepth_cap = 9",
        "pyproject.toml",
    )
    assert load(path) == Settings(lease=60, depth_cap=9)
    for text in ("[project]\nname = 'shop'", "tool = 1", "[tool]\npackhorse = 1"):
        with pytest.raises(ConfigError, match=r"has no table \[tool\.packhorse\]: add it"):
            load(write(text, "pyproject.toml"))


@pytest.mark.parametrize("text", ["leese = 60", "[shop]\nleese = 60", "[[leese]]\nx = 1"])
def test_an_unknown_key_names_the_nearest(write: Write, text: str):
    """In the application's table as at the top."""
    path = write(text)
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert str(caught.value) == f"There is no setting 'leese' in {path}. Did you mean 'lease'?"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("lease = '60'", "lease in {path}: must be a number of seconds from 0 on, at most a hundred years, not '60'."),
        ("lease = true", "lease in {path}: must be a number of seconds"),
        ("lease = nan", "lease in {path}: must be a number of seconds"),
        ("lookahead = 5.0", "lookahead in {path}: must be a whole number from 0 to 1000, not 5.0."),
        ("debug = 1", "debug in {path}: must be True or False, not 1."),
        ("debug = 'yes'", "debug in {path}: must be True or False, not 'yes'."),
        (
            "sensitive_names = 'iban'",
            "sensitive_names in {path}: must be a list of texts, none of them empty, not 'iban'.",
        ),
        ("store = 1979-05-27", "store in {path}: must be a store URL, or None."),
        ("[shop]\nlease = -1", "lease in {path}: must be a number of seconds"),
        ("keys = ['short']", "keys in {path}: cannot be used, as key 1 has fewer than 32 bytes"),
        ("[[keys]]\nx = 1", "keys in {path}: must be a list of texts"),
    ],
)
def test_a_value_in_a_file_is_refused_with_the_file(write: Write, text: str, complaint: str):
    """TOML has types, so a text is no number."""
    path = write(text)
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert str(caught.value).startswith(complaint.format(path=path))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"lease = ", "is not TOML, correct it: Invalid value"),
        (b"lease = 1\nlease = 2", "is not TOML, correct it: "),
        (b"lease = " + b"9" * 5000, "is not TOML, correct it: "),
        (b"lease = " + b"[" * 5000, "is not TOML, correct it: "),
        (b"store = '\xff'", "cannot be read (it is not UTF-8 text): name a text file"),
    ],
    ids=["half", "twice", "long", "deep", "binary"],
)
def test_a_file_that_cannot_be_understood_is_named(write: Write, content: bytes, complaint: str):
    """With the name by which it was given."""
    path = write(content)
    for label, settings in (
        ("config", lambda: load(path)),
        ("PACKHORSE_CONFIG", lambda: load(environ={"PACKHORSE_CONFIG": str(path)})),
    ):
        with pytest.raises(ConfigError) as caught:
            settings()
        assert str(caught.value).startswith(f"{label}: {path} {complaint}")
        assert caught.value.__context__ is None


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path):
    """It was named, so it was meant."""
    with pytest.raises(ConfigError, match=r"^config: .*/no\.toml cannot be read \(No such file or directory\)"):
        load(tmp_path / "no.toml")
    with pytest.raises(ConfigError, match=r"^PACKHORSE_CONFIG: .* cannot be read \(Is a directory\)"):
        load(environ={"PACKHORSE_CONFIG": str(tmp_path)})


def test_a_byte_order_mark_is_no_key(write: Write):
    """Some editors write one."""
    assert load(write(b"\xef\xbb\xbflease = 60\r\n")).lease == 60


# Keys in files.


EXPOSED = [0o640, 0o604, 0o620, 0o602, 0o644]


@pytest.mark.parametrize("mode", EXPOSED, ids=oct)
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("shop.toml", f"keys = ['{KEY}']"),
        ("shop.toml", f"[shop]\nkeys = ['{KEY}']"),
        ("shop.toml", f"[mail]\nkeys = ['{KEY}']"),
        ("pyproject.toml", f"[tool.packhorse]\nkeys = ['{KEY}']"),
    ],
    ids=["top", "own", "other", "pyproject"],
)
def test_a_file_with_keys_must_be_closed_to_others(write: Write, name: str, text: str, mode: int):
    """Whosever keys they are."""
    path = write(text, name, mode)
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert str(caught.value).startswith(f"keys in {path}: group or others may ")
    assert str(caught.value).endswith(f"so run `chmod 600 {path}`.")


def test_a_closed_file_may_hold_keys_and_an_open_one_the_rest(write: Write):
    """Most settings are no secret."""
    assert load(write(f"keys = ['{KEY}', '{OTHER_KEY}']")).key_ring() == (KEY.encode(), OTHER_KEY.encode())
    assert load(write("keys = []\nlease = 60", mode=0o644)).lease == 60
    assert load(write("lease = 60\n[keys]\nlease = 90", mode=0o644)).lease == 60


def test_a_keys_file_has_a_key_per_line(write: Write):
    """Comments and empty lines do not count; the file is read anew each time, for those who rotate."""
    path = write(f"# since May\n{KEY}\r\n\n  {OTHER_KEY}  \n", "keys", 0o400)
    settings = load(keys_file=str(path))
    assert settings.key_ring() == (KEY.encode(), OTHER_KEY.encode())
    path.unlink()
    write(OTHER_KEY, "keys")
    assert settings.key_ring() == (OTHER_KEY.encode(),)


def test_a_keys_file_may_be_a_link(write: Write, tmp_path: Path):
    """As where secrets are mounted: the file it leads to is the one that counts."""
    link = tmp_path / "link"
    link.symlink_to(write(KEY, "keys"))
    assert load(keys_file=str(link)).key_ring() == (KEY.encode(),)
    write(KEY, "keys", 0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        load(keys_file=str(link)).key_ring()


@pytest.mark.parametrize("mode", EXPOSED, ids=oct)
def test_a_keys_file_must_be_closed_to_others(write: Write, mode: int):
    """One who reads it can sign."""
    path = write(KEY, "keys", mode)
    with pytest.raises(ConfigError) as caught:
        load(environ={"PACKHORSE_KEYS_FILE": str(path)}).key_ring()
    assert str(caught.value).startswith("PACKHORSE_KEYS_FILE: group or others may ")
    assert str(caught.value).endswith(f"so run `chmod 600 {path}`.")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "the file holds no key, so add one made with `python -c "),
        (f"# {KEY}\n".encode(), "the file holds no key"),
        (f"{KEY}\nshort".encode(), "the file cannot be used, as key 2 has fewer than 32 bytes"),
        (f"{KEY}\n{KEY}".encode(), "the file cannot be used, as key 2 is there twice"),
        (b"changeme" * 4, "the file cannot be used, as key 1 is a sample"),
        (KEY.encode() + b"\xff", "the file cannot be read (it is not UTF-8 text)"),
    ],
    ids=["empty", "comment", "short", "twice", "sample", "binary"],
)
def test_a_keys_file_is_held_to_the_rules_for_keys(write: Write, content: bytes, complaint: str):
    """And to those for errors: no key is shown, not even to who looks behind them."""
    config = write(f"keys_file = '{write(content, 'keys')}'")
    with pytest.raises(ConfigError) as caught:
        load(config).key_ring()
    assert str(caught.value).startswith(f"keys_file in {config}: {complaint}")
    assert KEY not in str(caught.value)
    assert caught.value.__context__ is None


def test_a_key_in_the_place_of_the_file_is_not_shown():
    """An easy slip: PACKHORSE_KEYS_FILE for PACKHORSE_KEYS."""
    for name in (KEY, KEY * 100, f"{KEY}\0"):
        with pytest.raises(ConfigError, match=r"^keys_file: the file cannot be read") as caught:
            load(keys_file=name).key_ring()
        assert KEY not in str(caught.value)


def test_debug_takes_a_guessable_key_from_a_file(write: Write):
    """As it does from anywhere."""
    assert load(keys_file=str(write("x" * 32, "keys")), debug=True).key_ring() == (b"x" * 32,)


# What is told.


def test_settings_describe_themselves(write: Write):
    """Each with its value, as a variable would have it, and its source."""
    path = write(f"store = 'postgres://shop:hunter2@db/shop'\nkeys = ['{KEY}', '{OTHER_KEY}']")
    settings = load(path, {"PACKHORSE_LEASE": "60"}, keep_failed=None, sensitive_names=["iban", "bic"], debug=True)
    described = {name: (value, source) for name, value, source in settings.describe()}
    assert described["store"] == ("postgres://shop:•••@db/shop", str(path))
    assert described["keys"] == ("2 keys", str(path))
    assert described["lease"] == ("60", "PACKHORSE_LEASE")
    assert described["keep_failed"] == ("none", "keyword")
    assert described["sensitive_names"] == ("iban, bic", "keyword")
    assert described["debug"] == ("true", "keyword")
    assert described["keep_succeeded"] == ("604800", "default")
    assert described["keys_file"] == ("none", "default")
    assert list(described)[:2] == ["heartbeat", "lease"]
    assert not [name for name in described if name.startswith("_")]


def test_a_description_can_be_read_back():
    """All but the keys."""
    settings = Settings.of(lease=60.5, keep_failed=None, signing=False, error_reporters=["a.b", "c.d"], depth_cap=9)
    environ = {f"PACKHORSE_{name.upper()}": value for name, value in values(settings).items()}
    assert load(environ=environ) == settings


def test_one_key_is_one_key():
    """And a keyword that says what the default says is a keyword still."""
    settings = Settings.of(keys=[KEY], lease=30)
    assert (values(settings)["keys"], sources(settings)["lease"]) == ("1 key", "keyword")


SECRETS = {"KEYS": KEY, "STORE": f"postgres://shop:{OTHER_KEY}@db/shop"}


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"LEASE": "soon"},
        {"KEYS_FILE": "/nowhere"},
        {"ENCRYPTION": "yes", "SIGNING": "no"},
        {"KEYS": f"{KEY},{KEY}"},
        {"KEYS": f"{KEY},"},
        {"KEYS": f"django-insecure-{KEY}"},
        {"KEYS": f"{KEY}\udcff"},
        {"KEY": KEY},
        {"STORES": SECRETS["STORE"]},
        {"HEARTBEAT": SECRETS["STORE"]},
        {"DEBUG": SECRETS["STORE"]},
        {"ON_WORKER_LOST": SECRETS["STORE"]},
    ],
    ids=str,
)
def test_no_secret_is_told(write: Write, more: dict[str, str]):
    """Whether settings are good or refused, whether they come from the environment or a file."""
    given = SECRETS | more
    lines = [f"{name.lower()} = {_toml(name, value)}" for name, value in given.items() if value.isprintable()]
    in_file, in_environ = write("\n".join(lines)), {f"PACKHORSE_{name}": value for name, value in given.items()}
    for settings in (lambda: load(in_file), lambda: load(environ=in_environ)):
        try:
            told = f"{settings()!r} {settings().describe()}"
        except ConfigError as error:
            told = f"{error} {error!r} {error.__cause__} {error.__context__}"
        assert KEY not in told
        assert OTHER_KEY not in told


def _toml(name: str, value: str) -> str:
    return str(value.split(",")) if name == "KEYS" else repr(value)


@pytest.mark.parametrize(
    "name",
    ["PACKHORSE_SERVICE_HOST", "PACKHORSE_WEB_SERVICE_PORT_HTTP", "PACKHORSE_PORT", "PACKHORSE_PORT_80_TCP_ADDR"],
)
def test_what_kubernetes_sets_for_a_service_of_our_name_is_left_alone(name: str):
    assert Settings.load({}, app_name="shop", environ={name: "10.0.0.1"}) == Settings()
