"""Reads rows of every schema version: a table of one-step migrations, applied until the row is current."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fcilbench.errors import UsageError
from fcilbench.spec.row import SCHEMA_VERSION, Row

Migration = Callable[[dict[str, Any]], dict[str, Any]]

MIGRATIONS: Mapping[int, Migration] = {}
"""From version n to n + 1. Version 1 is the first, so that the table is empty; golden files in the tests pin each."""


def parse_row(raw: object) -> Row:
    """Returns a row of any known schema version.

    Args:
        raw: The row's JSON value.

    Raises:
        ValueError: If it is not a row.
        UsageError: If its schema is newer than this version of fcilbench.
    """
    return Row.model_validate(migrate(raw))


def migrate(
    raw: object, current: int = SCHEMA_VERSION, migrations: Mapping[int, Migration] = MIGRATIONS
) -> dict[str, Any]:
    """Returns a row's JSON object lifted to the current schema version.

    Raises:
        ValueError: If it has no version or one without a migration.
        UsageError: If its version is newer than `current`.
    """
    if not isinstance(raw, dict) or not isinstance(raw.get("schema"), int):
        raise ValueError("not an object with an integer `schema`")
    row: dict[str, Any] = raw
    if row["schema"] > current:
        raise UsageError(
            f"row {row.get('cell_id')} has schema {row['schema']}, this fcilbench reads up to {current}",
            hint="upgrade fcilbench to read these results",
        )
    while row["schema"] < current:
        version = row["schema"]
        if version not in migrations:
            raise ValueError(f"no migration from schema {version}")
        row = {**migrations[version](dict(row)), "schema": version + 1}
    return row
