"""`fcilbench plugins`: what can be named in a suite, and what is broken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from fcilbench.cli import authoring, console, options
from fcilbench.errors import UsageError, nearest

if TYPE_CHECKING:
    from fcilbench.registry.entrypoints import PluginRef
    from fcilbench.registry.records import Description

app = typer.Typer(help="List, describe, test and start plugins.", no_args_is_help=True)
app.command("test", epilog="Example: [bold]fcilbench plugins test sum[/bold]")(authoring.examine)
app.command("new", epilog="Example: [bold]fcilbench plugins new acme-fcil/gossip[/bold]")(authoring.scaffold)


@app.command("list", epilog="Example: [bold]fcilbench plugins list --kind aggregators[/bold]")
def list_(
    kind: options.Kind = None,
    form: options.Format = options.Form.TABLE,
    verbose: options.Verbose = False,  # noqa: ARG001 - its callback acts
) -> None:
    """List the installed plugins with version, origin and import time; a broken one with its reason."""
    from fcilbench.registry import catalog
    from fcilbench.registry.entrypoints import KINDS, find

    found = catalog.describe([ref for each in ([kind] if kind else KINDS) for ref in find(each)])
    if form is options.Form.JSON:
        console.show_json({"schema": 1, "plugins": [_as_json(each) for each in found]})
        return
    rows = []
    for each in found:
        state = f"broken: {each.problem}" if each.problem else each.summary
        took = "" if each.problem else f"{each.import_ms:.0f} ms"
        kind_of = each.ref.kind.removesuffix("s")
        rows.append((each.ref.name, kind_of, each.version, took, state, each.origin or each.ref.target))
    console.show_rows(("plugin", "kind", "version", "import", "summary or reason", "origin"), rows, form)


@app.command(epilog="Example: [bold]fcilbench plugins show sum[/bold]")
def show(
    name: Annotated[str, typer.Argument(help="Short name or dist/name.")],
    kind: options.Kind = None,
    form: options.Format = options.Form.TABLE,
    verbose: options.Verbose = False,  # noqa: ARG001 - its callback acts
) -> None:
    """Describe one plugin: what it declares, and each hyperparameter with default, range, meaning and source."""
    from fcilbench.registry import catalog

    found = catalog.describe([_find(name, kind)])[0]
    if form is options.Form.JSON:
        console.show_json({"schema": 1, "plugins": [_as_json(found)]})
    else:
        _print(found, form)


def _find(name: str, kind: str | None) -> PluginRef:
    """Finds a plugin by name in one kind or in all of them."""
    from fcilbench.registry.entrypoints import KINDS, find, lookup

    if kind is not None:
        return lookup(kind, name)
    refs = [ref for each in KINDS for ref in find(each)]
    kinds = sorted({ref.kind for ref in refs if name in (ref.short, ref.name)})
    if not kinds:
        raise UsageError(
            f"unknown plugin {name!r}{nearest(name, [ref.short for ref in refs])}",
            hint="`fcilbench plugins list` shows all plugins",
        )
    if len(kinds) > 1:
        raise UsageError(f"{name!r} is the name of several plugins", hint=f"add --kind {' or --kind '.join(kinds)}")
    return lookup(kinds[0], name)


def _print(found: Description, form: options.Form) -> None:
    from fcilbench.cli.plan import flatten

    console.show(f"{found.ref.name} ({found.ref.kind.removesuffix('s')}, version {found.version or '?'})")
    if found.problem:
        console.show(f"broken: {found.problem}")
        return
    console.show(found.summary)
    console.show(f"origin {found.origin}, imported in {found.import_ms:.0f} ms, source digest {found.code_digest[:12]}")
    for path, value in flatten(found.facts).items():
        if value not in (None, "", [], {}):
            console.show(f"  {path}: {value}")
    if not found.fields:
        console.show("no hyperparameters")
        return
    rows = []
    for each in found.fields:
        default = "(required)" if each.required else str(each.default)
        space = ", ".join(f"{key} {value}" for key, value in (each.space or {}).items())
        rows.append((each.name, each.type, default, each.description, each.source or "", space))
    console.show_rows(("parameter", "type", "default", "meaning", "source", "search space"), rows, form)


def _as_json(found: Description) -> dict[str, Any]:
    return {
        "kind": found.ref.kind,
        "name": found.ref.name,
        "dist_version": found.ref.dist_version,
        "target": found.ref.target,
        "version": found.version,
        "summary": found.summary,
        "origin": found.origin,
        "import_ms": found.import_ms,
        "code_digest": found.code_digest,
        "problem": found.problem,
        "facts": found.facts,
        "params": found.schema,
    }
