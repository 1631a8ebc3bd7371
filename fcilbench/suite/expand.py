"""From a suite to its cells."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fcilbench.suite.cell import Cell
from fcilbench.suite.load import LoadedSuite
from fcilbench.suite.problems import Problem


@dataclass(frozen=True)
class Expansion:
    """The cells of a suite.

    Attributes:
        name: Name of the suite.
        cells: In the order of the grid, seeds innermost.
        excluded: Coordinates of the cells that an `exclude` rule takes out, each with its reason.
        prerequisites: What is missing on this machine, one line each; the cells that need it cannot be identified.
        blocked: Number of cells that miss a prerequisite; they are not among `cells`.
        axes: Number of entries of each axis, `seed` last.
        facts: Static facts of the plugins in use, by `<axis>:<full name>`.
        unused: `tuned` and `exclude` rules that match no cell.
    """

    name: str
    cells: list[Cell]
    excluded: list[tuple[dict[str, str | int], str]] = field(default_factory=list)
    prerequisites: list[str] = field(default_factory=list)
    blocked: int = 0
    axes: dict[str, int] = field(default_factory=dict)
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    unused: list[Problem] = field(default_factory=list)


def expand(loaded: LoadedSuite) -> Expansion:
    """Expands a suite to its cells."""
    raise NotImplementedError
