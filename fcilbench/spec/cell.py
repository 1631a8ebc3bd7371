"""A cell: one point of a suite's grid with one seed; a worker needs nothing else to train it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from fcilbench.errors import UsageError
from fcilbench.spec.protocol import (
    Closed,
    Evaluation,
    Limits,
    Partition,
    Protocol,
    Runtime,
    Scored,
    Seeds,
    TaskIdentity,
    identity_field,
    runtime_field,
    scored_under,
)

PluginKind = Literal["dataset", "backbone", "aggregator", "stress"]
PLUGIN_KINDS: dict[PluginKind, str] = {
    "dataset": "datasets",
    "backbone": "backbones",
    "aggregator": "aggregators",
    "stress": "stressors",
}
"""The axes of the grid that are plugins, each with its kind of plugin in the registry."""

SELECTORS = "selectors"
"""Kind of the plugins that pick the task of a test sample: no axis, since a cell is scored under several of them."""

KINDS_WITH_PARAMS = (*PLUGIN_KINDS.values(), SELECTORS)
"""Kinds of plugin that derive from `fcilbench.spec.plugin.Plugin` and have options."""


Role = Literal["method", "control", "reference"]
"""What a method is for those who compare: a competitor; a control, which a claim must beat; or centralised training,
which has no rank."""
Roles = dict[TaskIdentity, Role]
"""The roles of a method by task identity; where none is named, it is a method."""


class PluginUse(Closed):
    """One plugin with the values of all its hyperparameters.

    Attributes:
        name: Full name `dist/name`, e.g. `fcilbench/sum`.
        label: What boards and filters call it, e.g. `sum` or `sum[lambda_s=0.2]`.
        version: The plugin's declared `version`.
        params: Every hyperparameter, defaults included.
        identity: The hyperparameters that identify the cell, with a file's digest instead of its path.
        code_digest: Digest of the plugin's normalised source; if it changes, a finished cell is stale.
        roles: The roles that an aggregator declares (`Aggregator.role`).
    """

    name: str = identity_field()
    label: str = runtime_field("")
    version: str = identity_field()
    params: dict[str, Any] = runtime_field(default_factory=dict)
    identity: dict[str, Any] = identity_field(default_factory=dict)
    code_digest: str = runtime_field("")
    roles: Roles = runtime_field(default_factory=dict)


OWN = PluginUse(name="fcilbench/own", label="own", version="1")
"""The selector that leaves the task to the method's own rule; figures under it are those of plain `inferred`."""


class Cell(Closed):
    """Everything that one experiment depends on; `fcilbench.spec.identity.cell_id` hashes its identity fields."""

    suite: str = runtime_field("")
    protocol: Protocol = identity_field(default_factory=Protocol)
    dataset: PluginUse = identity_field()
    tasks: int | tuple[int, ...] | None = identity_field(None, description="number of equal tasks, or classes per task")
    data_fingerprint: str = identity_field("", description="declared digest of the data set's content")
    backbone: PluginUse = identity_field()
    partition: Partition = identity_field()
    aggregator: PluginUse = identity_field()
    stress: PluginUse = identity_field()
    seeds: Seeds = identity_field(default_factory=Seeds)
    evaluate: Evaluation = identity_field(default_factory=Evaluation)
    selectors: tuple[PluginUse, ...] = identity_field((OWN,), description="what picks the task under `inferred`")
    runtime: Runtime = runtime_field(default_factory=Runtime)
    limits: Limits = runtime_field(default_factory=Limits)
    tuned_from: str | None = runtime_field(None, description="digest of the lock file that gave it hyperparameters")

    @property
    def plugins(self) -> dict[PluginKind, PluginUse]:
        """The four plugins by axis."""
        return {axis: getattr(self, axis) for axis in PLUGIN_KINDS}

    @property
    def picking(self) -> dict[Scored, PluginUse]:
        """The selectors by what is scored under them: `inferred` for the method's own rule, else `inferred:<label>`."""
        return {"inferred" if use.name == OWN.name else f"inferred:{use.label}": use for use in self.selectors}

    @property
    def scored(self) -> list[Scored]:
        """Everything that the cell is scored under: its task identities, with one entry for each selector."""
        return scored_under(self.evaluate.task_identity, self.picking)

    @property
    def coords(self) -> dict[str, str | int]:
        """The axes of the grid as boards and filters see them."""
        return {
            "dataset": self.dataset.label,
            "backbone": self.backbone.label,
            "partition": self.partition.label,
            "aggregator": self.aggregator.label,
            "stress": self.stress.label,
            "seed": self.seeds.index,
        }


def split_classes(tasks: int | Sequence[int] | None, classes: int, default: int | Sequence[int]) -> tuple[int, ...]:
    """Returns the number of classes of each task.

    Args:
        tasks: Number of equal tasks, or classes of each task; `None` takes the data set's default.
        classes: Classes of the data set.
        default: Its default split.

    Raises:
        UsageError: If the split does not use every class exactly once; it proposes one that does.

    Example:
        >>> split_classes(5, 10, 2)
        (2, 2, 2, 2, 2)
    """
    wanted = default if tasks is None else tasks
    if not isinstance(wanted, int):
        if sum(wanted) != classes or min(wanted, default=0) < 1:
            raise UsageError(f"tasks {list(wanted)} hold {sum(wanted)} classes, the data set has {classes}")
        return tuple(wanted)
    if not 1 <= wanted <= classes:
        raise UsageError(f"{wanted} tasks do not fit the data set's {classes} classes")
    if classes % wanted:
        size, larger = divmod(classes, wanted)
        proposal = [size + 1] * larger + [size] * (wanted - larger)
        raise UsageError(f"{classes} classes do not split into {wanted} equal tasks; list them: tasks: {proposal}")
    return (classes // wanted,) * wanted
