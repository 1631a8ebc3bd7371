"""Trimmed mean and median: hand values, what a minority can do, real rounds."""

import numpy as np
import pytest
import torch

from fcilbench.api.message import Layout
from fcilbench.api.schedule import Task
from fcilbench.api.server import Updates
from fcilbench.federation.server import FederationServer
from fcilbench.plugins.aggregators import trimmed_mean as plugin
from fcilbench.plugins.aggregators.fedavg import FedAvg
from fcilbench.plugins.aggregators.trimmed_mean import Median, TrimmedMean, trimmed_mean
from fcilbench.spec.protocol import Partition

ROWS = [[1, -5, 0, 2], [2, 0, 0, 2], [3, 1, 0, -2], [4, 2, 10, 0], [100, 3, 0, 8]]
PARTS = Layout(slice(0, 1), slice(1, 3), slice(3, 4), classes=1, features=1)  # the last column is a buffer
SPARSE = {"clients": 5, "partition": Partition(kind="dirichlet", value=0.05, min_samples=0)}


def trimmed(**params):
    return TrimmedMean(TrimmedMean.Params(**params))


def merged(method, rows, samples=None):
    host = FederationServer(torch.zeros(4), torch.zeros(0, dtype=torch.int64), PARTS, (Task(0, 0, 1),))
    rows = torch.tensor(rows, dtype=torch.float32)
    before = rows.clone()
    samples = samples or (7, 1, 30, 2, 5)[: len(rows)]
    method.aggregate(Updates(rows, samples, tuple(range(len(rows))), ({},) * len(rows), PARTS), host)
    assert torch.equal(rows, before)
    return host


@pytest.mark.parametrize(
    ("method", "rows", "expected"),
    [
        (trimmed(trim=0.2), ROWS, [3, 1, 0, 4 / 3]),
        (trimmed(trim=0.4), ROWS, [3, 1, 0, 2]),
        (Median(), ROWS, [3, 1, 0, 2]),
        (trimmed(trim=0.25), ROWS[:4], [2.5, 0.5, 0, 1]),
        (Median(), ROWS[:4], [2.5, 0.5, 0, 1]),
        (Median(), ROWS[:2], [1.5, -2.5, 0, 2]),
        (Median(), ROWS[4:], [100, 3, 0, 8]),
    ],
)
def test_by_hand_whatever_the_samples(method, rows, expected):
    assert merged(method, rows).vector.tolist() == pytest.approx(expected)


@pytest.mark.parametrize(("beta", "count", "dropped"), [(0.29, 100, 29), (0.2, 9, 1), (0.1, 9, 0)])
def test_the_floor_is_that_of_the_decimal_number(beta, count, dropped):
    """int(0.29 * 100) is 28. Of squares and an outlier `dropped` at either end are left out."""
    values = [*(value * value for value in range(count - 1)), 1e6]
    column, kept = [[value] * 4 for value in values], values[dropped : count - dropped]
    host = merged(trimmed(trim=beta), column, (1,) * count)
    assert host.vector[0].item() == pytest.approx(sum(kept) / len(kept))
    assert len(host.warnings) == (dropped == 0)


def test_a_second_implementation_and_no_pieces(monkeypatch):
    torch.manual_seed(0)
    rows = torch.randn(7, 9001)
    expected = np.sort(rows.double().numpy(), axis=0)
    for dropped in range(4):
        mean = expected[dropped : 7 - dropped].mean(axis=0)
        assert np.allclose(trimmed_mean(rows, dropped).numpy(), mean, rtol=0, atol=1e-6)
    assert np.allclose(trimmed_mean(rows, 3).numpy(), np.median(rows.numpy(), axis=0), rtol=0, atol=0)
    assert np.allclose(trimmed_mean(rows[:6], 2).numpy(), np.median(rows[:6].numpy(), axis=0), rtol=0, atol=1e-6)
    whole = trimmed_mean(rows, 2)
    monkeypatch.setattr(plugin, "columns", lambda rows, device: 40)
    assert torch.equal(trimmed_mean(rows, 2), whole)


def test_laws_order_shift_and_a_minority_that_sends_anything():
    torch.manual_seed(1)
    honest, shift = torch.randn(5, 400), torch.randn(400)
    assert torch.equal(trimmed_mean(honest[[3, 0, 4, 2, 1]], 2), trimmed_mean(honest, 2))
    assert torch.allclose(trimmed_mean(honest + shift, 1), trimmed_mean(honest, 1) + shift, atol=1e-5)
    for size in (1e3, -1e9, 1e30):
        liars = size * torch.randn(2, 400)
        for rows, dropped in ((torch.cat([liars, honest]), 2), (torch.cat([honest, liars]), 3)):
            found, slack = trimmed_mean(rows, dropped), 1e-6
            assert bool((found >= honest.amin(0) - slack).all())
            assert bool((found <= honest.amax(0) + slack).all())
        assert trimmed_mean(torch.cat([liars, honest]), 1).abs().max() > 10  # one is not enough against two


def test_nothing_dropped_is_the_uniform_mean_bit_for_bit(play, norm_backbone):
    play(trimmed(trim=0.0), backbone=norm_backbone)
    own = play.vector
    play(FedAvg(FedAvg.Params(weighting="uniform")), backbone=norm_backbone)
    assert torch.equal(own, play.vector)
    play(Median(), backbone=norm_backbone)
    assert not torch.equal(own, play.vector)


@pytest.mark.parametrize("method", [Median, TrimmedMean])
def test_an_interrupted_run_ends_bit_equal_at_the_bytes_of_fedavg(play, norm_backbone, method):
    """Clients without samples and of one class, tasks of unequal size, a network with buffers."""
    whole, resumed = (play(method(), stop, backbone=norm_backbone, **SPARSE) for stop in (None, 3))
    assert resumed.model_digest == whole.model_digest
    assert resumed.accuracy == whole.accuracy
    plain = play(FedAvg(), backbone=norm_backbone, **SPARSE).cost
    assert (whole.cost.bytes_up, whole.cost.bytes_down) == (plain.bytes_up, plain.bytes_down)
    assert whole.cost.server_state == whole.cost.client_state == 0


def test_bytes_by_hand(play):
    """3 clients in 4 tasks of 2 rounds, float32; a task of one class changes nothing, so two rounds send none down."""
    model = 4 * (64 * 16 + 16 + 10 * 16 + 10)
    cost = play(TrimmedMean(), partition=Partition(kind="iid")).cost
    assert (cost.bytes_up, cost.bytes_down) == (3 * 8 * model, 3 * 6 * model)


def test_rows_of_an_old_task_stay_and_few_clients_take_part(play):
    """Ten clients, of which 3 are drawn; the head's rows of task 0 do not move in task 1."""
    heads = []

    class Watching(Median):
        def end_task(self, server, statistics):
            rows, classes = server.vector[server.layout.head], server.layout.classes
            heads.append((rows[:-classes].view(classes, -1)[:3].clone(), rows[-classes:][:3].clone()))

    play(Watching(), tasks=(3, 7), clients=10, participation=0.3, partition=Partition(kind="iid"))
    (weight, bias), (after, bias_after) = heads
    assert torch.equal(weight, after)
    assert torch.equal(bias, bias_after)
