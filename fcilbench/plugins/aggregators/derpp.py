"""DER++: Buzzega et al. 2020, "Dark Experience for General Continual Learning", federated by FedAvg."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from fcilbench.api import (
    Aggregator,
    Batch,
    Client,
    Context,
    Field,
    Memory,
    Message,
    Net,
    PresetParams,
    Rehearsal,
    Space,
    masked_cross_entropy,
    reservoir,
    seen_cross_entropy,
)
from fcilbench.plugins.aggregators.er import joint_logits


class DerPlusPlus(Aggregator):
    """DER++: each client keeps samples with the logits that they had, and replays both.

    A client minimises L_CE(x, y) + alpha mean (z(u') - z')^2 + beta L_seen(u, v): (x, y) are its own samples of the
    task, (u', z') and (u, v) two independent draws from its memory, z' `[C]` the kept logits. The square is the mean
    over the replayed samples and over classes (`match`); v competes among all classes seen. Models are averaged.

    The memory is a reservoir of all samples of this and earlier tasks (Vitter 1985). Its client's samples of a task are
    split at random into as many groups as there are rounds; after each round the next group is offered, with the logits
    of the client's local model (`fill: round`). What rounds without the client have left over is offered at its next
    task, under the model that it then receives; with `fill: task_end` that is everything.
    """

    version = "1"
    card: ClassVar = {
        "family": "memory",
        "trained": "the whole model",
        "travels": "the model",
        "memory": "samples of all tasks so far with their labels and logits",
        "source": "Buzzega et al. 2020, NeurIPS",
    }

    class Params(PresetParams):
        """Hyperparameters of DER++."""

        presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"original": {"alpha": 0.1, "match": "all", "ace": False}}

        # No search space: a larger memory is another budget, not a better setting.
        memory: int = Field(200, ge=1, description="samples that each client keeps", source="fed-mammoth")
        alpha: float = Field(
            0.5,
            ge=0,
            description="weight of the kept logits; 0 is ER with a reservoir",
            source="fed-mammoth",
            space=Space(low=0.05, high=2.0, log=True),
        )
        beta: float = Field(
            0.5,
            ge=0,
            description="weight of the kept labels; 0 is DER, and with alpha 0 FedAvg",
            source="Buzzega et al. 2020; fed-mammoth",
            space=Space(low=0.05, high=2.0, log=True),
        )
        match: Literal["seen", "all", "seen_then"] = Field(
            "seen",
            description="classes whose logits are compared: those seen so far, all, or those that had been seen when "
            "the sample was kept",
            source="fed-mammoth",
        )
        draws: Literal[1, 2] = Field(
            2,
            description="independent draws of a step; 1: logits and labels are of the same samples",
            source="Buzzega et al. 2020",
        )
        fill: Literal["round", "task_end"] = Field(
            "round",
            description="when samples are offered to the memory: some after each round, or all when a task ends",
        )
        ace: bool = Field(
            True,
            description="whether own samples compete in the task's slice, or as replayed ones among all classes seen",
            source="Caccia et al. 2022; fed-mammoth",
        )

    def begin_client_task(self, client: Client) -> None:
        """Offers what has not been offered of the tasks that have ended."""
        state, left = client.state, client.past
        state.setdefault("seen", 0)
        if self.params.fill == "round":
            if "seed" not in state:
                state.update(seed=int(client.random("groups").integers(2**31)), visits=0, until=0)
            begun = left.labels.cpu().numpy() < state["until"]  # of the last task that the client took part in
            left = left.take(np.flatnonzero(~begun | (self._groups(client, left) >= state["visits"])))
            state.update(visits=0, until=client.task.seen)
        self._offer(client, left, client.task.offset, "reservoir-left")

    def statistics(self, client: Client) -> Message:
        """Offers the next group of the task's samples, under the local model; sends nothing."""
        if self.params.fill == "round":
            rows = np.flatnonzero(self._groups(client, client.own) == client.state["visits"])
            self._offer(client, client.own.take(rows), client.task.seen, "reservoir")
            client.state["visits"] += 1
        return {}

    @staticmethod
    def _groups(client: Client, samples: Memory) -> Any:
        """Returns the group of each sample, int64 `[m]` in 0 .. R - 1: the same in every visit."""
        positions = samples.positions.cpu().numpy()
        drawn = np.random.default_rng(client.state["seed"]).integers(
            client.protocol.rounds, size=positions.max(initial=-1) + 1
        )
        return drawn[positions]

    def _offer(self, client: Client, samples: Memory, known: int, purpose: str) -> None:
        """Offers samples to the reservoir with their logits under the client's present model."""
        if not len(samples):
            return
        logits = torch.cat([client.net.logits(batch.inputs) for batch in client.batches(samples)])
        if self.params.match == "seen_then":
            logits[:, known:] = torch.nan  # these pull nothing
        offered, seen = replace(samples, fields={"logits": logits}), client.state["seen"]
        client.memory = reservoir(client.memory, offered, seen, self.params.memory, client.random(purpose))
        client.state["seen"] = seen + len(offered)

    def client_replay(self, client: Client) -> Rehearsal | None:
        """Draws a batch for each of the two terms that counts."""
        terms = (self.params.alpha > 0) + (self.params.beta > 0)
        return Rehearsal(client.memory, draws=min(terms, self.params.draws)) if terms else None

    def loss(self, net: Net, batch: Batch, context: Context) -> torch.Tensor:
        """Returns the cross-entropy of own samples, plus the two terms of the memory where there is one."""
        params = self.params
        cross_entropy = masked_cross_entropy if params.ace else seen_cross_entropy
        if batch.memory is None:
            return cross_entropy(net.logits(batch.inputs), batch)
        own, *replayed = joint_logits(net, batch, *batch.memories)
        loss = cross_entropy(own, batch)
        if params.alpha > 0:
            loss = loss + params.alpha * self._gap(replayed[0], batch.memories[0])
        if params.beta > 0:
            loss = loss + params.beta * seen_cross_entropy(replayed[-1], batch.memories[-1])
        return loss

    def _gap(self, logits: torch.Tensor, memory: Batch) -> torch.Tensor:
        """Returns the mean square by which logits `[B, C]` have left the kept ones, over samples and classes."""
        stop = memory.task.seen if self.params.match == "seen" else logits.shape[1]
        kept = memory.fields["logits"][:, :stop]
        known = ~kept.isnan()
        gaps = torch.where(known, logits[:, :stop] - kept.nan_to_num(), 0.0).square()
        return memory.mean(gaps.sum(dim=1) / known.sum(dim=1))
