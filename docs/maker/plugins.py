"""A page for each method, and one for each other kind of plugin: docstring, options, and a method's figures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from maker.pages import ROOT, board_link, toctree
from maker.text import code, default, docstring, legal, prose, sentence, table

import fcilbench
from fcilbench.boards.folder import build_boards
from fcilbench.boards.model import Block, Entry
from fcilbench.boards.render import DASH, format_estimate, format_rank
from fcilbench.registry.catalog import Description, describe
from fcilbench.registry.entrypoints import find, load
from fcilbench.results.store import Store
from fcilbench.tables import flatten

KINDS = {
    "datasets": (
        "Data sets",
        "Entries of `grid: {dataset: [...]}`. Every one also takes `tasks`, see [suite keys](suite.md).",
    ),
    "backbones": ("Backbones", "Entries of `grid: {backbone: [...]}`: the networks that clients train."),
    "stressors": (
        "Stressors",
        "Entries of `grid: {stress: [...]}`: clients that misbehave. [How they act](../boards.md#stressors).",
    ),
    "selectors": (
        "Selectors",
        "Entries of `evaluate: {selectors: [...]}`: what picks a sample's task. [What they cost](../selectors.md).",
    ),
}
"""Title and first lines of the page of each kind but methods."""


class Figures(NamedTuple):
    """What a method has on one block of one board: the figures that rank, under each task identity."""

    board: str
    block: Block
    entry: Entry


def builtins(kind: str) -> list[Description]:
    """Returns the plugins of this package; what is installed beside it has no page.

    Raises:
        RuntimeError: If one of them cannot be used here.
    """
    found = [each for each in describe(find(kind)) if each.ref.dist == "fcilbench"]
    if broken := [each for each in found if each.problem and not each.needs]:
        raise RuntimeError(f"{broken[0].ref.name} is broken: {broken[0].problem}")
    return sorted(found, key=lambda each: each.ref.short)


def write_methods(source: Path) -> None:
    """Puts summary, card, options, figures and notes of the code into the hand-written page of each method."""
    figures, methods = published(), builtins("aggregators")
    index = source / "methods" / "README.md"
    names = ["adapters", *(method.ref.short for method in methods)]
    index.write_text(index.read_text(encoding="utf-8") + "\n" + toctree(names), encoding="utf-8")
    for method in methods:
        path = source / "methods" / f"{method.ref.short}.md"
        path.write_text(method_page(path.read_text(encoding="utf-8"), method, figures), encoding="utf-8")


def method_page(written: str, method: Description, figures: list[Figures]) -> str:
    """Returns the page of a method from its hand-written one."""
    title, _, body = written.partition("\n")
    lead, more = docstring(load(method.ref))
    where = Path(method.origin.rpartition(":")[0]).relative_to(Path(fcilbench.__file__).parents[1])
    card = "\n".join(f"- **{key}**: {prose(value)}" for key, value in method.facts["card"].items())
    parts = [title, lead, card, body.strip(), "## In a suite", _yaml(method), "## Options"]
    parts += ["\n".join(options(method)), "## Figures from the boards", _figures(method, figures)]
    parts += ["## What the code says", more, f"Version {method.version} of `{method.ref.name}`, in `{where}`."]
    return "\n\n".join(part for part in parts if part) + "\n"


def suite_entries(method: Description) -> list[str]:
    """Returns entries of a suite's grid that use a method: alone, and with the options that tuning searches."""
    fields, name = method.schema.get("properties", {}), method.ref.short
    searched = [key for key, field in fields.items() if "fcilbench_space" in field and field.get("default") is not None]
    chosen = [f"{key}: {_scalar(fields[key]['default'])}" for key in searched[:3]]
    presets = [[f"preset: {each}"] for each in fields.get("preset", {}).get("enum", []) if each != "default"]
    return [name, *(f"{{{', '.join([f'use: {name}', *each])}}}" for each in (chosen, *presets) if each)]


def _scalar(value: object) -> str:
    return (
        f'"{value}"'
        if value in ("on", "off", "none", "null")
        else str(value).lower()
        if isinstance(value, bool)
        else str(value)
    )


def _yaml(method: Description) -> str:
    entries = "\n".join(f"    - {entry}" for entry in suite_entries(method))
    return f"```yaml\ngrid:\n  aggregator:\n{entries}\n```"


def options(plugin: Description) -> list[str]:
    """Returns the table of a plugin's options."""
    fields, required = plugin.schema.get("properties", {}), plugin.schema.get("required", ())
    rows = [
        (
            code(name),
            default(field, required=name in required),
            legal(field, plugin.schema.get("$defs", {})),
            _meaning(field),
        )
        for name, field in fields.items()
    ]
    return table(("option", "default", "legal values", "meaning"), rows) if rows else ["It has no options."]


def _meaning(field: Mapping[str, Any]) -> str:
    """Returns what an option means, where its default comes from, and between which values tuning draws."""
    parts = [prose(sentence(field.get("description", "")))]
    if source := field.get("fcilbench_source"):
        parts.append(f"*Default:* {prose(source.rstrip('.'))}.")
    if space := field.get("fcilbench_space"):
        scale = ", logarithmic" if space.get("log") else ""
        parts.append(
            f"*Tuned:* {', '.join(map(code, space['choices']))}."
            if "choices" in space
            else f"*Tuned:* {space['low']:g} to {space['high']:g}{scale}."
        )
    return "<br>".join(parts)


def published() -> list[Figures]:
    """Returns the figures of the accuracy boards of `leaderboards/`, as their own pages have them."""
    found = []
    for path in sorted((ROOT / "leaderboards").glob("*/rows.jsonl")):
        store = Store(path.parent)
        board = build_boards(("accuracy",), list(store.latest().values()), store, portable=True)["accuracy"]
        found += [Figures(path.parent.name, block, entry) for block in board.blocks for entry in block.entries]
    return found


def _figures(method: Description, figures: list[Figures]) -> str:
    own = [each for each in figures if each.entry.plugin == method.ref.name]
    page = f"methods/{method.ref.short}.md"
    if not own:
        return "No published board has this method yet. `suites/field.yaml` runs it beside all others."
    keys = list(dict.fromkeys(group.key for each in own for group in each.block.groups if group.ranked))
    rows = [_row(each, page, keys) for each in own]
    heads = ("board", "scenario", "as", *(f"FAA, {key}" for key in keys), "code")
    about = (
        "Final averaged accuracy in per cent, mean over seeds ± half width of the 95 % interval; in brackets the "
        "places that the tests leave open ([how to read a board](../boards.md#statistics)). Figures of other boards "
        "or scenarios are not comparable."
    )
    return "\n".join([about, "", *table(heads, rows, range(3, 3 + len(keys)))])


def _row(found: Figures, page: str, keys: list[str]) -> list[str]:
    entry, by_key = found.entry, {group.key: group for group in found.block.groups}
    cells = []
    for key in keys:
        column = by_key[key].columns[0] if key in by_key else None
        estimate = entry.estimates.get(key, {}).get(column.metric) if column else None
        text = format_estimate(estimate, column, entry.seeds) if column and estimate else DASH
        rank = entry.ranks.get(key)
        cells.append(prose(f"{text} {format_rank(rank)}" if rank and text != DASH else text))
    board = Path("leaderboards") / found.board / "index.html"
    link = board_link(page, board, found.board, f"#show={quote(entry.aggregator, safe='')}")
    age = f"older ({entry.stale} rows)" if entry.stale else "as here"
    return [link, prose(found.block.heading), prose(entry.aggregator), *cells, age]


def write_kinds(source: Path) -> None:
    """Writes the page of each kind of plugin but methods."""
    for kind, (title, about) in KINDS.items():
        parts = [f"# {title}", about]
        for plugin in builtins(kind):
            parts += [f"## {plugin.ref.short}", *_section(plugin)]
        (source / "reference" / f"{kind}.md").write_text("\n\n".join(part for part in parts if part) + "\n", "utf-8")


def _section(plugin: Description) -> list[str]:
    if plugin.needs:
        return [prose(sentence(plugin.fault))]
    lead, more = docstring(load(plugin.ref))
    facts = [
        f"- {key.replace('_', ' ')}: {prose(value)}"
        for key, value in flatten(plugin.facts).items()
        if isinstance(value, str | int | float) and value not in ("", 0) and not isinstance(value, bool)
    ]
    return [lead, more, "\n".join(facts), "\n".join(options(plugin))]
