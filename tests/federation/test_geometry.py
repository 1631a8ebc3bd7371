"""Sharpness, margins and separation by hand, and what a run records of them without another result."""

import json
import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from fcilbench.federation.experiment import build
from fcilbench.federation.geometry import geometry, margins, separation, sharpness
from fcilbench.federation.run import run_experiment
from fcilbench.plugins.aggregators.fedavg import FedAvg
from fcilbench.plugins.aggregators.lorm import LoRM
from fcilbench.plugins.aggregators.sum import Sum
from fcilbench.spec.protocol import Runtime


def doubles(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_sharpness_of_a_linear_loss_is_rho_times_the_norm_of_its_slope():
    """L = 3 a + 4 b has the gradient (3, 4) of norm 5 everywhere: 0.2 * 5; the parts of a loss add up."""
    weights = {"a": doubles(7.0), "b": doubles(-1.0)}
    parts = lambda w: iter([3 * w["a"].sum(), 4 * w["b"].sum()])  # noqa: E731
    assert sharpness(parts, weights, 0.2) == pytest.approx(1.0, abs=1e-12)
    assert weights["a"].tolist() == [7.0]


def test_sharpness_of_a_parabola_and_of_its_minimum():
    """L = w^2 at 3: (3 + 0.2)^2 - 9 = 1.24. At 0 the gradient is 0, and so is the sharpness."""
    square = lambda w: iter([w["w"].square().sum()])  # noqa: E731
    assert sharpness(square, {"w": doubles(3.0)}, 0.2) == pytest.approx(1.24, abs=1e-12)
    assert sharpness(square, {"w": doubles(0.0)}, 0.2) == 0.0


def test_sharpness_of_a_linear_classifier():
    """Two classes, logits (w x, 0), x = 2, class 0, w = 0: L = log(1 + exp(-2 w)) = log 2, gradient -1.

    The loss grows against the gradient's sign: w moves to -0.2, where L = log(1 + exp(0.4)).
    """
    x = doubles(2.0)
    loss = lambda w: iter([cross_entropy(torch.stack([w["w"] * x, 0 * x], dim=1), torch.tensor([0]))])  # noqa: E731
    expected = math.log(1 + math.exp(0.4)) - math.log(2)
    assert sharpness(loss, {"w": doubles(0.0)}, 0.2) == pytest.approx(expected, abs=1e-12)


def test_margins_and_separation_by_hand():
    logits = torch.stack([doubles(3.0, 1.0, 2.0), doubles(0.0, 1.0, 5.0)])
    assert margins(logits, torch.tensor([0, 1])).tolist() == [1.0, -4.0]
    # Mean features (1, 0), (0, 2) and (3, 3): cosines 0, 1 / sqrt 2 and 1 / sqrt 2, so distances 1 - sqrt(2) / 3.
    features = torch.stack([doubles(0.0, 0.0), doubles(2.0, 0.0), doubles(0.0, 2.0), doubles(3.0, 3.0)])
    assert separation(features, torch.tensor([0, 0, 1, 4])) == pytest.approx(1 - math.sqrt(2) / 3, abs=1e-12)
    assert math.isnan(separation(features, torch.tensor([1, 1, 1, 1])))


def test_a_deployed_model_is_measured_as_the_network_itself_says(make_experiment):
    """A second implementation: the resident network, autograd on its flat gradient, all samples in one batch."""
    federation = build(make_experiment(tasks=(4, 6), batch_size=7))
    server, model = federation.server, federation.model
    server.enter(federation.stream.tasks[1], 1)
    server.vector += 0.1 * torch.randn(server.vector.shape, generator=torch.Generator().manual_seed(0))
    metrics, distributions = geometry(federation, federation.experiment.aggregator.predictors(server))
    model.load(server.vector, server.counters)
    model.network.eval()
    inputs, labels = federation.test.plain(torch.arange(len(federation.test))), federation.test.labels
    logits = model.logits(inputs)
    loss = cross_entropy(logits.double(), labels)
    model.gradient.zero_()
    loss.backward()
    moved = server.vector.clone()
    moved[model.layout.trainable] += 0.2 * model.gradient / model.gradient.norm()
    model.load(moved, server.counters)
    expected = cross_entropy(model.logits(inputs).double(), labels) - loss
    assert metrics["sharpness/none"] == pytest.approx(float(expected), rel=1e-4)
    own = [margins(logits.detach()[rows], labels[rows]).mean() for rows in federation.test_index]
    assert distributions["none"]["mean"] == pytest.approx([float(each) for each in own], abs=1e-5)
    assert metrics["margin/none"] == pytest.approx(float(sum(own)) / 2, abs=1e-5)
    second = logits.detach()[federation.test_index[1]][:, 4:], labels[federation.test_index[1]] - 4
    assert distributions["oracle"]["q50"][1] == pytest.approx(float(margins(*second).quantile(0.5)), abs=1e-5)


@pytest.mark.parametrize("method", [FedAvg, Sum, LoRM])  # one model, a module a task, replaced dense weights
def test_an_analysis_is_recorded_and_changes_no_result(make_experiment, tmp_path, method):
    def run(name, **changes):
        (tmp_path / name).mkdir()
        outcome = run_experiment(make_experiment(method(), tasks=2, rounds=3, **changes), tmp_path / name)
        return outcome, [json.loads(line) for line in (tmp_path / name / "rounds.jsonl").read_text().splitlines()]

    plain, _ = run("plain")
    asked, curve = run("asked", runtime=Runtime(analysis=("curve", "geometry")))
    assert (asked.model_digest, asked.accuracy) == (plain.model_digest, plain.accuracy)
    added = {f"{name}/{key}" for name in ("sharpness", "margin", "separation") for key in ("none", "oracle")}
    assert set(asked.metrics) - set(plain.metrics) == added
    assert asked.metrics["sharpness/none"].value > 0
    measured = [(e["task"], e["round"], len(e["accuracy"]["none"])) for e in curve if "round" in e and "accuracy" in e]
    assert measured == [(0, 0, 1), (0, 1, 1), (1, 0, 2), (1, 1, 2)]  # of three rounds the first and the second
    assert set(curve[-1]["margins"]["oracle"]) == {"mean", "q05", "q25", "q50", "q75", "q95"}


def test_a_task_of_one_class_has_no_margin_and_does_not_count(make_experiment):
    """It would add a sharpness of 0, an infinite margin and no separation: `oracle` is the mean of the other one."""
    federation = build(make_experiment(tasks=(9, 1)))
    federation.server.enter(federation.stream.tasks[1], 1)
    metrics, distributions = geometry(federation, FedAvg().predictors(federation.server))
    assert distributions["oracle"]["mean"][1] is None
    assert metrics["margin/oracle"] == pytest.approx(distributions["oracle"]["mean"][0])
    predictors = FedAvg().predictors(federation.server)
    federation.server.tasks = federation.stream.tasks[:1]
    alone, _ = geometry(federation, predictors)
    for metric in ("sharpness/oracle", "separation/oracle"):
        assert metrics[metric] == alone[metric] > 0
    assert metrics["separation/none"] is not None
