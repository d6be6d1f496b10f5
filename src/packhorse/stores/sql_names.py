"""Tables whose names begin with a prefix, for a database or a file that others use, too.

Statements and schema files name tables as if they were alone. Where there is a prefix, a statement says them by the
names they have there, `from shop_job as job`, so that all else in it stays as it is. The text is as constant as before.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache

from packhorse.errors import StoreURLError
from packhorse.stores.migrate import steps

LEDGER = "packhorse_schema"
TABLES = (
    *("attempt", "audit", "bell", "edge", "ending", "entry", "hold", "job", "limit_cap", "limit_set", "member"),
    *("pause", "payload", "permit", "process", "rate", "schedule", "share_weight", "signal", "tag", "tick", "ticket"),
    *("turn", "unique_key", LEDGER),
)
PREFIX = re.compile(r"(?!sqlite_|pg_)[a-z_][a-z0-9_]{0,23}")
_NAMED = re.compile(rf"\b(from|join|into|update)(\s+)((?:{'|'.join(TABLES)})(?:_rest)?)\b(\s+as\b)?")
_INDEXED = re.compile(r"\bindexed by (sqlite_autoindex_)?(\w+)")
_CALLED = re.compile(r"\b(ring|refuse)\(")
_QUOTED = re.compile(r"\b(nextval|to_regclass)\('(\w+)'\)")
_MADE = re.compile(r"\bcreate (?:unlogged |constraint )?(?:table|index|sequence|function|trigger) (\w+)")
_IN_SCHEMA = r"\b(table|index|sequence|function|trigger|on|from|perform|into|update)(\s+)({names})\b"


def checked_prefix(url: str, prefix: str) -> str:
    if prefix and not PREFIX.fullmatch(prefix):
        why = "a prefix has at most 24 small letters, digits and underscores, and begins with no digit, sqlite_ or pg_"
        raise StoreURLError(url, why)
    return prefix


def named(name: str, prefix: str) -> str:
    """As it is called in the database."""
    return f"{prefix}ledger" if prefix and name == LEDGER else f"{prefix}{name}"


@lru_cache(4_096)
def prefixed(statement: str, prefix: str) -> str:
    if not prefix:
        return statement
    text = _NAMED.sub(lambda it: f"{it[1]}{it[2]}{named(it[3], prefix)}{it[4] or ' as ' + it[3]}", statement)
    text = _INDEXED.sub(rf"indexed by \1{prefix}\2", text)
    text = _CALLED.sub(rf"{prefix}\1(", text)
    return _QUOTED.sub(rf"\1('{prefix}\2')", text)


def prefixed_schema(script: str, dialect: str, prefix: str) -> str:
    """The text of a schema file."""
    return re.sub(_in_schema(dialect), rf"\1\2{prefix}\3", script) if prefix else script


@cache
def _in_schema(dialect: str) -> str:
    names = {name for step in steps(dialect) for name in _MADE.findall(step.sql)}
    return _IN_SCHEMA.format(names="|".join(sorted(names)))
