"""The anchors of LANDER: embeddings of the class names, to which a map from the features leads.

And the generator that makes images of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from fcilbench.api import DataError, FeatureExtractor, ImageInput, find_weights
from fcilbench.plugins.aggregators.synthesis import NOISE, Generator, Maps, UpConv

SQUARE = 0.184
"""Mean square of the numbers of an anchor."""
_RANDOM_WIDTH = 384
"""Numbers of a random anchor, as many as the sentence encoder gives."""
_ROWS = 10
"""Images that share a layer of noise."""
_LR_STATISTICS = 0.01
"""Learning rate of the mean and the deviation."""
_LARGE = 64
"""Height and width above which the generator is the large one."""


def distances(att: torch.Tensor, anchors: torch.Tensor) -> torch.Tensor:
    """Returns mean (att - a)^2 of each row, `[B]`, of `[B, A]`."""
    return (att.float() - anchors).square().mean(dim=1)


def rescaled(embeddings: torch.Tensor) -> torch.Tensor:
    """Returns embeddings `[C, A]` of mean square .184 each, which those of the authors have on average."""
    return F.normalize(embeddings, dim=1) * math.sqrt(SQUARE * embeddings.shape[1])


def radius(anchors: torch.Tensor, given: float | None, share: float) -> torch.Tensor:
    """Returns r: the given one, or a share of the mean over pairs of anchors `[C, A]` of mean (a_i - a_j)^2."""
    if given is not None:
        return torch.full((), given, device=anchors.device)
    count = len(anchors)
    total = count * anchors.square().sum() - anchors.sum(dim=0).square().sum()  # of all pairs, each once
    return share * total / (anchors.shape[1] * max(count * (count - 1) / 2, 1))


def embedded(source: str, names: Sequence[str]) -> torch.Tensor:
    """Returns the anchors `[C, A]` of classes by their names.

    Raises:
        PrerequisiteError: If the sentence encoder is not installed, or a file of anchors does not fit the classes.
    """
    if source == "random":
        return rescaled(torch.randn(len(names), _RANDOM_WIDTH))
    if source != "minilm":
        return rescaled(_read(find_weights(source), names))
    source_files(source)  # says whether it is there, before more is imported
    encoder = _encoder()
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        tokens = encoder.encode([name.replace("_", " ") for name in names])
        return rescaled(encoder.build().eval()(torch.from_numpy(tokens.ids).long()))


def source_files(source: str) -> list[Path]:
    """Returns the files that the anchors come from."""
    if source == "minilm":
        return cast("list[Path]", _encoder().files())
    return [] if source == "random" else [find_weights(source)]


def _encoder() -> Any:
    from fcilbench.plugins.backbones.minilm_l6 import MiniLmL6  # which imports transformers

    return MiniLmL6()


def _read(path: Path, names: Sequence[str]) -> torch.Tensor:
    """Reads a vector for each class from an .npz file."""
    try:
        with np.load(path, allow_pickle=False) as file:
            if missing := [name for name in names if name not in file]:
                raise DataError(f"{path} has no anchor of {missing[0]!r}", hint="save one array for each class name")
            rows = np.stack([np.asarray(file[name], dtype=np.float32) for name in names])
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise DataError(f"{path} is no .npz file of vectors of one length: {error}") from error
    if rows.ndim != 2 or not np.isfinite(rows).all() or not np.abs(rows).sum(axis=1).all():
        raise DataError(f"{path} must have a vector of finite numbers, not all 0, for each class")
    return torch.from_numpy(rows)


class Anchored(FeatureExtractor):
    """An extractor with a linear map from its features to the space of the anchors: the output `att` `[B, A]`.

    Attributes:
        anchors: `[C, A]`; no part of the state vector.
    """

    anchors: torch.Tensor

    def __init__(self, plain: FeatureExtractor, anchors: torch.Tensor) -> None:
        super().__init__(plain, plain.feature_dim, plain.channels_last)  # it may have a forward pass of its own
        self.transformer = plain.transformer
        self.att = nn.Linear(plain.feature_dim, anchors.shape[1])
        self.register_buffer("anchors", anchors, persistent=False)

    def outputs(self, inputs: torch.Tensor, context: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Returns `features` and `att`, which is computed in float32."""
        features = self(inputs)
        with torch.autocast(features.device.type, enabled=False):
            return {"features": features, "att": self.att(features.float())}


class AnchoredGenerator(nn.Module):
    """Maps anchors `[b, A]` to normalised images `[b, channels, size, size]`.

    Noise is a layer's weights and not its input: after BatchNorm each ten rows pass a linear layer A -> 256 of their
    own, which `renew` draws anew. Where there are fewer classes, a layer has as many rows as there are classes: two
    equal anchors would give two equal images. Mean and deviation that normalise the images are learnt.
    """

    def __init__(self, kind: ImageInput, size: int, width: int, batch: int, classes: int) -> None:
        super().__init__()
        self._rows = min(_ROWS, classes)
        self.norm = nn.BatchNorm1d(width)
        self.noise = nn.ModuleList(nn.Linear(width, NOISE) for _ in range(-(-batch // self._rows)))
        self.body = (Generator if size <= _LARGE else LargeGenerator)(kind.channels, size)
        self.mean = nn.Parameter(torch.full((kind.channels, 1, 1), 0.5))
        self.deviation = nn.Parameter(torch.full((kind.channels, 1, 1), 0.2))

    def renew(self) -> None:
        """Draws the weights of the layers of noise: N(0, 1), without bias."""
        for layer in self.noise:
            assert isinstance(layer, nn.Linear)
            nn.init.normal_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, anchors: torch.Tensor) -> torch.Tensor:
        """Maps anchors `[b, A]` to normalised images `[b, channels, size, size]`."""
        parts = torch.split(self.norm(anchors), self._rows)
        z = torch.cat([layer(part) for layer, part in zip(self.noise, parts, strict=True)])
        images: torch.Tensor = self.body(z)
        return (images - self.mean) / self.deviation.clamp(min=0.01)

    def groups(self, rate: float) -> list[dict[str, Any]]:
        """Returns the parameters with their learning rates, as an optimiser takes them."""
        learnt = [self.mean, self.deviation]
        known = {id(parameter) for parameter in learnt}
        others = [parameter for parameter in self.parameters() if id(parameter) not in known]
        return [{"params": others, "lr": rate}, {"params": learnt, "lr": _LR_STATISTICS}]


class LargeGenerator(nn.Sequential):
    """Maps noise z `[b, 256]` to images `[b, channels, size, size]` in [0, 1], doubled four times from size / 16."""

    def __init__(self, channels: int, size: int) -> None:
        edge = -(-size // 16)
        layers: list[nn.Module] = [nn.Linear(NOISE, 128 * edge**2), Maps(128, edge)]
        first = nn.Conv2d(128, 128, 3, padding=1, bias=False)
        doubled = [
            UpConv(inputs, outputs, bias=False) for inputs, outputs in ((128, 128), (128, 64), (64, 64), (64, 64))
        ]
        for layer in (first, *doubled):
            layers += [layer, nn.BatchNorm2d(layer.out_channels), nn.LeakyReLU(0.2)]
        super().__init__(*layers, nn.Conv2d(64, channels, 3, padding=1), nn.Sigmoid())
        self.size = size

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        """Returns the images; a size that is no multiple of 16 is cut from the next larger one."""
        images: torch.Tensor = super().forward(z)  # type: ignore[no-untyped-call]
        return images[..., : self.size, : self.size]
