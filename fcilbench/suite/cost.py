"""How long cells will take: from earlier rows on this hardware, else from a declared prior."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from fcilbench.results.schema import Row
from fcilbench.suite.cell import Cell

PRIOR_SECONDS_PER_SAMPLE = 2e-3
"""Prior: wall-clock seconds per training sample and visit. A ViT-B/16 takes about 0.4 ms on an H100, a tiny model some
ms on two CPU cores; it only stands in until the first cell of its kind has been measured."""

_UNKNOWN_TRAIN = 10_000

Basis = Literal["measured", "guess"]


class CostModel:
    """Estimates wall-clock seconds.

    Args:
        rows: Rows of earlier runs.
        hardware: Hardware digest of this machine; only finished rows with the same one count.
        facts: `Expansion.facts`.
    """

    def __init__(self, rows: Iterable[Row], hardware: str | None, facts: Mapping[str, Mapping[str, Any]]) -> None:
        self._facts = facts
        self._equal: dict[str, list[float]] = defaultdict(list)
        self._similar: dict[str, list[float]] = defaultdict(list)
        for row in rows:
            if hardware is None or row.status != "ok" or row.hardware_digest != hardware:
                continue
            names = {str(kind): (record.name, record.identity) for kind, record in row.plugins.items()}
            scene = [names.get("dataset"), names.get("backbone")]
            protocol, tasks = row.params.protocol, row.params.tasks
            self._equal[_key(scene, names.get("aggregator", ("", {}))[0], protocol, tasks)].append(row.cost.wall_s)
            self._similar[_key(scene)].append(row.cost.wall_s / _visits(protocol))

    def estimate(self, cell: Cell) -> tuple[float, Basis]:
        """Returns seconds, and whether they are measured.

        Measured is the median of cells of the same data set, backbone, aggregator, split and protocol. A guess is the
        median of other cells of the same data set and backbone, scaled by the samples they visit, or the prior.
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
        return self._train_samples(cell) * _visits(protocol) * PRIOR_SECONDS_PER_SAMPLE, "guess"

    def _train_samples(self, cell: Cell) -> int:
        facts = self._facts.get(f"dataset:{cell.dataset.name}", {})
        total = int(facts.get("train", _UNKNOWN_TRAIN))
        kept = cell.dataset.params.get("train_per_class")
        return min(total, kept * int(facts["classes"])) if isinstance(kept, int) and "classes" in facts else total


def _visits(protocol: Mapping[str, Any]) -> float:
    """Returns how often local training visits each training sample."""
    rounds, epochs = protocol.get("rounds", 1), protocol.get("local_epochs", 1)
    return float(rounds * epochs * protocol.get("participation", 1.0))


def _key(*parts: Any) -> str:
    return json.dumps(parts, sort_keys=True)
