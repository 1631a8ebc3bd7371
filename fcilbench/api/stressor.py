"""Stressors: faults of clients. Each hook gets a random stream keyed by client, task and round."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from fcilbench.api.schedule import Indices, Task
from fcilbench.spec.plugin import Plugin


class Stressor(Plugin):
    """Base of all stressors; without any fault itself."""

    def affected(self, clients: int, random: np.random.Generator) -> Sequence[int]:
        """Returns the ids of the clients that misbehave, drawn once for the whole experiment."""
        return ()

    def labels(self, labels: Indices, task: Task, random: np.random.Generator) -> Indices:
        """Returns the labels that an affected client trains on in a task."""
        return labels

    def share(self) -> float:
        """Returns the share of its work that an affected client finishes, above 0 and up to 1.

        It stops after that share of its local steps, and its statistics cover that share of its samples.
        """
        return 1.0

    def behind(self) -> int:
        """Returns how many global models an affected client is behind; 0 is the present one. A round makes one."""
        return 0

    def upload(self, message: dict[str, torch.Tensor], random: np.random.Generator) -> dict[str, torch.Tensor] | None:
        """Returns what an affected client really sends at the end of a round or of a task, `None` for no answer.

        The message is what it would send: if it trains, its update as `delta` `[D]` and integer buffers as `counters`;
        and its statistics by name. Tensors may be changed in place; names, shapes and types stay.
        """
        return message
