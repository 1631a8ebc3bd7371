"""What a run would do and what it would cost. Executes nothing, writes nothing."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from fcilbench.spec.cell import Cell
from fcilbench.spec.row import Row
from fcilbench.suite.expand import Blocked, Expansion
from fcilbench.suite.select import FAILURES, State, parse_rerun, parse_selectors, state_of_status

# A guess where nothing was measured: operations per second of a CPU thread on a small ViT, and of an H100 or H200 (a
# third of its peak); least seconds per sample and visit, since small models are dominated by overhead; operations of a
# training step in forward passes; what is assumed where a plugin declares neither operations nor samples.
_SPEED = {"cpu": 5e10, "gpu/fp32": 4e13, "gpu/bf16": 2.5e14}
_OVERHEAD = {"cpu": 1e-3, "gpu": 1e-4}
_PASSES, _FLOPS, _SAMPLES = 3.0, 1e10, 10_000

Basis = Literal["measured", "guess"]

_UNFINISHED = {"interrupted": "interrupted, will continue", "killed": "killed, will run again"}


@dataclass(frozen=True)
class PlanItem:
    """One cell, its state, and whether a run would train it.

    Attributes:
        why: Reason of the state, or of `blocked`; may be empty.
        blocked: Whether a run would train it if its data set were on this machine.
        seconds: Estimated wall-clock seconds of training it.
        basis: Whether they were measured on this hardware.
    """

    cell: Cell
    cell_id: str
    state: State
    why: str = ""
    run: bool = True
    blocked: bool = False
    row: Row | None = None
    seconds: float = 0.0
    basis: Basis = "guess"

    @property
    def status(self) -> str | None:
        """Status of its latest row."""
        return self.row.status if self.row else None

    @property
    def awaited(self) -> bool:
        """Whether another run works on a cell that has no result yet."""
        return self.state == "running" and self.status != "ok"


@dataclass(frozen=True)
class Plan:
    """What a run would do: the cells of the suite, and one item for each selected cell in the order of the grid.

    `without_id` are the selected cells that need a plugin or weights that are missing here.
    """

    expansion: Expansion
    items: list[PlanItem]
    without_id: list[Blocked] = field(default_factory=list)

    @property
    def todo(self) -> list[PlanItem]:
        """The items that a run would train."""
        return [item for item in self.items if item.run]

    @property
    def blocked(self) -> int:
        """Number of cells that a run leaves out because something is missing on this machine."""
        return len(self.without_id) + sum(item.blocked for item in self.items)

    @property
    def counts(self) -> dict[State, int]:
        """Number of cells in each state that occurs."""
        return dict(Counter(item.state for item in self.items))

    @property
    def seconds(self) -> float:
        """Estimated seconds of one slot for all cells that a run would train."""
        return sum(item.seconds for item in self.todo)


def make_plan(
    expansion: Expansion,
    rows: Mapping[str, Row],
    rerun: str = "stale",
    only: Sequence[str] = (),
    *,
    missing: Collection[str] = (),
    stale: Mapping[str, Sequence[str]] | None = None,
    running: Mapping[str, str] | None = None,
    environments: Collection[str] = (),
    gpu: bool = False,
) -> Plan:
    """Plans a run.

    Args:
        expansion: From `expand`.
        rows: Latest row of each cell id (`Store.latest()`).
        rerun: Policy of `--rerun`, see `fcilbench.suite.select.POLICIES`.
        only: Values of `--only`. A term that asks for failed or stale cells by their status also runs them again.
        missing: Labels of the data sets that are not on this machine.
        stale: By cell id, why a row is stale (`fcilbench.results.stale`).
        running: By cell id, the live process that works on a cell.
        environments: `Row.env` of environments on hardware like this one's; only their rows count as measured costs.
        gpu: Whether cells would run on a GPU, for the guess where nothing was measured.
    """
    selector = parse_selectors(only)
    asked: set[State] = {"stale"} if "stale" in selector.statuses else set()
    if not selector.statuses.isdisjoint(FAILURES):
        asked.add("failed")
    again = parse_rerun(rerun) | asked
    measured = _measured(rows.values(), environments)
    items = []
    for cell, identity in zip(expansion.cells, expansion.ids, strict=True):
        row = rows.get(identity)
        state, why = state_of(row, (stale or {}).get(identity, ()), (running or {}).get(identity))
        status = row.status if row else None
        if selector.matches(identity, cell.coords, status, state):
            wanted = state == "new" or state in again or (rerun != "never" and _taken_up_again(state, row, cell))
            before = measured.get(_work(cell, cell.runtime.portable))
            rate = statistics.median(before) if before else _guess(cell, expansion.facts, gpu)
            seconds = rate * _visits(cell.protocol.model_dump(mode="json"))
            blocked = wanted and cell.dataset.label in missing
            why = "its data set is missing" if blocked else why
            basis: Basis = "measured" if before else "guess"
            items.append(PlanItem(cell, identity, state, why, wanted and not blocked, blocked, row, seconds, basis))
    return Plan(expansion, items, [each for each in expansion.blocked if selector.matches("", each.coords)])


def state_of(row: Row | None, stale: Sequence[str] = (), owner: str | None = None) -> tuple[State, str]:
    """Returns the state of a cell and its reason, from its row.

    `stale` are the reasons why the row is stale, and `owner` the live process that works on the cell.
    """
    if owner is not None:
        return "running", f"running elsewhere: {owner}"
    state = state_of_status(row.status if row else None)
    if row is None or row.status in _UNFINISHED:
        return state, _UNFINISHED[row.status] if row else ""
    if stale:
        before = "" if state == "done" else f" (was {row.status})"
        return "stale", f"{'; '.join(stale)}{before}"
    if state != "failed":
        return state, f"skipped: {row.skipped}" if row.status == "skipped" else ""
    failure = row.failure
    return state, f"{failure.kind}: {failure.type}: {failure.message}" if failure else row.status


def _taken_up_again(state: State, row: Row | None, cell: Cell) -> bool:
    """Says whether a cell failed for a reason outside the method, which may be gone.

    It was killed, or something was missing here, or it came to a time limit and has a longer one now.
    """
    if state != "failed" or row is None:
        return False
    if row.status == "timeout":
        return cell.limits.wall_seconds is None or cell.limits.wall_seconds > row.cost.wall_s
    return row.status == "killed" or (row.failure is not None and row.failure.kind == "prerequisite")


def _measured(rows: Iterable[Row], environments: Collection[str]) -> dict[str, list[float]]:
    """Returns the seconds that finished rows of environments took per visit of the training samples, by `_work`."""
    measured: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if row.status == "ok" and row.env in environments:
            key = _work(row, bool(row.params.runtime.get("portable")))
            measured[key].append(row.cost.wall_s / _visits(row.params.protocol))
    return measured


def _work(cell: Cell | Row, portable: bool) -> str:
    """Returns a key of data set and backbone with their options, of the aggregator without, and of `portable`."""
    uses = cell.plugins
    parts = [(uses[kind].name, sorted(uses[kind].identity.items())) for kind in ("dataset", "backbone")]
    return repr([*parts, uses["aggregator"].name, portable])


def _guess(cell: Cell, facts: Mapping[str, Mapping[str, Any]], gpu: bool) -> float:
    """Returns seconds per visit of the training samples, from what the data set and the backbone declare."""
    data = facts.get(f"dataset:{cell.dataset.label}", {})
    samples, kept = data.get("train", _SAMPLES), cell.dataset.params.get("train_per_class")
    if kept is not None and "classes" in data:
        samples = min(samples, kept * data["classes"])
    flops = facts.get(f"backbone:{cell.backbone.label}", {}).get("forward_flops") or _FLOPS
    speed = _SPEED[f"gpu/{cell.protocol.precision}"] if gpu else _SPEED["cpu"] * cell.runtime.threads
    return float(samples * max(_PASSES * flops / speed, _OVERHEAD["gpu" if gpu else "cpu"]))


def _visits(protocol: Mapping[str, Any]) -> float:
    """Returns how often local training visits each training sample."""
    return float(protocol.get("rounds", 1) * protocol.get("local_epochs", 1) * protocol.get("participation", 1.0))
