"""`fcilbench doctor`: what this machine has, and whether a suite will run on it."""

from __future__ import annotations

from pathlib import Path

import typer

from fcilbench.cli import console, options
from fcilbench.errors import PREREQUISITE

EXAMPLE = "fcilbench doctor suites/quickstart.yaml"
_MARKS = {"ok": "green", "warn": "yellow", "fail": "red", "info": "dim"}


def doctor(
    suite: options.MaybeSuite = None,
    *,
    out: options.Out = Path("results"),
    set_: options.Set = None,
    gpus: options.Gpus = "auto",
    data: options.Data = None,
    tracking: options.Tracking = None,
    form: options.Format = options.Form.TABLE,
    verbose: options.Verbose = False,  # noqa: ARG001 - its callback acts
) -> None:
    """Report python, torch, GPUs, plugins, data, disk, tracking and source; with a suite, whether it will run here.

    Exit codes: 0; 5 if something is missing that the suite (or, without one, any run) needs.
    """
    from fcilbench.cli import examine
    from fcilbench.cli.prepare import use_data_root

    root = use_data_root(data)
    findings = [
        *examine.software(),
        *examine.devices(gpus),
        *examine.plugins(),
        *examine.places(out, root),
        *examine.tracking(out, tracking),
        *examine.source(),
    ]
    findings += examine.suite(suite, set_ or [], root) if suite else examine.datasets(root)
    if form is options.Form.JSON:
        console.show_json({"schema": 1, "findings": [vars(each) for each in findings]})
    else:
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for each in findings:
            table.add_row(Text(each.state, style=_MARKS[each.state]), each.what, Text(each.detail))
        console.show_table(table)
    if any(each.state == "fail" for each in findings):
        raise typer.Exit(PREREQUISITE)
