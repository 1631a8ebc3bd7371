"""A board as data: blocks that are never compared, in them column groups that are never ranked together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from fcilbench.spec.metrics import Better
from fcilbench.spec.protocol import Closed


class Estimate(Closed):
    """Mean of a metric over seeds with its 95 % confidence interval (Student t).

    Attributes:
        mean: `None` if no value is defined.
        half_width: Of the interval; `None` with fewer than two values, or if they are equal up to rounding.
        values: The defined values by seed index.
        paper: The figure that the paper prints, on boards that are compared with one.
    """

    mean: float | None
    half_width: float | None
    n: int
    values: dict[int, float]
    paper: float | None = None

    @property
    def constant(self) -> bool:
        """Whether several seeds gave one value: they do not influence it, so they are no evidence."""
        return self.n > 1 and self.half_width is None

    @property
    def difference(self) -> float | None:
        """Mean minus the paper's figure."""
        return None if self.mean is None or self.paper is None else self.mean - self.paper


class Column(Closed):
    """One metric of a group, e.g. `faa`, with its unit and direction."""

    metric: str
    title: str
    unit: str
    better: Better


class Group(Closed):
    """Columns that belong together, e.g. those of one task identity, which is the `key`. The first column ranks.

    Groups answer different questions. In a group of details no method is `ranked`.
    """

    key: str
    columns: tuple[Column, ...]
    ranked: bool = True


class Rank(Closed):
    """Places of a method within one block and one group that the paired tests leave open.

    Attributes:
        low: 1 plus the number of methods that are significantly better.
        high: `of` minus the number of methods that are significantly worse.
        of: Number of methods that have a rank.
        best: Whether it has the best mean.
        tied: Whether the tests do not tell it from the best one.
    """

    low: int
    high: int
    of: int
    best: bool
    tied: bool


@dataclass(frozen=True, slots=True)
class Pair:
    """A paired test of two methods over their common seeds; the `first` has the better mean.

    `p` is the two-sided p value of the paired t test, adjusted by Holm's rule over all pairs of the group.
    """

    first: str
    second: str
    difference: float
    p: float


Kind = Literal["method", "control", "reference"]


class Entry(Closed):
    """One method in one block.

    Attributes:
        aggregator: Label, with what tells it apart where two methods share a label.
        control: Groups in which it is a control: a claim must beat it.
        reference: Whether it is centralised training, which has no rank; a note says where it is no reference.
        stale: Results of older code than this checkout.
        failures: Number of cells per status other than `ok`; `missing` is a planned cell without a row.
        reasons: One line for each distinct failure or reason for skipping.
        formulas: Complexity that the paper prints, by metric.
        ranks: By group; no entry where the block says why there is no rank.
    """

    aggregator: str
    plugin: str
    control: tuple[str, ...] = ()
    reference: bool = False
    ok: int
    planned: int
    seeds: int
    stale: int = 0
    failures: dict[str, int] = Field(default_factory=dict)
    reasons: tuple[str, ...] = ()
    estimates: dict[str, dict[str, Estimate]] = Field(default_factory=dict)
    formulas: dict[str, str] = Field(default_factory=dict)
    ranks: dict[str, Rank] = Field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    cells: tuple[str, ...] = ()

    def kind(self, key: str) -> Kind:
        """Returns what the method is in the column group of a key, or in the group of details of that one."""
        if self.reference:
            return "reference"
        return "control" if key.partition(",")[0] in self.control else "method"


class Block(Closed):
    """One scenario: methods that saw the same data under the same protocol.

    Attributes:
        scenario: Labels of dataset, backbone, partition and stress.
        digest: Identity of the scenario: protocol, data, plugins, tasks and seeds, without the method.
        place: Identity of the scenario without stress and hardware; empty in boards of before.
        facts: What the scenario fixes, for display (`protocol.rounds`, `data`, ...).
        entries: Methods, in alphabetical order: the order is no rank.
    """

    scenario: dict[str, str]
    digest: str
    place: str = ""
    facts: dict[str, str]
    groups: tuple[Group, ...]
    entries: tuple[Entry, ...]
    tests: dict[str, tuple[Pair, ...]] = Field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def heading(self) -> str:
        """The scenario's labels in one line, e.g. `digits / vit / dirichlet-0.5 / stress none`."""
        labels = [value for axis, value in self.scenario.items() if axis != "stress" and value]
        return " / ".join([*labels, f"stress {self.scenario.get('stress') or 'none'}"])


class MeanRank(Closed):
    """Mean place of a method over the blocks of a board."""

    aggregator: str
    mean: float


class Overall(Closed):
    """A board of the blocks of a board that have clean cells, for one column group.

    Attributes:
        methods: Those that have a rank in every block, best first; the others are `left_out`.
        critical_difference: Nemenyi's: mean ranks that differ by less cannot be told apart (5 %).
    """

    key: str
    metric: str
    blocks: int
    methods: tuple[MeanRank, ...]
    left_out: tuple[str, ...]
    critical_difference: float


class Board(Closed):
    """A board, with notes on the whole of it. Its JSON form `model_dump_json(by_alias=True)` is versioned."""

    schema_version: Literal[4] = Field(4, alias="schema")
    board: str
    title: str
    blocks: tuple[Block, ...]
    overall: tuple[Overall, ...] = ()
    notes: tuple[str, ...] = ()
