"""RFA: Weiszfeld steps by hand, laws of the geometric median, real rounds."""

import itertools
import math

import pytest
import torch

from fcilbench.api.message import Layout
from fcilbench.api.schedule import Task
from fcilbench.api.server import Updates
from fcilbench.federation.server import FederationServer
from fcilbench.plugins.aggregators.fedavg import FedAvg
from fcilbench.plugins.aggregators.geometric_median import GeometricMedian, objective, to_mean, weiszfeld
from fcilbench.spec.protocol import Partition
from fcilbench.vectors.distances import squared_distances

TRIANGLE, HALF = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 8.0]]), (0.25, 0.25, 0.5)
SPARSE = {"clients": 5, "partition": Partition(kind="dirichlet", value=0.05, min_samples=0)}


def made(**params):
    return GeometricMedian(GeometricMedian.Params(**params))


def merged(method, rows, samples, buffers=0):
    rows = torch.as_tensor(rows, dtype=torch.float32)
    size = rows.shape[1]
    parts = Layout(slice(0, 1), slice(1, size - buffers), slice(size - buffers, size), classes=1, features=1)
    host = FederationServer(torch.zeros(size), torch.zeros(0, dtype=torch.int64), parts, (Task(0, 0, 1),))
    count = len(rows)
    method.aggregate(Updates(rows, samples, tuple(range(count)), ({},) * count, parts), host)
    return host


def median(rows, shares, steps, nu=1e-6, tolerance=0.0):
    shares = torch.tensor(shares, dtype=torch.float64)
    weights, done = weiszfeld(squared_distances(rows), shares, nu, steps, tolerance)
    return (weights @ rows.double()).tolist(), weights, done


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (0, [0.5, 4]),
        (1, [0.478554, 4.057190]),
        (2, [0.471409, 4.114369]),
        (3, [0.464838, 4.170012]),
        (4, [0.458444, 4.224158]),
    ],
)
def test_steps_by_hand(steps, expected):
    assert median(TRIANGLE, HALF, steps)[0] == pytest.approx(expected, abs=1e-6)
    host = merged(made(steps=steps, tolerance=0.0), TRIANGLE, (5, 5, 10))
    assert host.vector.tolist() == pytest.approx(expected, abs=1e-6)
    assert host.logs["geometric-median/steps"] == steps


def test_the_weights_and_the_objective_by_hand():
    shares = torch.tensor(HALF, dtype=torch.float64)
    distances = squared_distances(TRIANGLE)
    _, weights, _ = median(TRIANGLE, HALF, 4)
    assert weights.tolist() == pytest.approx([0.242758, 0.229222, 0.528020], abs=1e-6)
    values = [objective(to_mean(distances, c), shares, 1e-6) for c in (shares, weights)]
    assert values == pytest.approx([4.091347, 4.088190], abs=1e-6)
    # Within nu = 1 a distance r counts r^2 / 2 + 1 / 2: of 0.5 and 3 the mean is (0.625 + 3) / 2
    equal = torch.tensor([0.5, 0.5], dtype=torch.float64)
    assert objective(torch.tensor([0.5, 3.0], dtype=torch.float64), equal, 1.0) == pytest.approx(1.8125)


def test_converged_medians():
    """A client with half of the weight is the median, reached slowly; equal weights; a line; an outlier."""
    assert median(TRIANGLE, HALF, 1000)[0] == pytest.approx([0, 8], abs=2e-3)
    assert median(TRIANGLE, [1 / 3] * 3, 1000)[0] == pytest.approx([0.765181, 0.553222], abs=1e-6)
    line = torch.tensor([[0.0], [1.0], [10.0]])
    for steps, value in ((0, 3.666667), (1, 2.425390), (2, 1.622749), (99, 1.0)):
        assert median(line, [1 / 3] * 3, steps)[0] == pytest.approx([value], abs=1e-6)
    assert merged(made(weighting="uniform"), line.expand(3, 2), (9, 1, 30)).vector.tolist() == pytest.approx([1, 1])


@pytest.mark.parametrize(("far", "after_four"), [(10.0, 0.872541), (1e3, 1.505288), (1e6, 976.109298)])
def test_four_steps_do_not_forget_a_large_outlier(far, after_four):
    rows = torch.tensor([[0, 0], [1, 0], [0, 1], [1, 1], [far, far]])
    assert median(rows, [0.2] * 5, 4)[0] == pytest.approx([after_four] * 2, abs=1e-6)
    original = merged(made(preset="original", weighting="uniform"), rows, (1,) * 5).vector
    assert original.tolist() == pytest.approx([after_four] * 2, rel=1e-3)
    assert median(rows, [0.2] * 5, 1000)[0] == pytest.approx([0.788675] * 2, abs=1e-5)
    assert merged(made(), rows, (1,) * 5).vector.tolist() == pytest.approx([0.788675] * 2, abs=8e-3)


def test_no_step_raises_the_objective_and_the_gradient_vanishes():
    torch.manual_seed(0)
    rows = torch.randn(6, 50)
    shares = torch.tensor([0.1, 0.2, 0.1, 0.15, 0.25, 0.2], dtype=torch.float64)
    distances = squared_distances(rows)
    for nu in (1e-6, 7.0, 1e3):
        found = [weiszfeld(distances, shares, nu, steps, 0.0)[0] for steps in range(30)]
        values = [objective(to_mean(distances, c), shares, nu) for c in found]
        assert all(later <= sooner + 1e-12 for sooner, later in itertools.pairwise(values))
    v = weiszfeld(distances, shares, 1e-6, 1000, 0.0)[0] @ rows.double()
    apart = v - rows.double()
    pull = (shares / apart.norm(dim=1)) @ apart  # the gradient of the objective, written down apart
    assert pull.norm() < 1e-6
    assert to_mean(distances, shares).tolist() == pytest.approx(
        (shares @ rows.double() - rows.double()).norm(dim=1).tolist()
    )


def test_equal_rows_rotation_order_and_shift():
    torch.manual_seed(1)
    rows, samples = torch.randn(5, 30), (3, 1, 4, 1, 5)
    same = merged(made(), rows[:1].expand(4, -1), (2, 2, 2, 2))
    assert torch.allclose(same.vector, rows[0], rtol=1e-6)
    assert same.warnings == []
    turn = torch.linalg.qr(torch.randn(30, 30).double()).Q.float()
    found = merged(made(), rows, samples).vector
    assert torch.allclose(merged(made(), (rows + 2) @ turn, samples).vector, (found + 2) @ turn, atol=1e-5)
    order = [3, 1, 4, 0, 2]
    shuffled = merged(made(), rows[order], tuple(samples[i] for i in order)).vector
    assert torch.allclose(shuffled, found, atol=1e-6)


@pytest.mark.parametrize("size", [1e2, -1e4, 1e8])
def test_a_minority_moves_the_median_by_a_bounded_length(size):
    """With a share e < 1/2 of weight it stays within 2 (1 - e) / (1 - 2 e) times the spread of the others."""
    torch.manual_seed(2)
    honest = torch.randn(5, 30)
    rows = torch.cat([honest, size * torch.randn(2, 30)])
    found, centre, share = merged(made(tolerance=0.0), rows, (1,) * 7).vector, honest.mean(0), 2 / 7
    spread = (honest - centre).norm(dim=1).max()
    assert (found - centre).norm() <= 2 * (1 - share) / (1 - 2 * share) * spread
    assert (rows.mean(0) - centre).norm() > 10 * spread


def test_buffers_take_the_same_weights_and_do_not_count_as_distance():
    rows = torch.cat([TRIANGLE, torch.tensor([[1e6], [0.0], [0.0]])], dim=1)
    host = merged(made(steps=4, tolerance=0.0), rows, (1, 1, 2), buffers=1)
    assert host.vector.tolist() == pytest.approx([0.458444, 4.224158, 0.242758e6], rel=1e-5)


def test_a_nu_larger_than_all_distances_is_fedavg_and_says_so():
    host = merged(made(nu=10.0), TRIANGLE, (1, 1, 2))
    assert host.vector.tolist() == [0.5, 4.0]
    assert host.warnings == ["nu is larger than the distance between any two updates: such a round is FedAvg"]
    assert merged(made(), TRIANGLE, (1, 1, 2)).warnings == []


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_no_step_is_fedavg_bit_for_bit(play, norm_backbone, weighting):
    play(made(steps=0, weighting=weighting), backbone=norm_backbone)
    own = play.vector
    play(FedAvg(FedAvg.Params(weighting=weighting)), backbone=norm_backbone)
    assert torch.equal(own, play.vector)


def test_an_interrupted_run_ends_bit_equal(play, norm_backbone):
    """Clients without samples and of one class, tasks of unequal size, a network with buffers."""
    whole, resumed = (play(made(), stop, backbone=norm_backbone, **SPARSE) for stop in (None, 3))
    assert resumed.model_digest == whole.model_digest
    assert resumed.accuracy == whole.accuracy
    assert whole.cost.server_state == whole.cost.client_state == 0
    assert all(math.isfinite(value) for value in play.vector.tolist())


def test_bytes_by_hand(play):
    """3 clients in 4 tasks of 2 rounds, float32; a task of one class changes nothing, so two rounds send none down."""
    model = 4 * (64 * 16 + 16 + 10 * 16 + 10)
    cost = play(made(), partition=Partition(kind="iid")).cost
    assert (cost.bytes_up, cost.bytes_down) == (3 * 8 * model, 3 * 6 * model)
