"""`fcilbench plugins test` and `fcilbench plugins new`: verbs for whoever writes a plugin."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fcilbench.cli import console, options
from fcilbench.errors import CELLS_FAILED, PrerequisiteError, UsageError, nearest

if TYPE_CHECKING:
    from fcilbench.testing.law import Verdict

TESTED = ("aggregators", "backbones", "datasets")
_MARKS = {"holds": "holds", "declared": "declared", "skipped": "skipped", "broken": "BROKEN"}


def examine(
    name: Annotated[str, typer.Argument(help="Short name or dist/name.")],
    *,
    kind: options.Kind = None,
    set_: options.Set = None,
    data: options.Data = None,
    form: options.Format = options.Form.TABLE,
    quiet: options.Quiet = False,  # noqa: ARG001 - its callback acts
    verbose: options.Verbose = False,
) -> None:
    """Check a plugin against the laws of its kind, and print each with what was seen and a way out.

    A law is broken, holds, is skipped (with the reason), or is declared: the plugin breaks it by nature, says why, and
    was shown to break it. Exit codes: 0; 3 if a law is broken; 5 if the plugin is missing or cannot be imported.
    """
    from fcilbench.cli.prepare import use_data_root

    kind_ = _kind(name, kind)
    chosen = _parameters(set_ or ())
    root = use_data_root(data)
    console.say(f"importing {name} and torch")
    with contextlib.redirect_stdout(sys.stderr):  # what a plugin prints is no result
        from fcilbench.testing.kit import case

        ready = case(kind_, name, chosen, root=root)
        verdicts = []
        for law in ready.laws:
            verdicts.append(ready.judge(law))
            console.say(f"{law.id}: {verdicts[-1].status}", style="dim")
    broken = [verdict for verdict in verdicts if verdict.status == "broken"]
    if form is options.Form.JSON:
        console.show_json({"schema": 1, "plugin": ready.ref.name, "kind": kind_, "laws": [vars(v) for v in verdicts]})
    else:
        _print(ready.ref.name, verdicts, form)
    if verbose:
        for verdict in broken:
            sys.stderr.write(verdict.trace)
    if broken:
        raise typer.Exit(CELLS_FAILED)


def scaffold(
    name: Annotated[str, typer.Argument(help="Name of the aggregator, or DIST/NAME to name its package too.")],
    verbose: options.Verbose = False,  # noqa: ARG001 - its callback acts
) -> None:
    """Write a package with a working aggregator, its test, its CI and a README into a new folder here.

    The package is DIST, or fcilbench-NAME. Nothing is overwritten.
    """
    from fcilbench.testing.scaffold import write

    folder = write(name, Path.cwd())
    console.show(
        f"wrote {folder.name}/\n"
        f"next:  pip install -e {folder.name}\n"
        f"       fcilbench plugins test {folder.name}/{name.rpartition('/')[2]}"
    )


def _kind(name: str, kind: str | None) -> str:
    """Returns the kind of a plugin that has laws.

    Raises:
        PrerequisiteError: If no such plugin is installed.
        UsageError: If plugins of several kinds have the name, or its kind has no laws.
    """
    from fcilbench.registry.entrypoints import KINDS, find

    if kind is not None and kind not in TESTED:
        raise UsageError(f"there are no laws for {kind!r}{nearest(kind, TESTED)}")
    refs = [ref for each in ([kind] if kind else KINDS) for ref in find(each)]
    kinds = sorted({ref.kind for ref in refs if name in (ref.short, ref.name)})
    if not kinds:
        names = [ref.name if "/" in name else ref.short for ref in refs]
        raise PrerequisiteError(
            f"plugin {name!r} is not installed{nearest(name, names)}",
            hint="install its package into this environment; `fcilbench plugins list` shows all plugins",
        )
    tested = [each for each in kinds if each in TESTED]
    if not tested:
        raise UsageError(f"{name!r} is one of the {kinds[0]}, for which there are no laws")
    if len(tested) > 1:
        raise UsageError(f"{name!r} is the name of several plugins", hint=f"add --kind {' or --kind '.join(tested)}")
    return tested[0]


def _parameters(given: list[str] | tuple[str, ...]) -> dict[str, Any]:
    from fcilbench.suite.yaml import parse_value

    chosen: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"--set {text!r} is not NAME=VALUE", hint="e.g. --set lambda_s=0.5")
        chosen[name.strip()] = parse_value(value)
    return chosen


def _print(plugin: str, verdicts: list[Verdict], form: options.Form) -> None:
    rows = [(v.law, _MARKS[v.status], v.statement if v.status == "holds" else v.found) for v in verdicts]
    console.show_rows(("law", plugin, "what it says, or what was seen"), rows, form)
    broken = [verdict for verdict in verdicts if verdict.status == "broken"]
    for verdict in broken:
        console.show(f"\n{verdict}")
    counts = {status: sum(v.status == status for v in verdicts) for status in _MARKS}
    told = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    console.show(f"\n{plugin}: {told}")
