"""Robust and private methods in real rounds under `sign-flip` and `scale`: what their mathematics promises."""

import pytest
import torch

from fcilbench.federation.experiment import build
from fcilbench.plugins.aggregators.dp_fedavg import DpFedAvg
from fcilbench.plugins.aggregators.fedavg import FedAvg
from fcilbench.plugins.aggregators.geometric_median import GeometricMedian
from fcilbench.plugins.aggregators.krum import Krum, MultiKrum
from fcilbench.plugins.aggregators.signsgd import SignSgd
from fcilbench.plugins.aggregators.trimmed_mean import Median, TrimmedMean
from fcilbench.plugins.stressors.clients import Scale, SignFlip
from fcilbench.plugins.stressors.none import NoStress
from fcilbench.spec.protocol import Partition

FIVE = {"clients": 5, "partition": Partition(kind="iid"), "local_epochs": 3}
ATTACKS = {"sign-flip": (SignFlip, 30.0), "scale": (Scale, 1e4)}


def made(cls, **params):
    return cls(cls.Params(**params))


def attack(name, clients=1):
    cls, factor = ATTACKS[name]
    return made(cls, clients=clients, factor=factor)


@pytest.fixture
def first(make_experiment, one_round):
    """Returns `first(method, stressor)`: the step of a first round, and the updates of honest clients and of others."""

    def play(method, stressor=None):
        federation = build(make_experiment(method, stressor=stressor or NoStress(), **FIVE))
        method.begin(federation.server)
        before = federation.server.vector.clone()
        rows = one_round(federation).clone()
        bad = sorted(federation.channel.affected)
        return federation.server.vector - before, rows[[i for i in range(5) if i not in bad]], rows[bad]

    return play


def outside(step, honest):
    """Returns by how much a step leaves the range of the honest updates in any coordinate."""
    return torch.maximum(honest.amin(0) - step, step - honest.amax(0)).max().item()


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("method", [made(TrimmedMean), Median()], ids=["trimmed-mean", "median"])
def test_trimmed_mean_and_median_stay_between_honest_updates(first, method, name):
    step, honest, _ = first(method, attack(name))
    assert outside(step, honest) < 1e-7
    step, honest, bad = first(FedAvg(), attack(name))
    assert outside(step, honest) > 0.1 * bad.abs().max()


@pytest.mark.parametrize("name", ATTACKS)
def test_krum_takes_an_honest_update_and_multi_krum_two(first, name):
    step, honest, _ = first(made(Krum), attack(name))
    assert sum(bool(torch.allclose(step, row, atol=1e-7)) for row in honest) == 1
    step, honest, _ = first(made(MultiKrum), attack(name))
    pairs = [(honest[i] + honest[j]) / 2 for i in range(4) for j in range(i)]
    assert sum(bool(torch.allclose(step, pair, atol=1e-7)) for pair in pairs) == 1


@pytest.mark.parametrize("name", ATTACKS)
def test_the_geometric_median_stays_within_its_bound(first, name):
    """One of five equal weights: within 2 (1 - 0.2) / (1 - 0.4) = 8 / 3 of the honest clients' spread."""
    step, honest, bad = first(made(GeometricMedian, weighting="uniform"), attack(name))
    centre = honest.mean(0)
    spread = (honest - centre).norm(dim=1).max()
    assert (step - centre).norm() <= 8 / 3 * spread
    mean, _, _ = first(made(GeometricMedian, weighting="uniform", steps=0), attack(name))
    assert (mean - centre).norm() > 8 / 3 * spread
    assert (bad - centre).norm() > 8 * spread


@pytest.mark.parametrize("name", ATTACKS)
def test_clipping_bounds_what_one_client_moves(first, name):
    """Whatever it sends instead, the step differs by at most 2 S / N from the clean one."""
    method = {"clip": 0.25, "noise": 0.0}
    clean, honest, _ = first(made(DpFedAvg, **method))
    assert honest.norm(dim=1).max() > 0.25
    moved = (first(made(DpFedAvg, **method), attack(name))[0] - clean).norm()
    assert moved <= 2 * 0.25 / 5 * (1 + 1e-5)
    assert moved > 0.05 if name == "sign-flip" else moved < 1e-6  # what is turned and clipped is still turned


def test_a_scaled_update_votes_as_before_and_a_flipped_one_loses_against_a_majority(first):
    clean, votes, _ = first(made(SignSgd))
    scaled, _, _ = first(made(SignSgd), attack("scale"))
    assert torch.equal(scaled, clean)
    flipped, honest, bad = first(made(SignSgd), attack("sign-flip"))
    assert torch.equal(votes.sum(0), honest.sum(0) - bad[0])  # the one client votes against what it found
    safe = honest.sum(0).abs() >= 2
    assert torch.equal(flipped[safe], clean[safe])
    assert safe.double().mean() > 0.3
    assert not torch.equal(flipped, clean)
    opposite, _, _ = first(made(SignSgd), attack("sign-flip", 5))
    assert torch.allclose(opposite, -clean, atol=1e-7)
    assert clean.abs().max() > 0


def test_a_sign_flip_of_all_clients_changes_the_digest_of_signsgd(play):
    found = {
        name: play(made(SignSgd), stressor=stressor, tasks=(4, 6), **FIVE)
        for name, stressor in {"none": NoStress(), "all": attack("sign-flip", 5), "scale": attack("scale", 5)}.items()
    }
    assert found["all"].model_digest != found["none"].model_digest
    assert found["scale"].model_digest == found["none"].model_digest


@pytest.mark.parametrize(
    "method", [Median(), made(GeometricMedian), made(DpFedAvg, noise=0.0)], ids=["med", "rfa", "dp"]
)
def test_a_scaling_client_ruins_fedavg_alone(play, method):
    """Tasks of five classes each, whose identity is told: chance is 0.2."""
    settings = {"stressor": attack("scale"), "tasks": (5, 5), "rounds": 4, **FIVE}
    assert play(method, **settings).metrics["faa/oracle"].value > 0.5
    assert play(FedAvg(), **settings).metrics["faa/oracle"].value < 0.3
