"""The result of an experiment: metrics with unit and direction, accuracies and costs."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict
from pydantic.dataclasses import dataclass

from fcilbench.spec.metrics import Better
from fcilbench.spec.protocol import SeedRole, TaskIdentity

UNCONVERGED = "not trained to convergence"
"""Begins the warning of a centralised row whose training ended by a number of epochs, not because it had converged."""


@dataclass(slots=True, config=ConfigDict(extra="forbid"))
class Value:
    """The recorded value of a metric, with unit and direction; `None` is undefined."""

    value: float | None
    unit: str = "ratio"
    better: Better = "higher"


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


class Outcome(BaseModel):
    """Result of one experiment.

    Attributes:
        metrics: By name, `<metric>/<task identity>`, e.g. `faa/oracle`; see `fcilbench.spec.metrics`.
        accuracy: For each task identity the matrix R[t][s], see `fcilbench.spec.metrics`. Entries that were not
            measured are `None`: a centralised reference has only the last row.
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
    accuracy: dict[TaskIdentity, list[list[float | None]]]
    test_sizes: list[int]
    classes: list[list[str]]
    cost: Cost
    seeds: dict[SeedRole, int]
    model_digest: str
    data_fingerprint: str
    device: str
    warnings: list[str] = []
