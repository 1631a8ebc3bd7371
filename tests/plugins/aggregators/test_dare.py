"""DARE: drop, rescale and merge by hand and in distribution, what clients send, tasks, and the switch to FedAvg."""

import math

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from fcilbench.api.message import Layout
from fcilbench.api.schedule import Task
from fcilbench.api.server import Updates
from fcilbench.federation.server import FederationServer
from fcilbench.plugins.aggregators import dare
from fcilbench.plugins.aggregators.dare import Dare, mask_of
from fcilbench.plugins.aggregators.fedavg import FedAvg
from fcilbench.spec.protocol import Partition

PARTS = Layout(slice(0, 4), slice(4, 8), slice(8, 9), classes=2, features=1)
TASKS = (Task(0, 0, 1), Task(1, 1, 1))
BACKBONE, HEAD = 64 * 16 + 16, 10 * 16 + 10
TAUS = [[1.0, -2.0, 3.0, 4.0], [2.0, 2.0, -2.0, 0.0]]
CPU = torch.device("cpu")


@pytest.fixture
def masks(monkeypatch):
    """The two masks of the example."""
    drawn = iter([[1, 0, 0, 1], [0, 1, 1, 1]])
    monkeypatch.setattr(dare, "mask_of", lambda *_: torch.tensor(next(drawn), dtype=torch.bool))


def server():
    return FederationServer(torch.zeros(9), torch.zeros(0, dtype=torch.int64), PARTS, TASKS)


def moved(rows, clients=(0, 1), samples=(1, 1), **params):
    delta = torch.cat([torch.tensor(rows), torch.ones(len(rows), 5)], dim=1)
    method, host = Dare(Dare.Params(**params)), server()
    method.begin(host)
    method.begin_task(host)
    method.aggregate(Updates(delta, samples, clients, ({},) * len(rows), PARTS), host)
    return host.vector


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [1.0, 2.0, -2.0, 4.0]),
        ({"merge": "ties", "keep": 1.0, "lam": 1.0}, [2.0, 4.0, -4.0, 8.0]),
        ({"merge": "sum", "lam": 0.5}, [1.0, 2.0, -2.0, 4.0]),
        ({"rescale": False}, [0.5, 1.0, -1.0, 2.0]),
    ],
)
def test_a_round_by_hand(masks, options, expected):
    """p = .5: tau' = (2, 0, 0, 8) and (0, 4, -4, 0)."""
    vector = moved(TAUS, **options)
    assert vector[:4].tolist() == expected
    assert vector[4:].tolist() == [1.0] * 5


def test_mean_and_variance_of_200_000_draws():
    """tau = 1, p = .9: mean 1 and variance 9, whose standard errors are .0067 and .054 (fourth moment 657)."""
    method = Dare(Dare.Params(drop_rate=0.9))
    drawn = method._dropped(torch.ones(200_000), np.random.default_rng(0)).double()
    assert float(drawn.mean()) == pytest.approx(1.0, abs=4 * 0.0067)
    assert float(drawn.var()) == pytest.approx(9.0, abs=4 * 0.054)
    assert sorted(set(drawn.tolist())) == pytest.approx([0.0, 10.0])


@pytest.mark.parametrize("rate", [0.3, 0.9])
def test_the_mean_of_10_000_draws_is_the_vector(rate):
    tau = torch.tensor([1.0, -2.0, 0.01, 30.0])
    method, random = Dare(Dare.Params(drop_rate=rate)), np.random.default_rng(1)
    drawn = method._dropped(tau.repeat(10_000), random).view(-1, 4).double()
    error = math.sqrt(rate / (1 - rate) / 10_000) * tau.abs()
    assert bool(((drawn.mean(0) - tau).abs() <= 4 * error).all())
    zeros = float((drawn == 0).double().mean())
    assert zeros == pytest.approx(rate, abs=4 * math.sqrt(rate * (1 - rate) / 40_000))


def test_each_client_has_a_mask_of_its_own_whatever_the_order():
    torch.manual_seed(0)
    rows = torch.rand(2, 4).add(1).tolist()
    alone = [moved(rows[:1], (client,), (1,)) for client in range(20)]
    assert len({tuple(vector.tolist()) for vector in alone}) > 5
    assert torch.allclose(moved(rows, (3, 5)), moved(rows[::-1], (5, 3)))


def test_without_drops_it_is_fedavg_bit_for_bit(play):
    options = {"partition": Partition(kind="dirichlet", value=0.2), "clients": 4}
    play(FedAvg(), **options)
    expected = play.vector
    for where in ("server", "client"):
        play(Dare(Dare.Params(drop_rate=0.0, where=where)), **options)
        assert torch.equal(play.vector, expected)
    play(Dare(), **options)
    assert not torch.equal(play.vector, expected)


def test_a_client_sends_what_it_keeps_and_a_seed(play):
    """Two clients, two rounds, four tasks: the head, 8 bytes, and about a tenth of 1040 floats each."""
    seen = []

    class Watching(Dare):
        def decode(self, message, server):
            found = super().decode(message, server)
            seen.append((dict(message), found))
            return found

    options = {"partition": Partition(kind="iid"), "clients": 2}
    run = play(Watching(Watching.Params(where="client", drop_rate=0.9)), **options)
    values = (run.cost.bytes_up - 16 * (4 * HEAD + 8)) / 4
    assert values == sum(int(message[name].numel()) for message, _ in seen for name in message if "body" in name)
    assert values == pytest.approx(0.1 * 16 * BACKBONE, abs=4 * math.sqrt(0.09 * 16 * BACKBONE))
    for message, found in seen:
        assert set(found) == set(message) - {"dare/seed"}
        for name, values in found.items():
            sent = message[name].flatten()
            assert torch.equal(values.flatten()[values.flatten() != 0], sent[sent != 0])
    assert len({int(message["dare/seed"]) for message, _ in seen}) == 16


def test_what_arrives_is_the_rescaled_update_where_the_mask_is_set(play):
    """Entries that arrive are ten times those of the same client in a run without rescaling, bit for bit near."""
    rows = []
    for rescale in (True, False):

        class Watching(Dare):
            def aggregate(self, updates, server):
                rows.append(updates.backbone.clone())
                super().aggregate(updates, server)

        options = {"partition": Partition(kind="iid"), "clients": 2, "tasks": (10,), "rounds": 1}
        play(Watching(Watching.Params(where="client", drop_rate=0.9, rescale=rescale)), **options)
    scaled, plain = rows
    assert torch.equal(scaled != 0, plain != 0)
    assert torch.allclose(scaled, 10 * plain, rtol=1e-5)
    assert 0 < float((plain != 0).float().mean()) < 0.2


def test_tasks_are_dropped_once_and_averaged(masks):
    """The example on tasks from theta_pre = 0; a third task without a vector does not count."""
    method, host = Dare(Dare.Params(over="tasks", drop_rate=0.5)), server()
    method.begin(host)
    for task, tau in zip(TASKS, TAUS, strict=True):
        host.enter(task, task.index)
        method.begin_task(host)
        host.step(torch.tensor(tau), PARTS.backbone)
        method.end_task(host, {})
    method.begin_task(host)
    for _ in range(2):
        assert method.predictors(host).modules["merged"]()[:4].tolist() == [1.0, 2.0, -2.0, 4.0]
    assert method.export(host)["theta"][:4].tolist() == [1.0, 2.0, -2.0, 4.0]


@pytest.mark.parametrize("options", [{"merge": "ties", "where": "client"}, {"over": "tasks", "storage": "fp16"}])
def test_an_interrupted_run_ends_bit_equal(play, norm_backbone, options):
    sparse = {"partition": Partition(kind="dirichlet", value=0.05, min_samples=0), "backbone": norm_backbone}
    whole, resumed = play(Dare(Dare.Params(**options)), **sparse), play(Dare(Dare.Params(**options)), 5, **sparse)
    assert resumed.model_digest == whole.model_digest
    assert resumed.accuracy == whole.accuracy
    assert (resumed.cost.bytes_up, resumed.cost.bytes_down) == (whole.cost.bytes_up, whole.cost.bytes_down)


def test_dropping_on_the_server_costs_what_fedavg_does(play):
    options = {"partition": Partition(kind="iid"), "clients": 2, "tasks": (5, 5)}
    cost = play(Dare(), **options).cost
    assert cost.bytes_up == cost.bytes_down == 2 * 2 * 2 * 4 * (BACKBONE + HEAD)


def test_an_option_without_effect_is_refused():
    for options in (
        {"storage": "fp16"},
        {"over": "tasks", "where": "client"},
        {"keep": 0.5},
        {"lam": 1.0},
        {"drop_rate": 0.0, "rescale": False},
    ):
        with pytest.raises(ValidationError, match="has no effect here"):
            Dare.Params(**options)
    assert (Dare.Params().rate, Dare.Params(over="tasks").rate) == (0.5, 0.9)


def test_a_mask_keeps_its_share():
    assert int(mask_of(100_000, 0.25, np.random.default_rng(0), CPU).sum()) == pytest.approx(75_000, abs=4 * 137)
