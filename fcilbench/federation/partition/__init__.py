"""Partitioners: which client holds which samples of a task. Each ends in bounded time and uses every index once."""

from __future__ import annotations

import numpy as np

from fcilbench.api.schedule import Indices
from fcilbench.errors import PartitionError
from fcilbench.federation.partition.dirichlet import dirichlet
from fcilbench.federation.partition.iid import iid
from fcilbench.federation.partition.quantity import quantity
from fcilbench.federation.partition.topup import top_up
from fcilbench.spec.protocol import Partition

__all__ = ["partition"]


def partition(labels: Indices, clients: int, spec: Partition, random: np.random.Generator) -> tuple[Indices, ...]:
    """Spreads one task's samples over the clients.

    Args:
        labels: Label of each sample of the task, `[n]`.
        clients: Number of clients N.
        spec: Kind, concentration and least number of samples per client.
        random: The partition stream of the task.

    Returns:
        For each client the sorted positions in `labels` of its samples. Every position occurs exactly once.

    Raises:
        PartitionError: If there are too few samples for the requested minimum.
    """
    if len(labels) < clients * spec.min_samples:
        raise PartitionError(
            f"partition {spec.label}: {len(labels)} samples cannot give {clients} clients {spec.min_samples} each",
            hint="lower partition.min_samples (0 allows empty clients) or protocol.clients",
        )
    if spec.kind == "dirichlet":
        assert spec.value is not None
        parts = dirichlet(labels, clients, spec.value, random)
    elif spec.kind == "quantity":
        assert spec.value is not None
        parts = quantity(labels, clients, spec.value, random)
    else:
        parts = iid(labels, clients, random)
    return tuple(np.sort(part) for part in top_up(parts, spec.min_samples, random))
