"""FisherAvg: its merge by hand and its laws, the clients' Fisher, real rounds."""

import pytest
import torch

from fcilbench.api.message import Layout
from fcilbench.api.schedule import Task
from fcilbench.api.server import Updates
from fcilbench.federation.server import FederationServer
from fcilbench.plugins.aggregators import fisheravg
from fcilbench.plugins.aggregators.fedavg import FedAvg
from fcilbench.plugins.aggregators.fisheravg import FisherAvg, norm
from fcilbench.plugins.aggregators.fisheravg import merge as merge_rows
from fcilbench.spec.protocol import Partition

PARTS = Layout(slice(0, 1), slice(1, 3), slice(3, 4), classes=1, features=1)
MODEL = 64 * 16 + 16 + 10 * 16 + 10


def merged(theta, clients, fishers, samples, **params):
    host = FederationServer(torch.tensor(theta), torch.zeros(0, dtype=torch.int64), PARTS, (Task(0, 0, 1),))
    messages = tuple({"fisher": torch.tensor(fisher)} for fisher in fishers)
    updates = Updates(torch.tensor(clients) - host.vector, samples, tuple(range(len(samples))), messages, PARTS)
    FisherAvg(FisherAvg.Params(**params)).aggregate(updates, host)
    return host


def test_by_hand_with_buffers_by_samples():
    """Parameters: equal weights, F = 3, 1. Buffer: (1 * 1 + 3 * 5) / 4 = 4."""
    clients = [[1.0, 1.0, 1.0, 1.0], [3.0, 3.0, 3.0, 5.0]]
    fishers = [[3.0, 1.0, 0.0], [1.0, 1.0, 1.0]]
    host = merged([0.0] * 4, clients, fishers, (1, 3), weighting="uniform", epsilon=0.0)
    assert host.vector.tolist() == [1.5, 2.0, 3.0, 4.0]
    assert merged([0.0] * 4, clients, fishers, (1, 3), epsilon=0.0).vector.tolist() == [2.0, 2.5, 3.0, 4.0]


def test_equal_fishers_are_fedavg_and_normalisation_forgets_scale():
    clients, fisher = [[1.0, 2.0, 3.0, 4.0], [5.0, 0.0, -1.0, 0.0]], [0.5, 0.25, 2.0]
    assert merged([0.0] * 4, clients, [fisher, fisher], (3, 1)).vector.tolist() == [2.0, 1.5, 2.0, 3.0]
    louder = [8 * value for value in fisher]
    same = merged([0.0] * 4, clients, [fisher, louder], (3, 1), normalize="l2", epsilon=0.0).vector
    assert torch.allclose(same, torch.tensor([2.0, 1.5, 2.0, 3.0]))


def test_one_client_is_returned_and_the_share_below_epsilon_is_logged():
    host = merged([0.0] * 4, [[1.1, 2.2, 3.3, 4.4]], [[0.0, 1e-13, 1.0]], (5,))
    assert torch.equal(host.vector, torch.tensor([1.1, 2.2, 3.3, 4.4]))
    assert host.logs["fisheravg/below_epsilon"] == pytest.approx(2 / 3)


def test_a_fisher_of_the_parameters_goes_up_in_each_round(play):
    settings = {"clients": 2, "partition": Partition(kind="iid")}
    plain, merged = play(FedAvg(), **settings).cost, play(FisherAvg(), **settings).cost
    assert merged.bytes_up - plain.bytes_up == 2 * 2 * 4 * MODEL * 4  # clients, rounds, tasks, floats
    assert merged.bytes_down == plain.bytes_down


def test_a_client_without_information_has_no_vote_and_scale_does_not_matter():
    delta = torch.randn(2, 50)
    assert torch.equal(merge_rows(delta, [torch.ones(50), torch.zeros(50)], [1.0, 1.0], 0.0), delta[0])
    one, two = torch.rand(50), torch.rand(50)
    scaled = merge_rows(delta, [one * 2**-20, two * 2**-20], [0.3, 0.7], 0.0)
    assert torch.equal(scaled, merge_rows(delta, [one, two], [0.3, 0.7], 0.0))


def test_coordinates_without_information_take_the_weights():
    delta, zero = torch.tensor([[1.0, 1.0], [5.0, 5.0]]), torch.zeros(2)
    for epsilon in (0.0, 1e-12):
        assert merge_rows(delta, [zero, zero], [3.0, 1.0], epsilon).tolist() == [2.0, 2.0]


def test_a_merge_stays_between_the_clients_and_does_not_depend_on_pieces(monkeypatch):
    torch.manual_seed(1)
    delta, fishers = torch.randn(4, 999), [torch.rand(999) ** 8 for _ in range(4)]
    before = delta.clone()
    merged = merge_rows(delta, fishers, [0.4, 0.3, 0.2, 0.1], 1e-12)
    assert bool((merged >= delta.amin(0)).all())
    assert bool((merged <= delta.amax(0)).all())
    assert torch.equal(delta, before)
    monkeypatch.setattr(fisheravg, "_CHUNK", 40)
    assert torch.equal(merge_rows(delta, fishers, [0.4, 0.3, 0.2, 0.1], 1e-12), merged)


def test_a_fisher_below_zero_has_no_vote_and_gives_none_to_others():
    """Four honest clients at 1 and one with its sign turned at -1: the shares have to be 1/4 each, and not 1/3."""
    delta = torch.tensor([[1.0], [1.0], [1.0], [1.0], [-1.0]])
    fishers = [torch.ones(1)] * 4 + [-torch.ones(1)]
    assert merge_rows(delta, fishers, [0.2] * 5, 1e-12).tolist() == pytest.approx([1.0])


def test_unit_norm():
    assert norm(torch.tensor([3.0, 4.0])) == 5.0
    assert norm(torch.zeros(2)) == 1.0
