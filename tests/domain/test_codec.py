"""Arguments and results: what is written comes back equal, or is refused where it is made."""

import uuid
from collections import OrderedDict
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import IntEnum, StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packhorse import codec
from packhorse.errors import PayloadError


class Colour(StrEnum):
    RED = "red"


class Size(IntEnum):
    SMALL = 1


REFUSED = {
    "tuple": ((1, 2), "pass a list"),
    "set": ({1}, "pass a list"),
    "frozenset": (frozenset({1}), "pass a list"),
    "bytes": (b"x", "base64"),
    "datetime": (datetime(2030, 1, 1, tzinfo=UTC), "isoformat"),
    "date": (date(2030, 1, 1), "isoformat"),
    "UUID": (uuid.UUID(int=1), "str(value)"),
    "Decimal": (Decimal("1.5"), "str(value)"),
    "object": (object(), "plain text"),
    "type": (int, "plain text"),
    "complex": (1j, "plain text"),
    "subclass of str": (Colour.RED, "Colour"),
    "subclass of int": (Size.SMALL, "Size"),
    "subclass of dict": (OrderedDict(a=1), "OrderedDict"),
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
def test_a_value_that_is_not_json_is_refused_by_the_name_of_its_argument(value: Any, hint: str):
    """The message names the parameter, whether it was passed by place or by name, and says what to do."""
    for args, kwargs in (((0, value), {}), ((), {"photo": value})):
        with pytest.raises(PayloadError, match="argument 'photo'") as caught:
            codec.encode_arguments(args, kwargs, ("size", "photo"))
        assert hint in str(caught.value)


@refused
def test_a_refused_value_is_found_inside_containers_and_its_path_is_named(value: Any, hint: str):
    """A value deep inside is refused like one at the top."""
    with pytest.raises(PayloadError) as caught:
        codec.encode_arguments(([{"inner": [value]}],), {}, ("photo",))
    assert "argument 'photo'[0]['inner'][0]" in str(caught.value)
    assert hint in str(caught.value)


@refused
def test_a_result_is_held_to_the_same_rules(value: Any, hint: str):
    """What may not be an argument may not be a result either."""
    with pytest.raises(PayloadError, match="Cannot store the result") as caught:
        codec.encode_result(value)
    assert hint in str(caught.value)


def test_positional_arguments_beyond_the_names_are_counted():
    """The arguments of `*args` have no names of their own."""
    with pytest.raises(PayloadError, match="argument number 3"):
        codec.encode_arguments((1, 2, b"x"), {}, ("numbers",))


@pytest.mark.parametrize("name", ["\0", "\ud800"])
def test_the_name_of_a_keyword_argument_must_be_storable_too(name: str):
    """`**kwargs` can carry any text as a name."""
    with pytest.raises(PayloadError, match="Cannot store argument"):
        codec.encode_arguments((), {name: 1})


def test_arguments_up_to_the_size_cap_are_taken_and_no_more():
    """The cap counts the encoded bytes of all arguments together."""
    overhead = len(codec.encode_arguments(("",), {}))
    assert len(codec.encode_arguments(("x" * (codec.SIZE_CAP - overhead),), {})) == codec.SIZE_CAP
    with pytest.raises(PayloadError, match=r"The arguments take 262,145 bytes, more than the 262,144"):
        codec.encode_arguments(("x" * (codec.SIZE_CAP - overhead + 1),), {})


def test_a_result_above_the_size_cap_is_refused():
    """The message speaks of one result."""
    with pytest.raises(PayloadError, match=r"The result takes 262,146 bytes"):
        codec.encode_result("x" * codec.SIZE_CAP)


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


def test_nesting_up_to_the_depth_cap_is_taken_and_no_more():
    """The cap is far below the depth at which Python's own decoder gives up."""
    assert codec.decode_result(codec.encode_result(nested(codec.DEPTH_CAP))) == nested(codec.DEPTH_CAP)
    with pytest.raises(PayloadError, match=f"Cannot store the result: it is nested deeper than {codec.DEPTH_CAP}"):
        codec.encode_result(nested(codec.DEPTH_CAP + 1))


def test_a_list_that_contains_itself_is_refused():
    """It would be nested for ever."""
    knot: list[Any] = []
    knot.append(knot)
    with pytest.raises(PayloadError, match="nested deeper"):
        codec.encode_arguments((knot,), {}, ("knot",))


def test_the_item_cap_counts_all_arguments_together():
    """One budget for the whole payload, so that many middling lists are refused like one large list."""
    half = [0] * (codec.ITEMS_CAP // 2)
    codec.encode_arguments((half, half), {})
    with pytest.raises(PayloadError, match="argument 'more': it has more than 10,000 items in all"):
        codec.encode_arguments((half, half), {"more": [0]})


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 4096) + 1, (1 << 4096) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
)
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=30)


def same(left: Any, right: Any) -> bool:
    """Equal, and of equal types all the way down: 1, 1.0 and True are three things, and so are 0.0 and -0.0."""
    if type(left) is not type(right):
        return False
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    return repr(left) == repr(right)


@given(st.lists(values, max_size=4), st.dictionaries(texts, values, max_size=4))
def test_arguments_come_back_equal(args: list[Any], kwargs: dict[str, Any]):
    """Whatever is accepted is the same after a round trip, types and order included."""
    back = codec.decode_arguments(codec.encode_arguments(tuple(args), kwargs))
    assert same(list(back), [args, kwargs])


@given(values)
def test_results_come_back_equal(value: Any):
    """None stores nothing at all."""
    data = codec.encode_result(value)
    assert (data is None) == (value is None)
    assert same(codec.decode_result(data), value)


@given(st.binary() | st.text().map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_bytes_that_are_no_payload_raise_only_a_payload_error(data: bytes):
    """A row that somebody else wrote must not surprise a worker."""
    for decode in (codec.decode_arguments, codec.decode_result):
        try:
            decode(data)
        except PayloadError:
            pass


json_like = st.recursive(
    st.sampled_from(["null", "true", "1", "-0", "1e999", "NaN", "Infinity", '"\\ud800"', '"a"', "", "1" * 5000]),
    lambda inner: (
        st.lists(inner).map(lambda parts: f"[{','.join(parts)}]")
        | st.dictionaries(st.sampled_from("vak"), inner).map(
            lambda parts: "{" + ",".join(f'"{key}":{part}' for key, part in parts.items()) + "}"
        )
    ),
)


@given(json_like)
def test_text_that_is_nearly_a_payload_raises_only_a_payload_error(text: str):
    """Close to an envelope is not close enough."""
    try:
        args, kwargs = codec.decode_arguments(text.encode())
    except PayloadError:
        return
    assert isinstance(args, list)
    assert isinstance(kwargs, dict)


@pytest.mark.parametrize("data", [b"[" * 100_000, b"x" * (codec.SIZE_CAP + 1), b"9" * 5_000])
def test_a_payload_made_to_hurt_raises_only_a_payload_error(data: bytes):
    """Endless nesting, endless length and endless numbers all end the same way."""
    with pytest.raises(PayloadError):
        codec.decode_arguments(data)


def test_a_payload_of_a_later_version_says_to_upgrade():
    """An old worker meets jobs of a newer program during every deployment."""
    with pytest.raises(PayloadError, match=r"version 2; this Packhorse reads 1\. Upgrade the worker"):
        codec.decode_arguments(b'{"v":2,"a":[],"k":{}}')
