"""The stores that can be measured on."""

from __future__ import annotations

from bench.stores.base import MeasuredStore
from bench.stores.postgres import MeasuredPostgres
from bench.stores.sqlite import MeasuredSQLite

STORES: dict[str, type[MeasuredStore]] = {"sqlite": MeasuredSQLite, "postgres": MeasuredPostgres}

__all__ = ["STORES", "MeasuredStore"]
