"""The migration operation that applies the stores' own numbered SQL files, and writes them into the same ledger."""

from __future__ import annotations

from typing import Any

from django.db import router
from django.db.migrations.operations.base import Operation

from packhorse.stores.migrate import Step, in_parts, ledger, steps

DIALECTS = {"sqlite": "sqlite", "postgresql": "postgres"}
SCHEMA = "packhorse"  # of PostgreSQL: the tables stand in a schema of their own


class ApplySteps(Operation):
    """Bring the tables up to these numbers; what `packhorse migrate` has applied already is left as it is."""

    reduces_to_sql = True
    reversible = True
    elidable = False

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
        wanted = [step for step in steps(dialect) if step.number <= getattr(self, dialect)]
        with _Place(schema_editor, dialect) as execute:
            execute(ledger(dialect))
            for step in wanted:
                if step.number not in _applied(schema_editor):
                    for statement in in_parts(step, dialect):
                        execute(statement)
                    execute(f"insert into packhorse_schema (number, name) values ({step.number}, '{step.name}')")

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Of the first migration alone: with the tables go the jobs."""
        if (dialect := _dialect(schema_editor, app_label)) is None:
            return
        if dialect == "postgres":
            schema_editor.execute(f"drop schema if exists {SCHEMA} cascade")
            return
        for table in _tables(steps(dialect)):
            schema_editor.execute(f"drop table if exists {table}")
        schema_editor.execute("drop table if exists packhorse_schema")

    def describe(self) -> str:
        return "Applies the numbered SQL files of the store"

    @property
    def migration_name_fragment(self) -> str:
        return "store"


class _Place:
    """Statements that find the tables by their bare names."""

    def __init__(self, schema_editor: Any, dialect: str) -> None:
        self._editor = schema_editor
        self._own = dialect == "postgres"

    def __enter__(self) -> Any:
        if self._own:
            self._editor.execute(f"create schema if not exists {SCHEMA}")
            self._editor.execute(f"set search_path to {SCHEMA}")
        return self._execute

    def __exit__(self, *error: object) -> None:
        if self._own and error[0] is None:
            self._editor.execute("reset search_path")

    def _execute(self, statement: str) -> None:
        self._editor.execute(statement, params=None)


def _dialect(schema_editor: Any, app_label: str) -> str | None:
    """None where these databases get no tables: by a router, or because there is no store for them."""
    connection = schema_editor.connection
    if not router.allow_migrate(connection.alias, app_label):
        return None
    return DIALECTS.get(connection.vendor)


def _applied(schema_editor: Any) -> set[int]:
    if schema_editor.collect_sql:
        return set()
    with schema_editor.connection.cursor() as cursor:
        cursor.execute("select number from packhorse_schema")
        return {number for (number,) in cursor.fetchall()}


def _tables(found: tuple[Step, ...]) -> list[str]:
    words = (line.split() for step in found for line in step.sql.splitlines())
    return [it[2] for it in words if it[:2] == ["create", "table"]]
