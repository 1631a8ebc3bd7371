"""ER: experience replay from a memory of each client (Riemer et al. 2019), federated by FedAvg."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch

from fcilbench.api import (
    Aggregator,
    Batch,
    Client,
    Context,
    Field,
    Memory,
    Net,
    PresetParams,
    Rehearsal,
    Space,
    class_balanced,
    herded,
    masked_cross_entropy,
    reservoir,
    seen_cross_entropy,
)


class ReplayParams(PresetParams):
    """Hyperparameters of methods that replay kept samples in the cross-entropy."""

    # No search space: a larger memory is another budget, not a better setting.
    memory: int = Field(200, ge=1, description="samples that each client keeps", source="fed-mammoth")
    w: float = Field(
        1.0,
        ge=0,
        description="weight of the replayed samples; 0 is FedAvg",
        source="Chaudhry et al. 2019: new and replayed samples count alike",
        space=Space(low=0.1, high=10.0, log=True),
    )
    ace: bool = Field(
        True,
        description="whether own samples compete in the task's slice, or as the replayed ones among all classes seen",
        source="Caccia et al. 2022",
    )


class Replay(Aggregator):
    """Base of methods whose clients train on samples of earlier tasks that they have kept.

    A client minimises L_CE(x, y) + w L_seen(u, v): (x, y) are its own samples of the task, which compete in its slice,
    (u, v) a batch drawn from its memory, which compete among all classes seen (ER-ACE, Caccia et al. 2022); each term
    is the mean over its own samples. With `ace: false` all samples compete among all classes seen, and the loss is one
    mean over them, in which a replayed one weighs w. One forward pass has both, so BatchNorm sees both.
    """

    params: ReplayParams

    def client_replay(self, client: Client) -> Rehearsal | None:
        """Draws a batch of the memory for each step, unless it would not count."""
        return Rehearsal(client.memory) if self.params.w > 0 else None

    def loss(self, net: Net, batch: Batch, context: Context) -> torch.Tensor:
        """Returns the cross-entropy of own and replayed samples."""
        cross_entropy = masked_cross_entropy if self.params.ace else seen_cross_entropy
        if batch.memory is None:
            return cross_entropy(net.logits(batch.inputs), batch)
        own, replayed = joint_logits(net, batch, batch.memory)
        first, second = cross_entropy(own, batch), seen_cross_entropy(replayed, batch.memory)
        if self.params.ace:
            return first + self.params.w * second
        rows, more = batch.mask.sum(), self.params.w * batch.memory.mask.sum()
        return (rows * first + more * second) / (rows + more)


class Er(Replay):
    """Experience replay: each client keeps samples of its earlier tasks, and mixes them into its training.

    The loss is that of `Replay`; models are averaged. At its first visit of a task a client chooses what to keep, of
    its memory and of its samples of the tasks that have ended since its last visit: the memory holds earlier tasks
    only. Policies: `balanced`, as many of each class as of any other, drawn uniformly; `herding`, of each class those
    whose mean feature under the received model stays nearest to that of all (Rebuffi et al. 2017); `reservoir`, each
    sample so far with equal probability (Vitter 1985), which also keeps the count of samples, 8 bytes.
    """

    version = "1"
    card: ClassVar = {
        "family": "memory",
        "trained": "the whole model",
        "travels": "the model",
        "memory": "samples of earlier tasks with their labels",
        "source": "Riemer et al. 2019, ICLR",
    }

    class Params(ReplayParams):
        """Hyperparameters of experience replay."""

        presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"original": {"policy": "reservoir", "ace": False}}

        policy: Literal["balanced", "reservoir", "herding"] = Field(
            "balanced", description="which samples are kept: equal classes, any with equal probability, or by herding"
        )

    params: Params

    def begin_client_task(self, client: Client) -> None:
        """Chooses what to keep of the tasks that have ended."""
        offered, size = client.past, self.params.memory
        if self.params.policy == "balanced":
            client.memory = class_balanced(client.memory, offered, size, client.random("memory"))
        elif self.params.policy == "herding":
            client.memory = herd(client, offered, size)
        else:
            seen = client.state.get("seen", 0)
            client.memory = reservoir(client.memory, offered, seen, size, client.random("memory"))
            client.state["seen"] = seen + len(offered)


def herd(client: Client, offered: Memory, size: int) -> Memory:
    """Returns what a client keeps of its memory and of offered samples, by herding on the received model's features."""
    features = [client.net.features(batch.inputs) for batch in client.batches(offered)]
    return herded(client.memory, offered, torch.cat(features), size) if features else client.memory


def joint_logits(net: Net, *batches: Batch) -> tuple[torch.Tensor, ...]:
    """Returns the logits of each batch from one forward pass over the rows of all, so that BatchNorm sees all.

    Texts that are cut to other lengths need a pass for each batch.
    """
    inputs = [batch.inputs for batch in batches]
    if len({each.shape[1:] for each in inputs}) > 1:
        return tuple(net.logits(each) for each in inputs)
    return torch.split(net.logits(torch.cat(inputs)), [len(each) for each in inputs])
