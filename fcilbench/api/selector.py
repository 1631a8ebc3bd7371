"""Selectors: who picks the task of a test sample where nobody tells it (task identity `inferred`).

A selector is no part of a method: every method is scored under every selector, from one training. The answer is then
the method's own `oracle` answer for the task that was picked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch

from fcilbench.api.client import Client, State
from fcilbench.api.message import Layout, Message
from fcilbench.api.schedule import Task
from fcilbench.spec.plugin import Plugin

Features = Literal["none", "start", "model"]
"""The network whose features a selector reads: none; the one that clients received at the start; the global model."""


@dataclass(frozen=True)
class TestSamples:
    """What a selector's rule sees of some test samples; it looks at each of them alone.

    Attributes:
        features: float32 `[n, F]`, of the network that `Selector.features` names; without columns if it names none.
        logits: For each task seen, float32 `[n, seen]` under the module that answers for that task; empty unless the
            selector asks for `heads`.
    """

    __test__: ClassVar[bool] = False  # no class of pytest

    features: torch.Tensor
    logits: Sequence[torch.Tensor] = ()


@dataclass
class SelectorServer:
    """What a selector sees on the server.

    Attributes:
        task: The task whose statistics arrive.
        tasks: The tasks of the stream seen so far, the current one included.
        state: The selector's own, kept from task to task and in checkpoints.
    """

    layout: Layout
    device: torch.device
    task: Task
    tasks: Sequence[Task]
    state: State = field(default_factory=dict)


class Selector(Plugin):
    """Base of all selectors; by itself it leaves the choice to the method's own rule.

    Once a task, after its last round, every client with data sends `statistics`; the server's `fit` makes of them what
    the rule `pick` reads. These messages pass stressors and are counted like any others, apart from the method's.

    Attributes:
        features: The network whose features the client and the rule see: `start`, the one that clients received before
            any training and keep, so that statistics of earlier tasks stay right; `model`, the global model as it is at
            the end of the task, which is sent to every client with data; `none`.
        heads: Whether the rule reads logits of the module of every task: a sample then passes T modules instead of one.
    """

    features: ClassVar[Features] = "none"
    heads: ClassVar[bool] = False

    @classmethod
    def facts(cls) -> dict[str, Any]:
        """Returns what the rule reads, and whether clients send anything for it."""
        return {"features": cls.features, "heads": cls.heads, "learns": cls.learns()}

    @classmethod
    def learns(cls) -> bool:
        """Says whether clients send statistics."""
        return cls.statistics is not Selector.statistics

    @classmethod
    def picks(cls) -> bool:
        """Says whether it has a rule; otherwise the method's own rule answers."""
        return cls.pick is not Selector.pick

    def statistics(self, client: Client) -> Message:
        """Returns what a client sends at the end of a task; `client.net` is the network that `features` names.

        `labelled_features` gives the features of the client's samples. `client.state` is empty and is not kept.
        """
        return {}

    def fit(self, server: SelectorServer, statistics: Mapping[int, Message]) -> Message:
        """Returns what the rule reads, from the statistics of this task by client id: it is deployed, and billed so.

        What is needed of earlier tasks is kept in `server.state`. No client may have answered.
        """
        return {}

    def pick(self, fitted: Message, samples: TestSamples, tasks: Sequence[Task]) -> torch.Tensor | None:
        """Returns for each sample the index of its task, int64 `[n]`, from what `fit` returned."""
        return None


def labelled_features(client: Client) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yields features `[B, F]` of a client's samples and their labels within the task, `0..size-1`, batch by batch."""
    for batch in client.batches():
        context = {} if batch.memo is None else {"memo": batch.memo}
        yield client.net.outputs(batch.inputs, context)["features"], client.task.local(batch.labels)


def task_of(classes: torch.Tensor, tasks: Sequence[Task]) -> torch.Tensor:
    """Returns the index of the task that each internal label `[n]` belongs to."""
    ends = torch.tensor([task.seen for task in tasks], device=classes.device)
    return torch.searchsorted(ends, classes, right=True)
