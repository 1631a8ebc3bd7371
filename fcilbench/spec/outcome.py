"""The result of an experiment: metrics with unit and direction, accuracies and costs."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict
from pydantic.dataclasses import dataclass

from fcilbench.spec.metrics import Better
from fcilbench.spec.protocol import Scored, SeedRole

UNCONVERGED = "not trained to convergence"
"""Begins the warning of a centralised row whose training ended by a number of epochs, not because it had converged."""

DATA = "data: "
"""Begins a warning about the data of a cell, which is the same for all methods."""


@dataclass(slots=True, config=ConfigDict(extra="forbid"))
class Value:
    """The recorded value of a metric, with unit and direction; `None` is undefined."""

    value: float | None
    unit: str = "ratio"
    better: Better = "higher"


class SelectorCost(BaseModel):
    """What a selector cost beside the method, in bytes.

    Attributes:
        bytes_up: What all clients uploaded for it.
        bytes_down: What they received for it, beside what the method had sent them.
        state: Largest size of what it keeps on the server from task to task.
        module: Size of what picks the tasks of samples at the end, and is deployed beside the method's module.
    """

    model_config = ConfigDict(extra="forbid")

    bytes_up: int = 0
    bytes_down: int = 0
    state: int = 0
    module: int = 0


class Cost(BaseModel):
    """What a cell cost. Times are wall-clock seconds, sizes are bytes.

    Attributes:
        wall_s: The whole cell: loading of data, and the rounds of all attempts that were kept.
        training_s: Local training of all clients.
        aggregation_s: Server aggregation.
        task_end_s: Server and client work at task ends.
        evaluation_s: Evaluation.
        device_s: Equal to `wall_s` on a GPU, 0 on a CPU.
        peak_mem: Peak device memory (CUDA allocator), or peak resident set on a CPU.
        bytes_up: Uploads of all clients, counted from the messages.
        bytes_down: Broadcasts to all participating clients, counted from the messages.
        server_state: Largest size of the method's server state between rounds.
        client_state: Largest size of what one client keeps between rounds, its state and the samples of its memory; 0
            in rows of schema 4 or older.
        client_state_mean: The mean of that over all registered clients, where it was largest; 0 in the same rows.
        module: Bytes of what the method deploys at the end (`Aggregator.export`); 0 in rows of schema 2 or older, as
            are `rounds` and `tasks`.
        rounds: Rounds of all tasks that were trained; of training until convergence, the rounds that it took.
        visits: Clients with samples that take part in a round, whether their upload arrives or not, summed over all
            rounds; 0 in rows of schema 3 or older.
        tasks: Number of tasks.
        selection_s: What selectors take of clients and server, beside the evaluation; 0 in rows of schema 4 or older.
        saved_s: Seconds of passes of the network as it was before training that were read and not made: the parts have
            them, as they were timed when they were made, and `wall_s` does not; 0 in rows of schema 5 or older.
        selectors: Bytes of each selector by label, apart from the method's; none for one that learns nothing.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    wall_s: float = 0.0
    training_s: float = 0.0
    aggregation_s: float = 0.0
    task_end_s: float = 0.0
    evaluation_s: float = 0.0
    device_s: float = 0.0
    peak_mem: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    server_state: int = 0
    client_state: int = 0
    client_state_mean: float = 0.0
    module: int = 0
    rounds: int = 0
    visits: int = 0
    tasks: int = 0
    selection_s: float = 0.0
    saved_s: float = 0.0
    selectors: dict[str, SelectorCost] = {}

    @property
    def figures(self) -> dict[str, float]:
        """Every number by name, those of selectors as e.g. `selectors.ridge.bytes_up`."""
        found = self.model_dump()
        selectors = found.pop("selectors").items()
        return found | {f"selectors.{label}.{name}": value for label, own in selectors for name, value in own.items()}


class Outcome(BaseModel):
    """Result of one experiment.

    Attributes:
        metrics: By name, `<metric>/<scored>`, e.g. `faa/oracle` or `faa/inferred:ridge`; see `fcilbench.spec.metrics`.
        accuracy: For each task identity and selector the matrix R[t][s], see `fcilbench.spec.metrics`. Entries that
            were not measured are `None`: a centralised reference has only the last row.
        test_sizes: Test samples of each task.
        classes: Class names of each task, in the order the model numbers them.
        cost: What it cost.
        seeds: The derived seed of each role.
        model_digest: SHA-256 of each deployed module, the integer buffers and the method's state.
        data_fingerprint: Digest of the data that was loaded.
        device: Name of the device that computed it.
        warnings: What a reader of the row should know, such as negative coefficients or excluded clients.
    """

    model_config = ConfigDict(extra="forbid")

    metrics: dict[str, Value]
    accuracy: dict[Scored, list[list[float | None]]]
    test_sizes: list[int]
    classes: list[list[str]]
    cost: Cost
    seeds: dict[SeedRole, int]
    model_digest: str
    data_fingerprint: str
    device: str
    warnings: list[str] = []
