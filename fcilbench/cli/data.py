"""`fcilbench data`: data sets, and whether they are here and what they are declared to be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from fcilbench.cli import console, options
from fcilbench.errors import PREREQUISITE

if TYPE_CHECKING:
    from fcilbench.registry.records import Description

app = typer.Typer(help="List data sets and verify their content.", no_args_is_help=True)


@app.command("list", epilog="Example: [bold]fcilbench data list[/bold]")
def list_(
    data: options.Data = None,
    form: options.Format = options.Form.TABLE,
    verbose: options.Verbose = False,  # noqa: ARG001 - its callback acts
) -> None:
    """List the data sets that plugins offer, with their sizes and terms."""
    from fcilbench.cli.prepare import use_data_root

    root = use_data_root(data)
    found = _describe(None)
    if form is options.Form.JSON:
        body = [{"name": each.ref.name, "problem": each.problem, **each.facts} for each in found]
        console.show_json({"schema": 1, "root": str(root), "datasets": body})
        return
    keys = ("modality", "classes", "default_tasks", "train", "test", "licence", "homepage")
    rows = [
        (each.ref.name, *(each.facts.get(key, "") for key in keys), f"broken: {each.problem}" if each.problem else "")
        for each in found
    ]
    titles = ("data set", "modality", "classes", "tasks", "train", "test", "licence", "homepage", "problem")
    console.show_rows(titles, rows, form)
    console.say(f"data root {root}; `fcilbench data verify` reads the data")


@app.command(epilog="Example: [bold]fcilbench data verify cifar100 --data /data[/bold]")
def verify(
    names: Annotated[list[str] | None, typer.Argument(help="Data sets; all of them by default.")] = None,
    data: options.Data = None,
    form: options.Format = options.Form.TABLE,
    verbose: options.Verbose = False,  # noqa: ARG001 - its callback acts
) -> None:
    """Read data sets whole and compare their content with what the plugins declare.

    Exit codes: 0; 5 if one of them is missing, incomplete or something else.
    """
    from fcilbench.cli.prepare import use_data_root
    from fcilbench.execution.probe import probe_datasets

    root = use_data_root(data)
    found = _describe(names)
    problems = [each.problem or probe_datasets([(each.ref.name, {})], root)[0] for each in found]
    if form is options.Form.JSON:
        answers: list[dict[str, Any]] = [
            {
                "name": each.ref.name,
                "ok": problem is None,
                "problem": problem,
                "declared": each.facts.get("fingerprint"),
            }
            for each, problem in zip(found, problems, strict=True)
        ]
        console.show_json({"schema": 1, "root": str(root), "datasets": answers})
    else:
        for each, problem in zip(found, problems, strict=True):
            console.show(f"{each.ref.name}: {_state(each) if problem is None else problem}")
    if any(problems):
        raise typer.Exit(PREREQUISITE)


def _state(found: Description) -> str:
    declared = found.facts.get("fingerprint")
    return f"ok, content {declared}" if declared else "ok, but the plugin declares no digest to compare with"


def _describe(names: list[str] | None) -> list[Description]:
    from fcilbench.registry import catalog
    from fcilbench.registry.entrypoints import find, lookup

    return catalog.describe([lookup("datasets", name) for name in names] if names else find("datasets"))
