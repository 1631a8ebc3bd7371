"""What the methods that synthesise images on the server share.

When images are made and replayed, how they become inputs of the network, how far the statistics of a batch are from
those that the network has seen, the student that the images are to fool, and what generators consist of.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from fcilbench.api import Aggregator, FeatureExtractor, ImageInput, Message, No, Request, Samples, Server

Images = tuple[torch.Tensor, torch.Tensor]
"""Images uint8 `[n, height, width, channels]` and their classes, int64 `[n]`."""

NOISE = 256
"""Length of z."""
_WIDTH = 128
"""Channels of the generator."""
_PADDING = 4
"""Zero padding of the random crop that teacher and student see."""


def declined_text(method: str, request: Request) -> No | None:
    """Declines text backbones, for which a generator can make no inputs."""
    if request.modality != "vision":
        return No(f"{method}'s generator makes images with gradients; the tokens of a text are discrete")
    return None


class ServerImages(Aggregator):
    """Base of the methods whose server makes images of earlier classes, which clients replay.

    They are kept as `images` and `labels` in the server's state.
    """

    def _replays(self) -> bool:
        """Returns whether images are replayed at all; without, the method is FedAvg and nothing else is trained."""
        return True

    def replay(self, server: Server) -> Samples | None:
        """Returns the images made at the end of the task before, with their classes."""
        state = server.state
        return Samples(state["images"].cpu().numpy(), state["labels"].cpu().numpy()) if "images" in state else None


class TeacherImages(ServerImages):
    """Base of the methods that make the images from the model alone, which then teaches the next task's clients."""

    @abstractmethod
    def _synthesise(self, server: Server) -> Images:
        """Returns images that the global model takes for the classes seen so far."""

    def broadcast(self, server: Server) -> Message:
        """Sends the teacher (to whom it is new); nothing in the first task."""
        return {"teacher": server.state["teacher"]} if "teacher" in server.state else {}

    def end_task(self, server: Server, statistics: dict[int, Message]) -> None:
        """Makes the final global model the teacher, and its images those of the next task; nothing after the last."""
        if server.last_task or not self._replays():
            return
        server.state["images"], server.state["labels"] = self._synthesise(server)
        server.state["teacher"] = server.vector.clone()


def layout(device: torch.device, wanted: bool = True) -> torch.memory_format:
    """Returns the order of images in memory: on a CPU, convolutions are faster with the channels last."""
    return torch.channels_last if wanted and device.type == "cpu" else torch.contiguous_format


def takes_channels_last(network: nn.Module) -> bool:
    """Returns whether a network takes images with the channels last in memory."""
    extractor = network.extractor
    assert isinstance(extractor, FeatureExtractor)
    return extractor.channels_last


def adam(groups: Iterable[Any], lr: float, betas: tuple[float, float] = (0.9, 0.999)) -> torch.optim.Adam:
    """Returns Adam that reads and writes each number once a step."""
    return torch.optim.Adam(groups, lr=lr, betas=betas, fused=True)


class Maps(nn.Module):
    """Cuts rows `[b, channels edge edge]` into maps `[b, channels, edge, edge]`, in the `layout` of the device."""

    def __init__(self, channels: int, edge: int) -> None:
        super().__init__()
        self.shape = (channels, edge, edge)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Returns the rows as maps `[b, channels, edge, edge]`."""
        return rows.view(-1, *self.shape).contiguous(memory_format=layout(rows.device))


class UpConv(nn.Conv2d):
    """Doubles height and width by repeating each pixel, then convolves by 3x3, in 4 / 9 of the operations.

    Of the nine pixels that a kernel meets, several are copies of one: the two steps together are a transposed
    convolution of stride 2 whose kernel 4x4 is the sum of four shifted copies of the own one. The weights are those of
    an `nn.Conv2d`.
    """

    def __init__(self, inputs: int, outputs: int, bias: bool = True) -> None:
        super().__init__(inputs, outputs, 3, padding=1, bias=bias)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Maps `[b, inputs, h, w]` to `[b, outputs, 2 h, 2 w]`."""
        turned = self.weight.flip(2, 3)
        shifts = [(x, 1 - x, y, 1 - y) for y in (0, 1) for x in (0, 1)]
        kernel = torch.stack([F.pad(turned, shift) for shift in shifts]).sum(dim=0).transpose(0, 1)
        return F.conv_transpose2d(input, kernel, self.bias, stride=2, padding=1)


class Generator(nn.Sequential):
    """Maps noise z `[b, 256]` to images `[b, channels, size, size]` in [0, 1]."""

    def __init__(self, channels: int, size: int) -> None:
        edge = -(-size // 4)
        super().__init__(
            nn.Linear(NOISE, _WIDTH * edge**2),
            Maps(_WIDTH, edge),
            nn.BatchNorm2d(_WIDTH),
            UpConv(_WIDTH, _WIDTH, bias=False),
            nn.BatchNorm2d(_WIDTH),
            nn.LeakyReLU(0.2),
            UpConv(_WIDTH, _WIDTH // 2, bias=False),
            nn.BatchNorm2d(_WIDTH // 2),
            nn.LeakyReLU(0.2),
            nn.Conv2d(_WIDTH // 2, channels, 3, padding=1),
            nn.Sigmoid(),
        )
        self.size = size

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        """Returns the images; a size that is no multiple of 4 is cut from the next larger one."""
        images: torch.Tensor = super().forward(z)  # type: ignore[no-untyped-call]
        return images[..., : self.size, : self.size]


class BatchNormLoss(ABC):
    """How far the statistics of a batch are from the running ones in the BatchNorm2d layers of a network.

    It is 0 for a network without such layers. The hooks that see the batches are removed when `hooks` is closed.

    Attributes:
        total: The sum over layers and forward passes since it was set to zero.
        layers: Number of layers.
    """

    def __init__(self, network: nn.Module, hooks: ExitStack) -> None:
        self.total = torch.zeros(())
        layers = [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]
        self.layers = len(layers)
        for number, layer in enumerate(layers):
            hook = lambda own, seen, number=number: self._add(number, own, seen[0])  # noqa: E731
            hooks.enter_context(layer.register_forward_pre_hook(hook))

    @abstractmethod
    def apart(self, number: int, own: torch.Tensor, running: torch.Tensor) -> torch.Tensor:
        """Returns the distance of a layer: means and variances `[2, channels]` of the batch and the running ones."""

    def _add(self, number: int, layer: nn.BatchNorm2d, x: torch.Tensor) -> None:
        if layer.running_mean is None or layer.running_var is None:
            return
        running = torch.stack([layer.running_mean, layer.running_var])
        self.total = self.total + self.apart(number, moments(x), running)


def moments(x: torch.Tensor) -> torch.Tensor:
    """Returns mean and variance of each channel of `[b, channels, height, width]`, `[2, channels]`.

    The variance is the mean square of x - mean, where the mean is taken as a constant: its share of the gradient is 0.
    On a CPU that is faster than `torch.var`.
    """
    mean = x.mean(dim=(0, 2, 3))
    return torch.stack([mean, (x - mean.detach()[:, None, None]).square().mean(dim=(0, 2, 3))])


class SmoothedNorms(BatchNormLoss):
    """The sum over layers of ||var - running_var|| + ||mean - running_mean||, as TARGET has it.

    The statistics of a batch are mixed with those of earlier rounds.
    """

    def __init__(self, network: nn.Module, momentum: float, hooks: ExitStack) -> None:
        super().__init__(network, hooks)
        self._momentum = momentum
        self._now, self._old = dict[int, torch.Tensor](), dict[int, torch.Tensor]()

    def apart(self, number: int, own: torch.Tensor, running: torch.Tensor) -> torch.Tensor:
        """Returns the two distances of a layer."""
        self._now[number] = own.detach()
        distances: torch.Tensor = (self._mixed(number, own) - running).norm(dim=1)
        return distances.sum()

    def _mixed(self, number: int, own: torch.Tensor) -> torch.Tensor:
        if number not in self._old:
            return own
        return self._momentum * self._old[number] + (1 - self._momentum) * own

    def smooth(self) -> None:
        """Ends a round: mixes the statistics of the last batch into those of the rounds before."""
        self._old = {number: self._mixed(number, own) for number, own in self._now.items()}


class Student:
    """A network of the teacher's architecture with new weights, that learns from the images what the teacher says.

    Attributes:
        network: The module.
    """

    def __init__(self, network: nn.Module, device: torch.device, lr: float, weight_decay: float) -> None:
        self.network = untrained(network).to(device)
        weights = self.network.parameters()
        self._optimiser = torch.optim.SGD(weights, lr=lr, momentum=0.9, weight_decay=weight_decay)

    def learn(self, loss: torch.Tensor) -> None:
        """Takes a step against the gradient of a loss, whose norm is cut at 1."""
        self._optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        self._optimiser.step()


def untrained(network: nn.Module) -> nn.Module:
    """Returns a copy on the CPU with new weights in linear layers and convolutions: Xavier-normal, biases N(0, 1)."""
    fresh = copy.deepcopy(network).cpu().requires_grad_(True)
    for module in fresh.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.xavier_normal_(module.weight)
            if module.bias is not None:
                nn.init.normal_(module.bias)
    return fresh


def disagreement(own: torch.Tensor, taught: torch.Tensor) -> torch.Tensor:
    """Returns mean_u [student and teacher agree on the class] KL(teacher || student) of logits `[b, K]`.

    Images that maximise it lie where the student would still change its mind.
    """
    agree = (own.argmax(dim=1) == taught.argmax(dim=1)).float()
    return (agree * F.kl_div(own.log_softmax(dim=1), taught.softmax(dim=1), reduction="none").sum(dim=1)).mean()


def augment(images: torch.Tensor, random: np.random.Generator) -> torch.Tensor:
    """Returns images `[b, channels, height, width]` cropped at random after zero padding, and flipped at random."""
    height, width = images.shape[2:]
    padded = F.pad(images, (_PADDING,) * 4)
    corners = random.integers(0, 2 * _PADDING + 1, size=(len(images), 2))
    crops = [one[:, y : y + height, x : x + width] for one, (y, x) in zip(padded, corners, strict=True)]
    flip = torch.from_numpy(random.random(len(images)) < 0.5).to(images.device)
    stacked = torch.stack(crops)
    return torch.where(flip[:, None, None, None], stacked.flip(3), stacked)


def network_input(images: torch.Tensor, wanted: ImageInput, channels_last: bool = False) -> torch.Tensor:
    """Returns images in [0, 1] as the backbone wants them: resized (bicubic), normalised; differentiable.

    `channels_last` says whether its network takes them in that order (`FeatureExtractor.channels_last`).
    """
    if images.shape[2:] != wanted.shape:
        images = F.interpolate(images, wanted.shape, mode="bicubic", antialias=True).clamp(0.0, 1.0)
    mean, std = normalisation(wanted, images.device)
    return ((images - mean) / std).contiguous(memory_format=layout(images.device, channels_last))


def pixels(normalised: torch.Tensor, wanted: ImageInput) -> torch.Tensor:
    """Returns normalised images `[b, channels, height, width]` in [0, 1], where those outside of it are cut."""
    mean, std = normalisation(wanted, normalised.device)
    return (normalised * std + mean).clamp(0.0, 1.0)


def eight_bit(images: torch.Tensor) -> torch.Tensor:
    """Returns images in [0, 1] as uint8, as clients get them."""
    return (255 * images).round().to(torch.uint8)


def normalisation(wanted: ImageInput, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns mean and standard deviation of each channel `[1, channels, 1, 1]`."""
    mean, std = (torch.tensor(values, device=device).view(1, -1, 1, 1) for values in (wanted.mean, wanted.std))
    return mean, std
