"""The laws of backbones: shapes, seeds, evaluation, and a federation that trains it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from fcilbench.api.aggregator import Aggregator
from fcilbench.api.backbone import Backbone, FeatureExtractor, ImageInput, TextBackbone
from fcilbench.engine.model import FlatModel, Network
from fcilbench.federation.probe import probe
from fcilbench.testing.bench import Bench, quiet_torch
from fcilbench.testing.law import LawBroken, Laws
from fcilbench.testing.laws.contract import contract

LAWS: Laws[BackboneSubject] = contract("backbones", Backbone)

_TOLERANCE = 1e-4
_TEXTS = ("one short text", "another one that is quite a bit longer than the first", "a", "the last of the four")


@dataclass
class BackboneSubject:
    """A backbone class with hyperparameters.

    Attributes:
        cls: The plugin's class.
        module: Module that an entry point names.
        options: Hyperparameters that differ from the defaults.
    """

    cls: type[Backbone]
    module: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def make(self) -> Backbone:
        """Returns a fresh instance."""
        return self.cls(self.cls.Params.model_validate(dict(self.options)))

    def build(self, seed: int = 0) -> FeatureExtractor:
        """Builds the model from a seeded global generator."""
        with quiet_torch():
            torch.manual_seed(seed)
            return self.make().build()

    @cached_property
    def extractor(self) -> FeatureExtractor:
        """The model, built once; laws leave it as it is, in eval mode."""
        return self.build().eval()

    @cached_property
    def inputs(self) -> torch.Tensor:
        """Four inputs: noise, or encoded texts."""
        plugin = self.make()
        if isinstance(plugin, TextBackbone):
            return torch.from_numpy(plugin.encode(_TEXTS).ids)
        spec = plugin.image_input()
        return torch.randn(4, spec.channels, spec.size, spec.size, generator=torch.Generator().manual_seed(0))


@LAWS.law(
    "input",
    "it says what it reads: image size, channels and a mean and positive deviation for each, or encodes texts",
    fix="return `ImageInput(size, channels, mean, std)` with one mean and std a channel, or derive from TextBackbone",
)
def input_(subject: BackboneSubject) -> None:
    """Looks at `image_input` or `encode`."""
    plugin = subject.make()
    if isinstance(plugin, TextBackbone):
        encoded = plugin.encode(_TEXTS)
        if encoded.ids.shape[0] != len(_TEXTS) or len(encoded.lengths) != len(_TEXTS) or encoded.lengths.min() < 1:
            raise LawBroken(f"encoding {len(_TEXTS)} texts gave ids {encoded.ids.shape}, lengths {encoded.lengths}")
        return
    spec = plugin.image_input()
    if not isinstance(spec, ImageInput) or spec.size < 1:
        raise LawBroken(f"image_input() is {spec!r}")
    if not len(spec.mean) == len(spec.std) == spec.channels or min(spec.std) <= 0:
        raise LawBroken(f"{spec.channels} channels with mean {spec.mean} and deviation {spec.std}")


@LAWS.law(
    "features",
    "it maps a batch to one finite float32 vector of `feature_dim` numbers an input",
    fix="pool inside the model, and give FeatureExtractor the number of features that comes out",
)
def features(subject: BackboneSubject) -> None:
    """Four inputs in eval mode."""
    extractor = subject.extractor
    if not isinstance(extractor, FeatureExtractor):
        raise LawBroken(f"build() returned a {type(extractor).__name__}, not a FeatureExtractor")
    with torch.no_grad():
        found = extractor(subject.inputs)
    if found.shape != (4, extractor.feature_dim) or found.dtype != torch.float32:
        raise LawBroken(f"4 inputs gave {found.dtype} {list(found.shape)}, feature_dim is {extractor.feature_dim}")
    if not bool(torch.isfinite(found).all()):
        raise LawBroken("features are not finite")


@LAWS.law(
    "per-sample",
    "in eval mode the features of an input do not depend on its batch, and nothing in the model changes",
    fix="no batch statistics in eval mode (BatchNorm with running statistics), no state in forward",
)
def per_sample(subject: BackboneSubject) -> None:
    """A batch, and its inputs one by one."""
    extractor = subject.extractor
    before = {name: value.clone() for name, value in extractor.state_dict().items()}
    with torch.no_grad():
        together = extractor(subject.inputs)
        apart = torch.cat([extractor(each[None]) for each in subject.inputs])
    wrong = float((together - apart).abs().max()) / max(float(together.abs().max()), 1e-12)
    if not wrong <= _TOLERANCE:
        raise LawBroken(f"features differ by up to {wrong:.2g} of the largest one")
    changed = [name for name, value in extractor.state_dict().items() if not torch.equal(value, before[name])]
    if changed:
        raise LawBroken(f"a forward pass in eval mode changed {changed[0]!r}")


@LAWS.law(
    "seeded",
    "the same seed of torch's global generator gives the same weights, on the CPU in fp32",
    fix="initialise with torch's global generator alone, and leave moving and casting to the runner",
)
def seeded(subject: BackboneSubject) -> None:
    """Built twice."""
    one, two = subject.build(3).state_dict(), subject.build(3).state_dict()
    for name, value in one.items():
        if value.device.type != "cpu" or (value.is_floating_point() and value.dtype != torch.float32):
            raise LawBroken(f"{name!r} is {value.dtype} on {value.device}")
        if name not in two or not torch.equal(value, two[name]):
            raise LawBroken(f"{name!r} differs between two builds")


@LAWS.law(
    "flat",
    "its parameters and buffers fit the flat vector, and loading that vector gives the same features",
    fix="trainable parameters in fp32; persistent buffers of floats or scalar counters; derived ones non-persistent",
)
def flat(subject: BackboneSubject) -> None:
    """The model's features through a flat copy of it."""
    with torch.no_grad():
        expected = subject.extractor(subject.inputs)
        model = FlatModel(Network(subject.build(), 3), torch.device("cpu"))
        other = FlatModel(Network(subject.build(1), 3), torch.device("cpu"))
        other.load(model.vector, model.counters)
        other.network.eval()
        found = other.features(subject.inputs)
    frozen = math.isclose(float((found - expected).abs().max()), 0.0, abs_tol=_TOLERANCE * float(expected.abs().max()))
    if not frozen:
        raise LawBroken("features differ after the state went through the flat vector: it lives outside of it")


@LAWS.law(
    "gradients",
    "every trainable parameter gets a finite gradient",
    fix="remove what the features do not use (a classifier, a pooling head), or set requires_grad to False",
)
def gradients(subject: BackboneSubject) -> None:
    """The gradient of a random function of the features, in training mode."""
    extractor = subject.build().train()
    with quiet_torch():
        torch.manual_seed(0)
        output = extractor(subject.inputs)
        (output * torch.randn_like(output)).sum().backward()
    for name, parameter in extractor.named_parameters():
        if parameter.requires_grad and parameter.grad is None:
            raise LawBroken(f"{name!r} gets no gradient")
        if parameter.grad is not None and not bool(torch.isfinite(parameter.grad).all()):
            raise LawBroken(f"{name!r} gets a gradient that is not finite")


@LAWS.law(
    "federation",
    "a federation of two clients trains it for two tasks and evaluates it",
    fix="run `fcilbench check --deep` on a suite with it for the traceback",
)
def federation(subject: BackboneSubject) -> None:
    """FedAvg on noise of the size that it reads."""
    bench = Bench(backbone=subject.make)
    with quiet_torch():
        probe(bench.experiment(Aggregator()))
