"""The reference of what plugin authors and notebooks import, for Sphinx to fill from docstrings."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path

from maker.pages import toctree, write
from maker.text import prose

import fcilbench
import fcilbench.api
import fcilbench.testing

PAGES = {
    "methods": ("Methods", ("api.aggregator", "api.client", "api.server", "plugins.aggregators", "vectors")),
    "messages": ("Messages, schedules and decision rules", ("api.message", "api.schedule", "api.predict")),
    "memory": ("Client memory and adapters", ("api.memory", "api.lora")),
    "backbones": ("Backbones", ("api.backbone",)),
    "datasets": ("Data sets", ("api.dataset", "data", "spec.archive")),
    "selectors": ("Selectors and stressors", ("api.selector", "api.stressor")),
    "others": ("Executors, boards and trackers", ("boards", "execution", "worker", "tracking", "results", "spec.row")),
    "common": ("Options and errors", ("spec.params", "spec.plugin", "spec.protocol", "spec.outcome", "errors")),
}
"""Title of each page of `fcilbench.api`, and the modules below `fcilbench` whose names it has."""


def write_api(source: Path) -> None:
    """Writes a page for each part of the interface.

    Raises:
        RuntimeError: If a public name belongs to no page.
    """
    homes = fcilbench.api._homes()
    placed: dict[str, str] = {}
    for page, (_, modules) in PAGES.items():
        for name, (module, _) in homes.items():
            if any(f"{module}.".startswith(f"fcilbench.{each}.") for each in modules):
                placed[name] = page
    if lost := sorted(homes.keys() - placed.keys()):
        raise RuntimeError(f"docs/maker/api.py: no page for {', '.join(lost)}")
    folder = source / "api"
    folder.mkdir()
    notebooks = [
        "Notebooks",
        "",
        "Rows as pandas tables; :doc:`an example </example>`.",
        *_items("fcilbench", fcilbench.__all__),
    ]
    (folder / "notebooks.rst").write_text(_page(notebooks), encoding="utf-8")
    for page, (title, _) in PAGES.items():
        names = [name for name in fcilbench.api.__all__ if placed[name] == page]
        (folder / f"{page}.rst").write_text(
            _page([title, "", "All of it is imported from ``fcilbench.api``.", *_items("fcilbench.api", names)])
        )
    tree = toctree(["notebooks", *PAGES, "testing"]).replace(":hidden:\n", "")
    write(folder / "README.md", f"# Python interface\n\n{prose(inspect.getdoc(fcilbench.api))}\n\n{tree}")
    kit = [
        "The conformance kit",
        "",
        inspect.getdoc(fcilbench.testing) or "",
        *_items("fcilbench.testing", fcilbench.testing.__all__),
    ]
    (folder / "testing.rst").write_text(_page(kit), encoding="utf-8")


def _page(lines: list[str]) -> str:
    title, *body = lines
    return "\n".join([title, "=" * len(title), *body, ""])


def _items(module: str, names: list[str]) -> list[str]:
    """Returns the directives for names of a module; each is described where it is defined, which has all it says."""
    lines, homes = [], fcilbench.api._homes() if module == "fcilbench.api" else {}
    for name in names:
        found = getattr(importlib.import_module(module), name)
        home, there = homes.get(name, (module, name))
        path = f"{home}.{name}" if there == name else f"{module}.{name}"
        if inspect.isclass(found) and inspect.getdoc(found):
            lines += ["", f".. autoclass:: {path}", "   :members:", "   :show-inheritance:"]
        elif inspect.isroutine(found):
            lines += ["", f".. autofunction:: {path}"]
        else:
            lines += ["", f".. py:data:: {path}", *_value(home, there)]
    return lines


def _value(module: str, name: str) -> list[str]:
    """Returns what the source says of a constant or a type: its value if that is short, and the text below it."""
    body = ast.parse(inspect.getsource(importlib.import_module(module))).body
    for node, after in zip(body, [*body[1:], None], strict=True):
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else ()
        )
        if name in map(ast.unparse, targets):
            value = ast.unparse(node.value)
            about = ast.get_docstring(ast.Module([after], [])) if after else None
            shown = [f"   :value: {value}"] if len(value) <= 80 else []
            return [*shown, "", f"   {' '.join((about or '').split())}"]
    return []
