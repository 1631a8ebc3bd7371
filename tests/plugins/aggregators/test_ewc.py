"""EWC as a method: values by hand, its schedule and its bytes."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from fcilbench.api.client import Batch
from fcilbench.api.message import Layout
from fcilbench.api.schedule import Task
from fcilbench.engine.fisher import fisher_diagonal
from fcilbench.federation.server import FederationServer
from fcilbench.plugins.aggregators.ewc import Ewc, pool
from fcilbench.plugins.aggregators.fedavg import FedAvg
from fcilbench.spec.protocol import Partition

TASKS = tuple(Task(i, i, 1) for i in range(9))
IID = {"clients": 2, "partition": Partition(kind="iid"), "tasks": (3, 2, 3, 2)}
MODEL = (64 * 16 + 16 + 10 * 16 + 10) * 4


def server(theta, head=0):
    size = len(theta)
    parts = Layout(slice(0, size - head), slice(size - head, size), slice(size, size), 1, max(head - 1, 0))
    return FederationServer(torch.tensor(theta), torch.zeros(0, dtype=torch.int64), parts, TASKS)


def end(method, host, *fishers, samples=None):
    counts = samples or [1] * len(fishers)
    pairs = enumerate(zip(fishers, counts, strict=True))
    method.end_task(host, {k: {"fisher": torch.tensor(f), "samples": torch.tensor(n)} for k, (f, n) in pairs})


def gradient(method, host, theta):
    found = torch.zeros(len(theta))
    method.gradient(found, SimpleNamespace(parameters=torch.tensor(theta)), method.broadcast(host))
    return found.tolist()


def test_gradient_by_hand():
    """F = (1, 2), theta - theta* = (3, -1), lambda = 1 gives (6, -4); at theta* it is 0; in the first task none."""
    method, host = Ewc(Ewc.Params(lambda_ewc=1.0)), server([10.0, 20.0])
    assert method.broadcast(host) == {}
    assert gradient(method, host, [7.0, 7.0]) == [0.0, 0.0]
    end(method, host, [1.0, 2.0])
    assert gradient(method, host, [13.0, 19.0]) == [6.0, -4.0]
    assert gradient(method, host, [10.0, 20.0]) == [0.0, 0.0]


def test_online_fishers_decay():
    """F_task 1, 2, 0 at gamma .9: 1, 2.9, 2.61; the anchor is the last model."""
    method, host, seen = Ewc(), server([0.0]), []
    for task, value in enumerate((1.0, 2.0, 0.0)):
        host.vector.fill_(float(task))
        end(method, host, [value])
        seen.append(host.state["fisher"].item())
    assert seen == pytest.approx([1.0, 2.9, 2.61])
    assert host.state["anchor"].tolist() == [2.0]


def test_separate_terms_add_up():
    """F = 1 at theta* = 0 and F = 2 at 3: at theta = 1 the penalty is 9, its gradient -6, as from 3 at the centre 2."""
    method, host = Ewc(Ewc.Params(mode="separate", lambda_ewc=1.0)), server([0.0])
    end(method, host, [1.0])
    host.vector.fill_(3.0)
    end(method, host, [2.0])
    assert (host.state["fisher"].tolist(), host.state["anchor"].tolist()) == ([3.0], [2.0])
    assert gradient(method, host, [1.0]) == [-6.0]
    theta = torch.tensor([1.0], requires_grad=True)
    penalty = (1.0 * (theta - 0.0) ** 2 + 2.0 * (theta - 3.0) ** 2).sum()
    penalty.backward()
    assert (penalty.item(), theta.grad.tolist()) == (9.0, [-6.0])


def test_separate_terms_move_nothing_at_their_centre_or_without_a_fisher():
    """Two products that cancel leave rounding, which an optimiser of Adam's kind turns into whole steps."""
    numbers = torch.Generator().manual_seed(0)
    method, start = Ewc(Ewc.Params(mode="separate")), torch.randn(200, generator=numbers)
    host = server(start.tolist())
    for _ in range(2):
        fisher = torch.rand(200, generator=numbers)
        fisher[::3] = 0.0
        end(method, host, fisher.tolist())
    assert not any(gradient(method, host, start.tolist()))


@pytest.mark.parametrize("kind", ["exact", "empirical", "label_prob"])
def test_pooled_clients_are_the_fisher_of_the_pooled_data(kind):
    torch.manual_seed(0)
    x, y = torch.randn(30, 5, dtype=torch.float64), torch.randint(0, 3, (30,))
    head, task = nn.Linear(5, 3, dtype=torch.float64).eval(), Task(0, 0, 3)

    def fisher(rows):
        batch = Batch(x[rows], y[rows], torch.ones(len(rows), dtype=torch.float64), task)
        return fisher_diagonal(head, ["weight", "bias"], [(batch, torch.zeros(len(rows)))], kind)

    parts = torch.randperm(30).split([1, 17, 12])
    pooled = pool((fisher(rows) for rows in parts), [len(rows) for rows in parts])
    assert torch.allclose(pooled, fisher(torch.arange(30)), rtol=0, atol=1e-12)


def test_fishers_are_pooled_by_samples_and_the_head_may_be_free():
    method, host = Ewc(Ewc.Params(penalise_head=False)), server([0.0, 0.0, 0.0], head=2)
    end(method, host, [1.0, 1.0, 1.0], [5.0, 5.0, 5.0], samples=[3, 1])
    assert host.state["fisher"].tolist() == [2.0, 0.0, 0.0]


def test_without_statistics_nothing_changes():
    method, host = Ewc(), server([1.0])
    end(method, host, [1.0])
    host.vector.fill_(2.0)
    method.end_task(host, {})
    assert (host.state["fisher"].tolist(), host.state["anchor"].tolist()) == ([1.0], [1.0])


def test_a_fisher_that_noise_made_negative_stops_nothing():
    method, host = Ewc(), server([1.0])
    end(method, host, [-2.0])
    assert (host.state["fisher"].tolist(), host.state["gradient_norm"]) == ([-2.0], 0.0)


@pytest.mark.parametrize(("strength", "warned"), [(1.0, True), (100.0, False)])
def test_numbers_4_a_penalty_that_nobody_feels_is_warned_about(strength, warned):
    """F = (3, 1), moved by (0.003, 0.004): 2 lambda F d = lambda (0.018, 0.008), beside sqrt(3 + 1) = 2."""
    method, host = Ewc(Ewc.Params(lambda_ewc=strength)), server([0.0, 0.0])
    end(method, host, [3.0, 1.0])
    assert "ewc/penalty_ratio" not in host.logs
    host.vector += torch.tensor([0.003, 0.004])
    method.end_task(host, {})
    assert host.logs["ewc/penalty_ratio"] == pytest.approx(strength * (0.018**2 + 0.008**2) ** 0.5 / 2, rel=1e-5)
    assert any("raise lambda_ewc" in warning for warning in host.warnings) is warned


@pytest.mark.parametrize(("mode", "down"), [("online", 1 + 1 + 1), ("separate", 1 + 2 + 2)])
def test_bytes_per_task(play, mode, down):
    """Up: a Fisher and n_k after each task but the last. Down, from then on: F, and a centre that is no model."""
    plain, tied = play(FedAvg(), **IID), play(Ewc(Ewc.Params(mode=mode)), **IID)
    assert tied.cost.bytes_up - plain.cost.bytes_up == 2 * 3 * (MODEL + 8)
    assert tied.cost.bytes_down - plain.cost.bytes_down == 2 * down * MODEL


def test_the_last_task_asks_for_no_fisher_and_what_is_not_finite_is_left_out(play):
    asked = []

    class Spoilt(Ewc):
        def task_statistics(self, client):
            asked.append(client.task.index)
            message = super().task_statistics(client)
            return {**message, "fisher": message["fisher"] * float("nan")} if client.id == 1 else message

        def end_task(self, server, statistics):
            assert sorted(statistics) == ([] if server.last_task else [0])
            super().end_task(server, statistics)
            assert bool(torch.isfinite(server.state["fisher"]).all())

    play(Spoilt(), **IID)
    assert asked == [0, 0, 1, 1, 2, 2]
