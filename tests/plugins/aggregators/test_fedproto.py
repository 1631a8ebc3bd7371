"""FedProto: terms and means by hand, bytes, presets, real rounds."""

import pytest
import torch

from fcilbench.api.client import Batch
from fcilbench.api.message import Layout, nbytes
from fcilbench.api.schedule import Task
from fcilbench.api.server import Updates
from fcilbench.federation.server import FederationServer
from fcilbench.plugins.aggregators.fedproto import FedProto, batch_mean_term, per_sample_term
from fcilbench.spec.protocol import Partition

TASKS = (Task(0, 0, 2), Task(1, 2, 3))
PARTS = Layout(slice(0, 4), slice(4, 4 + 5 * 2 + 5), slice(19, 19), classes=5, features=2)


def fedproto(**params):
    return FedProto(FedProto.Params(**params))


def batch(labels, mask=None, task=TASKS[1]):
    return Batch(torch.zeros(len(labels)), torch.tensor(labels), torch.tensor(mask or [1.0] * len(labels)), task)


def host(task=TASKS[1]):
    server = FederationServer(torch.zeros(19), torch.zeros(0, dtype=torch.int64), PARTS, TASKS)
    server.enter(task, task.index)
    return server


FEATURES = torch.tensor([[1.0, 0.0], [3.0, 2.0]])
GLOBAL = torch.tensor([[0.0, 0.0], [1.0, 2.0], [9.0, 9.0]])
KNOWN = torch.tensor([True, True, False])


def test_terms_by_hand():
    """G = (1, 2), features (1, 0), (3, 2): 1.0 for the batch's mean, 2.0 for every sample; class 3 is local 1."""
    assert batch_mean_term(FEATURES, batch([3, 3]), GLOBAL, KNOWN).item() == 1.0
    assert per_sample_term(FEATURES, batch([3, 3]), GLOBAL, KNOWN).item() == 2.0


def test_classes_add_up_and_unknown_ones_are_skipped():
    # Class 2 has mean (1, 0), G = 0: 0.5. Class 3 has (3, 2): (4 + 0) / 2 = 2. Class 4 has no prototype.
    assert batch_mean_term(FEATURES, batch([2, 3]), GLOBAL, KNOWN).item() == 2.5
    assert per_sample_term(FEATURES, batch([2, 3]), GLOBAL, KNOWN).item() == 1.25
    assert batch_mean_term(FEATURES, batch([4, 4]), GLOBAL, KNOWN).item() == 0.0
    assert per_sample_term(FEATURES, batch([4, 4]), GLOBAL, KNOWN).item() == 0.0


@pytest.mark.parametrize("term", [batch_mean_term, per_sample_term])
def test_padding_changes_nothing_and_prototypes_get_no_gradient(term):
    prototypes = GLOBAL.clone().requires_grad_()
    features = torch.cat([FEATURES, torch.full((2, 2), 7.0)]).requires_grad_()
    value = term(features, batch([2, 3, 3, 2], [1.0, 1.0, 0.0, 0.0]), prototypes, KNOWN)
    assert value.item() == term(FEATURES, batch([2, 3]), GLOBAL, KNOWN).item()
    value.backward()
    assert prototypes.grad is None
    assert features.grad[2:].abs().sum() == 0


def aggregate(method, server, messages):
    count = len(messages)
    delta = torch.zeros(count, 19)
    method.aggregate(Updates(delta, (1,) * count, tuple(range(count)), tuple(messages), PARTS), server)


def message(counts, rows):
    return {"counts": torch.tensor(counts, dtype=torch.int32), "prototypes": torch.tensor(rows)}


@pytest.mark.parametrize(("average", "expected"), [("samples", [2.0, 1.0]), ("uniform", [3.0, 2.0])])
def test_prototypes_of_two_clients(average, expected):
    """n = 3 at (1, 0) and n = 1 at (5, 4)."""
    method, server = fedproto(proto_weighting=average), host()
    method.begin(server)
    assert method.broadcast(server) == {}
    aggregate(method, server, [message([0, 3, 0], [[1.0, 0.0]]), message([0, 1, 0], [[5.0, 4.0]])])
    sent = method.broadcast(server)
    assert sent["prototypes"][1].tolist() == expected
    assert sent["known"].tolist() == [False, True, False]
    # A class that nobody reports keeps its prototype; another one appears.
    aggregate(method, server, [message([2, 0, 0], [[8.0, 8.0]])])
    assert method.broadcast(server)["prototypes"][:2].tolist() == [[8.0, 8.0], expected]
    server.enter(TASKS[0], 0)
    assert method.broadcast(server) == {}
    assert server.state["known"].tolist() == [False, False, True, True, False]


def test_the_nearest_prototype_answers():
    method, server = fedproto(predict="prototype"), host()
    method.begin(server)
    aggregate(method, server, [message([1, 1, 0], [[100.0, 100.0], [101.0, 100.0]])])
    deployed = method.predictors(server).modules["global"]()
    weight, bias = deployed[4:14].view(5, 2), deployed[14:]
    points = torch.tensor([[100.4, 100.0], [100.6, 100.0], [0.0, 0.0]])
    assert (points @ weight.T + bias).argmax(dim=1).tolist() == [2, 3, 2]
    assert server.vector.abs().sum() == 0  # the trained head is what training goes on from


def test_statistics_are_class_means_by_hand(feature_client):
    client = feature_client([[1.0, 0.0], [3.0, 2.0], [9.0, 9.0]], [3, 3, 4], TASKS[1])
    sent = fedproto().statistics(client)
    assert sent["counts"].tolist() == [0, 2, 1]
    assert sent["prototypes"].tolist() == [[2.0, 1.0], [9.0, 9.0]]


def test_bytes_of_vit_b16(feature_client):
    """10 x 768 floats each way and 4 bytes a class for the counts; up 343.533 MB."""
    sent = nbytes(fedproto().statistics(feature_client(torch.randn(20, 768), torch.arange(20) % 10, Task(0, 0, 10))))
    assert sent == 10 * 768 * 4 + 10 * 4
    assert (343_502_224 + sent) / 1e6 == pytest.approx(343.533, abs=0.001)
    assert sent / 1e6 == pytest.approx(0.04, abs=0.01)  # Kim and Do 2026, communication table: 343.83 - 343.79


def test_traffic_by_hand(play):
    """Counts 4 bytes a class in every round, rows of present classes; down 64 + 1 bytes a class from round two on."""
    outcome = play(fedproto(), partition=Partition(kind="iid"), tasks=(3, 2, 3, 2))
    model = 4 * 1210
    classes = 3 + 2 + 3 + 2
    assert outcome.cost.bytes_down == 24 * model + 3 * classes * 65
    assert outcome.cost.bytes_up == 24 * model + 3 * 2 * classes * (64 + 4)
