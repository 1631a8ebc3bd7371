"""`fcilbench schema`: JSON Schemas of what users write and read."""

from __future__ import annotations

import enum
import json
from typing import Annotated

import typer

from fcilbench.cli import console

EXAMPLE = "fcilbench schema suite"


class What(enum.StrEnum):
    """What has a schema."""

    SUITE = "suite"
    ROW = "row"


def schema(
    what: Annotated[What, typer.Argument(help="suite: the YAML of a suite; row: a line of rows.jsonl.")],
) -> None:
    """Print the JSON Schema of a suite (for editors) or of a result row."""
    if what is What.SUITE:
        from fcilbench.suite.schema import json_schema

        body = json_schema()
    else:
        from fcilbench.spec.row import row_schema

        body = row_schema()
    console.show(json.dumps(body, indent=2, ensure_ascii=False))
