"""The accuracy matrix of a method: accuracy on each task after each task."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fcilbench.charts.heat import cells, draw
from fcilbench.charts.parts import Data
from fcilbench.charts.theme import Theme
from fcilbench.spec.metrics import Matrix

if TYPE_CHECKING:
    import altair as alt


def data(matrices: Sequence[Matrix]) -> Data:
    """Returns the mean over the accuracy matrices of a method's seeds; of one matrix, its own values.

    - `rows`: `after` and `task` (from 1), `value` (in per cent, from 0 to 100), `dark` (whether dark letters are read
      on its colour), `text`, `tip`.

    What was not measured in every seed has no row.

    Raises:
        NothingSelectedError: If nothing was measured.
    """

    def mean(t: int, s: int) -> float | None:
        values = [matrix[t][s] for matrix in matrices]
        known = [value for value in values if value is not None]
        return statistics.fmean(known) if len(known) == len(values) else None

    return cells(mean, matrices, "accuracy {} % on task {} after task {}", fixed=True)


def chart(theme: Theme, title: str = "", width: float | str = 360, *, tasks: int = 5) -> alt.LayerChart:
    """Returns the description of a matrix of some tasks; the colours are those of 0 to 100 % in every matrix."""
    return draw(theme, title, width, tasks=tasks, top=100, legend="accuracy in %")
