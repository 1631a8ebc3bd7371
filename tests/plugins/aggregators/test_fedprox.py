"""FedProx: steps and limits by hand, what mu does, and its bytes."""

from pathlib import Path
from runpy import run_path
from types import SimpleNamespace

import pytest
import torch

from fcilbench.api.message import Layout
from fcilbench.plugins.aggregators.fedavg import FedAvg
from fcilbench.plugins.aggregators.fedprox import FedProx
from fcilbench.spec.protocol import Partition

train = run_path(str(Path(__file__).with_name("quadratics.py")))["train"]
PARTS = Layout(slice(0, 2), slice(2, 2), slice(2, 2), 1, 0)


def fedprox(mu):
    return FedProx(FedProx.Params(mu=mu))


def corrected(mu, theta, received, gradient=(0.0, 0.0)):
    found = torch.tensor(gradient)
    net = SimpleNamespace(parameters=torch.tensor(theta), layout=PARTS)
    fedprox(mu).gradient(found, net, {"received": torch.tensor(received)})
    return found


def test_gradient_of_the_penalty_by_hand():
    """At (3, -1) from (1, 1) with mu = 0.1 the penalty is 0.1 / 2 (4 + 4) = 0.4, its gradient (0.2, -0.2)."""
    theta, received = torch.tensor([3.0, -1.0], requires_grad=True), torch.tensor([1.0, 1.0])
    penalty = 0.1 / 2 * (theta - received).square().sum()
    penalty.backward()
    assert penalty.item() == pytest.approx(0.4)
    assert theta.grad.tolist() == pytest.approx([0.2, -0.2])
    assert torch.allclose(corrected(0.1, [3.0, -1.0], [1.0, 1.0]), theta.grad)
    assert corrected(0.1, [3.0, -1.0], [1.0, 1.0], (1.0, 1.0)).tolist() == pytest.approx([1.2, 0.8])


@pytest.mark.parametrize(("mu", "second"), [(0.5, [0.185, 0.37]), (0.0, [0.19, 0.38])])
def test_two_steps_by_hand(mu, second):
    """f = 1/2 ||theta - (1, 2)||^2 from 0 at rate 0.1: the first step is that of FedAvg."""
    target, theta, path = torch.tensor([1.0, 2.0]), torch.zeros(2), []
    for _ in range(2):
        theta = theta - 0.1 * corrected(mu, theta.tolist(), [0.0, 0.0], (theta - target).tolist())
        path.append(theta.tolist())
    assert path[0] == pytest.approx([0.1, 0.2])
    assert path[1] == pytest.approx(second)


@pytest.mark.parametrize(("mu", "solved"), [(1.0, -0.875), (0.0, -1.0)])
def test_exact_local_solutions_in_the_engine(make_experiment, mu, solved):
    """f_1 = 1/2 (x - 2)^2, f_2 = 3/2 (x + 2)^2, n = (1, 3): mu = 1 ends at 1 and -1.5, mu = 0 at 2 and -2."""
    curves = ((1.0, 2.0), (3.0, -2.0))
    path = train(make_experiment, FedProx, {"mu": mu}, curves=curves, samples=(1, 3), steps=40, rounds=1, lr=0.3)
    assert path[0]["theta"] == pytest.approx(solved, abs=1e-5)


def test_a_larger_mu_moves_clients_less(make_experiment):
    """For one client, a convex quadratic and SGD; the limit for many steps is a m / (a + mu)."""
    moves = [
        train(make_experiment, FedProx, {"mu": mu}, curves=((1.0, 2.0),), samples=(1,), steps=20, rounds=1)[0]["theta"]
        for mu in (0.0, 0.1, 1.0, 5.0)
    ]
    assert moves == sorted(moves, reverse=True)
    assert moves[3] == pytest.approx(2 / 6, abs=1e-3)


def test_mu_0_and_one_step_a_round_are_fedavg_bit_for_bit(play, norm_backbone):
    for mu, changes in ((0.0, {"backbone": norm_backbone}), (10.0, {"batch_size": 1000})):
        play(fedprox(mu), **changes)
        own = play.vector
        play(FedAvg(), **changes)
        assert torch.equal(own, play.vector)
    play(fedprox(10.0), batch_size=1000, local_epochs=2)
    own = play.vector
    play(FedAvg(), batch_size=1000, local_epochs=2)
    assert not torch.equal(own, play.vector)


def test_head_rows_of_earlier_tasks_do_not_move(play):
    kept = {}

    class Watched(FedProx):
        def end_task(self, server, statistics):
            kept[server.task.index] = server.vector[server.layout.head].clone()

    play(Watched(FedProx.Params(mu=1.0)), tasks=(4, 6))
    rows = slice(0, 4 * 16)
    assert torch.equal(kept[0][rows], kept[1][rows])
    assert torch.equal(kept[0][160:164], kept[1][160:164])
    assert not torch.equal(kept[0][64:160], kept[1][64:160])


def test_its_bytes_are_those_of_fedavg(play):
    """Three clients, four tasks of two rounds, 1210 floats each way."""
    cost = play(fedprox(0.1), partition=Partition(kind="iid"), tasks=(3, 2, 3, 2)).cost
    assert cost.bytes_up == cost.bytes_down == 24 * 4 * 1210
    assert cost.client_state == 0


def test_an_interrupted_run_ends_bit_equal(play, norm_backbone):
    sparse = {"partition": Partition(kind="dirichlet", value=0.05, min_samples=0), "backbone": norm_backbone}
    whole, resumed = play(fedprox(0.5), **sparse), play(fedprox(0.5), 5, **sparse)
    assert resumed.model_digest == whole.model_digest
    assert resumed.cost.bytes_up == whole.cost.bytes_up


def test_the_pull_is_logged(play):
    """Of a client alone it is mu times the length of its step, which the server adds to its vector."""
    moved = []

    class Watched(FedProx):
        def aggregate(self, updates, server):
            before = server.vector.clone()
            super().aggregate(updates, server)
            moved.append((float((server.vector - before).norm()), server.logs["fedprox/pull"]))

    play(Watched(FedProx.Params(mu=0.25)), clients=1, tasks=(10,), rounds=1)
    ((length, pull),) = moved
    assert pull == pytest.approx(0.25 * length, rel=1e-4)
