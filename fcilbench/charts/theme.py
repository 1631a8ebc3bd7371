"""How charts look: on a page that switches between light and dark, in a notebook, and in a paper's column."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

COLUMN = 245
"""Width of a paper's column in points, 3.4 inches."""
KINDS = ("method", "control", "reference")
SHAPES = ("circle", "diamond", "square")
"""Shapes of the points of `KINDS`: colour is never the only sign."""
SLOTS = 8
"""Methods that have a colour of their own in a chart of lines."""

LIGHT_COLOURS: Mapping[str, str] = {
    **{"back": "#ffffff", "text": "#1a1a1a", "dim": "#555555", "line": "#dcdfe3", "grey": "#8a8f96"},
    **{"method": "#0072b2", "control": "#c44e00", "reference": "#1a1a1a"},
    **{"c0": "#0072b2", "c1": "#c44e00", "c2": "#00775a", "c3": "#a8437f"},
    **{"c4": "#7a5f00", "c5": "#2381b8", "c6": "#333333", "c7": "#7a7a7a"},
}
"""Colours on white by name, after the palette of Okabe and Ito; lines and text have a contrast of 3:1 or more."""
DARK_COLOURS: Mapping[str, str] = {
    **{"back": "#15181c", "text": "#eceef0", "dim": "#adb3ba", "line": "#363c44", "grey": "#7d848c"},
    **{"method": "#62b5e8", "control": "#f39a55", "reference": "#eceef0"},
    **{"c0": "#62b5e8", "c1": "#f39a55", "c2": "#3fc7a0", "c3": "#e58fc0"},
    **{"c4": "#d9b93c", "c5": "#9dd3f5", "c6": "#eceef0", "c7": "#a0a6ad"},
}


@dataclass(frozen=True)
class Theme:
    """Colours, letters and sizes of a chart; sizes are pixels on a screen and points on paper.

    Attributes:
        colours: By the names of `LIGHT_COLOURS`.
        font: Family of all text.
        size: Size of letters.
        letter: Mean width of a letter of the font, as a share of its size.
        row: Height of a line of the forest plot.
        point: Area of a point.
        stroke: Width of a line that is looked at; rules and axes are thinner.
        cell: Largest width of a cell of a matrix.
        label: Largest width of the label of an axis, as a share of the chart.
        height: Height of the plot of a chart without rows, as a share of the width; at most `highest`.
        highest: See `height`.
    """

    colours: Mapping[str, str]
    font: str = "system-ui, sans-serif"
    size: float = 12
    letter: float = 0.6
    row: float = 20
    point: float = 62
    stroke: float = 2
    cell: float = 44
    label: float = 0.38
    height: float = 0.6
    highest: float = 330

    @property
    def kinds(self) -> list[str]:
        """Returns the colours of methods, controls and references, in the order of `KINDS`."""
        return [self.colours[kind] for kind in KINDS]

    @property
    def slots(self) -> list[str]:
        """Returns the colours of the highlighted methods, by slot."""
        return [self.colours[f"c{slot}"] for slot in range(SLOTS)]

    def dashes(self, *lengths: float) -> list[float]:
        """Returns a pattern of dashes, given for a line of 2 pixels."""
        return [round(length * self.stroke / 2, 2) for length in lengths]

    @property
    def slot_dashes(self) -> list[list[float]]:
        """Returns the dashes of the highlighted methods, by slot."""
        return [self.dashes(*each) for each in ((1, 0), (6, 3), (2, 2), (8, 3, 2, 3))] * 2

    def room(self, characters: int) -> float:
        """Returns the width of a text."""
        return self.letter * self.size * characters

    def tall(self, width: float | str) -> float:
        """Returns the height of the plot of a chart without rows."""
        return min(self.highest, self.height * width) if not isinstance(width, str) else self.highest

    def config(self, width: float | str) -> dict[str, Any]:
        """Returns the `config` of a description of some width."""
        text, dim, line = (self.colours[name] for name in ("text", "dim", "line"))
        small, thin = self.size, self.stroke / 2
        axis = {"labelFontSize": small, "titleFontSize": small, "titleFontWeight": "normal", "labelFlush": False}
        widths = {"domainWidth": thin, "tickWidth": thin, "gridWidth": thin, "tickSize": small / 3}
        return {
            "background": "transparent" if self.colours["back"].startswith("var(") else self.colours["back"],
            "font": self.font,
            "padding": 2,
            "view": {"stroke": None},
            "axis": {
                **axis,
                **widths,
                **{"labelColor": dim, "titleColor": text, "domainColor": line, "tickColor": line, "gridColor": line},
                **{"labelPadding": small / 4, "titlePadding": small / 2},
            },
            "axisY": {"labelColor": text, "labelLimit": self.limit(width)},
            "legend": {
                **{"labelColor": dim, "titleColor": text, "titleFontWeight": "normal"},
                **{"labelFontSize": small, "titleFontSize": small, "symbolStrokeWidth": self.stroke},
            },
            "text": {"fontSize": small, "color": text},
            "title": {
                **{"color": text, "fontSize": small, "fontWeight": "bold", "anchor": "start", "frame": "bounds"},
                **{"subtitleColor": dim, "subtitleFontSize": small, "subtitlePadding": small / 4},
            },
        }

    def limit(self, width: float | str) -> float:
        """Returns the largest width of the label of an axis; longer ones end in an ellipsis."""
        return 220 if isinstance(width, str) else min(220, round(self.label * width))


PAGE = Theme({name: f"var(--{name})" for name in LIGHT_COLOURS})
"""For a page whose style sheet has a variable for each name of `LIGHT_COLOURS`: it switches without drawing anew."""
LIGHT = Theme(LIGHT_COLOURS)
"""For notebooks and pictures, which know no variables."""
DARK = Theme(DARK_COLOURS)
PAPER = Theme(LIGHT_COLOURS, "Liberation Sans", 7, 0.54, row=9.5, point=16, stroke=1, cell=60, label=0.36, highest=140)
"""For a column of `COLUMN` points; the font comes with vl-convert, so a figure is alike on every machine."""
