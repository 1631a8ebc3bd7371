"""FedNova: merges and limits by hand, slow clients in the engine against a plain implementation, its bytes."""

import math
from pathlib import Path
from runpy import run_path

import pytest
import torch

from fcilbench.api.message import Layout, Piece
from fcilbench.api.schedule import Task
from fcilbench.api.server import Updates
from fcilbench.federation.experiment import Unsupported
from fcilbench.federation.server import FederationServer
from fcilbench.plugins.aggregators.fedavg import FedAvg
from fcilbench.plugins.aggregators.fednova import FedNova
from fcilbench.plugins.stressors.clients import Straggler
from fcilbench.spec.protocol import Partition, Protocol

quadratics = run_path(str(Path(__file__).with_name("quadratics.py")))
train, TWO = quadratics["train"], quadratics["TWO"]
DELTA = [[0.4, -0.2], [0.3, 0.6]]


def fednova(**params):
    return FedNova(FedNova.Params(**params))


def server(size=2, **protocol):
    parts = Layout(slice(0, size), slice(size, size), slice(size, size), 0, 0, (Piece("extractor.w", (size,), 0),))
    given = Protocol(**({"optimizer": "sgd", "lr": 0.1} | protocol))
    return FederationServer(torch.zeros(size), torch.zeros(0), parts, (Task(0, 0, 1), Task(1, 1, 1)), protocol=given)


def merge(method, host, delta=DELTA, steps=(4, 2), samples=(3, 1)):
    sent = tuple({"steps": torch.tensor(each, dtype=torch.int32)} for each in steps)
    method.aggregate(Updates(torch.tensor(delta), samples, (0, 1), sent, host.layout), host)
    return host.vector.tolist()


@pytest.mark.parametrize(
    ("momentum", "tau_eff", "expected"), [(0.0, 3.5, [0.39375, 0.13125]), (0.9, 7.51175, [0.443305, 0.264021])]
)
def test_merge_by_hand(momentum, tau_eff, expected):
    """||a|| is 4 and 2; with momentum 0.9 1 + 1.9 + 2.71 + 3.439 = 9.049 and 1 + 1.9 = 2.9. FedAvg: (0.375, 0)."""
    host = server(momentum=momentum)
    assert merge(fednova(), host) == pytest.approx(expected, abs=1e-6)
    assert host.logs["fednova/tau_eff"] == pytest.approx(tau_eff)


def test_the_weight_of_proximal_steps_by_hand():
    """lr mu = 0.05 and three steps: 1 + 0.95 + 0.95^2 = (1 - 0.95^3) / 0.05 = 2.8525."""
    host = server()
    merge(fednova(mu=0.5), host, steps=(3, 3))
    assert host.logs["fednova/tau_eff"] == pytest.approx(2.8525)
    merge(fednova(mu=0.5, tau_eff="steps"), host, steps=(3, 3))
    assert host.logs["fednova/tau_eff"] == pytest.approx(3.0)


def test_steps_in_proportion_to_samples_are_a_uniform_sum():
    """n = (3, 1) and 6 and 2 steps: (p_1^2 + p_2^2) sum_k Delta_k = 0.625 (0.7, 0.4)."""
    assert merge(fednova(), server(), steps=(6, 2)) == pytest.approx([0.4375, 0.25])


def test_a_common_factor_of_the_steps_changes_nothing():
    assert merge(fednova(), server(), steps=(4, 2)) == merge(fednova(), server(), steps=(400, 200))


@pytest.mark.parametrize(("method", "limit"), [(FedNova, -0.501311), (FedAvg, 0.453156)])
def test_limit_of_eight_steps_against_one(method, limit):
    """f_1 = 1/2 (x - 1)^2 with 8 steps and f_2 = 3/2 (x + 1)^2 with 1, at rate 0.001: the minimum is -1/2."""
    host, own = server(1), method()
    for _ in range(4000):
        theta = host.vector.item()
        delta = [[(m - theta) * (1 - (1 - 0.001 * a) ** k)] for (a, m), k in zip(TWO, (8, 1), strict=True)]
        merge(own, host, delta, (8, 1), (1, 1))
    assert host.vector.item() == pytest.approx(limit, abs=2e-5)


class Slow(Straggler):
    def affected(self, clients, random):
        return [1]


def rates(schedule, steps):
    scale = {"constant": lambda s: 1.0, "cosine": lambda s: 0.5 * (1 + math.cos(math.pi * s / steps))}[schedule]
    return [0.1 * scale(s) for s in range(steps)]


@pytest.mark.parametrize(
    ("params", "schedule", "momentum"),
    [({}, "constant", 0.0), ({}, "cosine", 0.5), ({"mu": 0.7}, "cosine", 0.0), ({"gmf": 0.5}, "constant", 0.9)],
)
def test_a_slow_client_in_the_engine(make_experiment, params, schedule, momentum):
    """Client 1 takes two of eight steps, with the rates of the first two; against plain double precision."""
    changes = {"schedule": schedule, "momentum": momentum, "stressor": Slow(Slow.Params(done=0.25))}
    path = train(make_experiment, FedNova, params, steps=8, samples=(3, 1), **changes)
    theta, server_momentum, mu = 0.0, 0.0, params.get("mu", 0.0)
    for found in path:
        moved, weight = [], []
        for (a, m), count in zip(TWO, (8, 2), strict=True):
            y, u, w, v = theta, 0.0, 0.0, 0.0
            for lr in rates(schedule, 8)[:count]:
                u = momentum * u + a * (y - m) + mu * (y - theta)
                y -= lr * u
                v = momentum * v + 1.0
                w = w * (1 - lr * mu) + lr / 0.1 * v
            moved.append(y - theta)
            weight.append(w)
        tau_eff = 0.75 * weight[0] + 0.25 * weight[1]
        direction = tau_eff * (0.75 * moved[0] / weight[0] + 0.25 * moved[1] / weight[1])
        server_momentum = params.get("gmf", 0.0) * server_momentum + direction
        theta += server_momentum
        assert found["theta"] == pytest.approx(theta, abs=1e-5)


def test_server_momentum_by_hand_begins_anew_with_a_task():
    """d = (0.39375, 0.13125) thrice with gmf 0.5: d, then 1.5 d more, and in the next task d again."""
    method, host = fednova(gmf=0.5), server()
    method.begin_task(host)
    path = [merge(method, host)[0] for _ in range(2)]
    host.enter(Task(1, 1, 1), 1)
    method.begin_task(host)
    path.append(merge(method, host)[0])
    assert path == pytest.approx([0.39375, 2.5 * 0.39375, 3.5 * 0.39375])


@pytest.mark.parametrize("changes", [{}, {"optimizer": "sgd", "momentum": 0.9, "schedule": "cosine"}])
def test_equal_steps_are_fedavg_bit_for_bit(play, norm_backbone, changes):
    """At most 27 samples of a client are one batch, whatever their number; in batches of 8 skewed clients differ."""
    settings = {"partition": Partition(kind="iid"), "batch_size": 64, "local_epochs": 2, "backbone": norm_backbone}
    play(fednova(), **settings, **changes)
    own = play.vector
    play(FedAvg(), **settings, **changes)
    assert torch.equal(own, play.vector)
    uneven = {"batch_size": 8, "tasks": (10,), "backbone": norm_backbone, **changes}
    play(fednova(), **uneven)
    own = play.vector
    play(FedAvg(), **uneven)
    assert not torch.equal(own, play.vector)


def test_head_rows_of_earlier_tasks_do_not_move(play):
    kept = {}

    class Watched(FedNova):
        def end_task(self, server, statistics):
            kept[server.task.index] = server.vector[server.layout.head].clone()

    play(Watched(FedNova.Params(gmf=0.9)), tasks=(4, 6))
    old, new = [torch.arange(start * 16, end * 16) for start, end in ((0, 4), (4, 10))]
    assert torch.equal(kept[0][old], kept[1][old])
    assert torch.equal(kept[0][160:164], kept[1][160:164])
    assert not torch.equal(kept[0][new], kept[1][new])


@pytest.mark.parametrize(("schedule", "more"), [("constant", 4), ("cosine", 12)])
def test_bytes_by_hand(play, schedule, more):
    """1210 floats each way, and up the number of steps in 4 bytes; under a schedule its weight in 8."""
    cost = play(fednova(), partition=Partition(kind="iid"), tasks=(3, 2, 3, 2), schedule=schedule).cost
    assert cost.bytes_up == 24 * (4 * 1210 + more)
    assert cost.bytes_down == 24 * 4 * 1210


@pytest.mark.parametrize("changes", [{}, {"optimizer": "sgd", "momentum": 0.5}])
def test_a_proximal_term_is_declined_where_its_weights_are_not_known(play, changes):
    with pytest.raises(Unsupported, match="proximal term"):
        play(fednova(mu=0.1), **changes)


def test_an_interrupted_run_ends_bit_equal(play, norm_backbone):
    sparse = {"partition": Partition(kind="dirichlet", value=0.05, min_samples=0), "backbone": norm_backbone}
    whole, resumed = (play(fednova(gmf=0.5), stop, **sparse) for stop in (None, 5))
    assert resumed.model_digest == whole.model_digest
    assert resumed.cost.bytes_up == whole.cost.bytes_up
