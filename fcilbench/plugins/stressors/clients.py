"""Clients that misbehave: wrong labels, manipulated uploads, lost answers, slow work and old models.

Labels are changed in the data, so that every method meets them. Sign flip, noise and scaling change the floating-point
numbers of an upload: an update before its method encodes it, and statistics. Lost answers need an upload, slow clients
more than one step or sample, and old models a method whose clients train.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np
import torch

from fcilbench.api import Field, Indices, SomeClients, Task, Turn, Upload


class LabelShift(SomeClients):
    """Label shift: affected clients train on labels moved to another class of the task (Kim and Do 2026).

    Class i of a task with c classes becomes class (i + shift) mod c, for all samples. The paper has 1 to 4 malicious
    clients of 10 and does not print the shift; 1 is our choice. A task of one class has no other label.
    """

    class Params(SomeClients.Params):
        """How many clients are affected, and by how much their labels move."""

        shift: int = Field(1, ge=1, description="classes by which a label moves within its task, cyclically")

    def labels(self, labels: Indices, task: Task, random: np.random.Generator) -> Indices:
        """Moves every label cyclically within the task."""
        return (labels - task.offset + int(self.params.shift)) % task.size + task.offset


class LabelFlip(SomeClients):
    """Label flip: affected clients have a share of labels replaced by another class of the task, drawn uniformly."""

    class Params(SomeClients.Params):
        """How many clients are affected, and how many of their labels."""

        rate: float = Field(0.5, gt=0, le=1, description="probability that a label is wrong")

    def labels(self, labels: Indices, task: Task, random: np.random.Generator) -> Indices:
        """Replaces each label with probability `rate`."""
        if task.size == 1:
            return labels
        wrong = random.random(len(labels)) < self.params.rate
        moved = (labels - task.offset + random.integers(1, task.size, len(labels))) % task.size + task.offset
        return np.where(wrong, moved, labels)


class SignFlip(SomeClients):
    """Sign flip: affected clients upload `-factor` times what they computed; whole numbers (counts) stay."""

    class Params(SomeClients.Params):
        """How many clients are affected, and how large their negated upload is."""

        factor: float = Field(1.0, gt=0, description="factor of the negated upload")

    def upload(self, message: Upload, random: np.random.Generator) -> Upload | None:
        """Negates every floating-point tensor, updates and statistics alike."""
        return _each_float(message, lambda tensor: tensor * -float(self.params.factor))


class Gaussian(SomeClients):
    """Gaussian noise: affected clients add noise to all they upload, relative to each tensor's root mean square."""

    class Params(SomeClients.Params):
        """How many clients are affected, and how strong the noise is."""

        sigma: float = Field(1.0, gt=0, description="standard deviation of the noise, in root mean squares of a tensor")

    def upload(self, message: Upload, random: np.random.Generator) -> Upload | None:
        """Adds noise to every floating-point tensor."""
        # Drawn on the CPU, so that every device adds the same noise.
        generator = torch.Generator().manual_seed(int(random.integers(2**63)))

        def noisy(tensor: torch.Tensor) -> torch.Tensor:
            noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float32).to(tensor)
            return tensor + noise * tensor.square().mean().sqrt() * float(self.params.sigma)

        return _each_float(message, noisy)


class Scale(SomeClients):
    """Scaling, or model replacement: affected clients multiply what they upload (Bagdasaryan et al. 2020).

    With one affected client of N equal ones and `factor` N, an average becomes that client's model.
    """

    neutral: ClassVar = {"factor": 1.0}

    class Params(SomeClients.Params):
        """How many clients are affected, and how large their upload is."""

        factor: float = Field(10.0, gt=0, description="factor of the upload")

    def upload(self, message: Upload, random: np.random.Generator) -> Upload | None:
        """Multiplies every floating-point tensor."""
        return _each_float(message, lambda tensor: tensor * float(self.params.factor))


class Dropout(SomeClients):
    """Dropout: affected clients do not answer, each time with a probability."""

    class Params(SomeClients.Params):
        """How many clients are affected, and how often."""

        rate: float = Field(0.5, gt=0, le=1, description="probability that a client does not answer")

    def upload(self, message: Upload, random: np.random.Generator) -> Upload | None:
        """Loses the upload with probability `rate`."""
        return None if random.random() < self.params.rate else message

    def touches(self, name: str, tensor: torch.Tensor) -> bool:
        """Returns true: what is lost may be of any type."""
        return True


class Straggler(SomeClients):
    """Stragglers: affected clients finish only a share of their local steps and of the samples of their statistics."""

    neutral: ClassVar = {"done": 1.0}

    class Params(SomeClients.Params):
        """How many clients are affected, and how slow they are."""

        done: float = Field(0.5, gt=0, le=1, description="share of its work that an affected client finishes")

    def share(self, turn: Turn, random: np.random.Generator) -> float:
        """Returns the share of the work that is done."""
        return float(self.params.done)


class Stale(SomeClients):
    """Stale clients: affected clients train on an older global model and send their update against that model.

    A method whose clients do not train never changes its global model: there is no older one, and the cell is declined.
    """

    class Params(SomeClients.Params):
        """How many clients are affected, and how old their model is."""

        rounds: int = Field(1, ge=1, description="global models that an affected client is behind; a round makes one")

    def behind(self) -> int:
        """Returns how many global models an affected client is behind."""
        return int(self.params.rounds)


def _each_float(message: Upload, change: Callable[[torch.Tensor], torch.Tensor]) -> Upload:
    return {name: change(tensor) if tensor.is_floating_point() else tensor for name, tensor in message.items()}
