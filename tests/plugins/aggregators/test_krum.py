"""Krum and multi-Krum: hand values, laws, small rounds, real rounds."""

import itertools
from types import SimpleNamespace

import pytest
import torch
from pydantic import ValidationError

from fcilbench.api import No
from fcilbench.api.message import Layout
from fcilbench.api.schedule import Task
from fcilbench.api.server import Updates
from fcilbench.federation.server import FederationServer
from fcilbench.plugins.aggregators.fedavg import FedAvg
from fcilbench.plugins.aggregators.krum import Krum, MultiKrum, ranked, scores
from fcilbench.spec.protocol import Partition, Protocol
from fcilbench.vectors.distances import squared_distances

ROWS = [[0, 0], [1, 0], [0, 2], [1, 2.5], [10, 10]]
SPARSE = {"clients": 6, "partition": Partition(kind="dirichlet", value=0.05, min_samples=0)}


def made(cls, **params):
    return cls(cls.Params(**params))


def merged(method, rows, buffers=0, clients=None):
    """The server at 0 after one merge; the last `buffers` columns are buffers."""
    rows = torch.as_tensor(rows, dtype=torch.float32)
    size = rows.shape[1]
    parts = Layout(slice(0, 1), slice(1, size - buffers), slice(size - buffers, size), classes=1, features=1)
    host = FederationServer(torch.zeros(size), torch.zeros(0, dtype=torch.int64), parts, (Task(0, 0, 1),))
    count = len(rows)
    updates = Updates(rows, (9, 1, 5, 2, 7, 3, 8)[:count], clients or tuple(range(count)), ({},) * count, parts)
    method.aggregate(updates, host)
    return host


def test_scores_by_hand():
    distances = squared_distances(torch.tensor(ROWS))
    assert scores(distances, 1).tolist() == [5, 6, 5.25, 7.5, 301.25]
    line = squared_distances(torch.tensor([[0.0], [1.0], [3.0], [7.0]]))
    assert scores(line, 1).tolist() == [1, 1, 4, 16]
    assert ranked(torch.tensor([2.0, 1.0, 1.0]), (0, 8, 5)) == [2, 1, 0]


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (made(Krum), [0, 0]),
        (made(Krum, byzantine=1), [0, 0]),
        (made(MultiKrum), [0, 1]),
        (made(MultiKrum, keep=1), [0, 0]),
        (made(MultiKrum, keep=2), [0, 1]),
        (made(MultiKrum, keep=3), [1 / 3, 2 / 3]),
        (made(MultiKrum, keep=9), [2.4, 2.9]),
    ],
)
def test_merges_by_hand(method, expected):
    host = merged(method, ROWS)
    assert host.vector.tolist() == pytest.approx(expected)
    assert host.warnings == []


def test_a_tie_goes_to_the_smallest_client_id_and_buffers_come_along():
    """Buffers, the last column, would decide otherwise."""
    line = torch.tensor([[0.0, 0, 5], [1.0, 0, 600], [3.0, 0, 7], [7.0, 0, 8], [30.0, 0, 9]])
    # f = 1, two neighbours: 10, 5, 13, 52: the second
    assert merged(made(Krum, byzantine=1), line, 1).vector.tolist() == [1, 0, 600]
    pairs = torch.tensor([[0.0, 0, 5], [1.0, 0, 6], [0.0, 9, 7]])  # f = 0, n = 3: one neighbour each
    assert merged(made(Krum), pairs, 1).vector.tolist() == [0, 0, 5]
    assert merged(made(Krum), pairs, 1, (4, 2, 7)).vector.tolist() == [1, 0, 6]


def test_krum_is_a_row_and_neither_shift_nor_rotation_nor_order_matters():
    torch.manual_seed(0)
    rows = torch.randn(7, 40)
    turn = torch.linalg.qr(torch.randn(40, 40).double()).Q.float()
    found = merged(made(Krum, byzantine=2), rows).vector
    (index,) = (i for i, row in enumerate(rows) if torch.equal(row, found))
    assert torch.allclose(
        merged(made(Krum, byzantine=2), (rows + 3) @ turn).vector, (rows[index] + 3) @ turn, atol=1e-5
    )
    order = [4, 2, 6, 0, 5, 1, 3]
    assert torch.equal(merged(made(Krum, byzantine=2), rows[order], clients=tuple(order)).vector, found)
    three = merged(made(MultiKrum, byzantine=2), rows).vector  # m = 3: a mean of three rows
    means = [rows[list(some)].mean(0) for some in itertools.combinations(range(7), 3)]
    assert sum(bool(torch.allclose(three, mean, atol=1e-6)) for mean in means) == 1


@pytest.mark.parametrize("size", [10.0, -1e4, 1e18])
def test_a_minority_of_any_size_is_not_chosen(size):
    """Two liars of seven, f = 2. Honest rows are near 1, so they and their means are."""
    torch.manual_seed(1)
    rows = torch.cat([size * torch.randn(2, 30), 1 + 0.1 * torch.randn(5, 30)])
    for method in (made(Krum, byzantine=2), made(Krum), made(MultiKrum)):
        found = merged(method, rows).vector
        assert bool((found >= rows[2:].amin(0) - 1e-6).all())
        assert bool((found <= rows[2:].amax(0) + 1e-6).all())


def test_small_rounds_withstand_less_and_say_so():
    assert merged(made(Krum), [[1, 2], [3, 6]]).vector.tolist() == [2, 4]
    assert merged(made(Krum), [[1, 2]]).vector.tolist() == [1, 2]
    (told,) = merged(made(Krum, byzantine=2), ROWS).warnings
    assert told == "a round of 5 clients withstands 1 that are Byzantine"
    assert merged(made(Krum, byzantine=0), ROWS[:4]).warnings == []
    (told,) = merged(made(Krum), [[1, 2]]).warnings
    assert told == "a round of 1 clients withstands 0 that are Byzantine"
    (told,) = merged(made(Krum), ROWS[:4]).warnings
    assert told == "a round of 4 clients withstands 0 that are Byzantine"


def test_rounds_that_can_never_be_large_enough_are_declined():
    def asked(byzantine, clients, participation):
        request = SimpleNamespace(protocol=Protocol(clients=clients, participation=participation), clients=clients)
        return made(Krum, byzantine=byzantine).prepare(None, request)

    assert asked("auto", 1, 1.0) is asked(1, 5, 1.0) is asked(3, 9, 1.0) is asked(1, 10, 0.5) is None
    assert asked(1, 4, 1.0) == No("byzantine: 1 needs rounds of 5 clients or more, and these have 4")
    assert isinstance(asked(1, 10, 0.4), No)
    with pytest.raises(ValidationError, match="0 or more"):
        Krum.Params(byzantine=-1)


def test_all_updates_kept_are_the_uniform_mean_bit_for_bit(play, norm_backbone):
    play(made(MultiKrum, keep=3), backbone=norm_backbone)
    own = play.vector
    play(FedAvg(FedAvg.Params(weighting="uniform")), backbone=norm_backbone)
    assert torch.equal(own, play.vector)


@pytest.mark.parametrize("method", [Krum, MultiKrum])
def test_an_interrupted_run_ends_bit_equal_at_the_bytes_of_fedavg(play, norm_backbone, method):
    """Clients without samples and of one class, tasks of unequal size, a network with buffers."""
    whole, resumed = (play(method(), stop, backbone=norm_backbone, **SPARSE) for stop in (None, 3))
    assert resumed.model_digest == whole.model_digest
    assert resumed.accuracy == whole.accuracy
    assert whole.cost.server_state == whole.cost.client_state == 0


def test_bytes_by_hand(play):
    """5 clients in 4 tasks of 2 rounds, float32; a task of one class changes nothing, so two rounds send none down."""
    model = 4 * (64 * 16 + 16 + 10 * 16 + 10)
    cost = play(Krum(), clients=5, partition=Partition(kind="iid")).cost
    assert (cost.bytes_up, cost.bytes_down) == (5 * 8 * model, 5 * 6 * model)
