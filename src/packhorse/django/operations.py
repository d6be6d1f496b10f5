"""The migration operation that applies the stores' own numbered SQL files, and writes them into the same ledger."""

from __future__ import annotations

import re
from typing import Any

from django.db import router
from django.db.migrations.operations.base import Operation

from packhorse.django.places import PREFIX
from packhorse.stores.migrate import LEDGER_COLUMNS, in_parts, steps
from packhorse.stores.sql_names import LEDGER, named, prefixed_schema

DIALECTS = {"sqlite": "sqlite", "postgresql": "postgres"}
LEDGER_TABLE = named(LEDGER, PREFIX)
MADE = re.compile(r"^create (?:unlogged )?(table|sequence|function) (\w+)", re.MULTILINE)


class ApplySteps(Operation):
    """Bring the tables up to these numbers; what `packhorse migrate` has applied already is left as it is."""

    reduces_to_sql = True
    reversible = True

    def __init__(self, *, sqlite: int, postgres: int) -> None:
        self.sqlite = sqlite
        self.postgres = postgres

    def deconstruct(self) -> tuple[str, list[Any], dict[str, Any]]:
        return type(self).__name__, [], {"sqlite": self.sqlite, "postgres": self.postgres}

    def state_forwards(self, app_label: str, state: Any) -> None:
        """The models are unmanaged, and have operations of their own."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        if (dialect := _dialect(schema_editor, app_label)) is None:
            return
        schema_editor.execute(f"create table if not exists {LEDGER_TABLE} ({LEDGER_COLUMNS[dialect]})", params=None)
        applied = _applied(schema_editor)
        for step in steps(dialect):
            if step.number <= getattr(self, dialect) and step.number not in applied:
                script = prefixed_schema(step.sql, dialect, PREFIX)
                for statement in in_parts(script) if dialect == "sqlite" else [script]:
                    schema_editor.execute(statement, params=None)
                row = f"insert into {LEDGER_TABLE} (number, name) values ({step.number}, '{step.name}')"
                schema_editor.execute(row, params=None)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Back to before the first migration: with the tables go the jobs."""
        if (dialect := _dialect(schema_editor, app_label)) is None:
            return
        cascade = " cascade" if dialect == "postgres" else ""
        made = [found for step in steps(dialect) for found in MADE.findall(step.sql)]
        for kind, name in [("table", LEDGER_TABLE), *((kind, PREFIX + name) for kind, name in reversed(made))]:
            schema_editor.execute(f"drop {kind} if exists {name}{cascade}", params=None)

    def describe(self) -> str:
        return "Applies the numbered SQL files of the store"

    @property
    def migration_name_fragment(self) -> str:
        return "store"


def _dialect(schema_editor: Any, app_label: str) -> str | None:
    """None where a database gets no tables: by a router, or because there is no store for it."""
    connection = schema_editor.connection
    if not router.allow_migrate(connection.alias, app_label):
        return None
    return DIALECTS.get(connection.vendor)


def _applied(schema_editor: Any) -> set[int]:
    if schema_editor.collect_sql:
        return set()
    with schema_editor.connection.cursor() as cursor:
        cursor.execute(f"select number from {LEDGER_TABLE}")
        return {number for (number,) in cursor.fetchall()}
