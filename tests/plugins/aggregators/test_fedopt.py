"""FedAdam, FedYogi and FedAdagrad: two merges by hand, their limits, their state over tasks, their bytes."""

import pytest
import torch

from fcilbench.api.message import Layout, Piece
from fcilbench.api.schedule import Task
from fcilbench.api.server import Updates
from fcilbench.federation.server import FederationServer
from fcilbench.plugins.aggregators.fedavg import FedAvg
from fcilbench.plugins.aggregators.fedopt import FedAdagrad, FedAdam, FedYogi
from fcilbench.spec.protocol import Partition

PARTS = Layout(slice(0, 2), slice(2, 2), slice(2, 2), 0, 0, (Piece("extractor.w", (2,), 0),))
ROUNDS = ([[0.5, -0.4], [0.1, 0.0]], [[0.1, 0.6], [0.1, 0.2]])
"""Updates of two clients with 1 and 3 samples; their means are (0.2, -0.1) and (0.1, 0.3)."""
HAND = {"server_lr": 0.1, "tau": 0.01}
METHODS = (FedAdam, FedYogi, FedAdagrad)


def merges(method, rounds=ROUNDS):
    """Returns the global vector after each merge, from 0, and the server."""
    host, path = FederationServer(torch.zeros(2), torch.zeros(0), PARTS, (Task(0, 0, 1),)), []
    method.begin_task(host)
    for rows in rounds:
        method.aggregate(Updates(torch.tensor(rows), (1, 3), (0, 1), ({}, {}), PARTS), host)
        path.append(host.vector.tolist())
    return path, host


@pytest.mark.parametrize(
    ("method", "params", "first", "second", "v"),
    [
        (FedAdam, {}, [0.066667, -0.05], [0.153432, 0.000472], [0.000496, 0.000999]),
        (FedYogi, {}, [0.066667, -0.05], [0.153191, 0.000453], [0.0005, 0.001]),
        (FedAdagrad, {}, [0.095238, -0.090909], [0.138045, 0.001051], [0.05, 0.1]),
        (FedAdam, {"bias_correction": True}, None, [0.131086, -0.012526], [0.000496, 0.000999]),
        (FedAdam, {"v0": "tau2"}, None, [0.143307, 0.007218], None),
    ],
)
def test_two_merges_by_hand(method, params, first, second, v):
    path, host = merges(method(method.Params(**HAND, **params)))
    if first is not None:
        assert path[0] == pytest.approx(first, abs=1e-6)
    assert path[1] == pytest.approx(second, abs=1e-6)
    if v is not None:
        assert host.state["v"].tolist() == pytest.approx(v, rel=1e-6)


def plain(method, rounds, params, square):
    """A plain implementation of one coordinate in double precision."""
    theta, m, v = 0.0, 0.0, params.tau**2 if params.v0 == "tau2" else 0.0
    for t, delta in enumerate(rounds, start=1):
        m, v = params.b1 * m + (1 - params.b1) * delta, square(v, delta)
        rate = params.server_lr
        if getattr(params, "bias_correction", False):
            rate *= (1 - params.b2**t) ** 0.5 / (1 - params.b1**t)
        theta += rate * m / (v**0.5 + params.tau)
    return theta


@pytest.mark.parametrize("preset", ["default", "original"])
@pytest.mark.parametrize("method", METHODS)
def test_ten_merges_against_a_plain_implementation(method, preset):
    params = method.Params(preset=preset, v0="tau2")
    torch.manual_seed(0)
    rounds = 0.05 * torch.randn(10, 2, 2)
    square = {
        FedAdam: lambda v, d: params.b2 * v + (1 - params.b2) * d**2,
        FedYogi: lambda v, d: v - (1 - params.b2) * d**2 * ((v > d**2) - (v < d**2)),
        FedAdagrad: lambda v, d: v + d**2,
    }[method]
    path, _ = merges(method(params), rounds.tolist())
    means = 0.25 * rounds[:, 0].double() + 0.75 * rounds[:, 1].double()
    expected = [plain(method, means[:, column].tolist(), params, square) for column in (0, 1)]
    assert path[-1] == pytest.approx(expected, rel=2e-4)


@pytest.mark.parametrize("method", [FedAdam, FedYogi])
def test_a_huge_tau_makes_it_server_momentum(method):
    """Then v does not count: m is (0.02, -0.01) and (0.028, 0.021), and theta their sum."""
    path, host = merges(method(method.Params(server_lr=1e6, tau=1e6)))
    assert path[1] == pytest.approx([0.048, 0.011], abs=1e-6)
    assert host.logs["fedopt/below_tau"] == 1.0


def test_without_momentum_a_huge_tau_makes_it_fedavg():
    path, _ = merges(FedAdagrad(FedAdagrad.Params(server_lr=1e6, tau=1e6)))
    assert path[1] == pytest.approx([0.3, 0.2], abs=1e-6)


def test_the_share_below_tau_is_logged():
    """After one merge of (0.2, 0) Adam's sqrt(v) is (0.02, 0): with tau = 0.01 one of two entries is below."""
    _, host = merges(FedAdam(FedAdam.Params(**HAND)), [[[0.2, 0.0], [0.2, 0.0]]])
    assert host.logs["fedopt/below_tau"] == 0.5


@pytest.mark.parametrize("method", METHODS)
def test_what_nobody_moves_never_moves(method):
    path, _ = merges(method(), [[[0.5, 0.0], [0.1, 0.0]]] * 3)
    assert [each[1] for each in path] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("memory", ["task", "carry"])
@pytest.mark.parametrize("method", METHODS)
def test_head_rows_of_earlier_tasks_do_not_move(play, method, memory):
    kept = {}

    class Watched(method):
        def begin_task(self, server):
            super().begin_task(server)
            kept["moments"] = server.state["m"].clone(), server.state["merges"]

        def end_task(self, server, statistics):
            kept[server.task.index] = server.vector[server.layout.head].clone()

    play(Watched(Watched.Params(memory=memory, b1=0.9, v0="tau2")), tasks=(4, 6))
    old, new = [torch.arange(start * 16, end * 16) for start, end in ((0, 4), (4, 10))]
    assert torch.equal(kept[0][old], kept[1][old])
    assert torch.equal(kept[0][160:164], kept[1][160:164])
    assert not torch.equal(kept[0][new], kept[1][new])
    moments, count = kept["moments"]
    head = moments[64 * 16 + 16 :]
    assert not bool(head.any())  # the rows of either task
    assert (bool(moments.any()), count) == ((True, 2) if memory == "carry" else (False, 0))


def test_buffers_are_averaged_by_samples(play, norm_backbone):
    gaps = []

    class Watched(FedAdam):
        def aggregate(self, updates, server):
            buffers, before = updates.layout.buffers, server.vector.clone()
            super().aggregate(updates, server)
            gaps.append((server.vector - before - updates.mean())[buffers].abs().max())

    play(Watched(), backbone=norm_backbone)
    assert max(gaps) < 1e-6


@pytest.mark.parametrize("method", METHODS)
def test_its_bytes_are_those_of_fedavg(play, method):
    """Three clients, four tasks of two rounds, 1210 floats each way."""
    cost = play(method(), partition=Partition(kind="iid"), tasks=(3, 2, 3, 2)).cost
    assert cost.bytes_up == cost.bytes_down == 24 * 4 * 1210
    assert cost.client_state == 0


def test_a_small_real_run_is_near_fedavgm(play):
    """FedAdam with a huge tau and no first moment ends where FedAvg does, up to rounding."""
    play(FedAdam(FedAdam.Params(server_lr=1e6, tau=1e6, b1=0.0)))
    own = play.vector
    play(FedAvg())
    assert torch.allclose(own, play.vector, atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_an_interrupted_run_ends_bit_equal(play, norm_backbone, method):
    sparse = {"partition": Partition(kind="dirichlet", value=0.05, min_samples=0), "backbone": norm_backbone}
    whole, resumed = (play(method(method.Params(memory="carry")), stop, **sparse) for stop in (None, 6))
    assert resumed.model_digest == whole.model_digest
