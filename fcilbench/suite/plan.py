"""What a run would do, and what it would cost. Executes nothing, writes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fcilbench.spec.cell import Cell
from fcilbench.spec.identity import cell_id
from fcilbench.spec.row import Row
from fcilbench.suite.cost import Basis, CostModel
from fcilbench.suite.expand import Expansion
from fcilbench.suite.select import parse_selectors
from fcilbench.suite.states import FAILURES, State, judge, parse_rerun, to_run


@dataclass(frozen=True)
class StoreView:
    """What a plan knows of earlier runs.

    Attributes:
        rows: Latest row of each cell id (`Store.latest()`).
        running: Cells that another live process works on: cell id -> who.
        hardware: Digest of this machine's hardware; only rows with the same digest count as measured costs.
        gpu: Whether cells would run on a GPU, for costs that nothing was measured of.
    """

    rows: Mapping[str, Row] = field(default_factory=dict)
    running: Mapping[str, str] = field(default_factory=dict)
    hardware: str | None = None
    gpu: bool = False


@dataclass(frozen=True)
class PlanItem:
    """One cell and what becomes of it.

    Attributes:
        cell: The cell.
        cell_id: Its identity.
        state: What the store knows of it.
        why: Reason of the state, "" where the state says it all.
        run: Whether a run would train it.
        status: Status of its latest row, `None` without one.
        seconds: Estimated wall-clock seconds of training it.
        basis: Whether they are `measured` on this hardware or a `guess`.
    """

    cell: Cell
    cell_id: str
    state: State
    why: str = ""
    run: bool = True
    status: str | None = None
    seconds: float = 0.0
    basis: Basis = "guess"


@dataclass(frozen=True)
class PlanGroup:
    """The seeds of one point of the grid.

    Attributes:
        coords: Axes without the seed.
        counts: Number of cells in each state that occurs.
        why: Distinct reasons.
        seconds: Estimated seconds of the cells that a run would train.
    """

    coords: dict[str, str]
    counts: dict[State, int]
    why: list[str]
    seconds: float = 0.0


@dataclass(frozen=True)
class Plan:
    """A dry run.

    Attributes:
        expansion: Where the cells come from.
        items: One per selected cell, in the order of the grid.
        groups: The same by point of the grid.
    """

    expansion: Expansion
    items: list[PlanItem]
    groups: list[PlanGroup]

    @property
    def todo(self) -> list[PlanItem]:
        """The items that a run would train."""
        return [item for item in self.items if item.run]

    @property
    def counts(self) -> dict[State, int]:
        """Number of cells in each state that occurs."""
        return dict(Counter(item.state for item in self.items))

    @property
    def seconds(self) -> float:
        """Estimated seconds of one slot for all cells that a run would train."""
        return sum(item.seconds for item in self.todo)


def make_plan(
    expansion: Expansion, view: StoreView | None = None, rerun: str = "stale", only: Sequence[str] = ()
) -> Plan:
    """Plans a run.

    Args:
        expansion: From `expand`.
        view: What earlier runs left; `None` is an empty store.
        rerun: Policy of `--rerun`, see `fcilbench.suite.states.POLICIES`.
        only: Values of `--only`, see `fcilbench.suite.select`. A term that asks for failed or stale cells by their
            status also runs them again.

    Raises:
        UsageError: If the policy or an expression is wrong.
    """
    view = view or StoreView()
    selector = parse_selectors(only)
    again = parse_rerun(rerun) | _asked_for(selector.statuses)
    costs = CostModel(view, expansion.facts, expansion.flops)
    items = []
    for cell in expansion.cells:
        identity = cell_id(cell)
        row = view.rows.get(identity)
        state, why = judge(cell, row, view.running.get(identity))
        status = row.status if row else None
        if selector.matches(cell.coords, status, state):
            run = to_run(state, row, again, rerun == "never")
            items.append(PlanItem(cell, identity, state, why, run, status, *costs.estimate(cell)))
    return Plan(expansion, items, _groups(items))


def _asked_for(statuses: Iterable[str]) -> frozenset[State]:
    """Returns the states that `status:` terms ask to run again; a finished cell is never asked for by its status."""
    states: set[State] = set()
    for word in statuses:
        if word == "stale":
            states.add("stale")
        elif word in FAILURES:
            states.add("failed")
    return frozenset(states)


def _groups(items: Iterable[PlanItem]) -> list[PlanGroup]:
    found: dict[tuple[str, ...], list[PlanItem]] = {}
    for item in items:
        coords = {axis: str(value) for axis, value in item.cell.coords.items() if axis != "seed"}
        found.setdefault(tuple(coords.values()), []).append(item)
    return [
        PlanGroup(
            coords={axis: str(value) for axis, value in members[0].cell.coords.items() if axis != "seed"},
            counts=dict(Counter(item.state for item in members)),
            why=list(dict.fromkeys(item.why for item in members if item.why)),
            seconds=sum(item.seconds for item in members if item.run),
        )
        for members in found.values()
    ]
