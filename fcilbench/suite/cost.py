"""How long cells will take: from earlier rows on this hardware, else from a declared prior."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Literal, Protocol

from fcilbench.spec.cell import Cell
from fcilbench.spec.row import Row

PRIOR_SECONDS_PER_SAMPLE = 2e-3
"""Prior: wall-clock seconds per training sample and visit, of a backbone that does not tell its operations."""

_SPEED = {"cpu": 5e10, "gpu/fp32": 4e13, "gpu/bf16": 2.5e14}
"""Prior: operations a second of a CPU thread, where a small ViT reaches that, and of an H100 or H200, a third of what
large matrix products reach there."""
_OVERHEAD = {"cpu": 1e-3, "gpu": 1e-4}
"""Prior: seconds per training sample and visit below which no model gets, however small."""
_BACKWARD = 2.0
"""Operations of the backward pass in forward passes."""

_UNKNOWN_TRAIN = 10_000

Basis = Literal["measured", "guess"]


class View(Protocol):
    """What the model needs of `fcilbench.suite.plan.StoreView`."""

    @property
    def rows(self) -> Mapping[str, Row]:
        """Latest row of each cell id."""

    @property
    def hardware(self) -> str | None:
        """Digest of this machine's hardware."""

    @property
    def gpu(self) -> bool:
        """Whether cells would run on a GPU."""


class CostModel:
    """Estimates wall-clock seconds.

    Args:
        view: Earlier rows, of which only finished ones of this hardware count, and where cells would run.
        facts: `Expansion.facts`.
        flops: `Expansion.flops`.
    """

    def __init__(self, view: View, facts: Mapping[str, Mapping[str, Any]], flops: Mapping[str, float]) -> None:
        self._facts, self._flops, self._gpu = facts, flops, view.gpu
        self._equal: dict[str, list[float]] = defaultdict(list)
        self._similar: dict[str, list[float]] = defaultdict(list)
        for row in view.rows.values():
            if view.hardware is None or row.status != "ok" or row.hardware_digest != view.hardware:
                continue
            names = {str(kind): (record.name, record.identity) for kind, record in row.plugins.items()}
            scene = [names.get("dataset"), names.get("backbone")]
            protocol, tasks = row.params.protocol, row.params.tasks
            self._equal[_key(scene, names.get("aggregator", ("", {}))[0], protocol, tasks)].append(row.cost.wall_s)
            self._similar[_key(scene)].append(row.cost.wall_s / _visits(protocol))

    def estimate(self, cell: Cell) -> tuple[float, Basis]:
        """Returns seconds, and whether they are measured.

        Measured is the median of cells of the same data set, backbone, aggregator, split and protocol. A guess is the
        median of other cells of the same data set and backbone, scaled by the samples they visit. With none of them it
        is training and evaluating the backbone's operations at a declared speed; what a method adds is not in it.
        """
        scene = [(cell.dataset.name, cell.dataset.identity), (cell.backbone.name, cell.backbone.identity)]
        protocol = cell.protocol.model_dump(mode="json")
        tasks = list(cell.tasks) if isinstance(cell.tasks, tuple) else cell.tasks
        equal = self._equal.get(_key(scene, cell.aggregator.name, protocol, tasks))
        if equal:
            return statistics.median(equal), "measured"
        similar = self._similar.get(_key(scene))
        if similar:
            return statistics.median(similar) * _visits(protocol), "guess"
        return self._prior(cell), "guess"

    def _prior(self, cell: Cell) -> float:
        flops = self._flops.get(model_key(cell.backbone.name, cell.backbone.identity))
        visits = self._samples(cell, "train") * _visits(cell.protocol.model_dump(mode="json"))
        if flops is None:
            return visits * PRIOR_SECONDS_PER_SAMPLE
        place = "gpu" if self._gpu else "cpu"
        speed = _SPEED[f"gpu/{cell.protocol.precision}"] if self._gpu else _SPEED["cpu"] * cell.runtime.threads
        # After each task the samples of all tasks so far are evaluated: half of them on average.
        evaluated = self._samples(cell, "test") * (self._tasks(cell) + 1) / 2
        training = visits * max(flops * (1.0 + _BACKWARD) / speed, _OVERHEAD[place])
        return training + evaluated * flops / speed

    def _samples(self, cell: Cell, split: Literal["train", "test"]) -> int:
        facts = self._facts.get(f"dataset:{cell.dataset.name}", {})
        total = int(facts.get(split, _UNKNOWN_TRAIN))
        kept = cell.dataset.params.get(f"{split}_per_class")
        return min(total, kept * int(facts["classes"])) if isinstance(kept, int) and "classes" in facts else total

    def _tasks(self, cell: Cell) -> int:
        own = cell.tasks or self._facts.get(f"dataset:{cell.dataset.name}", {}).get("default_tasks", 1)
        return own if isinstance(own, int) else len(own)


def model_key(name: str, identity: Mapping[str, Any]) -> str:
    """Returns what names a backbone with its parameters."""
    return _key(name, identity)


def _visits(protocol: Mapping[str, Any]) -> float:
    """Returns how often local training visits each training sample."""
    rounds, epochs = protocol.get("rounds", 1), protocol.get("local_epochs", 1)
    return float(rounds * epochs * protocol.get("participation", 1.0))


def _key(*parts: Any) -> str:
    return json.dumps(parts, sort_keys=True)
