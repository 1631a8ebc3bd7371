"""`fcilbench plugins`: lists, describes, tests and starts plugins."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fcilbench.cli import console, options
from fcilbench.cli.scaffold import write
from fcilbench.data.root import data_root
from fcilbench.errors import CELLS_FAILED, FcilbenchError, PrerequisiteError, UsageError, nearest
from fcilbench.registry import catalog
from fcilbench.registry.catalog import Description
from fcilbench.registry.entrypoints import KINDS, PluginRef, find, lookup
from fcilbench.suite.load import override
from fcilbench.suite.yaml import Node
from fcilbench.tables import flatten

if TYPE_CHECKING:
    from fcilbench.testing.check import Result

app = options.group("List, describe, test and start plugins.")
_CARD = ("trained", "travels", "memory")
"""The lines of a method's card that have a column each."""
_MARKS = {"passed": "passed", "declared": "declared", "skipped": "skipped", "failed": "FAILED"}


@options.command(app, "plugins list --kind aggregators", "list")
def list_(
    kind: options.Kind = None,
    form: options.Format = options.Form.TABLE,
) -> None:
    """List the installed plugins with version, import time and origin, and what is wrong with those that are unusable.

    With `--kind aggregators` the list compares the methods: their family, what is trained, what travels between clients
    and server, what memory a client keeps, and the source. The import time of a plugin includes the packages that no
    plugin before it has imported.
    """
    found = catalog.describe([ref for each in ([kind] if kind else KINDS) for ref in find(each)])
    if kind == "aggregators":
        _list_methods(found, form)
        return
    rows = [
        (
            *(each.ref.name, each.ref.kind.removesuffix("s"), each.version),
            "" if each.problem else f"{each.seconds:.2f} s",
            each.fault or each.summary,
            each.origin or each.ref.target,
        )
        for each in found
    ]
    headers = ("plugin", "kind", "version", "import", "summary or reason", "origin")
    console.show_list(form, headers, rows, key="plugins", records=[_as_json(each) for each in found])


def _list_methods(found: Sequence[Description], form: options.Form) -> None:
    """Shows the methods by family, with the lines of their cards."""
    rows = []
    for each in found:
        card = each.facts.get("card", {})
        lines = [card.get(line, "") for line in _CARD]
        rows.append((card.get("family", ""), each.ref.name, *lines, each.fault or card.get("source", "")))
    headers = ("family", "method", *_CARD, "source, or what is wrong")
    records = [_as_json(each) for each in found]
    console.show_list(form, headers, sorted(rows), key="plugins", records=records)


@options.command(app, "plugins show sum")
def show(
    name: options.PluginName,
    kind: options.Kind = None,
    form: options.Format = options.Form.TABLE,
) -> None:
    """Describe one plugin: its facts, and each hyperparameter with default, range, meaning and source."""
    found = catalog.describe([_one(name, kind, KINDS)])[0]
    required = found.schema.get("required", ())
    rows = [
        (
            *(name, _type(field), "(required)" if name in required else json.dumps(field.get("default"), default=str)),
            *(field.get("description", ""), field.get("fcilbench_source", "")),
            ", ".join(f"{key} {value}" for key, value in field.get("fcilbench_space", {}).items()),
        )
        for name, field in found.schema.get("properties", {}).items()
    ]
    if form is options.Form.TABLE:
        console.show(_about(found))
        if not rows:
            return
    headers = ("parameter", "type", "default", "meaning", "source", "search space")
    console.show_list(form, headers, rows, key="plugins", records=[_as_json(found)])


@options.command(app, "plugins test sum", "test")
def run_checks(
    name: options.PluginName,
    *,
    kind: options.Kind = None,
    set_: options.Set = None,
    data: options.Data = None,
    form: options.Format = options.Form.TABLE,
) -> None:
    """Run the conformance checks of a plugin and print each result and, for a failure, what to do.

    A check has passed, has failed, is skipped (with the reason), or is declared: the plugin fails it by nature and says
    why in `breaks`. Exit codes: 0; 3 if a check fails; 5 if the plugin is missing or cannot be imported.
    """
    ref = _one(name, kind, KINDS, PrerequisiteError)
    chosen = Node({}, "", "")
    for text in set_ or ():
        chosen = override(chosen, text)
    console.say(f"importing {name} and torch")
    with contextlib.redirect_stdout(sys.stderr):  # what a plugin prints is not a result
        from fcilbench.testing.conformance import case

        results, ready = [], case(ref.kind, name, chosen.plain(), root=data_root())
        if ready.params:
            console.say(f"with {', '.join(f'{key}={value}' for key, value in ready.params.items())}")
        for result in ready.results():
            results.append(result)
            console.say(f"{result.check}: {result.status}", style="dim")
    _show_results(ref.name, ref.kind, results, form)
    failed = [result for result in results if result.status == "failed"]
    if console.state.verbose:
        for result in failed:
            sys.stderr.write(result.trace)
    if failed:
        raise typer.Exit(CELLS_FAILED)


@options.command(app, "plugins new acme-fcil/gossip", "new")
def new(
    name: Annotated[str, typer.Argument(help="Name of the plugin, or DIST/NAME to name its package too.")],
    kind: options.Kind = None,
) -> None:
    """Write a working plugin with its entry point and its test, into a new package or an existing one.

    The package is DIST, or fcilbench-NAME; a new one also gets CI and a README. No file is overwritten.
    """
    kind = (kind or "aggregator").removesuffix("s")
    full, (folder, *files) = write(name, Path.cwd(), kind)
    where = "." if folder == Path.cwd() else folder.name
    console.show(f"wrote {where}/")
    for path in files:
        console.show(f"       {path.relative_to(folder)}")
    console.show(f"next:  pip install -e {where}\n       fcilbench plugins test {full} --kind {kind}s")


def _one(name: str, kind: str | None, among: Sequence[str], missing: type[FcilbenchError] = UsageError) -> PluginRef:
    """Returns the plugin with a name, of the given kind or else one of `among`."""
    kinds = [kind] if kind else among
    refs = [ref for each in kinds for ref in find(each)]
    fitting = sorted({ref.kind for ref in refs if name in (ref.short, ref.name)})
    if not fitting:
        close = nearest(name, [ref.name if "/" in name else ref.short for ref in refs])
        raise missing(f"no plugin {name!r} among {', '.join(kinds)}{close}", hint="`fcilbench plugins list` shows all")
    if len(fitting) > 1:
        raise UsageError(f"{name!r} is the name of several plugins", hint=f"add --kind {' or --kind '.join(fitting)}")
    return lookup(fitting[0], name)


def _type(field: Mapping[str, Any]) -> str:
    """Returns the type and range of a hyperparameter as text, from its JSON Schema."""
    if "enum" in field or "const" in field:
        return " | ".join(map(str, field.get("enum", [field.get("const")])))
    if "anyOf" in field:
        return " | ".join(map(_type, field["anyOf"]))
    signs = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
    bounds = [f"{sign} {field[key]}" for key, sign in signs.items() if key in field]
    return " ".join([str(field.get("type", "object")), *bounds])


def _about(found: Description) -> list[str]:
    head = f"{found.ref.name} ({found.ref.kind.removesuffix('s')}, version {found.version or '?'})"
    if found.problem:
        return [head, found.fault]
    origin = f"origin {found.origin}, source digest {found.code_digest[:12]}"
    facts = [
        f"  {path}: {value}"
        for path, value in flatten(found.facts, lists=True).items()
        if value not in (None, "", [], {})
    ]
    return [head, found.summary, origin, *facts, *([] if found.field_names else ["no hyperparameters"])]


def _as_json(found: Description) -> dict[str, Any]:
    names = ("version", "summary", "origin", "code_digest", "seconds", "problem", "needs", "facts")
    ref = {key: getattr(found.ref, key) for key in ("kind", "name", "dist_version", "target")}
    return {**ref, **{key: getattr(found, key) for key in names}, "params": found.schema}


def _show_results(plugin: str, kind: str, results: Sequence[Result], form: options.Form) -> None:
    rows = [(r.check, _MARKS[r.status], r.statement if r.status == "passed" else r.found) for r in results]
    headers = ("check", plugin, "what it requires, or what was seen")
    records = [vars(each) for each in results]
    console.show_list(form, headers, rows, key="checks", records=records, plugin=plugin, kind=kind)
    if form in (options.Form.TABLE, options.Form.MD):
        for result in results:
            if result.status == "failed":
                console.show(["", *str(result).splitlines()])
        counts = {status: sum(each.status == status for each in results) for status in _MARKS}
        told = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
        console.show(f"\n{plugin}: {told}")
