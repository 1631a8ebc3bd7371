"""`fcilbench check` and `fcilbench schema`: whether a suite is right, and what it may contain."""

from __future__ import annotations

import enum
import json
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from fcilbench.cli import console, options
from fcilbench.errors import PREREQUISITE, USAGE


class CheckCommand(TyperCommand):
    """Takes its list of checks from the registry of checks, so that help promises what is checked and no more."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Completes the help text when somebody asks for it."""
        from fcilbench.suite.check import CHECKS

        checks = "\n\n".join(f"- {name}: {promise}" for name, promise in CHECKS.items())
        self.help = f"{self.help}\n\nChecks (`deep` with --deep):\n\n{checks}"
        super().format_help(ctx, formatter)


def check(
    suite: options.SuiteFile,
    *,
    set_: options.Set = None,
    deep: options.Deep = False,
    data: options.Data = None,
    form: options.Format = options.Form.TABLE,
    verbose: options.Verbose = False,
) -> None:
    """Check a suite without running it, and print which checks ran.

    Exit codes: 0; 2 if a check found a problem; 5 if something that the suite needs is missing here.
    """
    from fcilbench.cli.plan import use_data_root
    from fcilbench.data.root import missing_data
    from fcilbench.execution.probe import probe_cells
    from fcilbench.spec.cell import Cell
    from fcilbench.suite.check import run_checks

    root = use_data_root(data)

    def probe(cells: Sequence[Cell]) -> list[str | None]:
        console.say(f"probing {len(cells)} combinations of plugins")
        return probe_cells(cells, root)

    report = run_checks(suite, set_ or (), probe if deep else None)
    expansion, cells = report.expansion, len(report.expansion.cells) + report.expansion.blocked
    missing = list(dict.fromkeys([*expansion.prerequisites, *map(str, missing_data(expansion.facts, root))]))
    rows = [(each.id, _result(each), each.promise) for each in report.results]
    records = [
        {"id": each.id, "promise": each.promise, "ran": each.ran, "problems": [vars(found) for found in each.problems]}
        for each in report.results
    ]
    headers = ("check", "result", "what it proves")
    console.show_list(form, headers, rows, key="checks", records=records, prerequisites=missing, cells=cells)
    if form in (options.Form.TABLE, options.Form.MD):
        for problem in report.problems:
            console.show(f"{problem}" + (f"\n  hint: {problem.hint}" if problem.hint else ""))
        for line in missing:
            console.show(f"missing here: {line}")
        if not report.problems:
            console.show(f"{cells} cells")
    if report.problems:
        raise typer.Exit(USAGE)
    if missing:
        raise typer.Exit(PREREQUISITE)


def _result(result: Any) -> str:
    if result.problems:
        return f"{len(result.problems)} problems"
    return "ok" if result.ran else "not run"


class What(enum.StrEnum):
    """The objects whose JSON Schema can be printed."""

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
