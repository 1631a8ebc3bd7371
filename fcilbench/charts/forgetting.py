"""The forgetting of a method as a matrix: what was lost on each task since its best accuracy, after each later task."""

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
    """Returns the loss on task s after task t: the best accuracy on s so far minus that after t, mean over seeds.

    - `rows`: as those of `fcilbench.charts.matrix.data`; values are points of accuracy, 0 where none was better.

    Args:
        matrices: The accuracy matrices of a method, one of each seed.

    Raises:
        NothingSelectedError: If nothing was measured.
    """

    def lost(t: int, s: int) -> float | None:
        measured = [matrix for matrix in matrices if matrix[t][s] is not None]
        seen = [[value for u in range(s, t + 1) if (value := matrix[u][s]) is not None] for matrix in measured]
        return statistics.fmean(max(own) - own[-1] for own in seen) if seen else None

    return cells(lost, matrices, "{} points lost on task {} after task {}", fixed=False)


def chart(
    theme: Theme, title: str = "", width: float | str = 360, *, tasks: int = 5, top: float = 100
) -> alt.LayerChart:
    """Returns the description of a matrix of some tasks; colours go from 0 to `top` points."""
    return draw(theme, title, width, tasks=tasks, top=top, legend="points lost")
