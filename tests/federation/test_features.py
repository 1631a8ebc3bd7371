"""Features of test samples are computed once while the backbone stays the same, and never outlive a change of it."""

import torch

from fcilbench.federation.build import build
from fcilbench.federation.evaluation import evaluate
from fcilbench.federation.run import run_experiment
from fcilbench.plugins.aggregators.fedavg import FedAvg
from fcilbench.plugins.aggregators.ncm import Ncm


def counted(federation):
    """Counts the samples that go through the backbone, not through the head."""
    seen = []
    hook = federation.model.network.extractor.register_forward_hook(lambda _, inputs, __: seen.append(len(inputs[0])))
    return seen, hook


def logits(federation, vector):
    memory, index = federation.features, federation.test_index[0]
    memory.load(vector, federation.server.counters)
    with torch.no_grad():
        return memory.logits(0, federation.test, index, 10)


def plain(federation, vector):
    federation.model.load(vector, federation.server.counters)
    federation.model.network.eval()
    with torch.no_grad():
        return federation.model.logits(federation.test.plain(federation.test_index[0]))[:, :10]


def test_another_head_costs_no_forward_pass(make_experiment, norm_backbone):
    federation = build(make_experiment(backbone=norm_backbone))
    federation.features.forget_trained()
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
    federation.features.forget_trained()
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
    federation.features.forget_trained()
    before = logits(federation, theta)
    theta += 0.1
    federation.features.forget_trained()
    after = logits(federation, theta)
    assert not torch.equal(before, after)
    assert torch.equal(after, plain(federation, theta))


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


def test_what_is_remembered_changes_no_accuracy(make_experiment):
    """Evaluating twice, the second time from memory, and once with nothing to remember."""
    federation = build(make_experiment(FedAvg()))
    federation.experiment.aggregator.begin(federation.server)
    predictors = federation.experiment.aggregator.predictors(federation.server)
    first = evaluate(federation, predictors)
    assert evaluate(federation, predictors) == first
    federation.features._under = None
    federation.features._features.clear()
    assert evaluate(federation, predictors) == first


def test_no_vector_of_a_trained_backbone_is_held_while_training_goes_on(make_experiment):
    federation = build(make_experiment())
    theta = federation.server.vector
    theta += 0.1
    logits(federation, theta)
    federation.features.forget_trained()
    assert federation.features._under is None
    assert federation.features._features == {}
