"""Secrets: who may see them, where they are found, and how texts and lines are made fit to be read."""

import copy
import dataclasses
import enum
import inspect
import json
import logging
import pickle
import pprint
import sys
import time
import traceback
import uuid
from collections import deque
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple, get_type_hints
from urllib.parse import quote, quote_plus, urlencode

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from packhorse import masking
from packhorse.codec import Caps
from packhorse.job import storable
from packhorse.masking import MASK, SENSITIVE, Secret, is_sensitive, mask_text, masked, printable, secrets_in

CANARY = "canary-7Zq!"


@dataclasses.dataclass
class Account:
    name: str
    password: Any
    key: Any = None


@dataclasses.dataclass(frozen=True)
class Wallet:
    owner: Account
    card_number: int


class Point(NamedTuple):
    x: int
    token: str


class Level(enum.Enum):
    HIGH = "very-high"


class Hostile:
    """Raises whatever it is asked."""

    def __repr__(self) -> str:
        raise SystemExit("no repr")

    __str__ = __repr__

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no comparison")

    def __hash__(self) -> int:
        raise RuntimeError("no hash")


class HostileMapping(Mapping[str, Any]):
    def __getitem__(self, key: str) -> Any:
        raise RuntimeError("no item")

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError("no keys")

    def __len__(self) -> int:
        raise RuntimeError("no length")


class Lazy:
    """As Django's lazy objects: to ask for its class brings it to life."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        raise AssertionError("brought to life")


# A Secret


@pytest.mark.parametrize(
    "show",
    [
        repr,
        str,
        pprint.pformat,
        lambda secret: f"{secret}",
        lambda secret: f"{secret!r} {secret!s} {secret:>30} {secret:d} {secret:%Y}",
        lambda secret: "%s %r" % (secret, secret),  # noqa: UP031
        lambda secret: "%(key)s" % {"key": secret},  # noqa: UP031
        lambda secret: "{} {!r}".format(secret, secret),  # noqa: UP032
        lambda secret: repr([{"key": (secret,)}]),
        lambda secret: repr(Account("ann", secret)),
        lambda secret: repr(dataclasses.asdict(Account("ann", secret))),
        lambda secret: logging.makeLogRecord({"msg": "%s %r", "args": (secret, secret)}).getMessage(),
    ],
)
def test_a_secret_does_not_show_its_value(show: Any):
    """Not in any way of making a text of it, also with a format meant for the value."""
    shown = show(Secret(CANARY))
    assert "canary" not in shown
    assert "Secret(•••)" in shown


def test_a_secret_does_not_show_in_a_traceback_with_local_variables():
    """Error reporters look at every frame."""
    secret = Secret(CANARY)
    try:
        secret + 1  # type: ignore[operator]
    except TypeError as error:
        text = "".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())
    assert "secret = Secret(•••)" in text
    assert "canary" not in text


def test_a_secret_cannot_be_taken_for_plain_data():
    """JSON refuses it without quoting it, and it has no dictionary of attributes."""
    secret = Secret(CANARY)
    with pytest.raises(TypeError) as refused:
        json.dumps({"key": secret})
    assert "canary" not in str(refused.value)
    with pytest.raises(TypeError):
        vars(secret)
    asks: list[Any] = [len, iter, int, float]
    for ask in asks:
        with pytest.raises(TypeError):
            ask(secret)


def test_a_secret_is_revealed_to_those_who_ask():
    """The one way to the value."""
    assert Secret(CANARY).reveal() == CANARY
    assert Secret([1, 2]).reveal() == [1, 2]


def test_secrets_are_equal_when_their_values_are():
    """As keys and in comparisons they stand for their value, but never equal the bare value."""
    assert Secret(CANARY) == Secret(CANARY)
    assert Secret(CANARY) != Secret("other")
    assert Secret(CANARY) != CANARY
    assert len({Secret(CANARY), Secret(CANARY), CANARY}) == 2
    with pytest.raises(TypeError, match="unhashable"):
        hash(Secret([CANARY]))


def test_a_secret_cannot_be_changed():
    """Neither its value nor by adding to it."""
    secret = Secret(CANARY)
    for name in ("_value", "other"):
        with pytest.raises(AttributeError, match="cannot be changed"):
            setattr(secret, name, "x")
    with pytest.raises(AttributeError, match="cannot be changed"):
        del secret._value
    assert secret.reveal() == CANARY


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_secret_survives_pickling_and_copying(protocol: int):
    """Who pickles it means to carry the value."""
    secret = Secret([CANARY])
    assert pickle.loads(pickle.dumps(secret, protocol)) == secret
    assert copy.copy(secret) == secret
    deep = copy.deepcopy(secret)
    assert deep == secret
    assert deep.reveal() is not secret.reveal()


def test_a_secret_can_be_annotated():
    """`Secret[str]` names what is inside, and may be called to make one."""

    def login(user: str, password: Secret[str]) -> None: ...

    assert get_type_hints(login)["password"] == Secret[str]
    assert Secret[str](CANARY) == Secret(CANARY)
    assert inspect.signature(Secret).parameters.keys() == {"value"}


# Sensitive names


@pytest.mark.parametrize(
    "name",
    [
        *sorted(SENSITIVE),
        *(name.replace("_", "-").title() for name in sorted(SENSITIVE)),
        *(name.replace("_", "").upper() for name in sorted(SENSITIVE)),
        "user_password",
        "PASSWORD",
        "password2",
        "old_Password",
        "newPassword",
        "passWord",
        "passwords",
        "apiKey",
        "APIKey",
        "apiKeys",
        "x-api-key",
        "STRIPE_API_KEY",
        "X-Auth-Token",
        "HTTPAuthorization",
        "Set-Cookie",
        "credentials",
        "cardNumber",
        "cvv2",
        "oauth2",
        "db.password",
        "user[password]",
        "AWS_SECRET_ACCESS_KEY",
        "csrfmiddlewaretoken",
        "sessionid",
    ],
)
def test_a_name_is_sensitive_by_its_words(name: str):
    """In snake, camel and kebab case, in capitals, in the plural, and with a number behind it."""
    assert is_sensitive(name)


@pytest.mark.parametrize(
    "name",
    [
        "passenger",
        "tokenizer",
        "author",
        "secretary",
        "pinned",
        "spin",
        "p_in",
        "cookiecutter",
        "compass",
        "passing_word",
        "api",
        "key",
        "monkey",
        "access",
        "card",
        "",
        "_",
        "42",
    ],
)
def test_other_names_are_not_sensitive(name: str):
    """A sensitive word inside another word means nothing."""
    assert not is_sensitive(name)


def test_more_names_may_be_added():
    """They are matched like the built-in ones; a single text is one name."""
    assert not is_sensitive("patientId")
    assert is_sensitive("patientId", ["patient_id"])
    assert is_sensitive("PATIENT-IDS", {"patientId"})
    assert is_sensitive("contraseña", "Contraseña")
    assert not is_sensitive("patient", ["patient_id"])
    assert not is_sensitive("anything", ["", "-"])
    assert is_sensitive("password", ["patient_id"])


@given(st.text())
def test_any_text_may_be_a_name(name: str):
    """Keys of dictionaries come from anywhere."""
    assert is_sensitive(f"{name}-password")
    is_sensitive(name)


# Finding secrets


def test_values_under_sensitive_names_are_found():
    """Names of arguments, keys and fields count alike, however deep; what is beside them is left alone."""
    arguments = {
        "user": "ann-lee",
        "password": "hunter2",
        "options": {"retries": 5000, "headers": [{"X-Auth-Token": "tok-123"}]},
        "account": Account("bob-ray", "swordfish"),
        "wallet": Wallet(Account("eve-fox", "opensesame"), 4000123412341234),
        "point": Point(1, "pointed"),
        b"api_key": "as-bytes",
    }
    found = {"hunter2", "tok-123", "swordfish", "opensesame", "4000123412341234", "pointed", "as-bytes"}
    assert secrets_in(arguments) == found


def test_everything_under_a_sensitive_name_is_found():
    """However it is nested. The names inside stay readable, but a key with digits may itself be the secret."""
    found = secrets_in({"credentials": {"user": "ann-lee", "more": [("deep-1", {"deep-2"})], "tok_8f3a": 1}})
    assert found == {"ann-lee", "deep-1", "deep-2", "tok_8f3a"}


@pytest.mark.parametrize(
    "wrap",
    [
        lambda secret: secret,
        lambda secret: {"a": secret},
        lambda secret: {secret: "a"},
        lambda secret: [[secret]],
        lambda secret: (1, (2, secret)),
        lambda secret: {secret},
        lambda secret: frozenset({secret}),
        lambda secret: deque([secret]),
        lambda secret: Account("ann-lee", None, secret),
        lambda secret: Point(0, secret),
        lambda secret: Secret(secret),
        lambda secret: Secret({"a": [secret]}),
        lambda secret: MappingProxyType({"a": secret}),
    ],
)
def test_a_secret_is_found_wherever_it_is(wrap: Any):
    """Under any name, and without one."""
    assert secrets_in({"argument": wrap(Secret(CANARY))}) == {CANARY}


@pytest.mark.parametrize(
    ("value", "texts"),
    [
        ("  padded \n", {"  padded \n", "padded"}),
        ("Bearer abc.def", {"Bearer abc.def", "abc.def"}),
        ("basic dXNlcjpwdw==", {"basic dXNlcjpwdw==", "dXNlcjpwdw=="}),
        ("first line\nsecond line\nshort", {"first line\nsecond line\nshort", "first line", "second line"}),
        (1234, {"1234"}),
        (-1234, {"1234"}),
        (12.34, {"12.34"}),
        (Decimal("-99.990"), {"99.990"}),
        (b"bytes!?>", {"bytes!?>", "6279746573213f3e", "Ynl0ZXMhPz4"}),
        (bytearray(b"\xff\xfe\xfd"), {"\\xff\\xfe\\xfd", "fffefd", "//79", "__79"}),
        (Level.HIGH, {"very-high"}),
        (uuid.UUID(int=1), {"00000000-0000-0000-0000-000000000001", "00000000000000000000000000000001"}),
        (date(2030, 1, 2), {"2030-01-02", "datetime.date(2030, 1, 2)"}),
    ],
)
def test_a_secret_is_found_as_it_may_turn_up_in_a_text(value: Any, texts: set[str]):
    """Trimmed, without its scheme, line by line, as digits, decoded, as hex and as base64."""
    assert secrets_in(Secret(value)) == texts


@pytest.mark.parametrize(
    "value", [None, True, False, "", "ab", " a ", "    ", "\n\n\n\n", 0, 999, -12, 1.5, b"", b"\xff"]
)
def test_what_no_search_could_hide_is_left_out(value: Any):
    """To hide each "12", each "True" or each indentation would leave nothing of a traceback."""
    assert secrets_in({"password": value}) <= {"\\xff"}


def test_more_sensitive_names_may_be_given_for_finding_and_masking():
    """An application knows its own."""
    arguments = {"patient": {"patientId": "p-12345"}}
    assert secrets_in(arguments) == set()
    assert secrets_in(arguments, ["patient_id"]) == {"p-12345"}
    assert masked(arguments, ["patient_id"]) == {"patient": {"patientId": MASK}}


def test_everything_a_payload_may_hold_is_looked_at():
    """The caps are above those of the codec: a secret cannot hide behind a crowd, nor at the bottom of a well."""
    caps = Caps()
    assert caps.items <= caps.payload // 2 < masking.ITEMS_CAP
    assert caps.depth < masking.DEPTH_CAP
    arguments = {"crowd": [0] * (caps.payload // 2), "last": [{"password": "hunter2"}]}
    assert secrets_in(arguments) == {"hunter2"}


def knots() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    tangle: dict[str, Any] = {"password": "hunter2"}
    tangle["self"] = [tangle, tangle]
    deep: Any = Secret(CANARY)
    for _ in range(5_000):
        deep = [deep]
    wide = [0] * 100_000
    return [loop, tangle, deep, [wide] * 1_000, [list(wide) for _ in range(5)]]


@pytest.mark.parametrize("place", range(5))
def test_values_without_an_end_take_bounded_work(place: int):
    """Values that contain themselves, that are very deep or very wide."""
    value = knots()[place]
    began = time.process_time()
    secrets_in({"password": value, "other": value})
    json.dumps(masked({"other": value}))
    assert time.process_time() - began < 5


@pytest.mark.parametrize("make", [Hostile, HostileMapping, Lazy, object, lambda: 10**5_000])
def test_hostile_values_neither_raise_nor_keep_others_from_being_found(make: Any):
    """Whatever their own methods do. A lazy object is not brought to life just to be looked at."""
    hostile = make()
    arguments = {"a": hostile, "password": [hostile, CANARY], "b": [hostile, Account("ann-lee", CANARY, hostile)]}
    assert CANARY in secrets_in(arguments)
    shown = masked(arguments)
    assert shown["password"] == MASK
    assert shown["b"][1]["password"] == MASK
    assert "canary" not in repr(shown)
    assert secrets_in(hostile) == set()


# Showing values


def test_masked_keeps_the_structure_and_hides_the_secrets():
    """Plain data to print or to send as JSON; what is unknown is told by its class."""
    shown = masked(
        {
            "user": "ann",
            "password": {"old": 1},
            "none": None,
            "list": [1, 2.5, True, ("a", Secret("b"))],
            "set": {7},
            "account": Account("bob", "swordfish", key=b"k"),
            "point": Point(1, "pointed"),
            "at": datetime(2030, 1, 2, tzinfo=UTC),
            "level": Level.HIGH,
            "unknown": [object(), SimpleNamespace(password="x"), object, 10**5_000],
            Secret("key"): 1,
            (1, 2): 2,
            3: 3,
        }
    )
    assert shown == {
        "user": "ann",
        "password": MASK,
        "none": None,
        "list": [1, 2.5, True, ("a", MASK)],
        "set": [7],
        "account": {"name": "bob", "password": MASK, "key": b"k"},
        "point": {"x": 1, "token": MASK},
        "at": datetime(2030, 1, 2, tzinfo=UTC),
        "level": "<Level>",
        "unknown": ["<object>", "<SimpleNamespace>", "<type>", "<int>"],
        MASK: 1,
        "<tuple>": 2,
        3: 3,
    }


def test_masked_tells_what_it_left_out():
    """A value of many items ends in an ellipsis."""
    shown = masked(list(range(masking.SHOWN_CAP + 5)))
    assert shown[:3] == [0, 1, 2]
    assert shown[-1] == "…"
    assert len(shown) == masking.SHOWN_CAP + 1


def test_masked_does_not_run_the_methods_of_a_texts_own_class():
    """A text, however it was made, is shown as the plain text it is."""

    class Loud(str):
        def __repr__(self) -> str:
            raise RuntimeError("loud")

        __str__ = __repr__

    [shown] = masked([Loud("quiet")])
    assert type(shown) is str
    assert shown == "quiet"


names = st.sampled_from(["a", "user", "note"])
sensitive_names = st.sampled_from(["password", "apiKey", "X-Auth-Token"])
innocent = st.none() | st.booleans() | st.integers() | st.text("xyz") | st.binary()


@st.composite
def arguments_with_a_canary(draw: st.DrawFn) -> Any:
    """Nested values with the canary inside a Secret or under a sensitive name, and nowhere else."""
    value = draw(st.sampled_from([Secret(CANARY), {"password": CANARY}, {"token": [CANARY]}, Account("a", CANARY)]))
    for _ in range(draw(st.integers(0, 4))):
        around = draw(st.lists(innocent, max_size=3))
        wrap = draw(st.sampled_from(["list", "tuple", "dict", "secret", "sensitive"]))
        match wrap:
            case "list":
                value = [*around, value]
            case "tuple":
                value = (value, *around)
            case "dict":
                value = {draw(names): value, "b": around}
            case "secret":
                value = Secret(value)
            case "sensitive":
                value = {draw(sensitive_names): [value, around]}
    return {"argument": value}


@given(arguments_with_a_canary())
def test_a_canary_is_always_found_and_never_shown(arguments: Any):
    """Whatever is wrapped around it."""
    assert CANARY in secrets_in(arguments)
    assert "canary" not in repr(masked(arguments))
    assert "canary" not in mask_text(f"failed with {arguments}", secrets_in(arguments))


# Hiding secrets in texts


def test_a_secret_is_hidden_wherever_it_occurs():
    """Each occurrence is replaced, and the rest of the text is as it was."""
    assert mask_text("login hunter2: 'hunter2' is wrong", {"hunter2"}) == "login •••: '•••' is wrong"
    assert mask_text("hunter2", {"hunter2"}) == MASK
    assert mask_text("hunter2hunter2 hunter2", ["hunter2"]) == "••• •••"
    assert mask_text("nothing here", {"hunter2"}) == "nothing here"
    assert mask_text("hunter2", "hunter2") == MASK


def test_longer_secrets_win_and_overlapping_ones_go_as_one():
    """Half of the longer secret must not remain beside the shorter."""
    assert mask_text("my hunter2-and-more!", ["hunter2", "hunter2-and-more"]) == "my •••!"
    assert mask_text("abcdef", ["abcd", "cdef"]) == MASK
    assert mask_text("abcdef", ["bcd", "abcdef"]) == MASK


def test_without_secrets_the_text_stays():
    """So it does with secrets too short to be searched for."""
    assert mask_text("a b  c", []) == "a b  c"
    assert mask_text("", ["abc"]) == ""
    assert mask_text("a b    c", ["", "b", "    "]) == "a b    c"


DISGUISES: dict[str, Any] = {
    "plain": str,
    "repr": repr,
    "ascii": ascii,
    "repr beside a quote": lambda s: repr(f"it's {s}"),
    "repr beside both quotes": lambda s: repr(f'it\'s "{s}"'),
    "repr in containers": lambda s: repr({"a": [s]}),
    "repr in repr": lambda s: repr(repr(s)),
    "repr in a KeyError": lambda s: str(KeyError(f"no {s!r}")),
    "bytes": lambda s: repr(s.encode("utf-8", "surrogatepass")),
    "JSON": json.dumps,
    "JSON in Unicode": lambda s: json.dumps([s], ensure_ascii=False),
    "JSON in JSON": lambda s: json.dumps(json.dumps(s)),
    "JSON in repr": lambda s: repr(json.dumps(s)),
    "as stores take it": lambda s: storable(s, 1000),
    "URL path": lambda s: quote(s, errors="surrogatepass"),
    "URL part": lambda s: quote(s, safe="", errors="surrogatepass"),
    "URL query": lambda s: quote_plus(s, errors="surrogatepass"),
    "form": lambda s: urlencode({"a": s, "b": 1}, errors="surrogatepass"),
}
disguised = pytest.mark.parametrize("disguise", DISGUISES.values(), ids=DISGUISES.keys())


@disguised
@given(st.text(st.characters() | st.sampled_from("'\"\\/% \n\té…😀"), min_size=1, max_size=12))
@example("it's")
@example("""'"\\'""")
@example("back\\slash")
@example("line\nbreak")
@example("päss wörd/😀+%41")
@example("\ud800lone\udfff\n\0")
def test_a_disguised_secret_is_hidden_whole(disguise: Any, inside: str):
    """As repr, JSON and URLs write it, also where errors quote errors. What stands around it stays."""
    secret = f"Q{inside}Z"  # letters that no disguise changes, to see where it begins and ends
    text = disguise(secret)
    before, after = text[: text.index("Q")], text[text.rindex("Z") + 1 :]
    assert mask_text(text, {secret}) == f"{before}{MASK}{after}"


@given(st.text("ab'\\ \n", max_size=60), st.lists(st.text("ab'\\ \n", max_size=6), max_size=6))
def test_no_secret_is_left_in_the_text(text: str, secrets: list[str]):
    """From a small alphabet, so that they overlap, contain each other and look like each other's escapes."""
    hidden = mask_text(text, secrets)
    for secret in secrets:
        assert len(secret.strip()) < 3 or secret not in hidden


@given(st.data())
def test_what_is_not_secret_is_kept_in_order(data: st.DataObject):
    """Nothing but secrets is lost."""
    kept = data.draw(st.lists(st.text("xyz ", min_size=1), min_size=1))
    assert mask_text("hunter2".join(kept), {"hunter2", "absent"}) == MASK.join(kept)


@given(st.lists(st.text("abc", min_size=3, max_size=5), min_size=1, max_size=5), st.text("abc", max_size=80))
def test_many_secrets_are_hidden_as_few_are(secrets: list[str], text: str):
    """With many, forms that cannot occur are left out beforehand, which must change nothing."""
    crowd = [f"absent-{i}" for i in range(200)]
    assert mask_text(text, [*secrets, *crowd]) == mask_text(text, secrets)


@pytest.mark.parametrize(
    ("text", "secrets"),
    [
        ("lorem ipsum " * 4_200, [f"secret number {i}/é'" for i in range(1_000)]),
        ("sk_live_" * 6_250, [f"sk_live_{i:08d}_live_" for i in range(1_000)]),
        ("a" * 50_000, ["a" * length for length in range(3, 1_003)]),
        ("a" * 50_000, ["a" * length + "b" + "a" * length for length in range(3, 1_003)]),
        ("ab" * 25_000, ["ab" * 12_000, "ba" * 12_000 + "c"]),
    ],
    ids=["words", "prefix", "repeats", "nearly", "long"],
)
def test_a_thousand_secrets_are_hidden_in_a_long_text_in_good_time(text: str, secrets: list[str]):
    """Also where text and secrets were made to hurt."""
    began = time.process_time()
    mask_text(text, secrets)
    assert time.process_time() - began < 5


# Lines to print


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("plain text", "plain text"),
        ("grüße, 世界 😀", "grüße, 世界 😀"),
        ("C:\\temp", "C:\\temp"),
        ("one\ntwo\r\n\tthree", "one\\ntwo\\r\\n\\tthree"),
        ("\x1b[31mred\x1b[0m \x07", "\\x1b[31mred\\x1b[0m \\x07"),
        ("\x00\x7f\x85\x9b", "\\x00\\x7f\\x85\\x9b"),
        ("a\u2028b\u202ec\u2066d\ufeff", "a\\u2028b\\u202ec\\u2066d\\ufeff"),
        ("\ud800", "\\ud800"),
        ("", ""),
    ],
)
def test_control_characters_are_escaped(text: str, line: str):
    """No new line, no terminal command and no change of direction gets out; readable text stays."""
    assert printable(text) == line


def test_a_long_text_is_cut_and_says_so():
    """With the length it had, within the cap."""
    assert printable("x" * 100, 100) == "x" * 100
    assert printable("x" * 1_000, 50) == "x" * 30 + "… (1,000 characters)"
    assert printable("x" * 1_000, 5) == "xxxxx"
    assert len(printable("\n" * 10_000_000)) == masking.LINE_CAP


@given(st.text(st.characters() | st.characters(categories=["Cc", "Cf", "Cs", "Zl", "Zp"])), st.integers(0, 60))
def test_a_printable_text_is_one_bounded_line_that_any_terminal_takes(text: str, cap: int):
    """And to do it twice changes nothing."""
    line = printable(text, cap)
    assert line.isprintable()
    assert len(line) <= cap
    line.encode()
    whole = printable(text, sys.maxsize)
    assert printable(whole, sys.maxsize) == whole
    assert len(whole.splitlines()) <= 1
    if text.isprintable():
        assert whole == text
