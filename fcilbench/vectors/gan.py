"""The generative adversarial networks that methods with generative replay federate, and their losses on tensors.

DCGAN (Radford et al. 2016) in the sizes of FedCIL's code; WGAN-GP (Gulrajani et al. 2017); AC-GAN (Odena et al. 2017).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import nn


class Generator(nn.Sequential):
    """Maps z `[b, inputs]` to images `[b, channels, size, size]` in the range of `squash`, e.g. `nn.Sigmoid()`.

    A linear layer to `width` maps of an eighth of the size, three transposed convolutions that double it and halve the
    number of maps, and one that makes the image; BatchNorm and ReLU between them.
    """

    def __init__(self, inputs: int, channels: int, size: int, squash: nn.Module, width: int = 512) -> None:
        edge, layers = -(-size // 8), list[nn.Module]()
        for wide, narrow in pairwise(_widths(width)):
            layers += [nn.ConvTranspose2d(wide, narrow, 4, stride=2, padding=1), nn.BatchNorm2d(narrow), nn.ReLU()]
        super().__init__(
            nn.Linear(inputs, width * edge**2),
            nn.Unflatten(1, (width, edge, edge)),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            *layers,
            nn.ConvTranspose2d(width // 8, channels, 3, padding=1),
            squash,
        )
        self.size = size

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        """Returns the images; a size that is no multiple of 8 is cut from the next larger one."""
        images: torch.Tensor = super().forward(z)  # type: ignore[no-untyped-call]
        return images[..., : self.size, : self.size]


class Critic(nn.Sequential):
    """Maps images `[b, channels, size, size]` to scores `[b, outputs]`: three strided convolutions, a linear layer.

    The size is at least 8. The last convolution has half as many maps as the first layer of a generator of `width`.
    """

    def __init__(self, channels: int, size: int, outputs: int, width: int = 512) -> None:
        layers = list[nn.Module]()
        for narrow, wide in pairwise((channels, *reversed(_widths(width)[1:]))):
            layers += [nn.Conv2d(narrow, wide, 4, stride=2, padding=1), nn.LeakyReLU(0.01)]
            size //= 2
        super().__init__(*layers, nn.Flatten(), nn.Linear(width // 2 * size**2, outputs))


def _widths(width: int) -> tuple[int, ...]:
    """Returns the numbers of maps, from the smallest maps to the largest."""
    return width, width // 2, width // 4, width // 8


def to_vector(module: nn.Module) -> torch.Tensor:
    """Returns all floats of a module, running statistics included, as one vector: a copy."""
    floats = [tensor for tensor in module.state_dict().values() if tensor.is_floating_point()]
    return torch.cat([tensor.detach().flatten() for tensor in floats])


def from_vector(make: Callable[[], nn.Module], vector: torch.Tensor) -> nn.Module:
    """Returns the module that `make` builds, in training mode, with the floats of a vector of `to_vector`: copies.

    It is built without drawing initial weights. A running variance below 0, which the mean of updates can have if one
    of them is not honest, becomes 0.
    """
    with torch.device("meta"):
        module = make()
    module.to_empty(device=vector.device)
    tensors = {name: tensor for name, tensor in module.state_dict().items() if tensor.is_floating_point()}
    parts = torch.split(vector, [tensor.numel() for tensor in tensors.values()])
    for (name, tensor), part in zip(tensors.items(), parts, strict=True):
        tensor.copy_(part.view(tensor.shape))
        if name.endswith("running_var"):
            tensor.clamp_(min=0.0)
    return module.train()


# ---------------------------------------------------------------- losses


def wasserstein_critic_loss(
    critic: Callable[[torch.Tensor], torch.Tensor],
    real: torch.Tensor,
    fake: torch.Tensor,
    mix: torch.Tensor,
    penalty: float,
) -> torch.Tensor:
    """Returns -mean D(real) + mean D(fake) + penalty mean (1 - ||grad_x D||)^2 at x = mix real + (1 - mix) fake.

    Images are `[b, ...]`, `mix` is in [0, 1], `[b]`; the norm is that of the gradient of the whole image.
    """
    share = mix.view(-1, *[1] * (real.dim() - 1))
    between = (share * real + (1 - share) * fake).detach().requires_grad_()
    (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    apart = (1 - slope.flatten(1).norm(dim=1)).square().mean()
    total: torch.Tensor = critic(fake).mean() - critic(real).mean() + penalty * apart
    return total


def auxiliary_loss(scores: torch.Tensor, labels: torch.Tensor, real: bool) -> torch.Tensor:
    """Returns BCE(sigmoid(first score), real) + CE(softmax of the others, labels) of scores `[b, 1 + C]`, AC-GAN's."""
    wanted = torch.full_like(scores[:, 0], float(real))
    genuine = F.binary_cross_entropy_with_logits(scores[:, 0], wanted)
    return genuine + F.cross_entropy(scores[:, 1:], labels)


def divergence(wanted: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
    """Returns the mean over rows of KL(softmax(wanted) || softmax(found)) of logits `[b, C]`; gradients reach `found`.

    `wanted` is a target: no gradient reaches it.
    """
    target = wanted.detach().log_softmax(dim=1)
    return F.kl_div(found.log_softmax(dim=1), target, reduction="batchmean", log_target=True)


# ---------------------------------------------------------------- draws


def balanced_rows(labels: npt.NDArray[np.int64], count: int, random: np.random.Generator) -> npt.NDArray[np.int64]:
    """Draws `count` rows, with replacement, so that each label that is present is as likely as any other."""
    present, number = np.unique(labels, return_inverse=True)
    share = 1.0 / (len(present) * np.bincount(number)[number])
    return random.choice(len(labels), count, p=share)


def pixels(images: torch.Tensor) -> torch.Tensor:
    """Returns images in [0, 1], `[n, channels, height, width]`, as those of a data set: uint8, channels last."""
    return (255 * images.clamp(0.0, 1.0)).round().to(torch.uint8).permute(0, 2, 3, 1).contiguous()
