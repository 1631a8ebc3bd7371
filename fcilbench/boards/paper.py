"""Figures that a paper prints, to stand beside measured ones. They are data of their own and are never ranked."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from pydantic import Field

from fcilbench.boards.model import Block
from fcilbench.boards.scenario import BoardCell
from fcilbench.errors import UsageError
from fcilbench.spec.metrics import METRICS
from fcilbench.spec.protocol import Closed


class Printed(Closed):
    """One figure of a paper, with its place there.

    Attributes:
        metric: Column of a board, e.g. `faa`, `round_s` or `stressed`; other names stand on no board.
        value: The figure; ratios between 0 and 1, bytes, seconds. `None` for a formula.
        formula: Complexity, where the paper prints one.
        spread: What the paper prints after ±.
        aggregator: Short name of the method's plugin, as `dataset`, which is `None` where the figure holds for any.
        options: Hyperparameters of the method that are not at their default.
        beta: Dirichlet concentration; `None` where the figure holds for any.
    """

    table: str
    row: str
    metric: str
    value: float | None = None
    formula: str = ""
    spread: float | None = None
    aggregator: str
    options: dict[str, Any] = Field(default_factory=dict)
    dataset: str | None = None
    beta: float | None = None
    backbone: str = "vit-b16"


class PaperFigures(Closed):
    """The printed figures of one paper, with the protocol that it names."""

    source: str
    protocol: dict[str, Any]
    note: str = ""
    records: tuple[Printed, ...]

    @classmethod
    def load(cls, folder: Path) -> PaperFigures:
        """Reads every `*.json` of a folder.

        Raises:
            UsageError: If there is none, or one is not a file of printed figures.
        """
        found = []
        for path in sorted(folder.glob("*.json")):
            try:
                found.append(cls.model_validate(json.loads(path.read_text(encoding="utf-8"))))
            except (OSError, ValueError) as error:
                raise UsageError(
                    f"{path} is no file of printed figures: {' '.join(str(error).split())[:200]}"
                ) from error
        if not found:
            raise UsageError(f"{folder} holds no *.json of printed figures", hint="e.g. --reference leaderboards/paper")
        return found[0].model_copy(update={"records": tuple(record for file in found for record in file.records)})

    def printed(self, cell: BoardCell) -> tuple[dict[str, float], dict[str, str]]:
        """Returns what the paper prints for a cell's data set, beta and method: figures and formulas, by metric."""
        plugins = cell.plugins
        method = plugins["aggregator"]
        records = [record for record in self.records if record.aggregator == _short(method.name)]
        switches = {name for record in records for name in record.options}  # others, e.g. a rank, are tuned
        options = {name: value for name, value in method.identity.items() if name in switches}
        beta = cell.params.partition.get("value") if cell.params.partition.get("kind") == "dirichlet" else None
        label = str(cell.coords.get("backbone", ""))
        found: dict[str, float] = {}
        for record in records:
            fits = record.dataset in (None, _short(plugins["dataset"].name)) and record.beta in (None, beta)
            fits = fits and record.options == options and record.value is not None
            anywhere = record.backbone in _MAIN and (METRICS.get(record.metric) or METRICS["faa"]).unit == "ratio"
            if fits and (record.backbone == label or (record.metric not in found and anywhere)):
                found[record.metric] = cast(float, record.value)
        return found, {record.metric: record.formula for record in records if record.formula}

    def notes(self, blocks: Sequence[Block]) -> tuple[str, ...]:
        """Returns what differs between the paper's protocol and that of blocks that show its figures."""
        differing: dict[str, set[str]] = defaultdict(set)
        for block in blocks:
            estimates = (each for e in block.entries for group in e.estimates.values() for each in group.values())
            if any(each.paper is not None for each in estimates):
                for name, value in self.protocol.items():
                    own = block.facts.get(f"protocol.{name}")
                    if own is not None and own != json.dumps(value):
                        differing[name].add(f"{own} instead of {value}")
        notes = [
            f"paper: as printed in {self.source}, whose text does not say which task identity the baselines get; "
            "difference is the mean here minus that figure"
        ]
        if differing:
            text = ", ".join(f"{name} {' and '.join(sorted(values))}" for name, values in sorted(differing.items()))
            notes.append(f"this is not the paper's protocol: {text}")
        return tuple(notes)


_MAIN = ("vit-b16", "t5-small")
"""Backbones of the paper's main tables: their accuracies are shown beside any backbone. All other figures, such as
bytes, stand beside their own backbone only."""


def _short(plugin: str) -> str:
    return plugin.rpartition("/")[2]
