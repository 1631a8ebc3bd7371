"""Local training on the flat model against an ordinary PyTorch loop, and the flat model itself."""

from types import MappingProxyType

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fcilbench.api.aggregator import Aggregator
from fcilbench.api.backbone import FeatureExtractor, ImageInput
from fcilbench.api.dataset import Augmentation, Samples
from fcilbench.api.message import matches
from fcilbench.api.schedule import Task
from fcilbench.engine.data import DeviceImages
from fcilbench.engine.minibatches import Extra, Work
from fcilbench.engine.model import FlatModel, Network
from fcilbench.engine.trainer import Objective, Trainer
from fcilbench.spec.protocol import Protocol

CPU = torch.device("cpu")
TASK = Task(1, 2, 3)
NONE = MappingProxyType({})


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


def groups(net, lr, train, rates):
    """Parameter groups of torch: a parameter each, with the rate of the first pattern that matches."""
    for name, parameter in net.named_parameters():
        if matches(name, train):
            factor = next((factor for pattern, factor in rates.items() if matches(name, [pattern])), 1.0)
            yield {"params": [parameter], "lr": lr * factor}


def torch_optimiser(protocol, params):
    if protocol.optimizer == "sgd":
        return torch.optim.SGD(params, protocol.lr, protocol.momentum, weight_decay=protocol.weight_decay)
    kind = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam}[protocol.optimizer]
    return kind(params, protocol.lr, weight_decay=protocol.weight_decay)


def plain_loop(protocol, task=TASK, train=("*",), rates=NONE, epochs=3):
    """The same client with nn.Module parameters, torch's optimiser and scheduler, and an explicit loop."""
    net, images, random = network(), data(), np.random.default_rng(5)
    optimiser, steps = torch_optimiser(protocol, groups(net, protocol.lr, train, rates)), 3 * epochs
    scheduler = {
        "constant": lambda: torch.optim.lr_scheduler.ConstantLR(optimiser, 1.0),
        "cosine": lambda: torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps),
        "step": lambda: torch.optim.lr_scheduler.MultiStepLR(optimiser, [-(-steps // 2), -(-3 * steps // 4)]),
    }[protocol.schedule]()
    for _ in range(epochs):
        order = torch.from_numpy(random.permutation(37))
        images.draw(37, random)  # the engine draws its augmentation here
        for rows in order.split(protocol.batch_size):
            logits = net(images.plain(rows))[:, task.classes]
            optimiser.zero_grad()
            F.cross_entropy(logits, images.labels[rows] - task.offset).backward()
            if protocol.clip_norm is not None:
                nn.utils.clip_grad_norm_(net.parameters(), protocol.clip_norm)
            optimiser.step()
            scheduler.step()
    return torch.cat([p.detach().flatten() for p in net.parameters()])


def trained(protocol, task=TASK, *, train=("*",), rates=NONE, method=None, context=NONE):
    model, method = FlatModel(network(), CPU), method or Aggregator()
    trainer = Trainer(model, data(), protocol, rates=rates)
    goal, work = Objective(method.loss, method.gradient, context), Work(torch.arange(37), task, 3, 16, train)
    trainer.train(goal, work, np.random.default_rng(5))
    return model.vector.clone()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"weight_decay": 0.3},
        {"schedule": "cosine"},
        {"schedule": "cosine", "weight_decay": 0.3},
        {"schedule": "step", "weight_decay": 0.3, "clip_norm": 0.5},
        {"optimizer": "adam", "weight_decay": 0.3},
        {"optimizer": "adam", "schedule": "step", "clip_norm": 0.5},
        {"optimizer": "sgd", "lr": 0.1},
        {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.3},
        {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9, "schedule": "cosine", "weight_decay": 0.3, "clip_norm": 0.5},
    ],
    ids=lambda options: "-".join(f"{key}={value}" for key, value in options.items()) or "default",
)
@pytest.mark.parametrize("rates", [{}, {"head.*": 3.0, "*.weight": 0.1}], ids=["one rate", "rates"])
def test_training_equals_torch_on_a_plain_module(options, rates):
    """The task has all classes, so that torch's weight decay, which knows no tasks, is the right one."""
    protocol, whole = Protocol(**{"lr": 1e-2, "batch_size": 16, **options}), Task(0, 0, 6)
    expected, start = plain_loop(protocol, whole, rates=rates), FlatModel(network(), CPU).vector
    assert torch.allclose(trained(protocol, whole, rates=rates), expected, atol=2e-6)
    assert not torch.allclose(expected, start, atol=1e-2)


@pytest.mark.parametrize("optimizer", ["adamw", "adam", "sgd"])
def test_pieces_outside_the_patterns_keep_every_bit(optimizer):
    """Also under weight decay, and if the gradient hook writes everywhere."""

    class Everywhere(Aggregator):
        def gradient(self, gradient, net, context):
            assert not gradient[net.layout.piece("extractor.body.1.bias").span].any()
            gradient += 1.0

    protocol = Protocol(lr=1e-2, optimizer=optimizer, weight_decay=0.1)
    start, train = FlatModel(network(), CPU), ("*.weight",)
    found = trained(protocol, train=train, method=Everywhere())
    for piece in start.layout.pieces:
        same = torch.equal(found[piece.span], start.vector[piece.span])
        assert same == piece.name.endswith("bias"), piece.name
    plain = Protocol(lr=1e-2, optimizer=optimizer)
    assert torch.allclose(trained(plain, train=train), plain_loop(plain, train=train), atol=2e-6)


def test_the_head_of_other_tasks_never_decays():
    protocol = Protocol(lr=1e-2, weight_decay=0.5)
    for optimizer in ("adamw", "adam", "sgd"):
        start = FlatModel(network(), CPU)
        found = trained(protocol.model_copy(update={"optimizer": optimizer}))
        piece = start.layout.piece("head.weight")
        same = (found[piece.span].view(6, 8) == start.vector[piece.span].view(6, 8)).all(dim=1)
        assert same.tolist() == [True, True, False, False, False, True]


def test_patterns_that_match_nothing_are_refused():
    with pytest.raises(ValueError, match="no parameter matches the patterns to train, haed"):
        trained(Protocol(), train=("haed",))
    with pytest.raises(ValueError, match=r"'head.wieght' matches no parameter; the nearest is 'head.weight'"):
        trained(Protocol(), rates={"head.wieght": 2.0})


def test_parameters_that_are_not_trained_are_frozen_only_while_a_client_trains():
    model = FlatModel(network(), CPU)
    seen = {}

    class Looks(Aggregator):
        def loss(self, net, batch, context):
            seen.update({name: p.requires_grad for name, p in model.network.named_parameters()})
            return super().loss(net, batch, context)

    goal = Objective(Looks().loss, Looks().gradient, {})
    Trainer(model, data(), Protocol()).train(
        goal, Work(torch.arange(5), TASK, 1, 16, ("head.*",)), np.random.default_rng(0)
    )
    assert seen == {name: name.startswith("head") for name in seen}
    assert all(parameter.requires_grad for parameter in model.network.parameters())


# ---------------------------------------------------------------- what a batch holds


def test_memo_and_extra_come_with_every_batch():
    """Each of 5 replayed samples is drawn once before any is drawn again, and the client's own order stays the same."""
    batches = []

    class Keeps(Aggregator):
        def loss(self, net, batch, context):
            batches.append(batch)
            return super().loss(net, batch, context)

    def run(extra):
        batches.clear()
        model, own = FlatModel(network(), CPU), data()
        own.memo = torch.arange(37.0)[:, None]
        goal = Objective(Keeps().loss, Keeps().gradient, {})
        Trainer(model, own, Protocol()).train(
            goal, Work(torch.arange(37), TASK, 2, 16, extra=extra), np.random.default_rng(5)
        )
        return own, list(batches)

    replayed = data()
    replayed = DeviceImages(
        Samples(np.arange(5 * 16, dtype=np.uint8).reshape(5, 4, 4, 1), np.arange(5)), replayed.spec, Augmentation(), CPU
    )
    own, plain = run(None)
    _, found = run(Extra(replayed, np.random.default_rng(9)))
    assert [batch.extra for batch in plain] == [None] * 6
    for one, other in zip(plain, found, strict=True):
        assert torch.equal(one.inputs, other.inputs)
        assert torch.equal(own.plain(other.memo[:, 0].long()), other.inputs)
        assert other.extra.inputs.shape == (16, 1, 4, 4)
        assert bool(other.extra.mask.all())
    labels = torch.cat([batch.extra.labels for batch in found[:3]])
    for start in range(0, 45, 5):
        assert sorted(labels[start : start + 5].tolist()) == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="no samples to replay"):
        run(
            Extra(
                DeviceImages(
                    Samples(np.zeros((0, 4, 4, 1), np.uint8), np.zeros(0)), replayed.spec, Augmentation(), CPU
                ),
                np.random.default_rng(0),
            )
        )


def test_gradient_hook_and_flat_penalty_agree():
    """A quadratic penalty in the loss, flat or by pieces, equals its gradient added by the hook."""

    class InLoss(Aggregator):
        def loss(self, net, batch, context):
            return super().loss(net, batch, context) + 3.0 * ((net.parameters - context["anchor"]) ** 2).sum()

    class ByPieces(Aggregator):
        def loss(self, net, batch, context):
            pieces = ((net.piece(p.name), context["anchor"][p.span].view(p.shape)) for p in net.layout.pieces)
            return super().loss(net, batch, context) + 3.0 * sum(((own - anchor) ** 2).sum() for own, anchor in pieces)

    class InHook(Aggregator):
        def gradient(self, gradient, net, context):
            gradient += 6.0 * (net.parameters - context["anchor"])

    context = {"anchor": FlatModel(network(), CPU).vector + 0.1}
    methods = (InLoss(), ByPieces(), InHook(), Aggregator())
    results = [trained(Protocol(lr=1e-2), method=method, context=context) for method in methods]
    assert torch.allclose(results[0], results[1], atol=1e-5)
    assert torch.allclose(results[0], results[2], atol=1e-5)
    assert not torch.allclose(results[0], results[3], atol=1e-3)


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


def test_edge_4_heads_features_and_losses_are_float32_around_a_bf16_network():
    """Edge cases 4 and 5: heads, and a loss's own products and distances, ran under autocast."""
    model, seen = FlatModel(network(), CPU), {}

    class Watching(Aggregator):
        def loss(self, net, batch, context):
            features = net.features(batch.inputs)
            seen.update(features=features, product=features @ features.T)
            seen["logits"], seen["exact"] = net.head(features), F.linear(features, *model.network.head.parameters())
            seen["taught"] = net.under(model.vector).logits(batch.inputs)
            return super().loss(net, batch, context)

    trainer = Trainer(model, data(), Protocol(lr=1e-3, precision="bf16"))
    work = Work(torch.arange(8), TASK, 1, 16)
    trainer.train(Objective(Watching().loss, Watching().gradient, {}), work, np.random.default_rng(5))
    assert {name: value.dtype for name, value in seen.items()} == dict.fromkeys(seen, torch.float32)
    assert torch.equal(seen["logits"], seen["exact"])
    assert torch.equal(seen["features"], seen["features"].bfloat16().float())  # the network did run in bf16


@pytest.mark.parametrize(
    ("samples", "size", "batches"),
    [(33, 16, [16, 17]), (17, 16, [17]), (18, 16, [16, 2]), (1, 16, [1]), (2, 1, [1, 1])],
)
def test_edge_1_a_last_batch_of_one_joins_the_batch_before_where_there_is_batch_norm(samples, size, batches):
    """Edge case 1: one sample has no batch statistics, and a client of one sample uses the running ones."""
    torch.manual_seed(0)
    body = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.BatchNorm1d(8))
    for net, expected in ((Network(FeatureExtractor(body, 8), 6), batches), (network(), None)):
        model, seen = FlatModel(net, CPU), []
        net.extractor.register_forward_hook(lambda _, inputs, __, seen=seen: seen.append(len(inputs[0])))
        loss = Trainer(model, data(), Protocol(lr=1e-2)).train(
            objective(), Work(torch.arange(samples), TASK, 1, size), np.random.default_rng(5)
        )
        assert seen == (expected or [size] * (samples // size) + [samples % size] * (samples % size > 0))
        assert torch.isfinite(loss)


@pytest.mark.parametrize(
    "options", [{}, {"schedule": "cosine", "weight_decay": 0.1}, {"optimizer": "sgd", "momentum": 0.9}]
)
@pytest.mark.parametrize("handed_over", [False, True])
def test_a_training_run_in_two_parts_is_the_run_in_one(options, handed_over):
    """One pass and then two more equal three passes bit for bit, also in a trainer that is given the moments."""
    protocol = Protocol(lr=1e-2, batch_size=16, **options)
    index = torch.arange(37)
    whole = FlatModel(network(), CPU)
    Trainer(whole, data(), protocol).train(objective(), Work(index, TASK, 3, 16), np.random.default_rng(5))
    model, random = FlatModel(network(), CPU), np.random.default_rng(5)
    trainer = Trainer(model, data(), protocol)
    trainer.train(objective(), Work(index, TASK, 1, 16, total=3), random)
    if handed_over:
        record = trainer.moments()
        trainer = Trainer(model, data(), protocol)
        trainer.restore(record)
    trainer.train(objective(), Work(index, TASK, 2, 16, done=1, total=3), random)
    assert torch.equal(model.vector, whole.vector)
