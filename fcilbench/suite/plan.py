"""What a run would do, and what it would cost. Writes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from fcilbench.suite.cell import Cell
from fcilbench.suite.expand import Expansion

State = Literal["new", "done", "stale", "failed", "running"]


@dataclass(frozen=True)
class StoreView:
    """What a plan knows of earlier runs.

    Attributes:
        rows: Latest row of each cell id (`Store.latest()`).
        running: Cells that another live process works on: cell id -> who.
        hardware: Digest of this machine's hardware; only rows with the same digest count as measured costs.
    """

    rows: Mapping[str, Any] = field(default_factory=dict)
    running: Mapping[str, str] = field(default_factory=dict)
    hardware: str | None = None


@dataclass(frozen=True)
class PlanItem:
    """One cell and what becomes of it.

    Attributes:
        cell: The cell.
        cell_id: Its identity.
        state: What the store knows of it.
        why: Reason of the state, "" for new and done cells.
        run: Whether a run would train it.
        status: Status of its latest row, `None` without one.
        seconds: Estimated wall-clock seconds.
        basis: `measured` on this hardware or `guess`.
    """

    cell: Cell
    cell_id: str
    state: State
    why: str = ""
    run: bool = True
    status: str | None = None
    seconds: float = 0.0
    basis: Literal["measured", "guess"] = "guess"


@dataclass(frozen=True)
class PlanGroup:
    """The seeds of one point of the grid.

    Attributes:
        coords: Axes without the seed.
        counts: Number of cells in each state that occurs.
        why: Distinct reasons.
    """

    coords: dict[str, str]
    counts: dict[State, int]
    why: list[str]


@dataclass(frozen=True)
class Plan:
    """A dry run.

    Attributes:
        expansion: Where the cells come from.
        items: One per selected cell, in the order of the grid.
        groups: The same by grid point.
    """

    expansion: Expansion
    items: list[PlanItem]
    groups: list[PlanGroup]

    @property
    def todo(self) -> list[PlanItem]:
        """The items that a run would train."""
        return [item for item in self.items if item.run]


def make_plan(
    expansion: Expansion, view: StoreView | None = None, rerun: str = "stale", only: Sequence[str] = ()
) -> Plan:
    """Plans a run."""
    raise NotImplementedError
