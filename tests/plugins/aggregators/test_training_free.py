"""The controls that train nothing: the pooled classifier whatever the partition, sent once."""

import pytest
import torch
import torch.nn.functional as F

from fcilbench.engine.data import DeviceImages
from fcilbench.federation.experiment import build
from fcilbench.plugins.aggregators.ncm import Ncm
from fcilbench.plugins.aggregators.ridge import Ridge
from fcilbench.spec.protocol import Partition
from fcilbench.vectors.class_means import MISSING
from fcilbench.vectors.ridge import gcv_strength

METHODS = {
    "ncm": Ncm,
    "ncm-unit": lambda: Ncm(Ncm.Params(unit_features=True)),
    "ridge": Ridge,
    "ridge-fixed": lambda: Ridge(Ridge.Params(ridge=0.1)),
    "lift": lambda: Ridge(Ridge.Params(ridge=0.1, random_features=40)),
}
SETTINGS = {
    "few classes": {"partition": Partition(kind="dirichlet", value=0.05, min_samples=0)},
    "few clients": {"partition": Partition(kind="quantity", value=0.5), "clients": 7, "participation": 0.3},
    "one task": {"partition": Partition(kind="iid"), "tasks": (10,)},
}


@pytest.fixture
def final(play):
    """Returns `final(method, ...)`: weight and bias of the final head."""

    def run(method, **changes):
        play(method, **changes)
        layout = play.server.layout
        weight, bias = play.vector[layout.head].split([layout.classes * layout.features, layout.classes])
        return weight.view(layout.classes, layout.features), bias

    return run


def pooled(experiment):
    """Features of all training samples at the initial model, float64, with labels."""
    federation = build(experiment)
    images: DeviceImages = federation.train
    federation.model.network.eval()
    with torch.no_grad():
        features = federation.model.features(images.plain(torch.arange(len(images))))
    return features.double(), images.labels


def plain_head(name, features, labels):
    """The head of all samples at once, in float64: directions of class means, or ridge regression onto one-hot."""
    if name.startswith("ncm"):
        rows = F.normalize(features, dim=1) if name == "ncm-unit" else features
        return F.normalize(torch.stack([rows[labels == c].mean(dim=0) for c in range(10)]), dim=1)
    gram, targets = features.T @ features, F.one_hot(labels, 10).double()
    strength = gcv_strength(gram, targets.T @ features, len(labels)) if name == "ridge" else 0.1
    level = strength * gram.diagonal().mean() * torch.eye(len(gram)).double()
    return torch.linalg.solve(gram + level, features.T @ targets).T


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", METHODS)
def test_the_head_is_that_of_all_samples_whatever_partition_clients_and_tasks(final, make_experiment, name, setting):
    weight, bias = final(METHODS[name](), **SETTINGS[setting])
    features, labels = pooled(make_experiment(METHODS[name](), tasks=(3, 1, 4, 2)))
    assert features.shape[1] == (40 if name == "lift" else 16)
    assert torch.allclose(weight.double(), plain_head(name, features, labels), rtol=0, atol=1e-6)
    assert bias.tolist() == [0.0] * 10


def test_a_class_that_nobody_has_is_never_the_answer(final):
    """A row of zeros would win wherever all other logits are negative."""

    class Blind(Ncm):
        def statistics(self, client):
            sent = super().statistics(client)
            counts = sent["counts"].clone()
            if client.task.index == 0:
                counts[0] = 0
                kept = (sent["counts"] > 0).nonzero()[:, 0] != 0
                return {"sums": sent["sums"][kept], "counts": counts}
            return sent

    weight, bias = final(Blind(), partition=Partition(kind="iid"))
    assert bias[0] == pytest.approx(MISSING)
    assert weight[0].abs().sum() == 0
    assert bias[1:].tolist() == [0.0] * 9


@pytest.mark.parametrize(
    ("name", "row", "shared"), [("ncm", 16 * 8, 0), ("ridge", 16 * 8, 136 * 8), ("lift", 40 * 8, 820 * 8)]
)
def test_traffic_is_one_head_and_one_report_a_task(play, name, row, shared):
    """Three clients with all ten classes: sums and a 4-byte count a class, one Gram triangle a task."""
    outcome = play(METHODS[name](), partition=Partition(kind="iid"))
    head = 4 * ((row // 8) * 10 + 10)
    assert outcome.cost.bytes_down == 3 * head
    assert outcome.cost.module == head
    assert outcome.cost.bytes_up == 3 * (10 * (row + 4) + 4 * shared)


def test_the_lift_is_seeded_fixed_and_never_sent(make_experiment):
    one, two = (build(make_experiment(METHODS["lift"]())) for _ in range(2))
    lift = one.model.network.extractor.body[1].projection
    assert lift.shape == (16, 40)
    assert torch.equal(lift, two.model.network.extractor.body[1].projection)
    assert len(one.server.vector) == 410


def test_strengths_that_regularise_nothing_are_refused():
    for wrong in (0.0, -1.0, "cv"):
        with pytest.raises(ValueError, match="ridge"):
            Ridge.Params(ridge=wrong)
