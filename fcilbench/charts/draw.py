"""Puts a chart and its data together, and writes them as a picture for a paper."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import Any

from fcilbench.charts.parts import Data
from fcilbench.charts.theme import COLUMN, PAPER, Theme
from fcilbench.errors import UsageError
from fcilbench.files import write_atomic

SUFFIXES = (".svg", ".pdf", ".png")
_IDS = re.compile(r'( id="|url\(#)((gradient_|clip)\d+)')
"""Where SVG names a gradient or an outline, and refers to it."""
_DOTS = 300
"""Dots of an inch of a PNG file."""


def drawn(module: ModuleType, found: Data, theme: Theme, title: str = "", width: float | str = 520) -> Any:
    """Returns the Altair chart of one of the modules of charts, with its data in it."""
    chart = module.chart(theme, title, width, **found["layout"][0])
    datasets = {name: rows for name, rows in found.items() if name != "layout"}
    return chart.properties(datasets=datasets)


def svg(description: dict[str, Any]) -> str:
    """Returns a Vega-Lite description, with its data, as SVG: the same text in every run."""
    import vl_convert

    text: str = vl_convert.vegalite_to_svg(description, allowed_base_urls=[])
    names: dict[str, str] = {}  # the library counts on from picture to picture
    return _IDS.sub(lambda found: f"{found[1]}{names.setdefault(found[2], f'{found[3]}{len(names)}')}", text)


def check_suffix(path: Path) -> None:
    """Raises UsageError if no figure is written to a file with such an ending."""
    if path.suffix.lower() not in SUFFIXES:
        reason = f"{path}: no figure is written to {path.suffix!r} files"
        raise UsageError(reason, hint=f"end it in {', '.join(SUFFIXES)}")


def write(
    module: ModuleType, found: Data, title: str, path: Path, *, theme: Theme = PAPER, width: float = COLUMN
) -> None:
    """Writes a chart as an `.svg`, `.pdf` or `.png` file, by the file's ending; by default for a paper's column.

    Raises:
        UsageError: If the file has another ending.
    """
    check_suffix(path)
    import vl_convert

    description = drawn(module, found, theme, title, width).to_dict()
    suffix = path.suffix.lower()
    if suffix == ".svg":
        write_atomic(path, _in_points(svg(description)))
    elif suffix == ".pdf":
        write_atomic(path, vl_convert.vegalite_to_pdf(description, allowed_base_urls=[]))
    else:
        write_atomic(path, vl_convert.vegalite_to_png(description, ppi=_DOTS, allowed_base_urls=[]))


def _in_points(text: str) -> str:
    """Returns SVG whose size is in points, as that of PDF is, and not in pixels of which 96 are an inch."""
    return re.sub(r'(<svg[^>]*?) width="([\d.]+)" height="([\d.]+)"', r'\1 width="\2pt" height="\3pt"', text, count=1)
