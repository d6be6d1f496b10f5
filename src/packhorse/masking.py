"""What must not be read: secrets, the names that give them away, and text that is safe to print.

Mask first, then cut or escape: half a secret, or one in an unknown disguise, is not found any more.
"""

from __future__ import annotations

import base64
import json
import re
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from itertools import islice, repeat
from typing import Any, Generic, NoReturn, TypeVar, final
from urllib.parse import quote, quote_plus
from uuid import UUID

MASK = "•••"
LEFT_OUT = "…"

ITEMS_CAP = 200_000  # more than 256 KiB of JSON can hold, so nothing a job usually carries is overlooked
SHOWN_CAP = 20_000
DEPTH_CAP = 100
BYTES_CAP = 1024 * 1024
INTEGER_BITS_CAP = 14_000  # Python refuses to write more than 4,300 digits
LINE_CAP = 4 * 1024

# Shorter texts stay readable: hiding each "12" or "ab" would leave nothing of a traceback, and show where they were.
SHORTEST = 3
SHORTEST_NUMBER = 4
SHORTEST_LINE = 8

T_co = TypeVar("T_co", covariant=True)


@final
class Secret(Generic[T_co]):
    """A value that shows itself to nobody but the caller of `reveal`."""

    __slots__ = ("_value",)

    _value: T_co

    def __init__(self, value: T_co) -> None:
        object.__setattr__(self, "_value", value)

    def reveal(self) -> T_co:
        return self._value

    def __repr__(self) -> str:
        return f"Secret({MASK})"

    def __format__(self, spec: str) -> str:
        return repr(self)  # whatever the spec: one meant for the value would raise, or tell its length

    def __eq__(self, other: object) -> bool:
        return bool(self._value == other._value) if isinstance(other, Secret) else NotImplemented

    def __hash__(self) -> int:
        return hash((Secret, self._value))

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError("A Secret cannot be changed. Make another one.")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError("A Secret cannot be changed. Make another one.")

    def __reduce__(self) -> tuple[type[Secret[Any]], tuple[T_co]]:
        return Secret, (self._value,)


_SENSITIVE = """
    password pass_word passwd pwd passphrase pass_phrase passcode pass_code pgpassword dbpassword
    secret client_secret secret_key private_key access_key signing_key encryption_key ssh_key api_key
    token access_token refresh_token auth_token id_token csrf_token csrfmiddlewaretoken xsrf_token jwt bearer
    auth authorization oauth credential cookie session session_id otp totp recovery_code security_code
    dsn database_url connection_string
    card_number credit_card cvv cvc iban pin ssn social_security_number
"""
SENSITIVE = frozenset(_SENSITIVE.split())

# Between snake_case and kebab-case words, at the humps of camelCase, and around digits.
_SEAM = re.compile(r"[\W_]+|(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|(?<=[^\W\d_])(?=\d)|(?<=\d)(?=[^\W\d_])")


def is_sensitive(name: str, more: Iterable[str] = ()) -> bool:
    """Whether a name has a sensitive one among its words: user_password, apiKey, X-Auth-Token; not tokenizer.

    A plural counts, and a name of several words also where they are written as one: api_key, apikey, API-Keys.
    """
    words = _words(name)
    single, joined, longest = _lookup(_as_names(more))
    return any(
        "".join(words[start:end]).removesuffix("s") in (single if end == start + 1 else joined)
        for start in range(len(words))
        for end in range(start + 1, min(start + longest, len(words)) + 1)
    )


def _words(name: str) -> list[str]:
    return [word.casefold() for word in _SEAM.split(name) if word]


def _as_names(more: Iterable[str]) -> frozenset[str]:
    return frozenset((more,) if isinstance(more, str) else more)


@lru_cache(maxsize=64)
def _lookup(more: frozenset[str]) -> tuple[frozenset[str], frozenset[str], int]:
    """All names without their plural s: those one word can match, those several words can, and how many words."""
    names = [words for name in SENSITIVE | more if (words := _words(name))]
    single = frozenset("".join(words).removesuffix("s") for words in names)
    joined = frozenset("".join(words).removesuffix("s") for words in names if len(words) > 1)
    return single, joined, max(map(len, names))


def secrets_in(arguments: Any, more: Iterable[str] = ()) -> set[str]:
    """The texts to hide: of every Secret, and of everything under a sensitive name, however deep.

    Left out is what no search could hide without hiding half the text: None and booleans, texts of fewer than three
    characters, numbers of fewer than four digits. Never raises, and looks at ITEMS_CAP values at most.
    """
    names = _as_names(more)
    found: set[str] = set()
    seen: dict[tuple[int, bool], Any] = {}  # holds the values too, lest an id be used again
    ahead: deque[tuple[Any, bool]] = deque([(arguments, False)])
    left = ITEMS_CAP
    while ahead:
        value, hidden = ahead.popleft()
        if (id(value), hidden) in seen:
            continue
        seen[id(value), hidden] = value
        if issubclass(type(value), Secret):
            ahead.append((value.reveal(), True))
            continue
        parts = _parts(value, left)
        if parts is None:
            if hidden:
                found.update(_texts(value))
            continue
        left -= len(parts)
        for name, part in parts:
            ahead.append((part, hidden or _names_a_secret(name, names)))
            if issubclass(type(name), Secret) or (hidden and not _reads_as_a_name(name)):
                ahead.append((name, True))
    return {text for text in found if _can_be_hidden(text)}


def masked(value: Any, more: Iterable[str] = ()) -> Any:
    """The same structure as plain data, to be shown: without secrets, and with a class name for every other object."""
    return _Masker(_as_names(more)).value(value)


class _Masker:
    def __init__(self, names: frozenset[str]) -> None:
        self._names = names
        self._left = SHOWN_CAP

    def value(self, value: Any, depth: int = 0) -> Any:
        if issubclass(type(value), Secret):
            return MASK
        parts = _parts(value, self._left + 1)
        if parts is None:
            return _plain(value)
        if depth >= DEPTH_CAP:
            return LEFT_OUT
        room = self._left
        self._left -= min(len(parts), room)
        shown = [
            (MASK if issubclass(type(name), Secret) else _plain(name), self._part(name, part, depth))
            for name, part in parts[:room]
        ]
        if len(parts) > room:
            shown.append((LEFT_OUT, LEFT_OUT))
        if _has_names(type(value)):
            return dict(shown)
        items = [part for _, part in shown]
        return tuple(items) if issubclass(type(value), tuple) else items

    def _part(self, name: object, part: Any, depth: int) -> Any:
        return MASK if _names_a_secret(name, self._names) else self.value(part, depth + 1)


# Values are asked for their type(), never by isinstance: a lazy object would come to life, or raise.

_SEQUENCES = (list, tuple, set, frozenset, deque)
_PLAIN = frozenset({type(None), bool, int, float, str, bytes, date, datetime, time, timedelta, Decimal, UUID})


def _has_names(kind: type) -> bool:
    return issubclass(kind, Mapping) or is_dataclass(kind) or (issubclass(kind, tuple) and hasattr(kind, "_fields"))


def _parts(value: Any, limit: int) -> list[tuple[object, Any]] | None:
    """What is inside, each with its name if it has one; None for a value that is no container."""
    kind = type(value)
    try:
        if issubclass(kind, Mapping):
            return list(islice(value.items(), limit))
        if is_dataclass(kind):
            return [(field.name, _attribute(value, field.name)) for field in islice(fields(kind), limit)]
        if issubclass(kind, _SEQUENCES):
            names = getattr(kind, "_fields", ()) if _has_names(kind) else repeat(None)
            return list(islice(zip(names, value, strict=False), limit))
    except BaseException:  # a value's own methods may raise anything while they are looked at
        pass
    return None


def _attribute(value: object, name: str) -> Any:
    try:
        return getattr(value, name, None)
    except BaseException:
        return None


def _names_a_secret(name: object, more: frozenset[str]) -> bool:
    if issubclass(type(name), bytes):
        name = bytes.decode(name, "latin-1")  # type: ignore[arg-type]
    return issubclass(type(name), str) and is_sensitive(str.__str__(name), more)


def _reads_as_a_name(key: object) -> bool:
    # {"credentials": {"user": …}}: to hide each "user" would help nobody. A key with digits may be one of many tokens.
    return key is None or (type(key) is str and key.replace("_", "").replace("-", "").isalpha())


def _plain(value: Any) -> Any:
    kind = type(value)
    if issubclass(kind, int) and int.bit_length(value) > INTEGER_BITS_CAP:
        return f"<{kind.__name__}>"
    if kind in _PLAIN:
        return value
    for base, convert in ((str, str.__str__), (int, int.__int__), (float, float.__float__)):
        if issubclass(kind, base):
            return convert(value)
    return f"<{kind.__name__}>"


def _texts(value: Any) -> set[str]:
    """How a secret value may turn up in a text."""
    kind = type(value)
    try:
        if value is None or kind is bool:
            return set()
        if issubclass(kind, str):
            return _texts_of_text(str.__str__(value))
        if issubclass(kind, bytes | bytearray | memoryview):
            return _texts_of_bytes(bytes(value))
        if issubclass(kind, int | float | Decimal):
            return _texts_of_number(_plain(value))
        if issubclass(kind, Enum):
            return _texts(value.value)
        if issubclass(kind, UUID):
            return {str(value), value.hex}
        return _texts_of_text(str(value)) | _texts_of_text(repr(value))
    except BaseException:  # as above
        return set()


_SCHEME = re.compile(r"\A(?:basic|bearer|digest|negotiate|token)\s+", re.IGNORECASE)


def _texts_of_text(text: str) -> set[str]:
    """Also without the scheme of an Authorization header, and line by line: tracebacks indent what has many lines."""
    bare = text.strip()
    lines = [line.strip() for line in bare.splitlines()]
    return {text, bare, _SCHEME.sub("", bare), *(line for line in lines if len(line) >= SHORTEST_LINE)}


def _texts_of_bytes(data: bytes) -> set[str]:
    try:
        found = _texts_of_text(data.decode())
    except UnicodeDecodeError:
        found = set()
    if len(data) <= BYTES_CAP:
        coded = {base64.b64encode(data), base64.urlsafe_b64encode(data)}
        found |= {repr(data)[2:-1], data.hex(), *(code.decode().rstrip("=") for code in coded)}
    return found


def _texts_of_number(number: float | Decimal) -> set[str]:
    text = str(number).lstrip("-")
    return {text} if sum(map(str.isdigit, text)) >= SHORTEST_NUMBER else set()


def _can_be_hidden(text: str) -> bool:
    return len(text.strip()) >= SHORTEST


WORK_CAP = 200_000_000  # texts times characters that may be searched; about a tenth of a second


def mask_text(text: str, secrets: Collection[str]) -> str:
    """The text without these texts, plain or as repr, JSON and URLs write them. Those that overlap go as one."""
    if not text or not secrets:
        return text
    forms = {
        form
        for secret in ((secrets,) if isinstance(secrets, str) else secrets)
        if _can_be_hidden(secret)
        for form in _forms(secret)
    }
    if len(forms) * len(text) > WORK_CAP:
        return f"{MASK} (hidden as a whole: {len(text):,} characters, and too many secrets to look for)"
    spans = sorted(span for form in _candidates(text, forms) for span in _occurrences(text, form))
    pieces: list[str] = []
    shown = 0  # up to here the text is copied or hidden
    for start, end in spans:
        if start > shown or not pieces:
            pieces += [text[shown:start], MASK]
        shown = max(shown, end)
    return "".join([*pieces, text[shown:]])


def _forms(secret: str) -> set[str]:
    if secret.isalnum() and secret.isascii():
        return {secret}
    data = secret.encode("utf-8", "surrogatepass")
    urls = {quote(data), quote(data, safe=""), quote_plus(data)}
    # Twice, because errors are often quoted in errors: str(KeyError(f"no {name!r}")) has a repr inside a repr.
    once = _escaped(secret)
    return urls.union(once, *map(_escaped, once))


def _escaped(text: str) -> set[str]:
    found = {text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}
    found.add(text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00"))  # as stores take it
    if not text.isascii():
        found.add(repr(text.encode("utf-8", "surrogatepass"))[2:-1])
    for escape in (repr, ascii):
        # Whether a quote is escaped depends on the quotes in the rest of the text.
        pieces = [escape(piece)[1:-1] for piece in text.split("'")]
        found |= {"'".join(pieces), "\\'".join(pieces)}
    return found


def _candidates(text: str, forms: Collection[str]) -> Iterable[str]:
    """The forms whose first and last letters occur: one pass over the text instead of one for each of thousands."""
    if len(forms) < 100:
        return forms
    triples = {text[i : i + SHORTEST] for i in range(len(text) - SHORTEST + 1)}
    return [form for form in forms if form[:SHORTEST] in triples and form[-SHORTEST:] in triples]


def _occurrences(text: str, form: str) -> Iterator[tuple[int, int]]:
    start = text.find(form)
    while start >= 0:
        end = start + len(form)
        yield start, end
        start = text.find(form, end)


def printable(text: str, cap: int = LINE_CAP) -> str:
    """On one line and without control characters, at most `cap` long: for logs and terminals."""
    head = text[: cap + 1]
    if not head.isprintable():
        head = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in head)
    if len(text) <= cap and len(head) <= cap:
        return head
    note = f"{LEFT_OUT} ({len(text):,} characters)"
    return head[: cap - len(note)] + note if cap > len(note) else head[:cap]


_PASSWORD = re.compile(r"^(.*?://|(?!.*://))([^:@/?#]*):.*@", re.DOTALL)
_OPTION = re.compile(
    r"((?:^|[?&;\s])[^=&;?/\s]*(?:pass|pwd|secret|token|key)[^=&;?/\s]*\s*=)[^&]*", re.IGNORECASE | re.DOTALL
)


def masked_url(url: str) -> str:
    """The URL without its password. In one that is malformed, all that may be a password is hidden."""
    return _OPTION.sub(rf"\1{MASK}", _PASSWORD.sub(rf"\1\2:{MASK}@", url))
