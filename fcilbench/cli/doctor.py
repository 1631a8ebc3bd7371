"""`fcilbench doctor`: what this machine has, and whether a suite will run on it."""

from __future__ import annotations

import typer

from fcilbench.cli import console, options
from fcilbench.errors import PREREQUISITE

EXAMPLE = "fcilbench doctor suites/quickstart.yaml"


def doctor(
    suite: options.MaybeSuite = None,
    *,
    out: options.Out = options.RESULTS,
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
        rows = [(each.state, each.what, each.detail) for each in findings]
        console.show_rows(("state", "what", "detail"), rows, form)
    if any(each.state == "fail" for each in findings):
        raise typer.Exit(PREREQUISITE)
