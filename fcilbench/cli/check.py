"""`fcilbench check`: whether a suite is right, and what exactly was checked."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand

from fcilbench.cli import console, options
from fcilbench.errors import PREREQUISITE, USAGE

EXAMPLE = "fcilbench check suites/quickstart.yaml --deep"


class Command(TyperCommand):
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
    verbose: options.Verbose = False,  # noqa: ARG001 - its callback acts
) -> None:
    """Check a suite without running it, and print which checks ran.

    Exit codes: 0; 2 if a check found a problem; 5 if something that the suite needs is missing here.
    """
    from fcilbench.cli.prepare import use_data_root
    from fcilbench.execution.probe import probe_cells
    from fcilbench.spec.cell import Cell
    from fcilbench.suite.check import run_checks

    root = use_data_root(data)

    def probe(cell: Cell) -> str | None:
        console.say(f"probing {' + '.join(str(label) for axis, label in cell.coords.items() if axis != 'seed')}")
        return probe_cells([cell], root)[0]

    report = run_checks(suite, set_ or (), probe if deep else None)
    if form is options.Form.JSON:
        console.show_json(_as_json(report))
    else:
        _print(report, form)
    if report.problems:
        raise typer.Exit(USAGE)
    if report.prerequisites:
        raise typer.Exit(PREREQUISITE)


def _print(report: Any, form: options.Form) -> None:
    def found(result: Any) -> str:
        return f"{len(result.problems)} problems" if result.problems else "ok" if result.ran else "not run"

    rows = [(result.id, found(result), result.promise) for result in report.results]
    console.show_rows(("check", "result", "what it proves"), rows, form)
    for problem in report.problems:
        console.show(f"{problem}" + (f"\n  hint: {problem.hint}" if problem.hint else ""))
    for line in report.prerequisites:
        console.show(f"missing here: {line}")
    if not report.problems:
        console.show(f"{report.cells} cells")


def _as_json(report: Any) -> dict[str, Any]:
    return {
        "schema": 1,
        "checks": [
            {
                "id": result.id,
                "promise": result.promise,
                "ran": result.ran,
                "problems": [vars(problem) for problem in result.problems],
            }
            for result in report.results
        ],
        "prerequisites": report.prerequisites,
        "cells": report.cells,
    }
