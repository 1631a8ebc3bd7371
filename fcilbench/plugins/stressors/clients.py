"""Clients that misbehave: wrong labels, manipulated uploads, lost answers, slow work and old models.

The same clients are affected under every stressor, and those of a low severity are among those of a higher one, because
the seeds draw one order of the clients and each stressor takes the first of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from fcilbench.api.schedule import Indices, Task
from fcilbench.api.stressor import Stressor
from fcilbench.errors import UsageError
from fcilbench.spec.params import Field
from fcilbench.spec.params import Params as BaseParams


class SomeClients(Stressor):
    """Base of stressors that affect a number of clients, the same ones in every round."""

    class Params(BaseParams):
        """How many clients are affected."""

        clients: int = Field(1, ge=1, description="number of affected clients, at most all of the federation's")

    def affected(self, clients: int, random: np.random.Generator) -> Sequence[int]:
        """Draws the affected clients.

        Raises:
            UsageError: If the federation has too few clients.
        """
        count = self.params.clients
        if count > clients:
            raise UsageError(
                f"stress: {count} affected clients, but protocol.clients is {clients}",
                hint=f"lower the stressor's `clients` to {clients} or fewer",
            )
        return [int(client) for client in random.permutation(clients)[:count]]


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

    def upload(self, message: dict[str, torch.Tensor], random: np.random.Generator) -> dict[str, torch.Tensor] | None:
        """Negates every floating-point tensor, updates and statistics alike."""
        return _each_float(message, lambda tensor: tensor * -float(self.params.factor))


class Gaussian(SomeClients):
    """Gaussian noise: affected clients add noise to all they upload, relative to each tensor's root mean square."""

    class Params(SomeClients.Params):
        """How many clients are affected, and how strong the noise is."""

        sigma: float = Field(1.0, gt=0, description="standard deviation of the noise, in root mean squares of a tensor")

    def upload(self, message: dict[str, torch.Tensor], random: np.random.Generator) -> dict[str, torch.Tensor] | None:
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

    class Params(SomeClients.Params):
        """How many clients are affected, and how large their upload is."""

        factor: float = Field(10.0, gt=0, description="factor of the upload")

    def upload(self, message: dict[str, torch.Tensor], random: np.random.Generator) -> dict[str, torch.Tensor] | None:
        """Multiplies every floating-point tensor."""
        return _each_float(message, lambda tensor: tensor * float(self.params.factor))


class Dropout(SomeClients):
    """Dropout: affected clients do not answer, each time with a probability."""

    class Params(SomeClients.Params):
        """How many clients are affected, and how often."""

        rate: float = Field(0.5, gt=0, le=1, description="probability that a client does not answer")

    def upload(self, message: dict[str, torch.Tensor], random: np.random.Generator) -> dict[str, torch.Tensor] | None:
        """Loses the upload with probability `rate`."""
        return None if random.random() < self.params.rate else message


class Straggler(SomeClients):
    """Stragglers: affected clients finish only a share of their local steps and of the samples of their statistics."""

    class Params(SomeClients.Params):
        """How many clients are affected, and how slow they are."""

        done: float = Field(0.5, gt=0, le=1, description="share of its work that an affected client finishes")

    def share(self) -> float:
        """Returns the share of the work that is done."""
        return float(self.params.done)


class Stale(SomeClients):
    """Stale clients: affected clients train on an older global model and send their update against that model.

    A method whose clients do not train never changes its global model, so there is no older one.
    """

    class Params(SomeClients.Params):
        """How many clients are affected, and how old their model is."""

        rounds: int = Field(1, ge=1, description="global models that an affected client is behind; a round makes one")

    def behind(self) -> int:
        """Returns how many global models an affected client is behind."""
        return int(self.params.rounds)


def _each_float(
    message: dict[str, torch.Tensor], change: Callable[[torch.Tensor], torch.Tensor]
) -> dict[str, torch.Tensor]:
    return {name: change(tensor) if tensor.is_floating_point() else tensor for name, tensor in message.items()}
