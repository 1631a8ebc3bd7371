"""A conditional normalising flow on features: affine couplings (Dinh et al. 2017), conditioned on a class."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

_LEAST_SCALE = 1e-3
_BLOCKS = 2


class Block(nn.Module):
    """A residual block of two linear layers on `[b, hidden]`, whose output the context `[b, C]` gates (GLU)."""

    def __init__(self, hidden: int, context: int) -> None:
        super().__init__()
        self.one, self.two, self.gate = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden), nn.Linear(context, hidden)

    def forward(self, hidden: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        """Returns what the block adds, on top of its input."""
        inner = self.two(F.leaky_relu(self.one(F.leaky_relu(hidden))))
        total: torch.Tensor = hidden + inner * torch.sigmoid(self.gate(context))
        return total


class ResidualNet(nn.Module):
    """Maps inputs `[b, i]` and a context `[b, C]` to `[b, o]`."""

    def __init__(self, inputs: int, context: int, outputs: int, hidden: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs + context, hidden), nn.Linear(hidden, outputs)
        self.blocks = nn.ModuleList(Block(hidden, context) for _ in range(_BLOCKS))

    def forward(self, inputs: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        """Returns the outputs."""
        hidden = self.first(torch.cat([inputs, context], dim=1))
        for block in self.blocks:
            hidden = block(hidden, context)
        outputs: torch.Tensor = self.last(hidden)
        return outputs


class Coupling(nn.Module):
    """Scales and shifts the second half of its inputs `[b, F]` by what it reads in the first half and the context.

    The scale is sigmoid(raw + 2) + 0.001.
    """

    def __init__(self, features: int, context: int, hidden: int) -> None:
        super().__init__()
        self._kept, self._moved = features // 2, features - features // 2
        self.net = ResidualNet(self._kept, context, 2 * self._moved, hidden)

    def forward(self, x: torch.Tensor, context: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the outputs `[b, F]` and the logarithm of the determinant `[b]`."""
        kept, moved = torch.split(x, [self._kept, self._moved], dim=1)
        scale, shift = self._read(kept, context)
        return torch.cat([kept, moved * scale + shift], dim=1), scale.log().sum(dim=1)

    def inverse(self, u: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        """Returns the inputs of these outputs."""
        kept, moved = torch.split(u, [self._kept, self._moved], dim=1)
        scale, shift = self._read(kept, context)
        return torch.cat([kept, (moved - shift) / scale], dim=1)

    def _read(self, kept: torch.Tensor, context: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        shift, raw = self.net(kept, context).chunk(2, dim=1)
        return torch.sigmoid(raw + 2) + _LEAST_SCALE, shift


class ConditionalFlow(nn.Module):
    """An invertible map between features `[b, F]` and latents `[b, F]` for each class; latents are standard normal.

    Before each coupling the features are permuted. The permutations are fixed: two reversals, then two random ones from
    torch's global generator. They are no part of the state dict.
    """

    orders: torch.Tensor
    backwards: torch.Tensor

    def __init__(self, features: int, classes: int, hidden: int) -> None:
        super().__init__()
        turned = torch.arange(features).flip(0)
        orders = torch.stack([turned, turned, torch.randperm(features), torch.randperm(features)])
        self.register_buffer("orders", orders, persistent=False)
        self.register_buffer("backwards", orders.argsort(dim=1), persistent=False)
        self.couplings = nn.ModuleList(Coupling(features, classes, hidden) for _ in orders)
        self._classes = classes

    def forward(self, features: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the latents `[b, F]` and log p(features | labels) `[b]`, in float32 at least."""
        with torch.autocast(features.device.type, enabled=False):
            values, context = _wide(features), self._context(labels)
            volume = values.new_zeros(len(values))
            for order, coupling in zip(self.orders, self.couplings, strict=True):
                values, log_det = coupling(values[:, order], context)
                volume = volume + log_det
            return values, log_normal(values) + volume

    def inverse(self, latents: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Returns the features of latents: samples of p(. | labels) if these are standard normal."""
        with torch.autocast(latents.device.type, enabled=False):
            values, context = _wide(latents), self._context(labels)
            for backwards, coupling in zip(self.backwards.flip(0), list(self.couplings)[::-1], strict=True):
                assert isinstance(coupling, Coupling)
                values = coupling.inverse(values, context)[:, backwards]
            return values

    def _context(self, labels: torch.Tensor) -> torch.Tensor:
        return F.one_hot(labels, self._classes).to(next(self.parameters()).dtype)


def log_normal(values: torch.Tensor) -> torch.Tensor:
    """Returns the log-density of N(0, I) at values `[b, F]`, `[b]`."""
    return -0.5 * (values.square().sum(dim=1) + values.shape[1] * math.log(2 * math.pi))


def _wide(values: torch.Tensor) -> torch.Tensor:
    return values if values.dtype == torch.float64 else values.float()
