"""SLDA: the head of all samples whatever the partition, its options and its bytes."""

import pytest
import torch

from fcilbench.federation.experiment import build
from fcilbench.plugins.aggregators.slda import Slda
from fcilbench.spec.protocol import Partition
from fcilbench.vectors.class_means import MISSING
from fcilbench.vectors.lda import oas_shrinkage

UNEVEN = (3, 1, 4, 2)
SETTINGS = {
    "few classes": {"partition": Partition(kind="dirichlet", value=0.05, min_samples=0)},
    "few clients": {"partition": Partition(kind="quantity", value=0.5), "clients": 7, "participation": 0.3},
    "one task": {"partition": Partition(kind="iid"), "tasks": (10,)},
}
OPTIONS = {
    "default": {},
    "absolute": {"relative": False, "shrinkage": 0.05},
    "oas": {"shrinkage": "oas"},
    "base": {"sigma": "base"},
    "priors": {"priors": "counts", "shrinkage": 0.01},
}


@pytest.fixture
def head(play):
    """Returns `head(params, ...)`: weight and bias of the final head, float64."""

    def run(options, **changes):
        run.outcome = play(Slda(Slda.Params(**options)), **changes)
        layout = play.server.layout
        weight, bias = play.vector[layout.head].split([layout.classes * layout.features, layout.classes])
        return weight.view(layout.classes, layout.features).double(), bias.double()

    return run


def pooled(experiment):
    """Features of all training samples at the initial model, float64, with labels."""
    federation = build(experiment)
    federation.model.network.eval()
    with torch.no_grad():
        features = federation.model.features(federation.train.plain(torch.arange(len(federation.train))))
    return features.double(), federation.train.labels


def plain(options, features, labels, base):
    """Scores of all classes for all samples, from the samples themselves."""
    means = torch.stack([features[labels == c].mean(dim=0) for c in range(10)])
    own = labels < base if options.get("sigma") == "base" else labels >= 0
    centred = (features - means[labels])[own]
    sigma = centred.T @ centred / len(centred)
    share, level = options.get("shrinkage", 1e-4), float(sigma.trace()) / len(sigma)
    if share == "oas":
        share = oas_shrinkage(sigma, len(centred))
    elif not options.get("relative", True):
        level = 1.0
    inverse = torch.linalg.inv((1 - share) * sigma + share * level * torch.eye(len(sigma)).double())
    bias = -0.5 * torch.einsum("cf,fg,cg->c", means, inverse, means)
    if "priors" in options:
        bias = bias + (torch.bincount(labels) / len(labels)).log()
    return features @ inverse @ means.T + bias


def same_ranking(weight, bias, features, scores):
    """Compares scores up to what all classes have in common."""
    found = features @ weight.T + bias
    spread = float((scores - scores.mean(dim=1, keepdim=True)).abs().max())
    one, two = found - found.mean(dim=1, keepdim=True), scores - scores.mean(dim=1, keepdim=True)
    assert float((one - two).abs().max()) < 1e-5 * spread


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_head_is_that_of_all_samples_whatever_partition_clients_and_tasks(head, make_experiment, setting):
    weight, bias = head({}, **SETTINGS[setting])
    features, labels = pooled(make_experiment(Slda(), tasks=UNEVEN))
    same_ranking(weight, bias, features, plain({}, features, labels, 3))


@pytest.mark.parametrize("name", OPTIONS)
def test_each_option_is_what_it_says(head, make_experiment, name):
    options = OPTIONS[name]
    weight, bias = head(options)
    features, labels = pooled(make_experiment(Slda(), tasks=UNEVEN))
    same_ranking(weight, bias, features, plain(options, features, labels, 3))


@pytest.mark.parametrize(("sigma", "triangles"), [("exact", 4), ("base", 1)])
def test_traffic_is_one_head_and_one_report_a_task(head, sigma, triangles):
    """Three clients with all ten classes of 16 features: per class a sum and a 4-byte count, 136 numbers a triangle."""
    head({"sigma": sigma}, partition=Partition(kind="iid"))
    cost = head.outcome.cost
    assert cost.bytes_down == 3 * 4 * (10 * 16 + 10)
    assert cost.bytes_up == 3 * (10 * (16 * 8 + 4) + triangles * 136 * 8)
    assert cost.server_state == 8 * (136 + 10 * 16 + 10)
    assert cost.client_state == 0


def test_an_interrupted_run_ends_bit_equal(play):
    whole, cut = (play(Slda(), stop=stop) for stop in (None, 2))
    assert whole.model_digest == cut.model_digest


def test_a_class_that_nobody_has_is_never_the_answer(play):
    class Blind(Slda):
        def statistics(self, client):
            sent = super().statistics(client)
            if client.task.index:
                return sent
            kept = (sent["counts"] > 0).nonzero()[:, 0] != 0
            return {**sent, "sums": sent["sums"][kept], "counts": sent["counts"] * torch.tensor([0, 1, 1])}

    play(Blind(Blind.Params(priors="counts")), partition=Partition(kind="iid"))
    layout = play.server.layout
    bias = play.vector[layout.head][-layout.classes :]
    assert bias[0] == pytest.approx(MISSING)
    assert bool((bias[1:].abs() < 1e6).all())


def test_shrinkage_that_leaves_a_covariance_as_it_is_or_less_is_refused():
    for wrong in (0.0, -0.1, 1.5, "auto"):
        with pytest.raises(ValueError, match="shrinkage"):
            Slda.Params(shrinkage=wrong)
