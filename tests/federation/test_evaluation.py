"""Deployed modules on test samples: features are computed once, frozen tensors deployed, odd modules refused."""

import math
from dataclasses import dataclass, replace

import pytest
import torch

from fcilbench.api.aggregator import Aggregator
from fcilbench.api.backbone import FeatureExtractor
from fcilbench.api.predict import AllClasses, Module, MostConfident, Predictors, log_odds
from fcilbench.errors import PluginError
from fcilbench.federation.evaluation import Picker, auroc
from fcilbench.federation.experiment import build
from fcilbench.federation.run import run_experiment
from fcilbench.plugins.aggregators.ncm import Ncm


def counted(federation):
    """Counts the samples that go through the backbone, not through the head."""
    seen = []
    hook = federation.model.network.extractor.register_forward_hook(lambda _, inputs, __: seen.append(len(inputs[0])))
    return seen, hook


def logits(federation, built):
    evaluator, index = federation.evaluator, federation.test_index[0]
    net = evaluator._deploy("it", Predictors({"it": lambda: built}))
    return evaluator._logits(net, 0, federation.test, index, 10)


def plain(federation, vector):
    federation.model.load(vector, federation.server.counters)
    federation.model.network.eval()
    with torch.no_grad():
        return federation.model.logits(federation.test.plain(federation.test_index[0]))[:, :10]


def accuracy(federation, predictors):
    return federation.evaluator.accuracy(predictors, federation.server.tasks, ("none",))


def test_another_head_costs_no_forward_pass(make_experiment, norm_backbone):
    federation = build(make_experiment(backbone=norm_backbone))
    start, head = federation.initial, federation.model.layout.head
    first = logits(federation, start)
    seen, hook = counted(federation)
    other = start.clone()
    other[head] *= -2.0
    second = logits(federation, other)
    hook.remove()
    assert seen == []
    assert torch.equal(first, plain(federation, start))
    assert torch.equal(second, plain(federation, other))
    assert not torch.equal(first, second)


def test_another_backbone_or_other_buffers_are_run_anew(make_experiment, norm_backbone):
    federation = build(make_experiment(backbone=norm_backbone))
    parts = federation.model.layout
    for part in (parts.backbone, parts.buffers):
        logits(federation, federation.initial)
        moved = federation.initial.clone()
        moved[part] += 0.5
        assert torch.equal(logits(federation, moved), plain(federation, moved))
        assert not torch.equal(logits(federation, moved), logits(federation, federation.initial))


def test_a_vector_that_is_trained_in_place_between_evaluations_is_not_mistaken_for_itself(make_experiment):
    federation = build(make_experiment())
    theta = federation.server.vector
    theta += 0.1
    before = logits(federation, theta)
    federation.evaluator.forget_trained()
    theta += 0.1
    assert not torch.equal(before, logits(federation, theta))
    federation.evaluator.forget_trained()
    assert torch.equal(logits(federation, theta), plain(federation, theta))
    federation.evaluator.forget_trained()
    assert federation.evaluator._under is None
    assert federation.evaluator._features == {}


def test_a_control_on_frozen_features_sees_every_test_image_once(make_experiment, tmp_path, monkeypatch):
    from fcilbench.federation import run as run_module

    passes = []

    def built(*arguments):
        federation = build(*arguments)
        federation.model.network.extractor.register_forward_hook(lambda _, inputs, __: passes.append(len(inputs[0])))
        return federation

    monkeypatch.setattr(run_module, "build", built)
    federation = build(make_experiment(Ncm()))
    run_experiment(make_experiment(Ncm()), tmp_path)
    assert sum(passes) == len(federation.train) + len(federation.test)


class Frozen(Aggregator):
    """A frozen dense layer W0 in front of the head, which a module may replace."""

    def prepare(self, network, request):
        body = network.extractor.body
        body[1].requires_grad_(False)
        network.extractor = FeatureExtractor(body, 16)


def test_a_frozen_tensor_is_deployed_and_taken_out_again(make_experiment):
    """Features of the replaced layer; the vector holds the head alone, and the network is as it was afterwards."""
    federation = build(make_experiment(Frozen()))
    name, layer = "extractor.body.1.weight", federation.model.network.extractor.body[1]
    assert len(federation.initial) == 10 * 16 + 10
    own, dense = layer.weight.detach().clone(), torch.randn(16, 64, generator=torch.Generator().manual_seed(1))
    start = logits(federation, federation.initial)
    seen, hook = counted(federation)
    merged = logits(federation, Module(federation.initial, {name: dense}))
    assert len(seen) == 1  # other features
    assert torch.equal(logits(federation, Module(federation.initial, {name: dense.clone()})), merged)
    assert len(seen) == 1  # the same ones
    hook.remove()
    assert torch.equal(layer.weight, own)
    assert torch.equal(logits(federation, federation.initial), start)
    with torch.no_grad():
        layer.weight.copy_(dense)
    assert torch.equal(plain(federation, federation.initial), merged)
    for bad in ({"head.weight": torch.zeros(10, 16)}, {name: torch.zeros(2, 2)}, {"nothing": torch.zeros(1)}):
        with pytest.raises(ValueError, match="no frozen tensor"):
            logits(federation, Module(federation.initial, bad))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_module_that_is_not_finite_is_the_plugins_fault(make_experiment, value):
    federation = build(make_experiment(Frozen()))
    bad = federation.initial.clone()
    bad[3] = value
    frozen = {"extractor.body.1.weight": torch.full((16, 64), value)}
    for module in (bad, Module(federation.initial, frozen)):
        predictors = Predictors({"global": lambda module=module: module}, {"none": AllClasses()})
        with pytest.raises(PluginError, match="'global' has values that are not finite"):
            accuracy(federation, predictors)


@pytest.mark.parametrize("rule", [AllClasses(), MostConfident()])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_logits_of_nan_and_infinity_are_wrong_answers(make_experiment, rule, sign):
    """Finite weights overflow in the network. Label 0 is where the argmax of equal values and of NaN points."""
    federation = build(make_experiment())
    huge, head = federation.initial * 1e3, federation.model.layout.head
    huge[head] = 3e38
    huge[head][1::2] *= sign  # infinity minus infinity
    found = accuracy(federation, Predictors({"global": lambda: huge}, {"none": rule}))
    assert torch.equal(federation.test.labels[federation.test_index[0]].unique(), torch.tensor([0, 1]))
    assert found == {"none": [0.0]}
    assert federation.evaluator.unanswered


@dataclass(frozen=True)
class NearestMean:
    """Ten lines of a third party: the class whose mean feature `[C, F]` is nearest, within the true task if told."""

    means: torch.Tensor
    features = True

    def modules(self, tasks, true):
        return ("global",)

    def __call__(self, logits, tasks, true, features):
        (own,) = features.values()
        assert len(own) == len(logits["global"])
        low, high = (true.offset, true.seen) if true else (0, tasks[-1].seen)
        return torch.cdist(own, self.means[low:high]).argmin(dim=1) + low


def test_a_decision_rule_may_read_features(make_experiment, norm_backbone):
    """Against the same rule on features from a plain forward pass, for every identity and under a selector's picks."""
    federation = build(make_experiment(backbone=norm_backbone))
    stream, server = federation.stream.tasks, federation.server
    server.enter(stream[-1], len(stream) - 1)
    federation.model.load(federation.initial, server.counters)
    federation.model.network.eval()
    with torch.no_grad():
        inputs = federation.test.plain(torch.arange(len(federation.test)))
        plain_features = federation.model.network.extractor(inputs)
    means = torch.randn(10, plain_features.shape[1], generator=torch.Generator().manual_seed(0))
    rule = NearestMean(means)
    predictors = Predictors({"global": lambda: federation.initial}, dict.fromkeys(("none", "inferred", "oracle"), rule))
    picker = Picker(lambda samples, tasks: torch.arange(len(samples.features)) % len(tasks), heads=False, under=None)
    found = federation.evaluator.accuracy(
        predictors, server.tasks, ("none", "oracle", "inferred:mine"), {"inferred:mine": picker}
    )
    for task in server.tasks:
        rows = federation.test_index[task.index]
        labels, distances = federation.test.labels[rows], torch.cdist(plain_features[rows], means)
        assert found["none"][task.index] == float((distances.argmin(1) == labels).double().mean())
        within = distances[:, task.classes].argmin(1) + task.offset
        assert found["oracle"][task.index] == float((within == labels).double().mean())
        picked = [server.tasks[i % len(server.tasks)] for i in range(len(rows))]
        answers = [int(d[t.classes].argmin()) + t.offset for d, t in zip(distances, picked, strict=True)]
        right = sum(answer == label for answer, label in zip(answers, labels.tolist(), strict=True))
        assert found["inferred:mine"][task.index] == right / len(rows)


def test_missing_rules_and_modules_are_named(make_experiment):
    federation = build(make_experiment())
    with pytest.raises(PluginError, match="no rule for task identity 'none'"):
        accuracy(federation, Predictors({}))
    with pytest.raises(PluginError, match=r"module 'a' but deploys \['b'\]"):
        accuracy(federation, Predictors({"b": lambda: federation.initial}, {"none": AllClasses("a")}))


def test_a_final_model_that_is_not_finite_fails_the_cell(make_experiment, tmp_path):
    class Spoils(Aggregator):
        def aggregate(self, updates, server):
            server.vector.fill_(float("nan"))

        def predictors(self, server):
            return replace(super().predictors(server), modules={"global": lambda: torch.zeros_like(server.vector)})

    with pytest.raises(PluginError, match="global model that is not finite after task 1"):
        run_experiment(make_experiment(Spoils()), tmp_path)


class Doubled(FeatureExtractor):
    def outputs(self, inputs, context):
        found = super().outputs(inputs, context)
        return {"features": found["features"] * context["memo"].mean(dim=1, keepdim=True)} if context else found


class Asks(Aggregator):
    """Scales features by what the initial network says of a sample."""

    def prepare(self, network, request):
        network.extractor = Doubled(network.extractor.body, 16)

    def query(self, net, inputs):
        return net.features(inputs)


def test_the_memo_of_a_test_sample_reaches_the_network(make_experiment):
    federation = build(make_experiment(Asks()))
    rows = federation.test_index[0]
    start, net = federation.initial, federation.model.under(federation.initial)
    features = net.features(federation.test.plain(rows))
    assert torch.allclose(federation.test.memo[rows], features, atol=1e-6)  # other samples share its batch there
    expected = net.head(features * features.mean(dim=1, keepdim=True))
    assert torch.allclose(logits(federation, start), expected, atol=1e-6)
    assert federation.train.memo.shape == (len(federation.train), 16)


def test_auroc_by_hand():
    # Pairs: (.9 > .8), (.9 > .1), (.8 = .8: one half), (.8 > .1): 3.5 of 4.
    assert auroc(torch.tensor([0.9, 0.8]), torch.tensor([0.8, 0.1])) == pytest.approx(3.5 / 4)
    assert auroc(torch.tensor([0.1]), torch.tensor([0.9])) == 0.0


def test_samples_are_ordered_by_probabilities_that_round_to_one():
    inside, outside = torch.tensor([[60.0, 0.0, 0.0], [0.0, 40.0, 0.0]]), torch.tensor([[0.0, 0.0, 30.0]])
    assert torch.cat([inside, outside]).softmax(dim=1).amax(dim=1).tolist() == [1.0, 1.0, 1.0]
    assert auroc(log_odds(inside, torch.tensor([0, 1])), log_odds(outside, torch.tensor([2]))) == 1.0


def test_log_odds_by_hand():
    # p = 4/6 and 1/6; a class that is masked out; one class alone is certain; NaN and inf have no probability.
    logits, first = torch.tensor([[4.0, 1.0, 1.0], [4.0, 1.0, 0.0]]).log(), torch.tensor([0, 0])
    assert log_odds(logits, first).tolist() == pytest.approx([math.log(2), math.log(4)])
    assert log_odds(logits[:1], torch.tensor([2])).tolist() == pytest.approx([math.log(1 / 5)])
    assert log_odds(torch.tensor([[3.0]]), first[:1]).tolist() == [torch.finfo(torch.float32).max]
    assert log_odds(torch.tensor([[math.inf, 0.0], [math.nan, 0.0]]), first).isnan().all()


def test_edge_4_the_head_of_a_bf16_evaluation_is_float32(make_experiment):
    """Edge case 4: a head of 92.5 % in float32 had 89.3 % under autocast."""
    federation = build(make_experiment(precision="bf16"))
    found = logits(federation, federation.initial)
    (features,), head = federation.evaluator._features.values(), federation.model.network.head
    assert found.dtype == torch.float32
    assert torch.equal(found, torch.nn.functional.linear(features, head.weight, head.bias)[:, :10])
