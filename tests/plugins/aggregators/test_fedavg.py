"""FedAvg: means by hand."""

import pytest
import torch

from fcilbench.api.message import Layout
from fcilbench.api.schedule import Task
from fcilbench.api.server import Updates
from fcilbench.federation.server import FederationServer
from fcilbench.plugins.aggregators.fedavg import FedAvg

PARTS = Layout(slice(0, 2), slice(2, 2), slice(2, 2), 1, 0)


def merge(theta, clients, samples, weighting="samples"):
    host = FederationServer(torch.tensor(theta), torch.zeros(0, dtype=torch.int64), PARTS, (Task(0, 0, 1),))
    delta = torch.tensor(clients) - host.vector
    ids = tuple(range(len(samples)))
    message = tuple({} for _ in ids)
    FedAvg(FedAvg.Params(weighting=weighting)).aggregate(Updates(delta, samples, ids, message, PARTS), host)
    return host.vector.tolist()


@pytest.mark.parametrize(
    ("samples", "weighting", "expected"),
    [((1, 3), "samples", [4.0, 0.0]), ((1, 3), "uniform", [3.0, 1.0]), ((2, 2), "samples", [3.0, 1.0])],
)
def test_mean_by_hand(samples, weighting, expected):
    assert merge([0.5, 0.0], [[1.0, 3.0], [5.0, -1.0]], samples, weighting) == expected
