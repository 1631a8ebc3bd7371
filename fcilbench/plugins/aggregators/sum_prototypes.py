"""Class prototypes for SUM's `prototype` selector: means of features under the frozen pretrained model.

A client needs theta_pre for them: it is broadcast once a task and counted, since a client is not assumed to keep a
second model.
"""

from __future__ import annotations

import torch

from fcilbench.api.client import Client
from fcilbench.api.message import Message
from fcilbench.api.server import Server, Updates
from fcilbench.vectors.prototypes import nearest_mean_head


def upload(client: Client) -> Message:
    """Returns the sum of the features `[size, F]` and the samples `[size]` of each class of the task, once a task."""
    sent = client.state.get("prototypes_of_task")
    if sent is not None and int(sent) == client.task.index:
        return {}
    client.state["prototypes_of_task"] = torch.tensor(client.task.index)
    frozen = client.net.under(client.received["pre"])
    size, device = client.task.size, client.net.parameters.device
    sums = torch.zeros(size, client.feature_dim, dtype=torch.float64, device=device)
    counts = torch.zeros(size, dtype=torch.int64, device=device)
    for batch in client.batches():
        classes = client.task.local(batch.labels)
        members = torch.nn.functional.one_hot(classes, size)
        # A product: scattered additions have no fixed order on a GPU.
        sums += members.T.to(torch.float64) @ frozen.features(batch.inputs).to(torch.float64)
        counts += members.sum(dim=0)
    return {"prototype_sum": sums.float(), "prototype_count": counts}


def begin(server: Server) -> None:
    """Starts the sums of all classes on the server."""
    shape = server.layout.classes, server.layout.features
    server.state["prototype_sums"] = server.vector.new_zeros(shape, dtype=torch.float64)
    server.state["prototype_counts"] = server.vector.new_zeros(shape[0], dtype=torch.int64)


def collect(updates: Updates, server: Server) -> None:
    """Adds the uploads of a round to the sums."""
    state, classes = server.state, server.task.classes
    for message in updates.statistics:
        if "prototype_sum" in message:
            state["prototype_sums"][classes] += message["prototype_sum"].to(torch.float64)
            state["prototype_counts"][classes] += message["prototype_count"]


def model(server: Server) -> torch.Tensor:
    """Returns the pretrained model with the nearest-mean head, `[D]`."""
    theta: torch.Tensor = server.state["pre"].clone()
    theta[server.layout.head] = nearest_mean_head(server.state["prototype_sums"], server.state["prototype_counts"])
    return theta
