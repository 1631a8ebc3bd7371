"""Federations of quadratics in the real engine: client k minimises a_k / 2 ||theta - m_k||^2.

Every entry of the state vector begins at 0 and all move alike, so what a run does can be worked out on one number.
Tests load this file with `runpy`.
"""

import itertools
import tempfile
from copy import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from fcilbench.federation.run import run_experiment

TWO = ((1.0, 1.0), (3.0, -1.0))
"""f_1 = 1/2 (x - 1)^2 and f_2 = 3/2 (x + 1)^2, with the least sum at -1/2."""


def one(tensor):
    """The value that all entries of a tensor share."""
    assert torch.allclose(tensor, tensor.reshape(-1)[0], rtol=1e-6, atol=1e-7)
    return float(tensor.reshape(-1)[0])


def train(make_experiment, method, params=None, *, curves=TWO, samples=(1, 1), steps=2, **changes):
    """Runs a method on the clients (a_k, m_k) with these relative numbers of samples, full batches and SGD at 0.1.

    Returns for each round what it left behind: `theta`, the server's state under `server`, and under each client's id
    its state. Of tensors it is the value that all entries share.
    """
    found = []

    class Quadratic(method):
        def build_schedule(self, schedule):
            def shared(phase):
                pool, each = np.sort(np.concatenate(phase.clients)), 200 // sum(samples)
                ends = np.cumsum([0, *samples]) * each
                clients = tuple(pool[start:end] for start, end in itertools.pairwise(ends))
                return replace(phase, clients=clients)

            return replace(schedule, phases=tuple(shared(phase) for phase in schedule.phases))

        def begin(self, server):
            super().begin(server)
            server.step(-server.vector)

        def begin_client_task(self, client):
            super().begin_client_task(client)
            client.state["curve"] = torch.tensor(curves[client.id])

        def loss(self, net, batch, context):
            curvature, centre = context["state/curve"]
            return 0.5 * curvature * (net.parameters - centre).square().sum()

        def statistics(self, client):
            message = super().statistics(client)
            seen[client.id] = told(client.state)
            return message

        def aggregate(self, updates, server):
            super().aggregate(updates, server)
            found.append({"theta": one(server.vector), "server": told(server.state), **seen})
            seen.clear()

    def told(state):
        values = {name: value for name, value in state.items() if name != "curve"}
        return {k: one(v) if isinstance(v, torch.Tensor) else copy(v) for k, v in values.items()}

    seen = {}
    settings = {"clients": len(curves), "local_epochs": steps, "batch_size": 1000, "optimizer": "sgd", "lr": 0.1}
    aggregator = Quadratic(Quadratic.Params(**(params or {})))
    experiment = make_experiment(aggregator, **({"tasks": (10,), "rounds": 3} | settings | changes))
    with tempfile.TemporaryDirectory() as folder:
        run_experiment(experiment, Path(folder))
    return found
