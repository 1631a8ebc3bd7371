"""The step on static buffers: padding with weights equals the plain step; capture itself needs a GPU."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fcilbench.api.aggregator import Aggregator
from fcilbench.api.backbone import FeatureExtractor, ImageInput
from fcilbench.api.dataset import Augmentation, Samples
from fcilbench.api.memory import Memory
from fcilbench.api.schedule import Task
from fcilbench.engine.data import DeviceImages
from fcilbench.engine.minibatches import Drawn, Extra, Minibatch, Work
from fcilbench.engine.model import FlatModel, Network
from fcilbench.engine.trainer import CapturedStep, CaptureError, Objective, Trainer
from fcilbench.spec.protocol import Protocol

TASK = Task(1, 2, 3)
PROTOCOL = Protocol(lr=1e-2, weight_decay=0.1)
WORK = Work(torch.arange(37), TASK, 3, 16)


def setting(device="cpu", dropout=0.0):
    torch.manual_seed(0)
    device = torch.device(device)
    body = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.LayerNorm(8), nn.GELU(), nn.Dropout(dropout))
    model = FlatModel(Network(FeatureExtractor(body, 8), 6), device)
    random = np.random.default_rng(0)
    samples = Samples(random.integers(0, 256, (37, 4, 4, 1), dtype=np.uint8), random.integers(2, 5, 37))
    data = DeviceImages(samples, ImageInput(4, 1, (0.5,), (0.5,)), Augmentation(1, flip=True), device)
    return model, data


class Anchored(Aggregator):
    """Reads a context tensor in the loss and in the hook."""

    def loss(self, net, batch, context):
        return super().loss(net, batch, context) + ((net.parameters - context["anchor"]) ** 2).sum()

    def gradient(self, gradient, net, context):
        gradient += net.parameters - context["anchor"]


def objective(model, shift):
    method = Anchored()
    return Objective(method.loss, method.gradient, {"anchor": model.parameters.detach().clone() + shift})


def batch(data, count, seed=1):
    rows = torch.randperm(37, generator=torch.Generator().manual_seed(seed))[:count].to(data.labels.device)
    return Minibatch(rows, data.draw(count, np.random.default_rng(seed)))


def begun(model, data):
    trainer = Trainer(model, data, PROTOCOL)
    trainer.begin(WORK)
    return trainer


def test_buffers_take_every_clients_context():
    model, data = setting()
    first, second = objective(model, 0.1), objective(model, -0.3)
    trainer, minibatch = begun(model, data), batch(data, 16)
    static = CapturedStep(trainer, first, WORK, minibatch)
    assert static.fits(replace(WORK, index=torch.arange(3)), second.context)
    assert not static.fits(WORK, {})
    kept = Drawn(Memory(torch.arange(3), data.labels[:3]), 16, (np.random.default_rng(0),))
    for other in (
        {"task": Task(2, 5, 1)},
        {"batch_size": 8},
        {"extra": Extra(data, np.random.default_rng(0))},
        {"memory": kept},
        {"numbers": (2, np.random.default_rng(0))},
    ):
        assert not static.fits(replace(WORK, **other), second.context)
    static.bind(second.context)
    static(minibatch)
    got, start = model.gradient.clone(), first.context["anchor"] - 0.1
    model.load(torch.cat([start]), model.counters)
    trainer.gradient(second, WORK, minibatch, torch.ones(16))
    assert torch.allclose(got, model.gradient, atol=1e-6)


def test_without_a_gpu_nothing_is_captured():
    model, data = setting()
    trainer = Trainer(model, data, PROTOCOL, capture=True)
    trainer.train(objective(model, 0.1), Work(torch.arange(37), TASK, 1, 16), np.random.default_rng(0))
    assert trainer.notes == []


def test_an_objective_that_cannot_be_captured_falls_back_and_says_so(monkeypatch):
    """The way out on a GPU, with the capture replaced by what CUDA raises for a synchronisation."""
    model, data = setting()
    trainer = Trainer(model, data, PROTOCOL)
    trainer._capture = True
    goal = objective(model, 0.1)
    expected = model.vector.clone()

    def refuse(self):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(CapturedStep, "_captured", refuse)
    trainer.train(goal, Work(torch.arange(37), TASK, 2, 16), np.random.default_rng(0))
    assert trainer.notes == [
        "local steps are not captured in a CUDA graph: operation not permitted when stream is capturing"
    ]
    got = model.vector.clone()
    model.load(expected, model.counters)
    Trainer(model, data, PROTOCOL).train(goal, Work(torch.arange(37), TASK, 2, 16), np.random.default_rng(0))
    assert torch.equal(got, model.vector)


def test_a_capture_with_a_wrong_gradient_is_refused_and_leaves_the_model_alone(monkeypatch):
    model, data = setting()
    minibatch = batch(data, 16)
    static = CapturedStep(begun(model, data), objective(model, 0.1), WORK, minibatch)
    before = model.vector.clone()

    def wrong(self):
        self._once = lambda: self._trainer.model.gradient.fill_(1.0)

    monkeypatch.setattr(CapturedStep, "_captured", wrong)
    with pytest.raises(CaptureError, match="differs from the plain one"):
        static.capture(minibatch)
    assert torch.equal(model.vector, before)


class Replays(Anchored):
    """Reads memo, replayed and remembered samples, random numbers and the step's number too."""

    def loss(self, net, batch, context):
        loss = super().loss(net, batch, context)
        if batch.extra is not None:
            loss = loss + F.cross_entropy(net.logits(batch.extra.inputs), batch.extra.labels)
        for memory in batch.memories:
            kept = F.cross_entropy(net.logits(memory.inputs), memory.labels, reduction="none") * memory.fields["weight"]
            loss = loss + 0.5**batch.step * memory.mean(kept)
        if batch.random is not None:
            noise = batch.random * net.features(batch.inputs)
            loss = loss + batch.mean(noise.sum(dim=1))
        return (
            loss if batch.memo is None else loss + (batch.memo[:, 0] * batch.mask).sum() * net.piece("head.bias").sum()
        )


OPTIONS = {
    "default": {},
    "adamw": {"schedule": "cosine", "clip_norm": 0.5},
    "adam": {"optimizer": "adam", "schedule": "step"},
    "sgd": {"optimizer": "sgd", "momentum": 0.9, "schedule": "cosine"},
}


def trained(options, replayed, capture, device="cpu", force=False):
    """All of two clients' steps, the second of them through buffers that the first has made."""
    model, data = setting(device)
    extra, memory, numbers, train = None, None, None, ("*",)
    if replayed:
        data.memo, train = torch.linspace(0, 1, 37, device=device)[:, None], ("*.weight", "head.*")
    trainer = Trainer(model, data, PROTOCOL.model_copy(update=options), capture, {"head.*": 2.0} if replayed else {})
    trainer._capture |= force
    goal, losses = Replays(), []
    for count, kept in ((37, 20), (20, 5)):  # the second memory is smaller than a draw
        anchor = {"anchor": model.parameters.detach().clone() + 1.0 / count}
        if replayed:
            extra = Extra(data, np.random.default_rng(count))
            positions = torch.arange(kept, device=device)
            own = Memory(positions, data.labels[positions], {"weight": positions / kept})
            memory = Drawn(own, 16, (np.random.default_rng(count), np.random.default_rng(kept)))
            numbers = (8, np.random.default_rng(kept))
        work = Work(torch.arange(count, device=device), TASK, 3, 16, train, extra, memory, numbers)
        losses.append(float(trainer.train(Objective(goal.loss, goal.gradient, anchor), work, np.random.default_rng(0))))
    return model.vector.clone(), losses, trainer.notes


@pytest.mark.parametrize("replayed", [False, True])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_trainer_on_static_buffers_equals_the_plain_one(options, replayed, monkeypatch):
    """Short last batches are padded; schedules, pieces, memo and replay included."""
    monkeypatch.setattr(CapturedStep, "_captured", lambda self: None)
    (plain, losses, _), (static, same, notes) = (
        trained(options, replayed, False, force=force) for force in (False, True)
    )
    assert notes == []
    assert torch.allclose(plain, static, atol=1e-4)
    assert same == pytest.approx(losses, rel=1e-4)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("replayed", [False, True])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_captured_training_equals_plain_training(options, replayed):
    (plain, _, _), (captured, _, notes) = (trained(options, replayed, capture, "cuda") for capture in (False, True))
    assert notes == []
    assert torch.allclose(plain, captured, atol=1e-3)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_loss_that_looks_at_values_is_run_plainly_on_a_gpu():
    """Its dropout still works, and so does the capture of another loss in the same process."""

    class Looks(Aggregator):
        def loss(self, net, batch, context):
            loss = F.cross_entropy(net.logits(batch.inputs)[:, 2:5], batch.labels - 2)
            return loss * (1.0 if loss.item() > 0 else 2.0)

    model, data = setting("cuda", dropout=0.5)
    work = Work(torch.arange(32, device="cuda"), TASK, 2, 16)
    for method, notes in ((Looks(), 1), (Aggregator(), 0)):
        trainer = Trainer(model, data, PROTOCOL, capture=True)
        trainer.train(Objective(method.loss, method.gradient, {}), work, np.random.default_rng(0))
        assert len(trainer.notes) == notes
        assert torch.isfinite(model.vector).all()


def test_a_capture_in_the_middle_of_a_training_run_keeps_its_moments(monkeypatch):
    """A resumed run captures its step anew: warm-up steps must not touch the moments that it goes on from."""

    def warm_up_only(self):
        self._once()

    monkeypatch.setattr(CapturedStep, "_captured", warm_up_only)
    found = []
    for handed_over in (False, True):
        model, data = setting()
        goal, random = objective(model, 0.1), np.random.default_rng(5)
        trainer = Trainer(model, data, PROTOCOL)
        trainer._capture = True
        trainer.train(goal, replace(WORK, epochs=1, total=3), random)
        if handed_over:
            record = trainer.moments()
            trainer = Trainer(model, data, PROTOCOL)
            trainer._capture = True
            trainer.restore(record)
        trainer.train(goal, replace(WORK, epochs=2, done=1, total=3), random)
        found.append(model.vector.clone())
    assert torch.equal(*found)


class StochasticDepth(nn.Module):
    """Leaves out half of the samples of a batch, as timm's DropPath does, which is no nn.Dropout."""

    def forward(self, inputs):
        return inputs * torch.empty(len(inputs), 1).bernoulli_(0.5)


def test_the_gradient_of_a_step_that_draws_is_not_compared(monkeypatch):
    """Networks with stochastic depth were not captured, with a note on a wrong gradient."""
    model, data = setting()
    model.network.extractor.body.append(StochasticDepth())
    static = CapturedStep(begun(model, data), objective(model, 0.1), WORK, batch(data, 16))
    monkeypatch.setattr(CapturedStep, "_captured", lambda self: None)
    monkeypatch.setattr("fcilbench.engine.trainer._TOLERANCE", 1e-6)
    static.capture(batch(data, 16))
