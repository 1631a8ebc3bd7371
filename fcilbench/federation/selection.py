"""The selectors of an experiment at work: what clients send for them once a task, what it costs, and their rules.

A selector has messages and a bill of its own, so that nothing of the method changes with the selectors that a suite
names: neither its training nor its bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from fcilbench.api import Message, Selector, SelectorServer, Task, TestSamples, nbytes
from fcilbench.engine.model import Bare
from fcilbench.engine.precision import all_finite
from fcilbench.errors import PluginError
from fcilbench.federation.checkpoint import Progress
from fcilbench.federation.client import ClientSession
from fcilbench.federation.evaluation import Picker
from fcilbench.federation.experiment import Federation, RoundContext
from fcilbench.federation.round import sample_clients
from fcilbench.federation.server import tree_nbytes
from fcilbench.federation.stress import Stress
from fcilbench.federation.tasks import stream
from fcilbench.spec.outcome import SelectorCost


@dataclass
class Selection:
    """One selector of an experiment.

    Attributes:
        label: What the suite calls it.
        kept: All of it that a checkpoint needs: its `state` on the server, what its rule reads as `fitted`, the clients
            that have `received` the initial model for it, and its `cost` so far.
    """

    label: str
    selector: Selector
    kept: dict[str, Any]

    def vector(self, federation: Federation) -> torch.Tensor | None:
        """Returns the state vector `[D]` under whose features it works; `None` if it reads none."""
        vectors = {"none": None, "start": federation.initial, "model": federation.server.vector}
        return vectors[self.selector.features]

    def picker(self, federation: Federation) -> Picker:
        """Returns its rule as an evaluation needs it."""
        return Picker(self._pick, self.selector.heads, self.vector(federation), self.selector.features == "start")

    def _pick(self, samples: TestSamples, tasks: Sequence[Task]) -> torch.Tensor:
        """Returns for each sample the index of the task that its rule picks, int64 `[n]`.

        Raises:
            PluginError: If the rule returns anything else.
        """
        found = self.selector.pick(self.kept["fitted"], samples, tasks)
        count = len(samples.features)
        if not isinstance(found, torch.Tensor) or found.shape != (count,) or found.dtype != torch.int64:
            raise PluginError(f"selector {self.label}: pick must return the index of a task, int64 [{count}]")
        if count and not 0 <= int(found.min()) <= int(found.max()) < len(tasks):
            raise PluginError(f"selector {self.label}: it picks a task that has not been seen")
        return found

    def collect(self, federation: Federation, context: RoundContext) -> dict[str, int]:
        """Asks every client with data for its statistics of the task that ends, and fits the rule to them.

        Returns:
            What crossed the network for it: `bytes_up` and `bytes_down`.
        """
        server, selector, kept, cost = federation.server, self.selector, self.kept, self.kept["cost"]
        if context.phase.restart:
            kept["state"] = {}
        sent = {"bytes_up": 0, "bytes_down": 0}
        arrived = self._ask(federation, context, sent) if selector.learns() else {}
        desk = SelectorServer(server.layout, server.vector.device, context.phase.task, server.tasks, kept["state"])
        kept["fitted"] = dict(selector.fit(desk, arrived))
        kept["state"] = desk.state
        if not all(map(all_finite, kept["fitted"].values())):
            raise PluginError(f"selector {self.label}: what it deploys has values that are not finite")
        cost.update({name: cost[name] + count for name, count in sent.items()})
        cost.update(state=max(cost["state"], tree_nbytes(kept["state"])), module=nbytes(kept["fitted"]))
        return sent

    def _ask(self, federation: Federation, context: RoundContext, sent: dict[str, int]) -> dict[int, Message]:
        """Returns the statistics that arrived and are finite, by client id; adds their bytes to `sent`."""
        server, model, vector = federation.server, federation.model, self.vector(federation)
        counts = federation.schedule.federated
        messages: dict[int, Message] = {}
        for client in (client for client, own in enumerate(context.phase.clients) if len(own) > 0):
            if vector is not None and self._lacks(federation, client):
                sent["bytes_down"] += nbytes({"model": vector, "counters": server.counters}) * counts
            session = ClientSession(federation, context, client)
            session.state, session.received_model = {}, server.vector if vector is None else vector
            model.load(session.received_model, server.counters)
            model.network.eval()
            if self.selector.features == "start":
                session.net = Bare(model)
            session.cut_short()
            with torch.no_grad(), model.reading():
                messages[client] = self.selector.statistics(session)
        arrived = _stressed(federation, context, messages)
        sent["bytes_up"] += sum(map(nbytes, arrived.values())) * counts
        sound = {client: each for client, each in arrived.items() if all(map(all_finite, each.values()))}
        if len(sound) < len(arrived):
            name = f"task {server.task.index + 1}: selector {self.label}"
            server.warn(f"{name}: statistics that were not finite were left out")
        return sound

    def _lacks(self, federation: Federation, client: int) -> bool:
        """Says whether a client must be sent the model, and notes that it then holds the initial one.

        Clients of the very first round have received the initial model from the method, and keep it.
        """
        if self.selector.features == "model":
            return True
        first = sample_clients(federation, RoundContext(federation.schedule.phases[0], 0))
        if client in first or client in self.kept["received"]:
            return False
        self.kept["received"].append(client)
        return True


def _stressed(federation: Federation, context: RoundContext, messages: dict[int, Message]) -> dict[int, Message]:
    """Returns what arrives of the statistics of clients, some of which may misbehave, in client-id order."""
    affected, seed = federation.channel.affected, federation.experiment.seeds.of("train")

    def random(client: int | None) -> np.random.Generator:
        # One stream for all selectors: who drops out does so for all of them.
        return stream(seed, "stress-selector", *context.key, *(() if client is None else (client,)))

    theirs = {client: message for client, message in messages.items() if client in affected}
    if not theirs:
        return messages
    stress = Stress(federation.channel.stress.stressor, affected)
    changed = stress.uploads(theirs, replace(federation.turn(context), random=random))
    sent = {client: changed.get(client, message) for client, message in messages.items()}
    return {client: message for client, message in sent.items() if message is not None}


def selections(federation: Federation, progress: Progress) -> dict[str, Selection]:
    """Returns the selectors by what is scored under them, the method's own rule left out; they go on from `progress`.

    Raises:
        PluginError: If one has no rule.
    """
    found = {}
    for key, selector in federation.experiment.selectors.items():
        if key not in federation.experiment.scored or key == "inferred":  # the method's own rule
            continue
        label = key.partition(":")[2]
        if not selector.picks():
            raise PluginError(f"selector {label} has no rule: {type(selector).__name__} does not override `pick`")
        fresh = {"state": {}, "fitted": {}, "received": [], "cost": SelectorCost().model_dump()}
        found[key] = Selection(label, selector, progress.selectors.setdefault(label, fresh))
    return found
