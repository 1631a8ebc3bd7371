"""Checks of backbones: inputs, features, state, gradients, a federation. Checks of data sets: terms, tasks, samples."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from fcilbench.api import (
    Aggregator,
    Augmentation,
    Backbone,
    Dataset,
    FeatureExtractor,
    ImageInput,
    TextBackbone,
)
from fcilbench.data.open import load_numbered, open_dataset
from fcilbench.data.root import data_root, find_layout
from fcilbench.errors import DataError, UsageError
from fcilbench.federation.probe import probe
from fcilbench.spec.cell import split_classes
from fcilbench.testing.bench import Bench
from fcilbench.testing.check import SHARED, CheckFailed, Checks, NotApplicable, Subject

BACKBONE_CHECKS: Checks[BackboneSubject] = Checks(SHARED)

_TOLERANCE = 1e-4
_TEXTS = ("one short text", "another one that is quite a bit longer than the first", "a", "the last of the four")


class BackboneSubject(Subject[Backbone]):
    """A backbone class with hyperparameters."""

    base = Backbone

    def build(self, seed: int = 0) -> FeatureExtractor:
        """Builds the model with a seed of torch's global generator."""
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
        return torch.randn(4, *plugin.input_shape(), generator=torch.Generator().manual_seed(0))

    def differ(self, found: torch.Tensor, expected: torch.Tensor) -> bool:
        """Returns whether features differ by more than rounding."""
        return not float((found - expected).abs().max()) <= _TOLERANCE * max(float(expected.abs().max()), 1e-12)


@BACKBONE_CHECKS.add
def input_(subject: BackboneSubject) -> None:
    """It declares its input: images with mean and positive deviation of each channel, a shape of arrays, or texts.

    Fix: return `ImageInput(size, channels, mean, std)` with one mean and std a channel, derive from TextBackbone, or
    set `reads = ("array",)` and return a shape from `input_shape`.
    """
    plugin = subject.make()
    if isinstance(plugin, TextBackbone):
        encoded = plugin.encode(_TEXTS)
        if encoded.ids.shape[0] != len(_TEXTS) or len(encoded.lengths) != len(_TEXTS) or encoded.lengths.min() < 1:
            raise CheckFailed(f"encoding {len(_TEXTS)} texts gave ids {encoded.ids.shape}, lengths {encoded.lengths}")
        return
    if (shape := plugin.input_shape()) == () or min(shape) < 1:
        raise CheckFailed(f"input_shape() is {shape!r}")
    if "vision" not in plugin.reads:
        return
    spec = plugin.image_input()
    if not isinstance(spec, ImageInput):
        raise CheckFailed(f"image_input() is {spec!r}")
    if not len(spec.mean) == len(spec.std) == spec.channels or min(spec.std) <= 0:
        raise CheckFailed(f"{spec.channels} channels with mean {spec.mean} and deviation {spec.std}")


@BACKBONE_CHECKS.add
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


@BACKBONE_CHECKS.add
def per_sample(subject: BackboneSubject) -> None:
    """In eval mode the features of an input do not depend on its batch, and nothing in the model changes.

    Fix: no batch statistics in eval mode (BatchNorm with running statistics), no state in forward.
    """
    extractor = subject.extractor
    before = {name: value.clone() for name, value in extractor.state_dict().items()}
    with torch.no_grad():
        together = extractor(subject.inputs)
        apart = torch.cat([extractor(each[None]) for each in subject.inputs])
    if subject.differ(apart, together):
        raise CheckFailed("one by one the inputs get other features than together")
    changed = [name for name, value in extractor.state_dict().items() if not torch.equal(value, before[name])]
    if changed:
        raise CheckFailed(f"a forward pass in eval mode changed {changed[0]!r}")


@BACKBONE_CHECKS.add
def state(subject: BackboneSubject) -> None:
    """Parameters and persistent buffers are its whole state, fp32 on the CPU; a seed of torch gives the same ones.

    Fix: initialise from torch's global generator only; make derived buffers non-persistent; leave moving and casting
    to the runner.
    """
    one, two = subject.build(3).state_dict(), subject.build(3).state_dict()
    for name, value in one.items():
        if value.device.type != "cpu" or (value.is_floating_point() and value.dtype != torch.float32):
            raise CheckFailed(f"{name!r} is {value.dtype} on {value.device}")
        if name not in two or not torch.equal(value, two[name]):
            raise CheckFailed(f"{name!r} differs between two builds from one seed")
    other = subject.build(1).eval()
    other.load_state_dict(subject.extractor.state_dict())
    with torch.no_grad():
        if subject.differ(other(subject.inputs), subject.extractor(subject.inputs)):
            raise CheckFailed("a copy with the same state has other features: a tensor is neither parameter nor buffer")


@BACKBONE_CHECKS.add
def gradients(subject: BackboneSubject) -> None:
    """Every trainable parameter gets a finite gradient.

    Fix: remove what the features do not use (a classifier, a pooling head), or set requires_grad to False.
    """
    extractor = subject.build().train()
    output = extractor(subject.inputs)
    (output * torch.randn_like(output)).sum().backward()
    for name, parameter in extractor.named_parameters():
        if parameter.requires_grad and parameter.grad is None:
            raise CheckFailed(f"{name!r} gets no gradient")
        if parameter.grad is not None and not bool(torch.isfinite(parameter.grad).all()):
            raise CheckFailed(f"{name!r} gets a gradient that is not finite")


@BACKBONE_CHECKS.add
def federation(subject: BackboneSubject) -> None:
    """A federation of two clients trains it for two tasks and evaluates it.

    Fix: run `fcilbench check --deep` on a suite with it for the traceback.
    """
    probe(Bench("own", subject.make).experiment(Aggregator()))


# ---------------------------------------------------------------- data sets

DATASET_CHECKS: Checks[DatasetSubject] = Checks(SHARED)


@dataclass
class DatasetSubject(Subject[Dataset]):
    """A data set class with hyperparameters, and the data root (`None`: the default)."""

    base = Dataset
    root: Path | None = None


@DATASET_CHECKS.add
def terms(subject: DatasetSubject) -> None:
    """Licence, homepage and citation are declared.

    Fix: copy the terms from the data set's own page.
    """
    plugin = subject.make()
    if missing := [name for name in ("licence", "homepage", "citation") if not getattr(plugin, name).strip()]:
        raise CheckFailed(f"not declared: {', '.join(missing)}")


@DATASET_CHECKS.add
def default_tasks(subject: DatasetSubject) -> None:
    """Its default split into tasks uses each class once.

    Fix: a number that divides the classes, or a tuple of class counts that sums to them.
    """
    plugin = subject.make()
    try:
        split_classes(None, plugin.classes, plugin.default_tasks)
    except UsageError as error:
        raise CheckFailed(str(error)) from error


@DATASET_CHECKS.add
def samples(subject: DatasetSubject) -> None:
    """It loads with the declared counts and digest as uint8 images, texts or arrays, and no class lacks samples.

    Fix: correct `classes`, `train_samples`, `test_samples` or `fingerprint`, or fetch the data again; labels are
    indices into `class_names`; convert images to uint8 `[n, height, width, channels]`, RGB or grey.
    """
    plugin, root = subject.make(), data_root(subject.root)
    if plugin.layouts and find_layout(plugin.layouts, root) is None:
        raise NotApplicable(f"the data are not under {root}")
    try:
        corpus, _ = open_dataset(plugin, root)
        digests = {load_numbered(plugin, root)[1] for _ in range(0 if plugin.fingerprint else 2)}
    except DataError as error:
        raise CheckFailed(str(error)) from error
    if len(digests) > 1:
        raise CheckFailed("two loads have another content: draw random numbers from a generator with a fixed seed")
    if len(set(corpus.class_names)) != len(corpus.class_names):
        raise CheckFailed("two classes have the same name")
    for name, split in (("train", corpus.train), ("test", corpus.test)):
        image = split.inputs.dtype == np.uint8 and split.inputs.ndim == 4 and split.inputs.shape[3] in (1, 3)
        text = plugin.modality == "text" and all(isinstance(each, str) for each in split.inputs[:100])
        array = plugin.modality == "array" and np.issubdtype(split.inputs.dtype, np.number)
        if not (text or array or (plugin.modality == "vision" and image)):
            raise CheckFailed(f"{name} inputs are {split.inputs.dtype} {split.inputs.shape}")
        found = set(np.unique(split.labels).tolist())
        if found != set(range(len(corpus.class_names))):
            raise CheckFailed(f"{name} labels are {min(found)}..{max(found)}: {len(found)} classes")
    if not isinstance(plugin.augmentation, Augmentation):
        raise CheckFailed(f"augmentation is a {type(plugin.augmentation).__name__}")
