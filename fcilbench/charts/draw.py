"""Puts a chart and its data together, and writes them as pictures."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from fcilbench.charts.parts import Data
from fcilbench.charts.theme import Theme


def drawn(module: ModuleType, found: Data, theme: Theme, title: str = "", width: float | str = 520) -> Any:
    """Returns the Altair chart of one of the modules of charts with its data in it."""
    chart = module.chart(theme, title, width, **found["layout"][0])
    return chart.properties(datasets={name: rows for name, rows in found.items() if name != "layout"})
