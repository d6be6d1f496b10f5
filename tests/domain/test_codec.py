"""Arguments and results: what is written comes back equal, or is refused where it is made."""

import base64
import json
import random
import tracemalloc
import uuid
from collections import OrderedDict
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import IntEnum, StrEnum
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packhorse import codec
from packhorse.codec import Caps, Codec, Encoded, Tag
from packhorse.errors import ConfigError, PayloadError
from packhorse.masking import Secret


class Point(NamedTuple):
    x: int
    y: int


class Colour(StrEnum):
    RED = "red"


class Size(IntEnum):
    SMALL = 1


PLAIN = Codec()
CAPS = Caps()
OWN = "cannot travel by itself"

REFUSED = {
    "object": (object(), OWN),
    "type": (int, OWN),
    "complex": (1j, OWN),
    "subclass of str": (Colour.RED, "Colour"),
    "subclass of int": (Size.SMALL, "Size"),
    "subclass of dict": (OrderedDict(a=1), "OrderedDict"),
    "subclass of tuple": (Point(1, 2), "Point"),
    "decimal not a number": (Decimal("NaN"), "not a finite number"),
    "endless decimal": (Decimal("1" * 3_000), "digits"),
    "bad value in a tuple": ((1, object()), OWN),
    "bad value in a set": (frozenset({1j}), OWN),
    "not a number": (float("nan"), "not a finite number"),
    "infinite": (float("-inf"), "not a finite number"),
    "huge integer": (1 << codec.INTEGER_BITS_CAP, "bits"),
    "NUL": ("a\0b", "NUL"),
    "lone surrogate": ("\ud800", "lone surrogate"),
    "key that is a number": ({1: "one"}, "text keys only"),
    "key that is None": ({None: "none"}, "text keys only"),
    "key with a NUL": ({"\0": 1}, "NUL"),
    "key with a lone surrogate": ({"\udfff": 1}, "lone surrogate"),
}
refused = pytest.mark.parametrize(("value", "hint"), REFUSED.values(), ids=REFUSED.keys())


@refused
def test_a_value_that_cannot_travel_is_refused_by_the_name_of_its_argument(value: Any, hint: str):
    """The message names the parameter, whether it was passed by place or by name, and says what to do."""
    for args, kwargs in (((0, value), {}), ((), {"photo": value})):
        with pytest.raises(PayloadError, match="argument 'photo'") as caught:
            PLAIN.encode_arguments(args, kwargs, ("size", "photo"))
        assert hint in str(caught.value)


@refused
def test_a_refused_value_is_found_inside_containers_and_its_path_is_named(value: Any, hint: str):
    """A value deep inside is refused like one at the top."""
    with pytest.raises(PayloadError) as caught:
        PLAIN.encode_arguments(([{"inner": [value]}],), {}, ("photo",))
    assert "argument 'photo'[0]['inner'][0]" in str(caught.value)
    assert hint in str(caught.value)


@refused
def test_a_result_is_held_to_the_same_rules(value: Any, hint: str):
    """What may not be an argument may not be a result either."""
    with pytest.raises(PayloadError, match="Cannot store the result") as caught:
        PLAIN.encode_result(value)
    assert hint in str(caught.value)


def test_positional_arguments_beyond_the_names_are_counted():
    """The arguments of `*args` have no names of their own."""
    with pytest.raises(PayloadError, match="argument number 3"):
        PLAIN.encode_arguments((1, 2, 1j), {}, ("numbers",))


@pytest.mark.parametrize("name", ["\0", "\ud800"])
def test_the_name_of_a_keyword_argument_must_be_storable_too(name: str):
    """`**kwargs` can carry any text as a name."""
    with pytest.raises(PayloadError, match="Cannot store argument"):
        PLAIN.encode_arguments((), {name: 1})


def test_arguments_up_to_the_size_cap_are_taken_and_no_more():
    """The cap counts the encoded bytes of all arguments together."""
    overhead = len(PLAIN.encode_arguments(("",), {}).body)
    assert len(PLAIN.encode_arguments(("x" * (CAPS.payload - overhead),), {}).body) == CAPS.payload
    with pytest.raises(PayloadError, match=r"The arguments take 262,145 bytes, more than the 262,144"):
        PLAIN.encode_arguments(("x" * (CAPS.payload - overhead + 1),), {})


def test_a_result_above_the_size_cap_is_refused():
    """The message speaks of one result."""
    with pytest.raises(PayloadError, match=r"The result takes 262,146 bytes"):
        PLAIN.encode_result("x" * CAPS.payload)


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


def test_nesting_up_to_the_depth_cap_is_taken_and_no_more():
    """The cap is far below the depth at which Python's own decoder gives up."""
    assert round_trip(nested(CAPS.depth)) == nested(CAPS.depth)
    with pytest.raises(PayloadError, match=f"Cannot store the result: it is nested deeper than {CAPS.depth}"):
        PLAIN.encode_result(nested(CAPS.depth + 1))


def test_a_list_that_contains_itself_is_refused():
    """It would be nested for ever."""
    knot: list[Any] = []
    knot.append(knot)
    with pytest.raises(PayloadError, match="nested deeper"):
        PLAIN.encode_arguments((knot,), {}, ("knot",))


def test_the_item_cap_counts_all_arguments_together():
    """One budget for the whole payload, so that many middling lists are refused like one large list."""
    half = [0] * (CAPS.items // 2)
    PLAIN.encode_arguments((half, half), {})
    with pytest.raises(PayloadError, match="argument 'more': it has more items in all"):
        PLAIN.encode_arguments((half, half), {"more": [0]})


def round_trip(value: Any, by: Codec = PLAIN) -> Any:
    encoded = by.encode_result(value)
    return by.decode_result(encoded.body, typed=encoded.typed)


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
plain_scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 4096) + 1, (1 << 4096) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
)
offsets = st.timedeltas(timedelta(hours=-23), timedelta(hours=23)).map(timezone)
zones = st.sampled_from(["UTC", "Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe"]).map(ZoneInfo)
typed_scalars = (
    st.datetimes(timezones=st.none() | offsets | zones)
    | st.dates()
    | st.times(timezones=st.none() | offsets | zones)
    | st.timedeltas()
    | st.decimals(allow_nan=False, allow_infinity=False)
    | st.uuids()
    | st.binary()
)
hashable = st.recursive(
    plain_scalars | typed_scalars, lambda inner: st.tuples(inner) | st.frozensets(inner), max_leaves=4
)
values = st.recursive(
    plain_scalars | typed_scalars,
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(texts | st.just("!"), inner)
        | st.lists(inner).map(tuple)
        | st.sets(hashable)
        | st.frozensets(hashable)
        | inner.map(Secret)
    ),
    max_leaves=20,
)


def same(left: Any, right: Any) -> bool:
    """Equal, and of equal types all the way down: 1, 1.0 and True are three things, and so are 0.0 and -0.0."""
    if type(left) is not type(right):
        return False
    match left:
        case list() | tuple():
            return len(left) == len(right) and all(map(same, left, right))
        case dict():
            return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
        case set() | frozenset():
            return bool(left == right)
        case Secret():
            return same(left.reveal(), right.reveal())
        case datetime() | time():
            zone = type(left.tzinfo) is not ZoneInfo or left.tzinfo is right.tzinfo
            return bool(left == right) and left.isoformat() == right.isoformat() and left.fold == right.fold and zone
    return repr(left) == repr(right)


@pytest.mark.parametrize("value", [None, ["tuple", []], 5])
def test_an_argument_may_be_named_as_tags_are_marked(value: Any):
    """No parameter can, but what **kwargs takes."""
    encoded = Codec().encode_arguments([()], {"!": value})
    assert Codec().decode_arguments(encoded.body, typed=encoded.typed) == ([()], {"!": value}, {})


@given(st.lists(values, max_size=4), st.dictionaries(texts, values, max_size=4))
def test_arguments_come_back_equal(args: list[Any], kwargs: dict[str, Any]):
    """Whatever is accepted is the same after a round trip, types and order included."""
    encoded = PLAIN.encode_arguments(tuple(args), kwargs)
    back = PLAIN.decode_arguments(encoded.body, typed=encoded.typed)
    assert same([back.args, back.kwargs, back.metadata], [args, kwargs, {}])


@given(values)
def test_results_come_back_equal(value: Any):
    assert same(round_trip(value), value)


@given(st.dictionaries(texts, values, min_size=1, max_size=3))
def test_metadata_travels_beside_the_arguments(metadata: dict[str, Any]):
    encoded = PLAIN.with_metadata(PLAIN.encode_arguments((1,), {"a": 2}), metadata)
    back = PLAIN.decode_arguments(encoded.body, typed=encoded.typed)
    assert same(list(back), [[1], {"a": 2}, metadata])


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(json_values)
def test_the_encoder_that_is_made_once_writes_what_the_standard_one_does(value: Any):
    assert codec._dump_text(value) == json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), [{"a": b""}]])
def test_the_encoder_that_is_made_once_refuses_what_the_standard_one_refuses(value: Any):
    with pytest.raises((ValueError, TypeError)):
        codec._dump_text(value)


def test_plain_values_carry_no_tags_and_are_marked_so():
    assert PLAIN.encode_result({"a": [1, "b", None, True, 1.5]}) == Encoded(b'{"a":[1,"b",null,true,1.5]}', False)


def test_a_dictionary_that_looks_like_a_tag_is_no_tag():
    assert round_trip({"!": ["set", [1]]}) == {"!": ["set", [1]]}


def test_the_same_set_is_the_same_text():
    letters = [chr(97 + n) for n in range(26)]
    texts = {PLAIN.encode_result(set(random.Random(n).sample(letters, 26))).body for n in range(20)}
    assert len(texts) == 1


def test_a_repeated_hour_keeps_its_side():
    second = datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin"))
    assert round_trip(second).utcoffset() == timedelta(hours=1)


# Types of the application.


class Money:
    def __init__(self, cents: int) -> None:
        self.cents = cents

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Money) and other.cents == self.cents

    def __hash__(self) -> int:
        return hash(self.cents)


def money(decode: Callable[[Any], Any] = Money) -> Codec:
    by = Codec()
    by.register(Tag("money", Money, lambda it: it.cents, decode))
    return by


def test_a_registered_type_travels_anywhere():
    value = [Money(5), {"paid": (Money(7), {Money(9)})}]
    assert round_trip(value, money()) == value


def test_a_type_that_is_registered_elsewhere_only_is_unknown_here():
    encoded = money().encode_result(Money(5))
    with pytest.raises(PayloadError, match="tag that this application does not know"):
        PLAIN.decode_result(encoded.body, typed=True)


def test_a_decoder_of_the_application_that_raises_is_named_without_the_value():
    def broken(data: Any) -> Any:
        raise RuntimeError(f"cannot read {data}")

    encoded = money(broken).encode_result(Money(4711))
    with pytest.raises(PayloadError, match="A money cannot be decoded: RuntimeError") as caught:
        money(broken).decode_result(encoded.body, typed=True)
    assert "4711" not in str(caught.value)


@pytest.mark.parametrize(
    ("tag", "why"),
    [
        (Tag("money", int, int, int), "travels as it is"),
        (Tag("set", Money, int, int), "already is a type named 'set'"),
        (Tag("dict", Money, int, int), "already is a type named 'dict'"),
        (Tag("day", date, str, str), "already registered under the name 'date'"),
        (Tag("x", "Money", int, int), "Register a class"),  # type: ignore[arg-type]
    ],
)
def test_a_type_is_registered_once_under_one_name(tag: Tag, why: str):
    with pytest.raises(ConfigError, match=why):
        Codec().register(tag)


# Hostile input.

WRONG = {
    "unknown tag": ["os.system", "true"],
    "no list": "set",
    "too long": ["set", [], []],
    "tag that is no text": [1, []],
    "datetime of numbers": ["datetime", [1, 2]],
    "datetime in no zone": ["datetime", ["2026-01-01T00:00:00", 0, "Nowhere/Land"]],
    "datetime in a path": ["datetime", ["2026-01-01T00:00:00", 0, "../../etc/passwd"]],
    "fold of five": ["datetime", ["2026-01-01T00:00:00", 5]],
    "date of a list": ["date", []],
    "endless timedelta": ["timedelta", [10**30, 0, 0]],
    "timedelta of text": ["timedelta", "abc"],
    "decimal of words": ["decimal", "ten"],
    "infinite decimal": ["decimal", "Infinity"],
    "endless decimal": ["decimal", "1" * 100_000],
    "uuid of a number": ["uuid", 5],
    "bytes of no base64": ["bytes", "a"],
    "tuple of text": ["tuple", "abc"],
    "set of lists": ["set", [[1]]],
    "dict of numbers": ["dict", [1, 2]],
    "dict of number keys": ["dict", [[1, 2]]],
    "dict of triples": ["dict", [["a", 1, 2]]],
}


@pytest.mark.parametrize("tagged", WRONG.values(), ids=WRONG.keys())
def test_a_tag_of_the_wrong_shape_is_a_payload_error(tagged: Any):
    data = json.dumps({"a": [{"!": tagged}], "k": {}}).encode()
    with pytest.raises(PayloadError):
        PLAIN.decode_arguments(data, typed=True)


@given(st.binary() | st.text().map(lambda text: text.encode("utf-8", "surrogatepass")), st.booleans())
def test_bytes_that_are_no_payload_raise_only_a_payload_error(data: bytes, typed: bool):
    """A row that somebody else wrote must not surprise a worker."""
    for decode in (PLAIN.decode_arguments, PLAIN.decode_result):
        try:
            decode(data, typed=typed)
        except PayloadError:
            pass


PIECES = [
    *"[]{},:!",
    *('"a"', '"k"', '"m"', '"!"', "1", "-0", "1e999", "NaN", "null", "true", '"\\ud800"', '"\\u0000"', "1" * 5_000),
    *(
        f'{{"!":["{tag}",'
        for tag in ("set", "tuple", "datetime", "date", "time", "timedelta", "decimal", "uuid", "bytes")
    ),
    *('{"!":["dict",[["x",', '{"!":["secret",', "]}", '"2026-01-01T00:00:00"', '"Europe/Berlin"', '"aGk="'),
]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_million_random_inputs_raise_only_payload_errors_within_bounds():
    """Half of them are random bytes, half are put together from pieces of envelopes."""
    luck = random.Random(20261116)
    decoded = refused = 0
    tracemalloc_every, most = 5_000, 0.0
    for number in range(1_000_000):
        if number % 2:
            data = luck.randbytes(luck.randrange(60))
        else:
            inner = "".join(luck.choices(PIECES, k=luck.randrange(8)))
            data = (f'{{"a":[{inner}],"k":{{}}}}' if luck.random() < 0.7 else inner).encode()
        if watched := number % tracemalloc_every == 0:
            tracemalloc.start()
        try:
            PLAIN.decode_arguments(data, typed=bool(number % 3))
            decoded += 1
        except PayloadError:
            refused += 1
        if watched:
            most = max(most, tracemalloc.get_traced_memory()[1] / (len(data) + 4_096))
            tracemalloc.stop()
    assert decoded + refused == 1_000_000
    assert decoded > 1_000, "the pieces never make an envelope, so this test tests too little"
    assert most < 16


@pytest.mark.parametrize(
    "data",
    [b"[" * 100_000, b"x" * (CAPS.payload + 1), b"9" * 5_000, b'{"a":' + b"[" * 300 + b"]" * 300 + b',"k":{}}'],
)
def test_a_payload_made_to_hurt_raises_only_a_payload_error(data: bytes):
    """Endless nesting, endless length and endless numbers all end the same way."""
    with pytest.raises(PayloadError):
        PLAIN.decode_arguments(data, typed=True)


def test_the_caps_hold_on_reading_too():
    many = json.dumps({"a": [[0] * 30_000], "k": {}}).encode()
    with pytest.raises(PayloadError, match="more items in all"):
        PLAIN.decode_arguments(many, typed=False)


def test_the_limits_can_be_set():
    small = Codec(Caps(payload=64, result=32, depth=2, items=3))
    small.encode_arguments(([1, 2, 3],), {})
    for value in ([1, 2, 3, 4], [[[1]]], "x" * 60):
        with pytest.raises(PayloadError):
            small.encode_arguments((value,), {})
    with pytest.raises(PayloadError, match="more than the 32 allowed"):
        small.encode_result("x" * 40)


def test_bytes_travel_as_base64():
    assert json.loads(PLAIN.encode_result(b"hi").body) == {"!": ["bytes", base64.b64encode(b"hi").decode()]}


def test_uuids_come_back_as_uuids():
    assert same(round_trip(uuid.UUID(int=7)), uuid.UUID(int=7))
