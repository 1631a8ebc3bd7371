"""`fcilbench data`: lists, fetches, verifies and inspects data sets."""

from __future__ import annotations

import contextlib
from typing import Annotated

import typer

from fcilbench.cli import complete, console, options
from fcilbench.cli.inspect import inspect
from fcilbench.cli.progress import Display
from fcilbench.data.fetch import fetch as fetch_one
from fcilbench.data.root import data_root, find_layout
from fcilbench.errors import PREREQUISITE, FcilbenchError, PrerequisiteError
from fcilbench.execution.probe import verify_datasets
from fcilbench.registry import catalog
from fcilbench.registry.catalog import Description
from fcilbench.registry.entrypoints import find, lookup

app = options.group("List, fetch, verify and inspect data sets.")
options.command(app, "data inspect suites/quickstart.yaml")(inspect)


@options.command(app, "data list", "list")
def list_(
    data: options.Data = None,
    form: options.Format = options.Form.TABLE,
) -> None:
    """List the data sets with their sizes and terms, and say whether their files are on this machine."""
    root = data_root()
    keys = ("modality", "classes", "default_tasks", "train", "test", "licence", "homepage")
    rows, records = [], []
    for each in _describe(None):
        layouts = each.facts.get("layouts")
        here = find_layout(layouts, root) is not None if layouts else None  # `None`: it declares no files
        word = {True: "yes", False: "no", None: ""}[here]
        rows.append((each.ref.name, word, *(each.facts.get(key, "") for key in keys), each.fault))
        records.append({"name": each.ref.name, "problem": each.problem, "here": here, **each.facts})
    titles = ("data set", "here", "modality", "classes", "tasks", "train", "test", "licence", "homepage", "problem")
    console.show_list(form, titles, rows, key="datasets", records=records, root=str(root))
    console.say(f"data root {root}; `fcilbench data verify` reads the data, `fcilbench data fetch` gets it")


@options.command(app, "data verify cifar100 --data /data")
def verify(
    names: Annotated[
        list[str] | None, typer.Argument(help="Data sets; all of them by default.", autocompletion=complete.datasets)
    ] = None,
    data: options.Data = None,
    form: options.Format = options.Form.TABLE,
) -> None:
    """Read data sets completely and compare their content with what the plugins declare; fills their caches.

    Exit codes: 0; 5 if a data set is missing or has other content.
    """
    # Data sets that need a path (`image-folder`, `csv`) have nothing to verify until a suite gives one.
    asked = [each for each in _describe(names) if names or not each.schema.get("required")]
    with contextlib.closing(Display("decoding", "samples")) as display:
        answers = verify_datasets([(each.ref.name, {}) for each in asked], fresh=True, progress=display.show)
    rows, records = [], []
    for each, (problem, digest) in zip(asked, answers, strict=True):
        name, declared = each.ref.name, each.facts.get("fingerprint")
        unknown = "" if declared else ", but the plugin declares no digest to compare with"
        rows.append((name, problem or f"ok, content {digest}{unknown}"))
        records.append(
            {"name": name, "ok": problem is None, "problem": problem, "digest": digest, "declared": declared}
        )
    console.show_list(form, ("data set", "state"), rows, key="datasets", records=records)
    if not all(each["ok"] for each in records):
        raise typer.Exit(PREREQUISITE)


@options.command(app, "data fetch cifar100 eurosat --data /data")
def fetch(
    names: Annotated[
        list[str], typer.Argument(help="Data sets.", show_default=False, autocompletion=complete.datasets)
    ],
    data: options.Data = None,
    offline: options.Offline = False,
) -> None:
    """Fetch data sets from their official sources, verify the archives, unpack them and print where they are.

    Files that are already there are kept, without using the network. Exit codes: 0; 5 if a data set cannot be fetched;
    a hint then says which file to put where.
    """
    failed = False
    for each in _describe(names):
        try:
            if each.problem:
                raise PrerequisiteError(f"{each.ref.name} is broken: {each.problem}")
            with contextlib.closing(Display("fetching", "bytes")) as display:
                places = fetch_one(each.ref.short, each.facts, data_root(), offline=offline, progress=display.show)
            console.show(f"{each.ref.name}: {' '.join(map(str, places)) or 'needs no files of its own'}")
        except FcilbenchError as error:
            console.report(error)
            failed = True
    if failed:
        raise typer.Exit(PREREQUISITE)


def _describe(names: list[str] | None) -> list[Description]:
    return catalog.describe([lookup("datasets", name) for name in names] if names else find("datasets"))
