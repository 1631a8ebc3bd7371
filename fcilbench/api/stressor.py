"""Stressors: what goes wrong in a federation. Each hook gets a random stream keyed by client, task and round."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from fcilbench.api.schedule import Indices
from fcilbench.api.task import Task
from fcilbench.spec.plugin import Plugin


class Stressor(Plugin):
    """Base of all stressors; by itself nothing goes wrong."""

    def affected(self, clients: int, random: np.random.Generator) -> Sequence[int]:
        """Returns the ids of the clients that misbehave, drawn once for the whole experiment."""
        return ()

    def labels(self, labels: Indices, task: Task, random: np.random.Generator) -> Indices:
        """Returns the labels that an affected client trains on in a task."""
        return labels

    def upload(self, delta: torch.Tensor, random: np.random.Generator) -> torch.Tensor:
        """Returns the update `[D]` that an affected client really sends."""
        return delta
