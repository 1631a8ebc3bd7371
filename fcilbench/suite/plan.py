"""What a run would do and what it would cost. Executes nothing, writes nothing."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from fcilbench.spec.cell import Cell, PluginUse
from fcilbench.spec.identity import cell_id
from fcilbench.spec.row import PluginRecord, Row
from fcilbench.suite.expand import Expansion
from fcilbench.suite.select import FAILURES, State, parse_rerun, parse_selectors, state_of_status

PRIOR_SECONDS_PER_SAMPLE = 2e-3
"""Guess: seconds per training sample and visit, of a backbone that does not tell its operations."""
_SPEED = {"cpu": 5e10, "gpu/fp32": 4e13, "gpu/bf16": 2.5e14}
"""Guess: operations per second of a CPU thread on a small ViT, and of an H100 or H200 (a third of its peak)."""
_OVERHEAD = {"cpu": 1e-3, "gpu": 1e-4}
"""Lower bound of the seconds per training sample and visit: small models are dominated by overhead."""
_PASSES = 3.0
"""Operations of a training step in forward passes."""
_UNKNOWN_TRAIN = 10_000

Basis = Literal["measured", "guess"]

_BROKEN_OFF = {"interrupted": "interrupted, goes on", "killed": "killed, taken up again"}


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
        why: Reason of the state; empty where the state says it all.
        run: Whether a run would train it.
        row: Its latest row, `None` without one.
        seconds: Estimated wall-clock seconds of training it, `measured` on this hardware or a `guess`, as `basis` says.
    """

    cell: Cell
    cell_id: str
    state: State
    why: str = ""
    run: bool = True
    row: Row | None = None
    seconds: float = 0.0
    basis: Basis = "guess"

    @property
    def status(self) -> str | None:
        """Status of its latest row."""
        return self.row.status if self.row else None

    @property
    def awaited(self) -> bool:
        """Whether the plan lacks its result and another run works on it."""
        return self.state == "running" and self.status != "ok"


@dataclass(frozen=True)
class Plan:
    """A dry run: where the cells come from, and one item per selected cell in the order of the grid."""

    expansion: Expansion
    items: list[PlanItem]

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
    """Plans a run against what earlier runs left (`None` is an empty store).

    Args:
        expansion: From `expand`.
        view: What earlier runs left.
        rerun: Policy of `--rerun`, see `fcilbench.suite.select.POLICIES`.
        only: Values of `--only`. A term that asks for failed or stale cells by their status also runs them again.

    Raises:
        UsageError: If the policy or an expression is wrong.
    """
    view = view or StoreView()
    selector = parse_selectors(only)
    asked: set[State] = {"stale"} if "stale" in selector.statuses else set()
    if not selector.statuses.isdisjoint(FAILURES):
        asked.add("failed")
    again = parse_rerun(rerun) | asked
    costs = _Costs(view, expansion)
    items = []
    for cell in expansion.cells:
        identity = cell_id(cell)
        row = view.rows.get(identity)
        state, why = state_of(cell, row, view.running.get(identity))
        if selector.matches(identity, cell.coords, row.status if row else None, state):
            run = state == "new" or state in again or (rerun != "never" and _taken_up_again(state, row))
            items.append(PlanItem(cell, identity, state, why, run, row, *costs.estimate(cell)))
    return Plan(expansion, items)


def state_of(cell: Cell, row: Row | None, owner: str | None = None) -> tuple[State, str]:
    """Returns the state of a cell and its reason, from its latest row and from who else works on it right now."""
    if owner is not None:
        return "running", f"running elsewhere: {owner}"
    state = state_of_status(row.status if row else None)
    if row is None or row.status in _BROKEN_OFF:
        return state, _BROKEN_OFF[row.status] if row else ""
    uses = cell.plugins.items()
    changed = [use.name for kind, use in uses if _changed(use, row.plugins.get(kind), getattr(row.params, kind))]
    if changed:
        before = "" if state == "done" else f" (was {row.status})"
        return "stale", f"code changed: {', '.join(changed)}{before}"
    if state != "failed":
        return state, f"skipped: {row.skipped}" if row.status == "skipped" else ""
    failure = row.failure
    return state, f"{failure.kind}: {failure.type}: {failure.message}" if failure else row.status


def _changed(use: PluginUse, record: PluginRecord | None, params: Mapping[str, Any]) -> bool:
    """Says whether a plugin's code, or a default that the cell relies on, is not that of a row."""
    if record is None or record.code_digest != use.code_digest:
        return True
    # Options in an identity are equal, or the row would be another cell's; they may be paths that differ.
    relied_on = params.keys() & use.params.keys() - use.identity.keys() - record.identity.keys()
    return any(params[name] != use.params[name] for name in relied_on)


def _taken_up_again(state: State, row: Row | None) -> bool:
    """Says whether a failure is no verdict on the method: the process died, or something was missing on the machine."""
    if state != "failed" or row is None:
        return False
    return row.status == "killed" or (row.failure is not None and row.failure.kind == "prerequisite")


class _Costs:
    """Estimates wall-clock seconds: from finished rows of this hardware, else from what the backbone declares."""

    def __init__(self, view: StoreView, expansion: Expansion) -> None:
        self._facts, self._device = expansion.facts, "gpu" if view.gpu else "cpu"
        self._measured: dict[str, list[float]] = defaultdict(list)  # seconds per visit of the training samples
        for row in view.rows.values():
            if view.hardware is not None and row.status == "ok" and row.hardware_digest == view.hardware:
                key = _same_work(row.plugins["dataset"], row.plugins["backbone"], row.plugins["aggregator"])
                self._measured[key].append(row.cost.wall_s / _visits(row.params.protocol))

    def estimate(self, cell: Cell) -> tuple[float, Basis]:
        """Returns seconds, and whether they are measured.

        Both are seconds per visit of the training samples, times the visits of the protocol. Measured is the median of
        cells with the same data set, backbone and aggregator; a guess is the backbone's operations at a declared speed.
        """
        visits = _visits(cell.protocol.model_dump(mode="json"))
        measured = self._measured.get(_same_work(cell.dataset, cell.backbone, cell.aggregator))
        if measured:
            return statistics.median(measured) * visits, "measured"
        return self._samples(cell) * self._seconds_per_sample(cell) * visits, "guess"

    def _seconds_per_sample(self, cell: Cell) -> float:
        flops: float | None = self._facts.get(f"backbone:{cell.backbone.label}", {}).get("forward_flops")
        if flops is None:
            return PRIOR_SECONDS_PER_SAMPLE
        gpu = self._device == "gpu"
        speed = _SPEED[f"gpu/{cell.protocol.precision}"] if gpu else _SPEED["cpu"] * cell.runtime.threads
        return max(_PASSES * flops / speed, _OVERHEAD[self._device])

    def _samples(self, cell: Cell) -> int:
        facts = self._facts.get(f"dataset:{cell.dataset.label}", {})
        total, kept = int(facts.get("train", _UNKNOWN_TRAIN)), cell.dataset.params.get("train_per_class")
        return min(total, kept * int(facts["classes"])) if isinstance(kept, int) and "classes" in facts else total


def _same_work(*plugins: PluginUse | PluginRecord) -> str:
    """Returns a key of data set and backbone with their options, and of the aggregator without."""
    scene = [(each.name, sorted(each.identity.items())) for each in plugins[:2]]
    return repr((scene, [each.name for each in plugins[2:]]))


def _visits(protocol: Mapping[str, Any]) -> float:
    """Returns how often local training visits each training sample."""
    return float(protocol.get("rounds", 1) * protocol.get("local_epochs", 1) * protocol.get("participation", 1.0))
