"""`fcilbench check` and `fcilbench schema`: checks a suite, and prints what suites and rows may contain."""

from __future__ import annotations

import enum
import json
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from fcilbench.cli import console, options
from fcilbench.data.root import missing_data
from fcilbench.errors import PREREQUISITE, USAGE
from fcilbench.execution.bf16 import slow_bf16
from fcilbench.execution.devices import choose_devices
from fcilbench.execution.probe import probe_cells
from fcilbench.registry import catalog
from fcilbench.registry.entrypoints import find
from fcilbench.spec.cell import KINDS_WITH_PARAMS, Cell
from fcilbench.spec.row import row_schema
from fcilbench.suite import CHECKS
from fcilbench.suite.editor import json_schema
from fcilbench.suite.expand import missing_lines, run_checks


def check(
    suite: options.SuiteFile,
    *,
    set_: options.Set = None,
    params: options.Params = None,
    deep: options.Deep = False,
    data: options.Data = None,
    form: options.Format = options.Form.TABLE,
) -> None:
    """Check a suite without running it, and print which checks ran and what each of them proves.

    Exit codes: 0; 2 if a check found a problem; 5 if something that the suite needs is missing here.
    """

    def probe(cells: Sequence[Cell]) -> list[str | None]:
        console.say(f"probing {len(cells)} combinations of plugins")
        return probe_cells(cells)

    with catalog.session():  # what describes the plugins also probes them
        results, expansion = run_checks(suite, set_ or (), probe if deep else None, params)
    console.warn(slow_bf16((cell.protocol.precision for cell in expansion.cells), choose_devices("auto")))
    problems = [each for result in results for each in result.problems]
    cells = len(expansion.cells) + len(expansion.blocked)
    absent = map(str, missing_data(expansion.facts).values())
    missing = list(dict.fromkeys([*missing_lines(expansion.blocked), *absent]))
    rows = [
        (each.id, f"{n} problem{'s' * (n > 1)}" if n else "ok" if each.ran else "not run", each.promise)
        for each in results
        for n in [len(each.problems)]
    ]
    records = [{**vars(each), "problems": [vars(found) for found in each.problems]} for each in results]
    headers = ("check", "result", "what it proves")
    about: dict[str, Any] = {"prerequisites": missing, "remarks": expansion.remarks, "cells": cells}
    console.show_list(form, headers, rows, key="checks", records=records, **about)
    if form in (options.Form.TABLE, options.Form.MD):
        for problem in problems:
            console.show([str(problem), *([f"  hint: {problem.hint}"] if problem.hint else [])])
        console.show([f"missing here: {line}" for line in missing])
        console.show([f"note: {line}" for line in expansion.remarks])
        if not problems:
            console.show(f"{cells} cells")
    if problems or missing:
        raise typer.Exit(USAGE if problems else PREREQUISITE)


# The list of checks in the help is that of the checks that run.
check.__doc__ = "\n\n".join([check.__doc__ or "", "Checks:", *(f"{name}: {proof}" for name, proof in CHECKS.items())])


class What(enum.StrEnum):
    """The objects whose JSON Schema can be printed."""

    SUITE = "suite"
    ROW = "row"


def schema(
    what: Annotated[What, typer.Argument(help="suite: the YAML of a suite; row: a line of rows.jsonl.")],
) -> None:
    """Print the JSON Schema of a suite (for editors) or of a result row.

    That of a suite has the options of each plugin that is installed here, with types, bounds and meanings. Write it
    beside a suite of yours, whose first line then names it: `# yaml-language-server: $schema=suite-schema.json`.
    """
    if what is What.SUITE:
        body = json_schema(catalog.describe([ref for kind in KINDS_WITH_PARAMS for ref in find(kind)]))
    else:
        body = row_schema()
    console.show(json.dumps(body, indent=2, ensure_ascii=False))
