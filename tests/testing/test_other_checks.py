"""Checks of backbones and data sets can fail too, and the kit's errors are plain."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fcilbench.api import Backbone, Corpus, Dataset, FeatureExtractor, ImageInput, Samples
from fcilbench.errors import UsageError
from fcilbench.testing import CHECKS, AggregatorConformance, BackboneConformance, Case, DatasetConformance, case
from fcilbench.testing.bench import ConvNet, SmallViT
from fcilbench.testing.others import BackboneSubject, DatasetSubject


class TwoMeans(ConvNet):  # has two means for one channel
    def image_input(self):
        return ImageInput(size=8, channels=1, mean=(0.5, 0.5), std=(0.5,))


class WrongWidth(ConvNet):  # says 17 features and gives 16
    def build(self):
        return FeatureExtractor(super().build().body, 17)


class CentresTheBatch(ConvNet):  # subtracts the batch's mean
    def build(self):
        class Centred(nn.Module):
            def __init__(self, body):
                super().__init__()
                self.body = body

            def forward(self, inputs):
                features = self.body(inputs)
                return features - features.mean(0)

        return FeatureExtractor(Centred(super().build().body), 16)


class OwnDice(ConvNet):  # initialises from the system's randomness
    def build(self):
        torch.seed()
        return super().build()


class Outside(ConvNet):  # keeps a weight that is neither parameter nor persistent buffer, drawn anew in each build
    def build(self):
        class Scaled(nn.Module):
            def __init__(self, body):
                super().__init__()
                self.body = body
                self.register_buffer("scale", torch.rand(16), persistent=False)

            def forward(self, inputs):
                return self.body(inputs) * self.scale

        return FeatureExtractor(Scaled(super().build().body), 16)


class Unused(ConvNet):  # has a classifier that the features do not use
    def build(self):
        extractor = super().build()
        extractor.classifier = nn.Linear(16, 1000)
        return extractor


class NoFederation(ConvNet):  # works for one batch size only
    def build(self):
        return FeatureExtractor(nn.Sequential(nn.Flatten(0), nn.Unflatten(0, (4, 64)), nn.Linear(64, 16)), 16)


@pytest.mark.parametrize(
    ("id_", "cls"),
    [
        ("input", TwoMeans),
        ("features", WrongWidth),
        ("per-sample", CentresTheBatch),
        ("state", OwnDice),
        ("state", Outside),
        ("gradients", Unused),
        ("federation", NoFederation),
    ],
)
def test_a_broken_backbone_is_found(id_, cls):
    checks = {check.id: check for check in CHECKS["backbones"]}
    assert Case("backbones", [BackboneSubject(cls)]).run(checks[id_]).status == "failed"


@pytest.mark.parametrize("network", [ConvNet, SmallViT])
def test_the_benches_networks_pass_the_checks_of_backbones(network):
    subject = BackboneSubject(network)
    results = list(Case("backbones", [subject]).results())
    assert {result.status for result in results} == {"passed"}


class Toy(Dataset):  # four grey images of each of three classes
    classes, default_tasks, train_samples, test_samples = 3, (2, 1), 9, 3
    licence, homepage, citation = "CC0", "https://example.org", "nobody"

    def load(self, root):
        inputs = np.arange(12 * 4, dtype=np.uint8).reshape(12, 2, 2, 1)
        labels = np.repeat(np.arange(3), 4)
        train = np.arange(12) % 4 < 3
        return Corpus(Samples(inputs[train], labels[train]), Samples(inputs[~train], labels[~train]), ("a", "b", "c"))


class NoLicence(Toy):  # does not say what its terms are
    licence = ""


class BadTasks(Toy):  # splits three classes into two equal tasks
    default_tasks = 2


class BadCount(Toy):  # declares a sample too many
    train_samples = 10


class Unseeded(Toy):  # adds other noise whenever it is loaded
    def load(self, root):
        given = super().load(root)
        noisy = [
            Samples(np.random.default_rng().integers(256, size=s.inputs.shape, dtype=np.uint8), s.labels)
            for s in (given.train, given.test)
        ]
        return Corpus(*noisy, given.class_names)


class Floats(Toy):  # gives images as floats
    def load(self, root):
        given = super().load(root)
        return Corpus(*(Samples(s.inputs / 255.0, s.labels) for s in (given.train, given.test)), given.class_names)


@pytest.mark.parametrize(
    ("id_", "cls"),
    [
        ("terms", NoLicence),
        ("default-tasks", BadTasks),
        ("samples", BadCount),
        ("samples", Floats),
        ("samples", Unseeded),
    ],
)
def test_a_broken_data_set_is_found(id_, cls):
    checks = {check.id: check for check in CHECKS["datasets"]}
    assert Case("datasets", [DatasetSubject(cls)]).run(checks[id_]).status == "failed"
    assert Case("datasets", [DatasetSubject(Toy)]).run(checks[id_]).status == "passed"


def test_missing_data_are_no_failure(tmp_path):
    found = case("datasets", "cifar100", root=tmp_path)
    status = {result.check: result.status for result in found.results()}
    assert status == {
        **dict.fromkeys(("contract", "params-documented", "terms", "default-tasks"), "passed"),
        "samples": "skipped",
    }


@pytest.mark.parametrize(
    ("kind", "name", "options", "text"),
    [
        ("bords", "accuracy", {}, r"there are no checks for bords \(did you mean 'boards'"),
        ("boards", "accuracy", {"x": 1}, "fcilbench/accuracy: boards take no parameters"),
        ("aggregators", "fedagv", {}, "did you mean 'fedavg'"),
        ("aggregators", "fedavg", {"weighting": "odd"}, "fcilbench/fedavg: weighting: "),
        ("backbones", "timm", {"weights": "none"}, "fcilbench/timm: missing key 'model'"),
    ],
)
def test_errors_of_the_kit(kind, name, options, text):
    with pytest.raises(UsageError, match=text):
        case(kind, name, options)


def test_the_three_classes_find_their_plugins():
    class Uniform(AggregatorConformance):
        plugin = "fcilbench/fedavg"
        params = {"weighting": "uniform"}  # noqa: RUF012
        backbone = ConvNet

    class Net(BackboneConformance):
        plugin = "fcilbench/timm"
        params = {"model": "vit_tiny_patch16_224", "weights": "none"}  # noqa: RUF012

    class Data(DatasetConformance):
        plugin = "digits"
        root = Path("/nowhere")

    (subject,) = Uniform.case().subjects
    assert subject.make().params.weighting == "uniform"
    assert isinstance(subject.bench.backbone(), Backbone)
    assert isinstance(Net.case().subjects[0], BackboneSubject)
    assert Data.case().subjects[0].root == Path("/nowhere")
    assert len(CHECKS["aggregators"]) > len(CHECKS["backbones"]) > len(CHECKS["datasets"])
