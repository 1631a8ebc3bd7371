"""Local training on the flat model against an ordinary PyTorch loop, and the flat model itself."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fcilbench.api.aggregator import Aggregator
from fcilbench.api.backbone import FeatureExtractor, ImageInput
from fcilbench.api.dataset import Augmentation, Samples
from fcilbench.api.task import Task
from fcilbench.engine.data import DeviceImages
from fcilbench.engine.model import FlatModel, Network
from fcilbench.engine.trainer import Objective, Trainer, Work
from fcilbench.spec.protocol import Protocol

CPU = torch.device("cpu")
TASK = Task(1, 2, 3)


def network(seed=0):
    torch.manual_seed(seed)
    return Network(FeatureExtractor(nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.Tanh()), 8), 6)


def data():
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (37, 4, 4, 1), dtype=np.uint8)
    return DeviceImages(
        Samples(pixels, random.integers(2, 5, 37)), ImageInput(4, 1, (0.5,), (0.5,)), Augmentation(), CPU
    )


def objective():
    base = Aggregator()
    return Objective(base.loss, base.gradient, {})


def plain_loop(protocol, epochs=2):
    """The same client with nn.Module parameters, torch's AdamW and an explicit loop."""
    net, images, random = network(), data(), np.random.default_rng(5)
    optimiser = torch.optim.AdamW(net.parameters(), lr=protocol.lr, weight_decay=0.0)
    for _ in range(epochs):
        order = torch.from_numpy(random.permutation(37))
        images.draw(37, random)  # the engine draws its augmentation here
        for rows in order.split(protocol.batch_size):
            loss = F.cross_entropy(net(images.plain(rows))[:, 2:5], images.labels[rows] - 2)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return torch.cat([p.detach().flatten() for p in net.parameters()])


def test_training_equals_a_plain_loop():
    protocol = Protocol(lr=1e-2, batch_size=16)
    model = FlatModel(network(), CPU)
    trainer = Trainer(model, data(), protocol)
    trainer.train(objective(), Work(torch.arange(37), TASK, 2, 16), np.random.default_rng(5))
    assert torch.allclose(model.vector, plain_loop(protocol), atol=1e-6)


def test_the_optimiser_starts_new_for_every_client():
    protocol = Protocol(lr=1e-2)
    model = FlatModel(network(), CPU)
    start = model.vector.clone()
    trainer = Trainer(model, data(), protocol)
    results = []
    for _ in range(2):
        model.load(start, model.counters)
        trainer.train(objective(), Work(torch.arange(37), TASK, 1, 16), np.random.default_rng(5))
        results.append(model.vector.clone())
    assert torch.equal(results[0], results[1])


def test_gradient_hook_and_flat_penalty_agree():
    """A quadratic penalty in the loss (through net.parameters) equals its gradient added by the hook."""
    protocol = Protocol(lr=1e-2)

    class InLoss(Aggregator):
        def loss(self, net, batch, context):
            return super().loss(net, batch, context) + 3.0 * ((net.parameters - context["anchor"]) ** 2).sum()

    class InHook(Aggregator):
        def gradient(self, gradient, net, context):
            gradient += 6.0 * (net.parameters - context["anchor"])

    results = []
    for method in (InLoss(), InHook(), Aggregator()):
        model = FlatModel(network(), CPU)
        anchor = model.parameters.detach().clone() + 0.1
        target = Objective(method.loss, method.gradient, {"anchor": anchor})
        Trainer(model, data(), protocol).train(target, Work(torch.arange(37), TASK, 1, 16), np.random.default_rng(5))
        results.append(model.vector.clone())
    assert torch.allclose(results[0], results[1], atol=1e-5)
    assert not torch.allclose(results[0], results[2], atol=1e-3)


def test_bf16_stays_near_fp32():
    results = []
    for precision in ("fp32", "bf16"):
        model = FlatModel(network(), CPU)
        trainer = Trainer(model, data(), Protocol(lr=1e-3, precision=precision))
        trainer.train(objective(), Work(torch.arange(37), TASK, 2, 16), np.random.default_rng(5))
        results.append(model.vector.clone())
    assert results[1].dtype == torch.float32
    assert torch.allclose(results[0], results[1], atol=2e-2)
    assert not torch.equal(results[0], results[1])


def test_flat_views_share_memory_and_frozen_parameters_stay_out():
    net = network()
    net.extractor.body[1].bias.requires_grad_(False)
    model = FlatModel(net, CPU)
    assert len(model.vector) == 16 * 8 + 6 * 8 + 6
    assert model.layout.backbone == slice(0, 128)
    assert model.layout.head == slice(128, 182)
    model.vector.zero_()
    assert float(net.head.weight.detach().abs().sum()) == 0.0
    assert float(net.extractor.body[1].bias.detach().abs().sum()) > 0.0
    net.head.bias.grad.fill_(2.0)
    assert model.gradient[-6:].tolist() == [2.0] * 6


def test_a_frozen_head_is_refused():
    net = network()
    net.head.bias.requires_grad_(False)
    with pytest.raises(ValueError, match="head"):
        FlatModel(net, CPU)


def test_another_vector_can_be_borrowed_without_touching_the_resident_one():
    model = FlatModel(network(0), CPU)
    other = FlatModel(network(1), CPU)
    inputs = torch.randn(3, 1, 4, 4)
    before = model.vector.clone()
    model.network.train()
    teacher = model.under(other.vector)
    other.network.eval()
    assert torch.equal(teacher.logits(inputs), other.logits(inputs))
    assert torch.equal(teacher.head(teacher.features(inputs)), other.logits(inputs))
    assert torch.equal(model.vector, before)
    assert model.network.training
    assert not teacher.logits(inputs).requires_grad
    assert torch.equal(teacher.parameters, other.vector)


def test_a_borrowed_batchnorm_network_leaves_running_statistics_alone():
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten())
    model = FlatModel(Network(FeatureExtractor(body, 8), 3), CPU)
    model.network.train()
    before = model.vector.clone()
    model.under(model.vector + 1.0).logits(torch.randn(5, 1, 4, 4))
    assert torch.equal(model.vector, before)
    assert set(model.named(model.vector)) == {
        "extractor.body.0.weight", "extractor.body.0.bias", "extractor.body.1.weight", "extractor.body.1.bias",
        "head.weight", "head.bias", "extractor.body.1.running_mean", "extractor.body.1.running_var",
    }  # fmt: skip


def test_the_layout_tells_where_each_tensor_of_the_vector_is():
    model = FlatModel(network(), CPU)
    layout = [(piece.name, piece.shape, piece.start) for piece in model.layout.pieces]
    assert layout == [
        ("extractor.body.1.weight", (8, 16), 0), ("extractor.body.1.bias", (8,), 128),
        ("head.weight", (6, 8), 136), ("head.bias", (6,), 184),
    ]  # fmt: skip
    piece = model.layout.piece("head.weight")
    assert piece.span == slice(136, 184)
    assert torch.equal(model.vector[piece.span].view(piece.shape), model.network.head.weight)
    with pytest.raises(KeyError, match="no tensor"):
        model.layout.piece("head.wait")
