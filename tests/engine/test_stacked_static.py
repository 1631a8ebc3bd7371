"""Stacked clients on static buffers equal those in plain stacks; capture itself needs a GPU."""

import numpy as np
import pytest
import torch
from torch import nn

from fcilbench.api.aggregator import Aggregator
from fcilbench.api.backbone import FeatureExtractor, ImageInput
from fcilbench.api.dataset import Augmentation, Samples
from fcilbench.api.task import Task
from fcilbench.engine import stacked_static
from fcilbench.engine.flat import FlatModel
from fcilbench.engine.images import DeviceImages
from fcilbench.engine.network import Network
from fcilbench.engine.stacked import StackedTrainer, StackError
from fcilbench.engine.stacked_static import StaticStack, halves
from fcilbench.engine.training import Objective, Work
from fcilbench.spec.protocol import Protocol

TASK, OTHER = Task(1, 2, 3), Task(2, 5, 1)
SIZES = (5, 40, 17, 1, 60)  # 1, 3, 2, 1 and 4 steps a pass
PROTOCOL = Protocol(lr=1e-3, batch_size=16, weight_decay=0.1)


class Anchored(Aggregator):
    """A tensor that all clients share, one that each has of its own, in the loss and in the hook."""

    def loss(self, net, batch, context):
        penalty = ((net.parameters - context["state/anchor"]) ** 2).sum()
        return super().loss(net, batch, context) + 0.3 * penalty + 0.1 * (net.parameters * context["slope"]).sum()

    def gradient(self, gradient, theta, context):
        gradient += 0.2 * (theta - context["slope"])


def setting(device="cpu", size=5):
    torch.manual_seed(0)
    device, random = torch.device(device), np.random.default_rng(0)
    body = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh())
    model = FlatModel(Network(FeatureExtractor(body, 8), 6), device)
    labels = random.integers(2, 5, sum(SIZES))
    labels[:5] = 5  # the other task's
    pixels = random.integers(0, 256, (sum(SIZES), 8, 8, 1), dtype=np.uint8)
    spec = ImageInput(8, 1, (0.5,), (0.5,))
    data = DeviceImages(Samples(pixels, labels), spec, Augmentation(crop_padding=1, flip=True), device)
    return model, StackedTrainer(model, data, PROTOCOL, size)


def clients(model, shift=0.0, method=None):
    method = method or Anchored()
    start, slope = model.vector.detach().clone(), torch.full_like(model.vector, 0.1 + shift)
    contexts = [{"slope": slope, "state/anchor": start * (1 + 0.1 * k + shift)} for k in range(len(SIZES))]
    return [Objective(method.loss, method.gradient, context) for context in contexts]


def works(device="cpu"):
    parts = torch.arange(sum(SIZES), device=device).split(SIZES)
    # The other task's samples are nobody's, and position 0 is one of them.
    return [Work(part[5:] if k == 0 else part, TASK, 2, 16) for k, part in enumerate(parts) if k]


def rounds(device="cpu", capture=False, size=5):
    """Two rounds with different contexts."""
    model, trainer = setting(device, size)
    trainer._capture = capture
    start, found = model.vector.clone(), []
    for number in range(2):
        objectives = clients(model, 0.2 * number)[1:]
        randoms = [np.random.default_rng(10 * number + k) for k in range(len(objectives))]
        losses = trainer.train(start, objectives, works(device), randoms)
        found.append((trainer.vectors[: len(objectives)].clone(), losses))
        model.load(start, model.counters)
    return found, trainer


@pytest.fixture
def uncaptured(monkeypatch):
    """Everything about captured steps but the capture, which is a step as it is."""
    monkeypatch.setattr(StaticStack, "_capture", lambda self, slots: None)


def same(found, expected):
    for (vectors, losses), (others, other_losses) in zip(found, expected, strict=True):
        assert torch.allclose(vectors, others, atol=2e-5)
        assert torch.allclose(losses, other_losses, rtol=1e-5)


@pytest.mark.parametrize("size", [4, 7])
@pytest.mark.parametrize("worth", [1, 3])
def test_buffers_and_slots_change_no_client(monkeypatch, uncaptured, size, worth):
    """With 4 slots a smaller graph takes over, with 7 some slots never have a client."""
    monkeypatch.setattr(stacked_static, "WORTH", worth)
    expected, _ = rounds(size=size)
    found, trainer = rounds(capture=True, size=size)
    assert trainer.notes == []
    assert trainer._static is not None
    assert trainer._static._graphs
    same(found, expected)


def test_a_round_that_is_not_worth_a_graph_is_run_plainly(uncaptured):
    expected, _ = rounds()
    found, trainer = rounds(capture=True)
    assert trainer._static._graphs == {}
    same(found, expected)


def test_half_of_the_slots_serve_half_of_the_clients():
    assert halves(10) == [(10, 5), (5, 3), (3, 2), (2, 0)]
    assert halves(2) == [(2, 0)]
    assert halves(3) == [(3, 2), (2, 0)]


def test_finished_slots_may_overflow(monkeypatch, uncaptured):
    """Their model is copied out before, and their loss counts nothing."""

    class Explodes(Anchored):
        def loss(self, net, batch, context):
            empty = 1.0 - batch.mask.amax()
            return super().loss(net, batch, context) + empty * 1e30 * (1e30 * net.parameters.square().sum())

    monkeypatch.setattr(stacked_static, "WORTH", 1)
    monkeypatch.setattr(stacked_static, "halves", lambda size: [(size, 0)])
    results = []
    for method in (Anchored(), Explodes()):
        model, trainer = setting()
        trainer._capture = True
        randoms = [np.random.default_rng(k) for k in range(4)]
        losses = trainer.train(model.vector.clone(), clients(model, method=method)[1:], works(), randoms)
        results.append((trainer.vectors[:4].clone(), losses))
    assert torch.isfinite(results[0][0]).all()
    same(results[1:], results[:1])


def test_what_cannot_be_captured_falls_back_and_says_so(monkeypatch):
    def refuse(self, slots):
        self._once(slots)
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(StaticStack, "_capture", refuse)
    monkeypatch.setattr(stacked_static, "WORTH", 1)
    expected, _ = rounds()
    found, trainer = rounds(capture=True)
    same(found, expected)
    reason = "operation not permitted when stream is capturing"
    assert trainer.notes == [f"stacked steps are not captured in a CUDA graph: {reason}"]


def test_a_wrong_captured_gradient_is_refused(monkeypatch):
    def wrong(self, slots):
        self._once = lambda slots: self._step.gradients.fill_(1.0)

    monkeypatch.setattr(StaticStack, "_capture", wrong)
    monkeypatch.setattr(stacked_static, "WORTH", 1)
    expected, _ = rounds()
    found, trainer = rounds(capture=True)
    assert "the captured gradient differs from the plain one" in trainer.notes[0]
    same(found, expected)


def test_a_batched_gradient_that_is_not_the_plain_one_is_refused_before_a_capture(monkeypatch, uncaptured):
    class Counts(Anchored):
        calls = 0

        def loss(self, net, batch, context):
            type(self).calls += 1
            return super().loss(net, batch, context) * type(self).calls

    monkeypatch.setattr(stacked_static, "WORTH", 1)
    model, trainer = setting()
    trainer._capture = True
    randoms = [np.random.default_rng(k) for k in range(4)]
    with pytest.raises(StackError, match="batched gradient differs"):
        trainer.train(model.vector.clone(), clients(model, method=Counts())[1:], works(), randoms)


def test_another_task_batch_size_or_context_needs_other_buffers(monkeypatch, uncaptured):
    monkeypatch.setattr(stacked_static, "WORTH", 1)
    model, trainer = setting()
    trainer._capture = True
    seen = []
    plain = [Objective(Aggregator().loss, Aggregator().gradient, {})] * 4
    for objectives, task, batch_size in (
        (plain, TASK, 16),
        (plain, TASK, 16),
        (plain, TASK, 8),
        (clients(model)[1:], TASK, 8),
        (plain[:1], OTHER, 8),
    ):
        own = [Work(torch.arange(5), OTHER, 2, 8)] if task == OTHER else works()
        own = [Work(work.index, task, 2, batch_size) for work in own]
        trainer.train(model.vector.clone(), objectives, own, [np.random.default_rng(0)] * len(own))
        seen.append(trainer._static)
    assert seen[0] is seen[1]
    assert len({id(static) for static in seen}) == 4


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("size", [4, 7])
def test_captured_stacks_equal_plain_stacks(monkeypatch, size):
    monkeypatch.setattr(stacked_static, "WORTH", 1)
    expected, _ = rounds("cuda", size=size)
    found, trainer = rounds("cuda", capture=True, size=size)
    assert trainer.notes == []
    assert all(graph is not None for graph in trainer._static._graphs.values())
    for (vectors, losses), (others, other_losses) in zip(found, expected, strict=True):
        assert torch.allclose(vectors, others, atol=1e-3)
        assert torch.allclose(losses, other_losses, rtol=1e-3)
