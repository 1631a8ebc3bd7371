"""A client as its method sees it: the resident model, its own samples, its own state and random streams."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import nn
from typing_extensions import override

from fcilbench.api import Batch, Client, LayerGram, Memory, Message, Net, Protocol, Task
from fcilbench.api.client import FisherKind
from fcilbench.engine.fisher import fisher_diagonal
from fcilbench.engine.minibatches import batch_spans
from fcilbench.engine.optimiser import schedule
from fcilbench.engine.precision import autocast
from fcilbench.engine.statistics import Masked, layer_grams, layer_inputs, mean_gradient
from fcilbench.errors import PluginError
from fcilbench.federation.experiment import Federation, RoundContext
from fcilbench.federation.record import ClientRecord
from fcilbench.federation.tasks import stream

STATISTICS_BATCH = 256


def part_of(whole: int, share: float) -> int:
    """Returns how many of `whole` steps or samples a slow client finishes: the share, rounded down but to one."""
    return min(whole, max(1, math.floor(share * whole + 1e-9)))  # 0.7 * 90 is 62.999...


class ClientSession(Client):
    """One client in one round.

    Attributes:
        index: Positions of the client's samples, int64 `[n]` on the device.
        slowed: Whether it takes fewer steps than it would without a stressor.
        batch_size: Samples per forward pass of its statistics; not an option, because results must not depend on it.
    """

    def __init__(
        self, federation: Federation, context: RoundContext, client: int, received: Message | None = None
    ) -> None:
        own, model = context.phase.clients[client], federation.model
        self.id, self.samples = client, len(own)
        self.task: Task = context.phase.task
        self.net: Net = model
        self.network: nn.Module = model.network
        self.image_input, self.feature_dim = federation.server.image_input, model.layout.features
        if client not in federation.clients:
            federation.clients[client] = ClientRecord.empty(federation.train)
        self.record = federation.clients[client]
        self.state = self.record.state
        self.index = torch.from_numpy(own).to(federation.train.labels.device)
        self.received: Mapping[str, torch.Tensor] = received or {}
        self.received_model = federation.channel.model_of(client, federation.server.vector)
        self.protocol = federation.experiment.protocol
        spans = batch_spans(self.samples, context.phase.batch_size, bool(model.batch_norms))
        self._federation, self._context = federation, context
        slow = partial(self.random, "stress-share")
        self.share = federation.channel.stress.share_of(client, federation.turn(context), slow)
        whole = len(spans) * context.phase.epochs
        self.steps = part_of(whole, self.share)
        self.slowed = self.steps < whole
        self.learning_rates = _learning_rates(context, self.protocol, len(spans), self.steps)
        self.batch_size = STATISTICS_BATCH
        self.past = self._past()

    def _past(self) -> Memory:
        """Returns the samples of the tasks that have ended since the client last began one."""
        ended = [
            phase.clients[self.id]
            for phase in self._federation.schedule.phases
            if self.record.begun <= phase.after < self._context.phase.after and self.id < len(phase.clients)
        ]
        if self.record.begun == self._context.phase.after or not ended:
            return ClientRecord.empty(self._federation.train).memory
        return self._samples(torch.from_numpy(np.unique(np.concatenate(ended))).to(self.index.device))

    def _samples(self, positions: torch.Tensor) -> Memory:
        return Memory(positions, self._federation.train.labels[positions])

    @property
    def own(self) -> Memory:
        """The client's samples of the current task."""
        return self._samples(self.index)

    @property
    def memory(self) -> Memory:
        """The samples that the client keeps."""
        return self.record.memory

    @memory.setter
    def memory(self, kept: Memory) -> None:
        """Keeps other samples.

        Raises:
            PluginError: If one of them is not the client's own, or was given up before; or if a field does not fit.
        """
        held = torch.cat([self.memory.positions, self.past.positions, self.index])
        if foreign := int((~torch.isin(kept.positions, held)).sum()):
            raise PluginError(
                f"client {self.id} keeps {foreign} samples that it does not have",
                hint="take them of `client.own`, `client.past` or `client.memory`; what was given up is gone",
            )
        fields = {name: values.detach().clone() for name, values in kept.fields.items()}
        for name, values in fields.items():
            if values.shape[:1] != (len(kept),):
                raise PluginError(f"memory: the field {name!r} has shape {list(values.shape)} for {len(kept)} samples")
        self.record.memory = replace(self._samples(kept.positions), fields=fields)

    @override
    def batches(self, samples: Memory | None = None) -> Iterator[Batch]:
        if samples is None:
            yield from self._batches(self.index, self.batch_size)
            return
        start, slices = 0, self._federation.trainer.slices
        for batch in self._batches(samples.positions, self.batch_size):
            rows = slice(start, start + len(batch.labels))
            fields = {name: values[rows] for name, values in samples.fields.items()}
            yield replace(batch, fields=fields, slices=slices[batch.labels])
            start = rows.stop

    def _batches(self, rows: torch.Tensor, size: int) -> Iterator[Batch]:
        data = self._federation.train
        for own in torch.split(rows, size) if len(rows) else ():  # torch splits no rows into one empty batch
            memo = None if data.memo is None else data.memo[own]
            mask = torch.ones(len(own), device=own.device)
            yield Batch(data.plain(own), data.labels[own], mask, self.task, memo, protocol=self.protocol)

    @override
    def fisher(self, kind: FisherKind, samples: int | None = None) -> torch.Tensor:
        rows = self.index
        if samples is not None and samples < len(rows):
            chosen = np.sort(self.random("fisher-samples").choice(len(rows), samples, replace=False))
            rows = rows[torch.from_numpy(chosen).to(rows.device)]
        uniform = torch.from_numpy(self.random("fisher-labels").random(len(rows))).to(rows.device)
        layout, size = self.net.layout, self.protocol.batch_size  # gradients fit wherever training fits
        names = [piece.name for piece in layout.pieces if piece.span.stop <= layout.trainable.stop]
        batches = zip(self._batches(rows, size), torch.split(uniform, size), strict=True)
        return fisher_diagonal(self.network, names, batches, kind)

    @override
    def inputs(self, patterns: Sequence[str]) -> Iterator[Mapping[str, torch.Tensor]]:
        return layer_inputs(self._federation.model, patterns, self._masked())

    @override
    def gradient(self, loss: Callable[[Net, Batch], torch.Tensor]) -> torch.Tensor:
        return mean_gradient(self._federation.model, self.batches(), loss)

    def _masked(self) -> Iterator[Masked]:
        """Iterates over the client's inputs with their token masks."""
        for batch in self.batches():
            yield batch.inputs, self._federation.train.token_mask(batch.inputs)

    @override
    def grams(self, diagonal: Callable[[str], bool]) -> dict[str, LayerGram]:
        return layer_grams(self._federation.model, diagonal, self._masked())

    @override
    def low_precision(self) -> AbstractContextManager[object]:
        return self._federation.model.arithmetic(partial(autocast, self.protocol.precision, self.index.device))

    def cut_short(self) -> None:
        """Leaves a slow client a random part of its samples, those that its statistics still cover."""
        if self.share < 1:
            order = self.random("stress-samples").permutation(self.samples)
            kept = np.sort(order[: part_of(self.samples, self.share)])
            self.index = self.index[torch.from_numpy(kept).to(self.index.device)]
            self.samples = len(kept)

    @override
    def random(self, purpose: str) -> np.random.Generator:
        return stream(self._federation.experiment.seeds.of("train"), purpose, *self._context.key, self.id)


def _learning_rates(context: RoundContext, protocol: Protocol, batches: int, steps: int) -> tuple[float, ...]:
    """Returns the learning rate of each step of a visit whose passes have so many batches."""
    phase, first, total = context.phase, 0, context.phase.epochs * batches
    if phase.until is not None:  # the rounds of such a phase are one training run
        first, total = context.round * total, phase.rounds * total
    return tuple(protocol.lr * schedule(protocol.schedule, first + step, total) for step in range(steps))
