"""Clients trained together become what they become one by one, up to rounding, and what cannot is refused."""

import numpy as np
import pytest
import torch
from torch import nn

from fcilbench.api.aggregator import Aggregator
from fcilbench.api.backbone import FeatureExtractor, ImageInput
from fcilbench.api.dataset import Augmentation, Samples
from fcilbench.api.task import Task
from fcilbench.engine.flat import FlatModel
from fcilbench.engine.images import DeviceImages
from fcilbench.engine.lots import one_pass, timetable
from fcilbench.engine.network import Network
from fcilbench.engine.stacked import StackedTrainer, StackError
from fcilbench.engine.training import Objective, Trainer, Work
from fcilbench.spec.protocol import Protocol

CPU = torch.device("cpu")
TASK = Task(1, 2, 3)
SIZES = (5, 40, 17, 1)  # 1, 3, 2 and 1 steps a pass
TOLERANCE = 1e-3
"""Of the update's norm. AdamW divides a gradient by its own size, so entries whose gradient is rounding only (biases of
attention's keys have none by the mathematics) move by chance."""


def vit():
    import timm

    small = {"img_size": 8, "patch_size": 4, "in_chans": 1, "embed_dim": 16, "depth": 2, "num_heads": 2}
    return FeatureExtractor(timm.create_model("vit_tiny_patch16_224", num_classes=0, **small), 16)


def mlp():
    return FeatureExtractor(nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh()), 8)


def network(build=mlp):
    torch.manual_seed(0)
    return Network(build(), 6)


def data():
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (sum(SIZES), 8, 8, 1), dtype=np.uint8)
    samples = Samples(pixels, random.integers(2, 5, sum(SIZES)))
    return DeviceImages(samples, ImageInput(8, 1, (0.5,), (0.5,)), Augmentation(crop_padding=1, flip=True), CPU)


def same_updates(vectors, expected):
    start = FlatModel(network(mlp if vectors.shape[1] < 1000 else vit), CPU).vector
    difference = (vectors - expected).norm(dim=1) / (expected - start).norm(dim=1)
    return bool((difference < TOLERANCE).all())


def works(epochs=2, batch_size=16):
    return [Work(rows, TASK, epochs, batch_size) for rows in torch.arange(sum(SIZES)).split(SIZES)]


def randoms():
    return [np.random.default_rng(10 + k) for k in range(len(SIZES))]


def together(method, contexts, protocol, build=mlp, size=8):
    model = FlatModel(network(build), CPU)
    start = model.vector.clone()
    trainer = StackedTrainer(model, data(), protocol, size)
    objectives = [Objective(method.loss, method.gradient, context) for context in contexts]
    losses = trainer.train(start, objectives, works(), randoms())
    return trainer.vectors[: len(SIZES)].clone(), losses


def alone(method, contexts, protocol, build=mlp):
    model = FlatModel(network(build), CPU)
    start, trainer = model.vector.clone(), Trainer(model, data(), protocol)
    vectors, losses = [], []
    for context, work, random in zip(contexts, works(), randoms(), strict=True):
        model.load(start, model.counters)
        losses.append(trainer.train(Objective(method.loss, method.gradient, context), work, random))
        vectors.append(model.vector.clone())
    return torch.stack(vectors), torch.stack(losses)


class Pulled(Aggregator):
    """A penalty through `net.parameters`, another by the hook, a teacher, and a tensor that each client has of its own."""

    def loss(self, net, batch, context):
        logits = net.logits(batch.inputs)
        teacher = net.under(context["teacher"]).logits(batch.inputs)
        distance = ((logits - teacher).square().mean(dim=1) * batch.mask).sum() / batch.mask.sum().clamp(min=1)
        penalty = ((net.parameters - context["state/anchor"]) ** 2).sum()
        return super().loss(net, batch, context) + 0.1 * distance + 0.3 * penalty

    def gradient(self, gradient, theta, context):
        gradient += 0.2 * (theta - context["teacher"])


def contexts():
    vector = FlatModel(network(), CPU).vector
    teacher = vector + 0.1
    return [{"teacher": teacher, "state/anchor": vector * (1 + 0.1 * k)} for k in range(len(SIZES))]


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("build", [mlp, vit])
def test_clients_of_uneven_size_end_where_they_end_one_by_one(build, decay):
    protocol, none = Protocol(lr=1e-3, batch_size=16, weight_decay=decay), [{} for _ in SIZES]
    vectors, losses = together(Aggregator(), none, protocol, build)
    expected, expected_losses = alone(Aggregator(), none, protocol, build)
    assert same_updates(vectors, expected)
    assert torch.allclose(losses, expected_losses, rtol=1e-5, atol=0)
    assert float((expected[0] - expected[1]).abs().max()) > 1e-3  # they do differ


def test_penalties_teachers_hooks_and_own_tensors_are_batched_too():
    protocol = Protocol(lr=1e-3, batch_size=16)
    vectors, losses = together(Pulled(), contexts(), protocol)
    expected, expected_losses = alone(Pulled(), contexts(), protocol)
    assert same_updates(vectors, expected)
    assert torch.allclose(losses, expected_losses, rtol=1e-5, atol=0)
    plain, _ = alone(Aggregator(), contexts(), protocol)
    assert float((plain - expected).abs().max()) > 1e-4


def test_a_second_call_starts_without_moments_and_with_fewer_clients():
    protocol, method = Protocol(lr=1e-3, batch_size=16), Aggregator()
    model = FlatModel(network(), CPU)
    start, trainer = model.vector.clone(), StackedTrainer(model, data(), protocol, 4)
    objectives = [Objective(method.loss, method.gradient, {}) for _ in SIZES]
    trainer.train(start, objectives, works(), randoms())
    first = trainer.vectors.clone()
    trainer.train(start, objectives[:2], works()[:2], randoms()[:2])
    assert same_updates(trainer.vectors[:2], first[:2])
    trainer.train(start, objectives, works(), randoms())
    assert torch.equal(trainer.vectors, first)


def test_a_client_that_is_finished_is_not_moved_any_more():
    """AdamW would move it by its moments, and weight decay would shrink it."""
    protocol, method = Protocol(lr=1e-2, batch_size=16, weight_decay=0.5), Aggregator()
    model = FlatModel(network(), CPU)
    trainer = StackedTrainer(model, data(), protocol, 4)
    pair = [works(epochs=1)[3], works(epochs=30)[1]]
    trainer.train(model.vector.clone(), [Objective(method.loss, method.gradient, {})] * 2, pair, randoms()[:2])
    single = FlatModel(network(), CPU)
    Trainer(single, data(), protocol).train(Objective(method.loss, method.gradient, {}), pair[0], randoms()[0])
    assert same_updates(trainer.vectors[:1], single.vector[None])


class Branching(Aggregator):
    def loss(self, net, batch, context):
        loss = super().loss(net, batch, context)
        return loss * 2 if loss.item() > 100 else loss


class Wrong(Aggregator):
    """Looks at the first dimension of all clients at once, which only a batched call has: counts calls."""

    calls = 0

    def loss(self, net, batch, context):
        type(self).calls += 1
        return super().loss(net, batch, context) * type(self).calls


def dropout():
    return FeatureExtractor(nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Dropout(0.5)), 8)


def normed():
    return FeatureExtractor(nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8)), 8)


@pytest.mark.parametrize(
    ("method", "build", "reason"),
    [
        (Branching(), mlp, "item"),
        (Wrong(), mlp, "batched gradient differs"),
        (Aggregator(), dropout, "random"),
        (Aggregator(), normed, "buffers"),
    ],
    ids=["a branch on values", "hidden state", "dropout", "BatchNorm"],
)
def test_what_cannot_be_batched_is_refused_with_the_reason(method, build, reason):
    Wrong.calls = 0
    with pytest.raises(StackError, match=reason):
        together(method, [{} for _ in SIZES], Protocol(lr=1e-3, batch_size=16), build)


def test_contexts_that_do_not_fit_are_refused():
    protocol, method = Protocol(lr=1e-3, batch_size=16), Aggregator()
    with pytest.raises(StackError, match="different state"):
        together(method, [{}, {"state/a": torch.zeros(1)}, {}, {}], protocol)
    shapes = [{"state/a": torch.zeros(k + 1)} for k in range(len(SIZES))]
    with pytest.raises(StackError, match="'state/a' have different shapes"):
        together(method, shapes, protocol)


def test_a_timetable_holds_every_lot_of_every_client():
    own, source = works(), data()
    own = sorted(own, key=lambda work: -work.steps)
    table = timetable(own, source, [np.random.default_rng(k) for k in range(len(own))])
    assert table.rows.shape == table.mask.shape == (6, 4, 16)  # 2 epochs of 3 steps
    assert table.active == (4, 4, 2, 2, 1, 1)  # 3, 2, 1 and 1 steps a pass
    assert table.widths == (16, 16, 16, 16, 16, 8)
    for k, work in enumerate(own):
        random = np.random.default_rng(k)
        lots = [lot for _ in range(work.epochs) for lot in one_pass(work, source, random)]
        for number, lot in enumerate(lots):
            count = len(lot.rows)
            assert torch.equal(table.rows[number, k, :count], lot.rows)
            assert table.mask[number, k].tolist() == [1.0] * count + [0.0] * (16 - count)
            for name, values in lot.draws.items():
                assert torch.equal(table.draws[name][number, k, :count], values)
        assert not table.mask[len(lots) :, k].any()
        assert set(table.rows[:, k].flatten().tolist()) <= set(work.index.tolist())  # padding has legal labels
        last = torch.tensor([number >= work.steps - work.pass_steps for number in range(6)])
        last &= torch.arange(6) < work.steps
        assert torch.allclose(table.share[:, k], last / work.pass_steps)
