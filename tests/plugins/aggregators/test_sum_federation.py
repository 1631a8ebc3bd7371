"""SUM in a real federation: faults of clients, resume, what the selectors learn and send."""

from dataclasses import replace

import pytest
import torch

from fcilbench.api.stressor import Stressor
from fcilbench.federation.experiment import build
from fcilbench.plugins.aggregators.ridge import Ridge
from fcilbench.plugins.aggregators.sum import Sum


class Broken(Stressor):
    """Client 1 sends NaN."""

    def affected(self, clients, random):
        return (1,)

    def upload(self, message, random):
        return message | {"delta": torch.full_like(message["delta"], torch.nan)}


def test_a_client_that_sends_nan_is_left_out_with_a_counted_warning(play):
    outcome = play(Sum(), stressor=Broken())
    assert any("not finite" in warning for warning in outcome.warnings)
    # The same, to the last bit, as a merge that never sees client 1.
    assert outcome.model_digest == play(Without1()).model_digest != play(Sum()).model_digest
    assert outcome.accuracy == play(Without1()).accuracy


class Without1(Sum):
    """SUM over all clients but client 1."""

    def aggregate(self, updates, server):
        kept = [row for row, client in enumerate(updates.clients) if client != 1]
        take = {
            name: tuple(getattr(updates, name)[row] for row in kept) for name in ("samples", "clients", "statistics")
        }
        super().aggregate(replace(updates, delta=updates.delta[kept], **take), server)


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


def test_storage_shrinks_the_server_state(play):
    sizes = {kind: play(Sum(Sum.Params(storage=kind))).cost.server_state for kind in ("fp32", "fp16", "int8")}
    assert sizes["fp32"] > sizes["fp16"] > sizes["int8"]
