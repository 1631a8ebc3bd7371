"""HGP as a method: mixtures and loss by hand, the refit against a plain one, what moves in a task, bytes."""

import math
from functools import partial

import numpy as np
import pytest
import torch

from fcilbench.api.aggregator import Aggregator, Request
from fcilbench.engine.model import FlatModel
from fcilbench.federation.experiment import build
from fcilbench.federation.visit import uploaded
from fcilbench.plugins.aggregators.ccvr import Gaussians, measure, refit_rows
from fcilbench.plugins.aggregators.hgp import Hgp, Mixture, draw, mixtures_of, normalised_cross_entropy
from fcilbench.spec.protocol import Partition, Protocol


def hgp(**params):
    return Hgp(Hgp.Params(**{"length": 4, "samples": 16, "epochs": 2} | params))


def measured(*classes):
    """Returns the statistics of a client's samples, given as one list of numbers for each class."""
    rows = torch.tensor([[value] for own in classes for value in own], dtype=torch.float64).view(-1, 1)
    labels = torch.tensor([label for label, own in enumerate(classes) for _ in own], dtype=torch.int64)
    return measure([(rows, labels)], len(classes), 1, full=False)


# ---------------------------------------------------------------- mixtures


@pytest.mark.parametrize(("inflate", "variance"), [(1.0, 3.8125), (3.0, 5.4375)])
def test_a_mixture_by_hand(inflate, variance):
    """Weights 3/4 and 1/4, means 0 and 4, variances 1 and 1/4: mean 1, variance .75 (s + 1) + .25 (s / 4 + 9)."""
    mixture = Mixture(
        0, *(torch.tensor(x, dtype=torch.float64) for x in ([0.75, 0.25], [[0.0], [4.0]], [[1.0], [0.5]]))
    )
    found, rows = draw([mixture], 200_000, inflate, np.random.default_rng(0))
    assert rows.unique().tolist() == [0]
    assert found.mean().item() == pytest.approx(1.0, abs=4 * (variance / 200_000) ** 0.5)
    assert found.var().item() == pytest.approx(variance, abs=0.1)


def test_components_by_hand():
    """Class 5: client 0 has 0, 1, 2, client 2 has 5; pooled, mean 2 and variance 14 / 3. Class 7: client 2 has 1, 3."""
    parts = [measured([0, 1, 2], [], []), measured([], [], []), measured([5], [], [1, 3])]
    first, second = mixtures_of(parts, 5)
    assert (first.label, second.label) == (5, 7)
    assert first.weights.tolist() == [0.75, 0.25]
    assert first.means.flatten().tolist() == [1.0, 5.0]
    assert first.roots.flatten().tolist() == pytest.approx([1.0, (14 / 3) ** 0.5], abs=1e-6)
    assert second.weights.tolist() == [1.0]  # one client, one Gaussian
    assert (second.means.item(), second.roots.item()) == (2.0, pytest.approx(2**0.5))


def test_a_class_of_one_sample_has_the_variance_of_the_others():
    alone, other = mixtures_of([measured([4], [1, 3])], 0)
    assert alone.roots.item() == pytest.approx(other.roots.item())
    (only,) = mixtures_of([measured([4])], 0)
    assert only.roots.item() == pytest.approx(1e-4)  # the root of 1e-8


def test_draws_of_whole_covariances_and_of_several_classes():
    covariance = torch.tensor([[4.0, 1.5], [1.5, 1.0]], dtype=torch.float64)
    roots = torch.linalg.cholesky(torch.stack([covariance, 0.25 * covariance]))
    means = torch.tensor([[0.0, 0.0], [50.0, 50.0]], dtype=torch.float64)
    one = Mixture(3, torch.tensor([0.5, 0.5], dtype=torch.float64), means, roots)
    two = Mixture(4, torch.ones(1, dtype=torch.float64), -means[1:], roots[1:])
    found, rows = draw([one, two], 40_000, 3.0, np.random.default_rng(1))
    assert rows.bincount().tolist() == [40_000, 40_000]
    near, far, other = (
        found[(rows == 0) & (found[:, 0] < 25)],
        found[(rows == 0) & (found[:, 0] > 25)],
        found[rows == 1],
    )
    assert len(near) == pytest.approx(20_000, abs=400)
    for samples, scale in ((near, 3.0), (far, 0.75), (other, 0.75)):
        torch.testing.assert_close(samples.T.cov().double(), scale * covariance, rtol=0.06, atol=0.06)
    assert float(other.mean()) == pytest.approx(-50, abs=0.1)


# ---------------------------------------------------------------- loss and refit


def test_the_normalised_loss_by_hand():
    """z = (3, 4) is (6, 8) after the norm and the temperature: log(1 + e^2). Its gradient is orthogonal to z."""
    logits = torch.tensor([[3.0, 4.0]], requires_grad=True)
    loss = normalised_cross_entropy(logits, torch.tensor([0]), 0.1)
    loss.backward()
    assert loss.item() == pytest.approx(2.126928, abs=1e-6)
    assert logits.grad[0].tolist() == pytest.approx([-1.972985, 1.479739], abs=1e-5)
    assert normalised_cross_entropy(7 * logits, torch.tensor([0]), 0.1).item() == pytest.approx(2.126928, abs=1e-6)


def plain_refit(weight, bias, features, params, random):
    """The refit in numpy, with its gradients written out."""
    w, b = weight.double().numpy(), bias.double().numpy()
    speed = [np.zeros_like(w), np.zeros_like(b)]
    for epoch in range(params.epochs):
        rate = 0.5 * params.lr_head * (1 + math.cos(math.pi * epoch / params.epochs))
        x, y = (tensor.numpy() for tensor in features(random))
        order = random.permutation(len(y))
        for start in range(0, len(y), params.batch_size):
            rows = order[start : start + params.batch_size]
            z = x[rows].astype(np.float64) @ w.T + b
            norm = np.linalg.norm(z, axis=1, keepdims=True)
            unit = z / norm
            p = np.exp(unit / params.temperature)
            p /= p.sum(axis=1, keepdims=True)
            p[np.arange(len(rows)), y[rows]] -= 1
            slope = p / params.temperature / len(rows)
            slope = (slope - unit * (slope * unit).sum(axis=1, keepdims=True)) / norm
            speed = [params.momentum * v for v in speed]
            speed = [speed[0] + slope.T @ x[rows], speed[1] + slope.sum(axis=0)]
            w, b = w - rate * speed[0], b - rate * speed[1]
    return w, b


def test_the_refit_is_that_of_a_plain_implementation(make_experiment, tiny_vit):
    """Rows 0, 1 and 4 of a head that is cut by tasks of 3, 1, 4 and 2 classes; all others stay."""
    made = build(make_experiment(hgp(), backbone=tiny_vit(), tasks=(3, 1, 4, 2)))
    server, params = made.server, hgp(samples=20, batch_size=16, epochs=3, lr_head=0.05).params
    before = server.vector.clone()
    torch.manual_seed(0)
    mixtures = [
        Mixture(label, torch.tensor([0.3, 0.7], dtype=torch.float64), *(3 * torch.rand(2, 2, 16, dtype=torch.float64)))
        for label in (0, 1, 4)
    ]
    features = partial(draw, mixtures, params.samples, params.inflate)
    head = torch.nn.Linear(16, 10)
    with torch.no_grad():
        head.weight.copy_(torch.cat([before[p.span].view(-1, 16) for p in server.layout.select(["head.weight.*"])]))
        head.bias.copy_(torch.cat([before[p.span] for p in server.layout.select(["head.bias.*"])]))
    rows = torch.tensor([0, 1, 4])
    expected = plain_refit(
        head.weight[rows].detach(), head.bias[rows].detach(), features, params, np.random.default_rng(5)
    )
    objective = partial(normalised_cross_entropy, temperature=params.temperature)
    refit_rows(server, rows, features, params, np.random.default_rng(5), objective=objective)
    after = torch.cat([server.vector[p.span].view(-1, 16) for p in server.layout.select(["head.weight.*"])])
    np.testing.assert_allclose(after[rows].numpy(), expected[0], atol=1e-5)
    bias = torch.cat([server.vector[p.span] for p in server.layout.select(["head.bias.*"])])
    np.testing.assert_allclose(bias[rows].numpy(), expected[1], atol=1e-5)
    assert (after[rows] != head.weight[rows]).all()
    others = [2, 3, 5, 6, 7, 8, 9]
    assert torch.equal(after[others], head.weight[others])
    assert torch.equal(server.vector[: server.layout.backbone.stop], before[: server.layout.backbone.stop])


# ---------------------------------------------------------------- runs


class Watched(Hgp):
    """Keeps the head at the end of each task, and what the last refit logged."""

    def aggregate(self, updates, server):
        super().aggregate(updates, server)
        self.logs = dict(server.logs)

    def end_task(self, server, statistics):
        super().end_task(server, statistics)
        self.logs |= server.logs
        span = server.layout.head
        self.heads = [*getattr(self, "heads", []), server.vector[span][:160].view(10, 16).clone()]


@pytest.mark.parametrize(("scope", "moved"), [("seen", True), ("current", False)])
@pytest.mark.parametrize("when", ["round", "task_end"])
def test_old_rows_move_by_the_refit_alone(play, tiny_vit, when, scope, moved):
    method = Watched(hgp(when=when, scope=scope).params)
    play(method, backbone=tiny_vit(), tasks=(4, 3, 3), weight_decay=0.1, partition=Partition(kind="iid"))
    first, second, _ = method.heads
    assert torch.equal(first[:4], second[:4]) != moved
    assert torch.equal(first[7:], second[7:])
    assert method.logs["hgp/components"] == 3 * (10 if moved else 3)


@pytest.mark.parametrize("when", ["round", "task_end"])
def test_without_the_refit_it_is_fedavg_on_prompts_bit_for_bit(play, tiny_vit, when):
    class Plain(Hgp):
        aggregate, end_task = Aggregator.aggregate, Aggregator.end_task

        def statistics(self, client):
            return {}

        def wants_task_statistics(self, server):
            return False

    settings = {"backbone": tiny_vit(), "tasks": (5, 5)}
    plain = play(Plain(hgp().params), **settings)
    off = play(hgp(epochs=0, when=when), **settings)
    assert (off.model_digest, off.cost.bytes_up, off.cost.bytes_down) == (
        plain.model_digest,
        plain.cost.bytes_up,
        plain.cost.bytes_down,
    )
    assert play(hgp(when=when), **settings).model_digest != plain.model_digest


def test_one_gaussian_a_class_is_another_refit(play, tiny_vit):
    digests = set()
    for mixture, inflate in (("clients", 3.0), ("merged", 3.0), ("clients", 1.0)):
        method = Watched(hgp(mixture=mixture, inflate=inflate).params)
        settings = {"backbone": tiny_vit(), "tasks": (5, 5), "partition": Partition(kind="iid")}
        digests.add(play(method, **settings).model_digest)
        assert method.logs["hgp/components"] == (30 if mixture == "clients" else 10)
    assert len(digests) == 3


def test_bytes_of_a_run(play, tiny_vit):
    """Up: prompts of 2 x 4 rows of 16, the task's head rows; a count, a mean and a variance of each of its classes.

    Down: everything once, then the prompts and the rows of all classes seen so far.
    """
    settings = {"clients": 2, "partition": Partition(kind="iid"), "backbone": tiny_vit(), "tasks": (3, 3, 2, 2)}
    cost = play(hgp(), **settings).cost
    prompts, row, statistics = 2 * 4 * 16 * 4, 17 * 4, 4 + 2 * 16 * 4
    assert cost.bytes_up == 2 * 2 * (4 * prompts + 10 * (row + statistics))
    seen = 3 + 3 + 6 + 6 + 8 + 8 + 10  # the last round's result is never sent
    assert cost.bytes_down == 2 * (prompts + 10 * row + 7 * prompts + seen * row)


def test_bytes_of_vit_b16(vit_b16):
    """Five prefixes of 200 rows of 768 floats, 3.072 MB, and ten rows; statistics of ten classes 0.061 MB."""
    with torch.device("meta"):
        request = Request("vision", 100, (10,) * 10, 10, Protocol(), {})
        assert Hgp().prepare(vit_b16, request) is None
    layout = FlatModel(vit_b16, torch.device("meta")).layout

    class Server:
        task = type("Task", (), {"index": 3})

    sent = sum(piece.span.stop - piece.span.start for piece in uploaded(Hgp().wire(Server()), layout))
    assert 4 * sent == 3_072_000 + 4 * 7_690
    assert 4e-6 * layout.buffers.stop == pytest.approx(3.380, abs=5e-4)  # down: all rows
    assert 4 * 10 * (1 + 2 * 768) == 61_480


@pytest.mark.parametrize("options", [{}, {"cov": "full", "when": "task_end", "mixture": "merged"}])
def test_an_interrupted_run_ends_bit_equal(play, tiny_vit, options):
    settings = {"partition": Partition(kind="dirichlet", value=0.05, min_samples=0), "backbone": tiny_vit()}
    whole = play(hgp(**options), **settings)
    resumed = play(hgp(**options), 5, **settings)
    assert (whole.model_digest, whole.accuracy) == (resumed.model_digest, resumed.accuracy)
    assert (whole.cost.bytes_up, whole.cost.bytes_down) == (resumed.cost.bytes_up, resumed.cost.bytes_down)


def test_statistics_are_valid_without_samples():
    empty = Gaussians(torch.zeros(2), torch.zeros(2, 1), torch.zeros(2, 1))
    assert mixtures_of([empty], 0) == []
