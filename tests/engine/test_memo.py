"""Features of a frozen backbone are computed once, and only where every step would compute the same ones."""

import numpy as np
import pytest
import torch
from torch import nn

from fcilbench.api.aggregator import Aggregator
from fcilbench.api.backbone import FeatureExtractor, ImageInput
from fcilbench.api.dataset import Augmentation, Samples
from fcilbench.api.schedule import Task
from fcilbench.engine.data import DeviceImages
from fcilbench.engine.memo import FrozenFeatures, memo_table
from fcilbench.engine.model import FlatModel, Network
from fcilbench.engine.trainer import Objective, Trainer, Work
from fcilbench.spec.protocol import Protocol

CPU = torch.device("cpu")
TASK = Task(1, 2, 3)
COUNT = 41
ONCE = COUNT + (21 + 41 + 21)
"""Samples that pass the backbone: all of them once, and three batches to try it out."""
AUGMENTATION = Augmentation(crop_padding=1, flip=True)
PROTOCOL = Protocol(lr=1e-2, batch_size=16, augment=False)


class Counting(nn.Module):
    """Counts the samples that pass."""

    def __init__(self):
        super().__init__()
        self.seen = 0

    def forward(self, inputs):
        self.seen += len(inputs)
        return inputs


def setting(*extra, freeze=True, augmentation=AUGMENTATION):
    torch.manual_seed(0)
    body = nn.Sequential(Counting(), nn.Flatten(), nn.Linear(16, 8), nn.GELU(), *extra)
    network = Network(FeatureExtractor(body, 8), 6)
    if freeze:
        network.extractor.requires_grad_(False)
    random = np.random.default_rng(0)
    samples = Samples(random.integers(0, 256, (COUNT, 4, 4, 1), dtype=np.uint8), random.integers(2, 5, COUNT))
    return FlatModel(network, CPU), DeviceImages(samples, ImageInput(4, 1, (0.5,), (0.5,)), augmentation, CPU), body[0]


class Teaching(Aggregator):
    """Asks for features, for logits, and for a teacher's logits."""

    def loss(self, net, batch, context):
        logits = net.head(net.features(batch.inputs))
        taught = net.under(context["teacher"]).logits(batch.inputs)
        return super().loss(net, batch, context) + ((logits - taught) ** 2).mean(dim=1).mul(batch.mask).sum()


class Mixing(Aggregator):
    """Trains on sums of neighbours, whose features nobody knows."""

    def loss(self, net, batch, context):
        mixed = 0.5 * (batch.inputs + batch.inputs.flip(0))
        return super().loss(net, batch, context) + net.logits(mixed).square().mean()


def trained(method, protocol=PROTOCOL, forget=False, extra=()):
    model, data, counter = setting(*extra)
    trainer = Trainer(model, data, protocol)
    if forget:
        trainer._step.frozen._possible = False
    context = {"teacher": model.vector + 0.1}
    objective = Objective(method.loss, method.gradient, context)
    loss = trainer.train(objective, Work(torch.arange(COUNT), TASK, 5, 16), np.random.default_rng(0))
    return model.vector.clone(), float(loss), counter.seen


@pytest.mark.parametrize("method", [Aggregator(), Teaching(), Mixing()])
def test_what_is_trained_does_not_depend_on_it(method):
    vector, loss, _ = trained(method)
    expected, expected_loss, _ = trained(method, forget=True)
    assert torch.allclose(vector, expected, atol=1e-5)
    assert loss == pytest.approx(expected_loss, rel=1e-5)


def test_the_backbone_sees_each_sample_once_and_not_in_every_step():
    seen = trained(Teaching())[2]
    assert trained(Teaching(), forget=True)[2] == 3 * 5 * COUNT  # student twice and teacher, five epochs
    assert seen == ONCE


def test_bf16():
    protocol = PROTOCOL.model_copy(update={"precision": "bf16"})
    vector, _, seen = trained(Aggregator(), protocol)
    expected, _, _ = trained(Aggregator(), protocol, forget=True)
    assert seen == ONCE
    assert torch.allclose(vector, expected, atol=1e-2)


def test_features_are_those_of_the_test_inputs():
    model, data, _ = setting()
    known = FrozenFeatures(model, data, PROTOCOL).of(torch.tensor([3, 1, 40, 3]))
    expected = model.features(data.plain(torch.tensor([3, 1, 40, 3])))
    assert torch.allclose(known, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("extra", "options", "protocol"),
    [
        ((), {"freeze": False}, PROTOCOL),
        ((), {}, PROTOCOL.model_copy(update={"augment": True})),
        ((nn.Dropout(0.1),), {}, PROTOCOL),
        ((nn.BatchNorm1d(8),), {}, PROTOCOL),
        ((nn.BatchNorm1d(8, track_running_stats=False),), {}, PROTOCOL),
    ],
    ids=["trained", "augmented", "dropout", "buffers", "batch statistics"],
)
def test_where_steps_differ_nothing_is_remembered(extra, options, protocol):
    model, data, _ = setting(*extra, **options)
    frozen = FrozenFeatures(model, data, protocol)
    assert frozen.of(torch.arange(3)) is None
    assert frozen.of(torch.arange(3)) is None


def test_data_without_augmentation_may_be_asked_for_it():
    model, data, _ = setting(augmentation=Augmentation())
    protocol = PROTOCOL.model_copy(update={"augment": True})
    assert FrozenFeatures(model, data, protocol).of(torch.arange(3)) is not None


def test_trying_out_leaves_every_mode_as_it_was():
    model, data, _ = setting(nn.Dropout(0.5))
    model.network.train()
    model.network.extractor.body[2].eval()
    modes = [module.training for module in model.network.modules()]
    FrozenFeatures(model, data, PROTOCOL).of(torch.arange(3))
    assert [module.training for module in model.network.modules()] == modes


def test_a_query_is_asked_once_about_every_sample():
    model, data, counter = setting()
    table = memo_table(model, data, lambda net, inputs: net.features(inputs), 16, "fp32")
    assert counter.seen == COUNT
    assert torch.equal(table[16:32], model.features(data.plain(torch.arange(16, 32))))
    assert not table.requires_grad
    assert memo_table(model, data, lambda net, inputs: None, 16, "fp32") is None


def test_an_extractor_with_outputs_of_its_own_is_not_remembered():
    class Own(FeatureExtractor):
        def outputs(self, inputs, context):
            return {"features": self(inputs), "mean": self(inputs).mean()}

    model, data, _ = setting()
    network = Network(Own(model.network.extractor.body, 8), 6)
    network.extractor.requires_grad_(False)
    assert FrozenFeatures(FlatModel(network, CPU), data, PROTOCOL).of(torch.arange(3)) is None
