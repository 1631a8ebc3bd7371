"""Checks of backbones: inputs, features, seeds, state, and a federation that trains it."""

from __future__ import annotations

from functools import cached_property

import torch

from fcilbench.api import Aggregator, Backbone, FeatureExtractor, ImageInput, TextBackbone
from fcilbench.federation.probe import probe
from fcilbench.testing.bench import Bench, quiet_torch
from fcilbench.testing.check import CheckFailed, Checks, Subject, plugin_checks

CHECKS: Checks[BackboneSubject] = plugin_checks(Backbone)

_TOLERANCE = 1e-4
_TEXTS = ("one short text", "another one that is quite a bit longer than the first", "a", "the last of the four")


class BackboneSubject(Subject[Backbone]):
    """A backbone class with hyperparameters."""

    def build(self, seed: int = 0) -> FeatureExtractor:
        """Builds the model from a seeded global generator."""
        with quiet_torch():
            torch.manual_seed(seed)
            return self.make().build()

    @cached_property
    def extractor(self) -> FeatureExtractor:
        """The model, built once, in eval mode; checks do not change it."""
        return self.build().eval()

    @cached_property
    def inputs(self) -> torch.Tensor:
        """Four inputs: noise, or encoded texts."""
        plugin = self.make()
        if isinstance(plugin, TextBackbone):
            return torch.from_numpy(plugin.encode(_TEXTS).ids)
        spec = plugin.image_input()
        return torch.randn(4, spec.channels, spec.size, spec.size, generator=torch.Generator().manual_seed(0))


@CHECKS.add
def input_(subject: BackboneSubject) -> None:
    """It declares its input: image size, channels, and mean and positive deviation of each, or it encodes texts.

    Fix: return `ImageInput(size, channels, mean, std)` with one mean and std a channel, or derive from
    TextBackbone.
    """
    plugin = subject.make()
    if isinstance(plugin, TextBackbone):
        encoded = plugin.encode(_TEXTS)
        if encoded.ids.shape[0] != len(_TEXTS) or len(encoded.lengths) != len(_TEXTS) or encoded.lengths.min() < 1:
            raise CheckFailed(f"encoding {len(_TEXTS)} texts gave ids {encoded.ids.shape}, lengths {encoded.lengths}")
        return
    spec = plugin.image_input()
    if not isinstance(spec, ImageInput) or spec.size < 1:
        raise CheckFailed(f"image_input() is {spec!r}")
    if not len(spec.mean) == len(spec.std) == spec.channels or min(spec.std) <= 0:
        raise CheckFailed(f"{spec.channels} channels with mean {spec.mean} and deviation {spec.std}")


@CHECKS.add
def features(subject: BackboneSubject) -> None:
    """It maps each input of a batch to one finite float32 vector of `feature_dim` numbers.

    Fix: pool inside the model, and give FeatureExtractor the number of features that comes out.
    """
    extractor = subject.extractor
    if not isinstance(extractor, FeatureExtractor):
        raise CheckFailed(f"build() returned a {type(extractor).__name__}, not a FeatureExtractor")
    with torch.no_grad():
        found = extractor(subject.inputs)
    if found.shape != (4, extractor.feature_dim) or found.dtype != torch.float32:
        raise CheckFailed(f"4 inputs gave {found.dtype} {list(found.shape)}, feature_dim is {extractor.feature_dim}")
    if not bool(torch.isfinite(found).all()):
        raise CheckFailed("features are not finite")


@CHECKS.add
def per_sample(subject: BackboneSubject) -> None:
    """In eval mode the features of an input do not depend on its batch, and nothing in the model changes.

    Fix: no batch statistics in eval mode (BatchNorm with running statistics), no state in forward.
    """
    extractor = subject.extractor
    before = {name: value.clone() for name, value in extractor.state_dict().items()}
    with torch.no_grad():
        together = extractor(subject.inputs)
        apart = torch.cat([extractor(each[None]) for each in subject.inputs])
    wrong = float((together - apart).abs().max()) / max(float(together.abs().max()), 1e-12)
    if not wrong <= _TOLERANCE:
        raise CheckFailed(f"features differ by up to {wrong:.2g} of the largest one")
    changed = [name for name, value in extractor.state_dict().items() if not torch.equal(value, before[name])]
    if changed:
        raise CheckFailed(f"a forward pass in eval mode changed {changed[0]!r}")


@CHECKS.add
def seeded(subject: BackboneSubject) -> None:
    """The same seed of torch's global generator gives the same weights, on the CPU in fp32.

    Fix: initialise from torch's global generator only; the runner moves and casts the model.
    """
    one, two = subject.build(3).state_dict(), subject.build(3).state_dict()
    for name, value in one.items():
        if value.device.type != "cpu" or (value.is_floating_point() and value.dtype != torch.float32):
            raise CheckFailed(f"{name!r} is {value.dtype} on {value.device}")
        if name not in two or not torch.equal(value, two[name]):
            raise CheckFailed(f"{name!r} differs between two builds")


@CHECKS.add
def state(subject: BackboneSubject) -> None:
    """Its parameters and persistent buffers are its whole state: loading them gives the same features.

    Fix: trainable parameters in fp32; persistent buffers of floats or scalar counters; derived ones
    non-persistent.
    """
    other = subject.build(1).eval()
    other.load_state_dict(subject.extractor.state_dict())
    with torch.no_grad():
        expected, found = subject.extractor(subject.inputs), other(subject.inputs)
    if not float((found - expected).abs().max()) <= _TOLERANCE * float(expected.abs().max()):
        raise CheckFailed("a copy with the same state has other features: something is neither parameter nor buffer")


@CHECKS.add
def gradients(subject: BackboneSubject) -> None:
    """Every trainable parameter gets a finite gradient.

    Fix: remove what the features do not use (a classifier, a pooling head), or set requires_grad to False.
    """
    extractor = subject.build().train()
    with quiet_torch():
        torch.manual_seed(0)
        output = extractor(subject.inputs)
        (output * torch.randn_like(output)).sum().backward()
    for name, parameter in extractor.named_parameters():
        if parameter.requires_grad and parameter.grad is None:
            raise CheckFailed(f"{name!r} gets no gradient")
        if parameter.grad is not None and not bool(torch.isfinite(parameter.grad).all()):
            raise CheckFailed(f"{name!r} gets a gradient that is not finite")


@CHECKS.add
def federation(subject: BackboneSubject) -> None:
    """A federation of two clients trains it for two tasks and evaluates it.

    Fix: run `fcilbench check --deep` on a suite with it for the traceback.
    """
    with quiet_torch():
        probe(Bench("own", subject.make).experiment(Aggregator()))
