"""The controls that train nothing: the pooled classifier whatever the partition, sent once."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from fcilbench.api.client import Batch
from fcilbench.api.message import unpack_symmetric
from fcilbench.api.server import Updates
from fcilbench.engine.data import DeviceImages
from fcilbench.federation.experiment import build
from fcilbench.plugins.aggregators.ncm import Ncm
from fcilbench.plugins.aggregators.ridge import Ridge
from fcilbench.spec.protocol import Partition
from fcilbench.vectors.class_means import MISSING
from fcilbench.vectors.ridge import solve_ridge

PARTITIONS = (
    Partition(kind="iid"),
    Partition(kind="dirichlet", value=0.05, min_samples=0),
    Partition(kind="quantity", value=0.5),
)
METHODS = {
    "ncm": Ncm,
    "ridge": Ridge,
    "ridge-fixed": lambda: Ridge(Ridge.Params(ridge=0.1)),
    "lift": lambda: Ridge(Ridge.Params(random_features=40)),
}


@pytest.fixture
def final(play):
    """Returns `final(method, ...)`: the outcome, and weight and bias of the final head."""

    def run(method, **changes):
        heads, own = [], method.predictors

        def watch(server):
            heads.append(server.vector[server.layout.head].clone())
            shapes.append((server.layout.classes, server.layout.features))
            return own(server)

        shapes: list[tuple[int, int]] = []
        method.predictors = watch
        outcome = play(method, **changes)
        classes, features = shapes[-1]
        return outcome, heads[-1][: classes * features].view(classes, features), heads[-1][classes * features :]

    return run


def pooled(experiment):
    """Features of all training samples at the initial model, float64, with labels."""
    federation = build(experiment)
    images: DeviceImages = federation.train
    federation.model.network.eval()
    with torch.no_grad():
        features = federation.model.features(images.plain(torch.arange(len(images))))
    return features.double(), images.labels


@pytest.mark.parametrize("name", METHODS)
def test_the_classifier_does_not_depend_on_partition_clients_or_participation(final, name):
    heads = [final(METHODS[name](), partition=partition)[1] for partition in PARTITIONS]
    heads.append(final(METHODS[name](), clients=7, participation=0.3)[1])
    for head in heads[1:]:
        assert torch.allclose(head, heads[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", METHODS)
def test_the_tasks_are_no_matter_for_the_last_classifier(final, name):
    one, two = (final(METHODS[name](), tasks=tasks)[1] for tasks in ((3, 1, 4, 2), (10,)))
    assert torch.allclose(one, two, rtol=0, atol=1e-6)


def test_ncm_is_the_pooled_class_mean(final, make_experiment):
    _, weight, bias = final(Ncm(), partition=PARTITIONS[1])
    features, labels = pooled(make_experiment(Ncm(), tasks=(3, 1, 4, 2)))
    means = torch.stack([features[labels == c].mean(dim=0) for c in range(10)])
    assert torch.allclose(weight.double(), F.normalize(means, dim=1), atol=1e-6)
    assert bias.tolist() == [0.0] * 10
    cosine = F.cosine_similarity(features[:, None], means[None], dim=2)
    assert torch.equal((features.float() @ weight.T + bias).argmax(dim=1), cosine.argmax(dim=1))


def test_unit_features_change_the_mean(final, make_experiment):
    _, weight, _ = final(Ncm(Ncm.Params(unit_features=True)))
    features, labels = pooled(make_experiment(Ncm(), tasks=(3, 1, 4, 2)))
    means = torch.stack([F.normalize(features[labels == c], dim=1).mean(dim=0) for c in range(10)])
    assert torch.allclose(weight.double(), F.normalize(means, dim=1), atol=1e-6)


@pytest.mark.parametrize("size", [0, 40])
def test_ridge_is_the_centralised_solution(final, make_experiment, size):
    method = Ridge(Ridge.Params(ridge=0.1, random_features=size))
    _, weight, _ = final(method, partition=PARTITIONS[1])
    features, labels = pooled(make_experiment(method, tasks=(3, 1, 4, 2)))
    assert features.shape[1] == (size or 16)
    gram = features.T @ features
    level = 0.1 * gram.diagonal().mean() * torch.eye(len(gram)).double()
    expected = torch.linalg.solve(gram + level, features.T @ F.one_hot(labels, 10).double()).T
    assert torch.allclose(weight.double(), expected, rtol=0, atol=1e-6)


def test_ridge_by_the_server_alone_equals_the_pooled_solution_in_float64(make_experiment):
    """Before the head is rounded to float32: Grams and sums of ten uneven shares against those of all samples."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(200, 16, generator=generator, dtype=torch.float64)
    labels = torch.arange(200) % 10
    method = Ridge(Ridge.Params(ridge=0.01))
    server = build(make_experiment(method, tasks=(10,))).server
    method.begin(server)
    messages = []
    for start, stop in zip((0, 1, 9, 50, 120), (1, 9, 50, 120, 200), strict=True):
        batch = Batch(features[start:stop], labels[start:stop], torch.ones(stop - start), server.task)
        net = SimpleNamespace(features=lambda inputs: inputs)
        client = SimpleNamespace(net=net, task=server.task, feature_dim=16, batches=lambda batch=batch: [batch])
        messages.append(method.statistics(client))
    updates = Updates(torch.zeros(5, len(server.vector)), (1,) * 5, tuple(range(5)), tuple(messages), server.layout)
    method.aggregate(updates, server)
    got = solve_ridge(unpack_symmetric(server.state["gram"], 16), server.state["sums"], 0.01)
    level = 0.01 * (features.T @ features).diagonal().mean() * torch.eye(16).double()
    expected = torch.linalg.solve(features.T @ features + level, features.T @ F.one_hot(labels, 10).double()).T
    assert torch.allclose(got, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", METHODS)
def test_real_rounds_learn_and_all_identities_answer(play, name):
    outcome = play(METHODS[name](), partition=PARTITIONS[1])
    assert outcome.metrics["faa/none"].value > 0.5
    assert outcome.metrics["faa/none"].value == outcome.metrics["faa/inferred"].value
    assert outcome.metrics["faa/oracle"].value >= outcome.metrics["faa/none"].value


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

    _, weight, bias = final(Blind(), partition=Partition(kind="iid"))
    assert bias[0] == pytest.approx(MISSING)
    assert weight[0].abs().sum() == 0
    assert bias[1:].tolist() == [0.0] * 9


@pytest.mark.parametrize(
    ("name", "row", "shared"), [("ncm", 16 * 8, 0), ("ridge", 16 * 8, 136 * 8), ("lift", 40 * 8, 820 * 8)]
)
def test_traffic_is_one_model_and_one_report_a_task(play, name, row, shared):
    """Three clients with all ten classes: sums and a 4-byte count a class, one Gram triangle a task."""
    outcome = play(METHODS[name](), partition=Partition(kind="iid"))
    model = 4 * (64 * 16 + 16 + (row // 8) * 10 + 10)
    assert outcome.cost.bytes_down == 3 * model
    assert outcome.cost.bytes_up == 3 * (10 * (row + 4) + 4 * shared)


def test_the_lift_is_seeded_fixed_and_never_sent(make_experiment):
    one, two = (build(make_experiment(METHODS["lift"]())) for _ in range(2))
    lift = one.model.network.extractor.body[1].projection
    assert lift.shape == (16, 40)
    assert torch.equal(lift, two.model.network.extractor.body[1].projection)
    assert len(one.server.vector) == 64 * 16 + 16 + 410
    plain = build(make_experiment(Ridge()))
    assert torch.equal(one.server.vector[:1040], plain.server.vector[:1040])


def test_strengths_that_regularise_nothing_are_refused():
    for wrong in (0.0, -1.0, "cv"):
        with pytest.raises(ValueError, match="ridge"):
            Ridge.Params(ridge=wrong)
