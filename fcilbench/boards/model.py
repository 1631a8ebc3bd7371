"""A board as data: blocks that are never compared, in them column groups that are never ranked together."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fcilbench.spec.metrics import Better
from fcilbench.spec.protocol import Closed


class Estimate(Closed):
    """Mean of a metric over seeds with its 95 % confidence interval (Student t).

    Attributes:
        mean: Mean of the defined values; `None` if there is none.
        half_width: Half width of the interval; `None` with fewer than two different values.
        n: Number of defined values.
        values: The defined value of each seed index.
    """

    mean: float | None
    half_width: float | None
    n: int
    values: dict[int, float]

    @property
    def constant(self) -> bool:
        """Whether several seeds gave one value: they do not influence it, so they are no evidence."""
        return self.n > 1 and len(set(self.values.values())) == 1


class Column(Closed):
    """One metric of a group, e.g. `faa`, with its unit and direction."""

    metric: str
    title: str
    unit: str
    better: Better


class Group(Closed):
    """Columns that belong together, e.g. those of one task identity. Groups answer different questions.

    Attributes:
        key: What the columns share: a task identity on the accuracy board.
        columns: The columns; the first one ranks.
    """

    key: str
    columns: tuple[Column, ...]


class Rank(Closed):
    """Place of a method within one block and one group; tied methods share a rank.

    Attributes:
        rank: 1 plus the number of methods that are significantly better.
        of: Number of methods ranked.
    """

    rank: int
    of: int


class Entry(Closed):
    """One method in one block.

    Attributes:
        aggregator: Label, with what tells it apart where two methods share a label.
        ok: Seeds with a result.
        planned: Seeds planned.
        failures: Number of seeds per status other than `ok`; `missing` is a planned cell without a row.
        reasons: One line for each distinct failure or reason for skipping.
        estimates: By group and metric.
        ranks: By group; no entry where the block says why there is no rank.
        warnings: Distinct warnings of its rows.
    """

    aggregator: str
    ok: int
    planned: int
    failures: dict[str, int] = Field(default_factory=dict)
    reasons: tuple[str, ...] = ()
    estimates: dict[str, dict[str, Estimate]] = Field(default_factory=dict)
    ranks: dict[str, Rank] = Field(default_factory=dict)
    warnings: tuple[str, ...] = ()


class Block(Closed):
    """One scenario: methods that saw the same data under the same protocol.

    Attributes:
        scenario: Labels of dataset, backbone, partition and stress.
        digest: Identity of the scenario: protocol, data, plugins, tasks and seeds, without the method.
        facts: What the scenario fixes, for display (`protocol.rounds`, `data`, ...).
        groups: Column groups, never ranked together.
        entries: Methods, in alphabetical order: the order is no rank.
        notes: What a reader must know of this block.
    """

    scenario: dict[str, str]
    digest: str
    facts: dict[str, str]
    groups: tuple[Group, ...]
    entries: tuple[Entry, ...]
    notes: tuple[str, ...] = ()

    @property
    def heading(self) -> str:
        """The scenario's labels in one line, e.g. `digits / vit / dirichlet-0.5 / stress none`."""
        labels = [value for axis, value in self.scenario.items() if axis != "stress" and value]
        return " / ".join([*labels, f"stress {self.scenario.get('stress') or 'none'}"])


class Board(Closed):
    """A board, with notes on the whole of it. Its JSON form `model_dump_json(by_alias=True)` is versioned."""

    schema_version: Literal[2] = Field(2, alias="schema")
    board: str
    title: str
    blocks: tuple[Block, ...]
    notes: tuple[str, ...] = ()
