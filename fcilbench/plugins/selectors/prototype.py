"""The task of the nearest class mean on frozen features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch

from fcilbench.api import Client, Message, Selector, SelectorServer, Task, TestSamples, labelled_features, task_of
from fcilbench.vectors.class_means import class_sums, nearest_mean_head, scatter_rows


class Prototype(Selector):
    """The task of the class whose mean feature is nearest, on features of the network as it was before training.

    Clients send sums of their features and counts, by class; a class without samples is never the nearest.
    """

    features = "start"
    dtype: ClassVar[torch.dtype] = torch.float32
    """Number format of the sums as they are sent."""

    def statistics(self, client: Client) -> Message:
        """Sends the sums of the classes that it has, `[l, F]`, and all counts of the task, int32 `[c]`."""
        sums, counts = class_sums(labelled_features(client), client.task.size, client.feature_dim)
        return {"sums": sums[counts > 0].to(self.dtype), "counts": counts.to(torch.int32)}

    def fit(self, server: SelectorServer, statistics: Mapping[int, Message]) -> Message:
        """Adds the clients' sums and returns the head of all classes seen, weight `[seen, F]` and bias `[seen]`."""
        state, task, classes, size = server.state, server.task, server.layout.classes, server.layout.features
        if not state:
            state["sums"] = torch.zeros(classes, size, dtype=torch.float64, device=server.device)
            state["counts"] = torch.zeros(classes, dtype=torch.float64, device=server.device)
        for message in statistics.values():
            counts = message["counts"].to(torch.float64)
            state["counts"][task.classes] += counts
            state["sums"][task.classes] += scatter_rows(message["sums"], counts)
        head, seen = self._head(server, statistics), server.tasks[-1].seen
        weight, bias = head[: classes * size].view(classes, size), head[classes * size :]
        return {"weight": weight[:seen].clone(), "bias": bias[:seen].clone()}

    def _head(self, server: SelectorServer, statistics: Mapping[int, Message]) -> torch.Tensor:
        """Returns the head of all classes, weight then bias, float32 `[C F + C]`."""
        return nearest_mean_head(server.state["sums"], server.state["counts"])

    def pick(self, fitted: Message, samples: TestSamples, tasks: Sequence[Task]) -> torch.Tensor:
        """Picks the task of the class with the largest logit."""
        logits = torch.nn.functional.linear(samples.features, fitted["weight"], fitted["bias"])
        return task_of(logits.argmax(dim=1), tasks)
