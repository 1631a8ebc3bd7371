"""DP-FedAvg: clipping and noise by hand, epsilon against tables and libraries, what rows say, real rounds."""

import math
import sys
from types import SimpleNamespace

import mpmath
import pytest
import torch
from pydantic import ValidationError
from torch import nn

from fcilbench.api import No, PrerequisiteError
from fcilbench.api.message import Layout, Piece
from fcilbench.api.schedule import Task
from fcilbench.api.server import Updates
from fcilbench.federation.server import FederationServer
from fcilbench.plugins.aggregators.dp_fedavg import (
    DpFedAvg,
    clip_factors,
    fixed_epsilon,
    gaussian_delta,
    gaussian_epsilon,
    norms,
    poisson_epsilon,
)
from fcilbench.plugins.aggregators.fedavg import FedAvg
from fcilbench.spec.protocol import Partition, Protocol

SPARSE = {"clients": 5, "partition": Partition(kind="dirichlet", value=0.05, min_samples=0)}
IID = {"partition": Partition(kind="iid")}


def made(**params):
    return DpFedAvg(DpFedAvg.Params(**params))


def server(size=2, clients=2, task=None, **protocol):
    """A backbone of `size` entries and a head of two classes with one feature."""
    pieces = Piece("extractor.w", (size,), 0), Piece("head.weight", (2, 1), size), Piece("head.bias", (2,), size + 2)
    parts = Layout(slice(0, size), slice(size, size + 4), slice(size + 4, size + 4), 2, 1, pieces)
    host = FederationServer(
        torch.zeros(size + 4),
        torch.zeros(0, dtype=torch.int64),
        parts,
        (task or Task(0, 0, 2),),
        protocol=Protocol(clients=clients, **protocol),
    )
    made().begin(host)
    return host


def merge(method, host, rows):
    rows = torch.cat([torch.as_tensor(rows, dtype=torch.float32), torch.zeros(len(rows), 4)], dim=1)
    count = len(rows)
    method.aggregate(Updates(rows, (9, 1, 5, 2, 7)[:count], tuple(range(count)), ({},) * count, host.layout), host)
    return host.vector


# ---------------------------------------------------------------- the release


def test_clipping_by_hand():
    """(3, 4) becomes (0.6, 0.8), (0.3, 0.4) stays; the denominator is the number of registered clients."""
    rows = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    lengths = norms(rows, torch.ones(2, dtype=torch.bool))
    assert lengths.tolist() == pytest.approx([5, 0.5, 0])
    assert clip_factors(lengths, 1.0).tolist() == pytest.approx([0.2, 1, 1])
    for clients, mean in ((2, [0.45, 0.6]), (4, [0.225, 0.3])):
        host = server(clients=clients)
        assert merge(made(noise=0.0), host, rows[:2])[:2].tolist() == pytest.approx(mean)
        assert host.logs["dp/clipped"] == 0.5
        assert host.logs["dp/epsilon"] == math.inf


@pytest.mark.parametrize(("clients", "sigma"), [(2, 0.75), (4, 0.375)])
def test_noise_has_the_sigma_of_the_formula_on_live_entries_alone(clients, sigma):
    """z = 1.5, S = 1. Of the head the task has class 1."""
    host = server(size=1_000_000, clients=clients, task=Task(0, 1, 1))
    found = merge(made(noise=1.5), host, torch.zeros(2, 1_000_000))
    assert found[:-4].std().item() == pytest.approx(sigma, rel=0.01)
    assert abs(found[:-4].mean().item()) < 5 * sigma / 1000  # five standard errors
    assert (found[-4:] != 0).tolist() == [False, True, False, True]
    doubled = server(size=1_000_000, clients=clients, task=Task(0, 1, 1))
    merge(made(noise=1.5, clip=2.0), doubled, torch.zeros(2, 1_000_000))
    assert torch.allclose(doubled.vector, 2 * found)  # the same stream, at sigma = z S / (q N)


def test_what_is_clipped_is_what_is_released():
    """An entry of another task's class counts neither in the norm nor in the model."""
    host = server(task=Task(0, 1, 1))
    rows = torch.tensor([[3.0, 4.0, 100.0, 0.0, 100.0, 0.0]])
    made(noise=0.0).aggregate(Updates(rows, (1,), (0,), ({},), host.layout), host)
    assert host.vector.tolist() == pytest.approx([0.3, 0.4, 0, 0, 0, 0])


def test_one_client_moves_the_noiseless_model_by_at_most_its_share():
    torch.manual_seed(0)
    rows = 10 ** torch.linspace(-3, 4, 5)[:, None] * torch.randn(5, 2)
    whole = merge(made(noise=0.0, clip=0.5), server(clients=5), rows).clone()
    for left_out in range(5):
        kept = rows[[i for i in range(5) if i != left_out]]
        moved = (merge(made(noise=0.0, clip=0.5), server(clients=5), kept) - whole).norm().item()
        assert moved <= 0.5 / 5 * (1 + 1e-6)
    assert moved == pytest.approx(0.1)  # the last one is clipped


def test_poisson_keeps_each_client_by_its_own_coin_and_divides_by_their_expectation():
    """One client of 4 sends 1, in 400 rounds: used in 30 % of them, each time at 1 / (0.3 * 4)."""
    host, used = server(clients=4), 0
    method = made(noise=0.0, sampling="poisson", rate=0.3)
    for number in range(400):
        host.round = number
        before = host.vector[0].item()
        merge(method, host, [[0.6, 0.8], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
        step = host.vector[0].item() - before
        assert step == pytest.approx(0, abs=1e-4) or step == pytest.approx(0.6 / 1.2, abs=1e-4)
        used += step > 0.1
    assert used / 400 == pytest.approx(0.3, abs=0.1)  # four standard errors
    assert host.state["releases"] == 400


# ---------------------------------------------------------------- the accountants


@pytest.mark.parametrize(
    ("noise", "releases", "epsilon"),
    [
        (1, 50, 54.376639),
        (4, 50, 8.595866),
        (2, 50, 20.675508),
        (1, 1, 4.377178),
        (26.379549, 50, 1),
        (14.098383, 50, 2),
        (7.644969, 50, 4),
        (4.244260, 50, 8),
        (2.433702, 50, 16),
    ],
)
def test_epsilon_of_the_table(noise, releases, epsilon):
    found = gaussian_epsilon(math.sqrt(releases) / noise, 1e-5)
    assert found == pytest.approx(epsilon, abs=2e-6)
    host = server()
    host.state["releases"] = releases - 1
    merge(made(noise=noise), host, [[1.0, 0.0]])
    assert host.logs["dp/epsilon"] == found
    assert host.state["releases"] == releases


def test_little_noise_and_much():
    assert gaussian_epsilon(math.sqrt(50) / 0.1, 1e-5) == pytest.approx(2800.6, abs=0.05)
    assert gaussian_epsilon(1e-6, 1e-5) == 0.0  # even epsilon = 0 has a smaller delta


def test_the_closed_form_in_fifty_digits():
    with mpmath.workdps(50):
        for mu, epsilon in ((0.1, 0.05), (0.5, 2), (1.7677669, 8.6), (7.07, 54), (70.7, 2800), (3, 40)):
            lower = mpmath.ncdf(mpmath.mpf(mu) / 2 - mpmath.mpf(epsilon) / mu)
            exact = lower - mpmath.exp(epsilon) * mpmath.ncdf(-mpmath.mpf(mu) / 2 - mpmath.mpf(epsilon) / mu)
            assert gaussian_delta(epsilon, mu) == pytest.approx(float(exact), rel=1e-9)
    for mu in (0.01, 0.3, 2.0, 30.0):
        assert gaussian_delta(gaussian_epsilon(mu, 1e-5), mu) == pytest.approx(1e-5 if mu > 0.01 else 0.0, abs=1e-5)


def test_epsilon_falls_with_noise_and_rises_with_releases():
    found = [gaussian_epsilon(math.sqrt(releases) / 2, 1e-5) for releases in (1, 2, 10, 100)]
    assert found == sorted(found)
    found = [gaussian_epsilon(1 / noise, 1e-5) for noise in (8, 4, 2, 1, 0.5)]
    assert found == sorted(found)
    assert gaussian_epsilon(1.0, 1e-3) < gaussian_epsilon(1.0, 1e-6)


def test_sampled_epsilons_of_the_table():
    library = pytest.importorskip("dp_accounting")
    assert fixed_epsilon(100, 10, 50, 2.0, 1e-5) == pytest.approx(9.427721, abs=1e-5)
    assert poisson_epsilon(0.1, 50, 2.0, 1e-5) == pytest.approx(1.652502, abs=1e-5)
    assert poisson_epsilon(0.01, 1000, 1.0, 1e-5) == pytest.approx(1.828244, abs=1e-5)
    assert poisson_epsilon(1.0, 50, 0.1, 1e-5) == pytest.approx(2800.6024, rel=1e-3)  # everybody: the closed form
    # Why z / 2: one accountant does not double the sensitivity of `replace-one`, the other does.
    relation, event = library.NeighboringRelation.REPLACE_ONE, library.GaussianDpEvent(4.0)
    plain = library.rdp.RdpAccountant(neighboring_relation=relation).compose(event, 50).get_epsilon(1e-5)
    doubled = library.pld.PLDAccountant(neighboring_relation=relation).compose(event, 50).get_epsilon(1e-5)
    assert plain == pytest.approx(9.234959, abs=1e-5)
    assert doubled == pytest.approx(gaussian_epsilon(math.sqrt(50) / 2, 1e-5), abs=1e-3)
    assert gaussian_epsilon(math.sqrt(50) / 2, 1e-5) == pytest.approx(20.675508, abs=1e-5)


# ---------------------------------------------------------------- what is declined


def asked(method, network=None, **protocol):
    protocol = Protocol(**({"clients": 10} | protocol))
    return method.prepare(network or nn.Linear(2, 2), SimpleNamespace(protocol=protocol, clients=protocol.clients))


def test_what_is_declined():
    class Derived(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("positions", torch.zeros(2), persistent=False)

    assert asked(made()) is asked(made(), Derived()) is None
    assert "buffers" in asked(made(), nn.BatchNorm2d(3)).reason
    assert "participation below 1" in asked(made(sampling="fixed")).reason
    assert isinstance(asked(made(sampling="fixed"), participation=0.96), No)  # that draws all ten
    assert "participation: 1" in asked(made(sampling="poisson"), participation=0.5).reason
    with pytest.raises(ValidationError, match="no effect"):
        DpFedAvg.Params(rate=0.2)
    with pytest.raises(ValidationError, match="no effect"):
        DpFedAvg.Params(sampling="fixed", noise=0.0)


def test_a_missing_library_is_a_missing_prerequisite(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    monkeypatch.delitem(sys.modules, "dp_accounting.pld", raising=False)
    with pytest.raises(PrerequisiteError, match="dp-accounting") as caught:
        asked(made(sampling="poisson"))
    assert caught.value.hint == "pip install 'fcilbench[dp]'"
    assert asked(made()) is asked(made(sampling="poisson", noise=0.0)) is None


# ---------------------------------------------------------------- real rounds


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_without_noise_and_clipping_it_is_uniform_fedavg_bit_for_bit(play, participation):
    settings = {"clients": 5, "participation": participation, **IID}  # round(2.5) = 2 clients in a round
    play(made(noise=0.0, clip=1e9), **settings)
    own = play.vector
    play(FedAvg(FedAvg.Params(weighting="uniform")), **settings)
    assert torch.equal(own, play.vector)


def test_an_interrupted_run_ends_bit_equal_and_the_row_says_what_holds(play):
    """Clients without samples and tasks of unequal size; eight rounds are eight releases, also after a resume."""
    method = {"noise": 4.0, "clip": 0.5}
    whole, resumed = (play(made(**method), stop, **SPARSE) for stop in (None, 3))
    assert resumed.model_digest == whole.model_digest
    assert play.server.state == {"releases": 8}
    epsilon = gaussian_epsilon(math.sqrt(8) / 4, 1e-5)
    (told,) = [text for text in resumed.warnings if "DP" in text]
    assert told in whole.warnings
    assert told == (
        f"simulated client-level DP: epsilon = {epsilon:.6g} at delta = 1e-05, zero-out neighbours, 8 releases, "
        "clip 0.5, noise multiplier 4"
    )


def test_a_row_with_credit_for_sampling_says_which(play):
    pytest.importorskip("dp_accounting")
    told = play(made(sampling="fixed", noise=2.0), clients=6, participation=0.5, tasks=(4, 6), **IID).warnings
    assert any("replace-one neighbours, 4 releases" in text for text in told)
    assert any(f"epsilon = {fixed_epsilon(6, 3, 4, 2.0, 1e-5):.6g} " in text for text in told)
    told = play(made(noise=0.0), tasks=(4, 6), **IID).warnings
    assert any("epsilon = inf " in text for text in told)


def test_rows_of_an_old_task_do_not_move(play):
    heads = []

    class Watching(DpFedAvg):
        def end_task(self, server, statistics):
            head = server.vector[server.layout.head]
            heads.append((head[:-10].view(10, -1)[:3].clone(), head[-10:][:3].clone()))

    play(Watching(), tasks=(3, 7), **IID)
    (weight, bias), (after, bias_after) = heads
    assert torch.equal(weight, after)
    assert torch.equal(bias, bias_after)


def test_bytes_by_hand(play):
    """3 clients in 4 tasks of 2 rounds, float32 both ways: noise moves the model in the task of one class, too."""
    model = 4 * (64 * 16 + 16 + 10 * 16 + 10)
    cost = play(made(), **IID).cost
    assert cost.bytes_up == cost.bytes_down == 3 * 8 * model
    assert cost.server_state == cost.client_state == 0
