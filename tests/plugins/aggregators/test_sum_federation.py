"""SUM in a real federation: what its selectors learn and send."""

import pytest
import torch

from fcilbench.federation.experiment import build
from fcilbench.plugins.aggregators.ridge import Ridge
from fcilbench.plugins.aggregators.sum import Sum


@pytest.mark.parametrize(("name", "floats", "gram"), [("prototype", 4, 0), ("ridge", 8, 8)])
def test_what_a_selector_learns_is_sent_once_a_task_and_counted(play, make_experiment, name, floats, gram):
    """Sums in float32 or float64 with int64 counts; for ridge regression a triangle in float64 too."""
    plain, chosen = play(Sum()), play(Sum(Sum.Params(selector=name)))
    federation = build(make_experiment(tasks=(3, 1, 4, 2)))
    features, up = federation.server.layout.features, 0
    for phase in federation.schedule.phases:
        one = phase.task.size * (features * floats + 8) + features * (features + 1) // 2 * gram
        up += one * sum(len(own) > 0 for own in phase.clients)
    assert chosen.cost.bytes_up - plain.cost.bytes_up == up
    assert chosen.cost.bytes_down == plain.cost.bytes_down  # theta_pre is the first model that a client received
    assert chosen.accuracy["oracle"] == plain.accuracy["oracle"]


def test_prototypes_are_class_means_of_pretrained_features(play, make_experiment):
    settings = {"tasks": (3, 7), "participation": 0.67, "rounds": 3}
    play(Sum(Sum.Params(selector="prototype")), **settings)
    server, federation = play.server, build(make_experiment(**settings))
    federation.model.load(federation.initial, federation.model.counters)
    federation.model.network.eval()
    with torch.no_grad():
        everything = torch.arange(len(federation.train))
        features, labels = federation.model.features(federation.train.plain(everything)), federation.train.labels
    counts = server.state["frozen_counts"]
    assert 0 < int(counts.sum()) <= len(labels)
    for label in counts.nonzero()[:, 0].tolist():
        mine = features[labels == label]
        if int(counts[label]) == len(mine):
            mean = server.state["frozen_sums"][label] / counts[label]
            assert torch.allclose(mean.float(), mine.mean(0), atol=1e-5)
    theta = Sum(Sum.Params(selector="prototype")).predictors(server).modules["frozen"]()
    assert torch.equal(theta[server.layout.backbone], federation.initial[server.layout.backbone])


def test_the_ridge_selector_solves_what_ridge_solves(play):
    heads = {}
    for method in (Sum(Sum.Params(selector="ridge")), Ridge()):
        play(method, tasks=(3, 7))
        name = "frozen" if isinstance(method, Sum) else "global"
        heads[name] = method.predictors(play.server).modules[name]()[play.server.layout.head]
    assert torch.allclose(heads["frozen"], heads["global"], rtol=0, atol=1e-5)
