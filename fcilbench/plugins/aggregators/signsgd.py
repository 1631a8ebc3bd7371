"""signSGD with majority vote: Bernstein et al. 2019, on the updates of federated rounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from pydantic import model_validator

from fcilbench.api import Aggregator, Client, Field, Layout, Message, Piece, PresetParams, Server, Space, Updates
from fcilbench.vectors.sums import weighted_sum

_PACKING: Mapping[str, tuple[int, int]] = {"base3": (3, 5), "bits2": (4, 4)}
"""The base in which votes + 1 are written, and how many of them a byte holds."""
_CODE = "code of the authors (Signum_SGD.py)"


class SignSgd(Aggregator):
    """signSGD with majority vote: clients send signs, and the server moves by the sign of their sum.

    Bernstein et al. 2019, "signSGD with Majority Vote is Communication Efficient and Fault Tolerant", vote on the
    gradient of every step. Here clients vote once a round, on their update Delta_k `[P]`:

        v_k = sign(Delta_k) in {-1, 0, 1},    theta <- theta + eta sign(sum_k v_k)

    on the entries that the task trains; ties stay. With `momentum` b a client votes by the sign of
    m_k <- b m_k + (1 - b) Delta_k, which it keeps (Signum). Float buffers are sent as they are and averaged: a variance
    cannot be voted on. Nearest to the paper is plain SGD with one step a round. The download is the model, as ever.
    """

    version = "1"
    card: ClassVar = {
        "family": "robust",
        "trained": "the whole model",
        "travels": "up the sign of each weight's update, down the model",
        "memory": "nothing; with momentum a copy of the model",
        "source": "Bernstein et al. 2019, ICLR",
    }
    breaks: ClassVar = {
        "one-client": "every weight moves by the same length, whatever its update",
        "identical-clients": "every weight moves by the same length, whatever its update",
    }

    class Params(PresetParams):
        """Hyperparameters of signSGD."""

        presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"original": {"momentum": 0.9}}

        server_lr: float = Field(
            1e-4,
            gt=0,
            description="length eta by which a weight moves in a round; of the order of its update",
            source=f"{_CODE}, a step",
            space=Space(low=1e-6, high=1e-2, log=True),
        )
        momentum: float = Field(
            0.0, ge=0, lt=1, description="b of the clients' running mean of updates", source=f"ours; {_CODE}: 0.9"
        )
        memory: Literal["task", "carry"] = Field(
            "task", description="momentum begins anew with each task, or goes on in what the task trains"
        )
        weighting: Literal["uniform", "samples"] = Field(
            "uniform", description="a client's votes count equally, or by its samples", source=_CODE
        )
        pack: Literal["int8", "base3", "bits2"] = Field(
            "int8", description="how votes travel: one, five (base3) or four (bits2) a byte; the results are the same"
        )

        @model_validator(mode="after")
        def _no_idle_option(self) -> Self:
            if self.memory == "carry" and self.momentum == 0:
                raise ValueError("memory: carry has no effect here: it needs a momentum above 0")
            return self

    # ---------------------------------------------------------------- clients

    def begin_client_task(self, client: Client) -> None:
        """Forgets the momentum of the task before."""
        if self.params.memory == "task":
            client.state.pop("momentum", None)

    def encode(self, update: Message, client: Client) -> Message:
        """Returns the votes on all weights as one tensor, and the float buffers."""
        layout, b = client.net.layout, self.params.momentum
        voted = torch.cat([update[piece.name].reshape(-1) for piece in _weights(layout)])
        if b:
            kept = client.state.get("momentum")
            voted = (1 - b) * voted + (0.0 if kept is None else b * kept.to(voted))
            # What an earlier task has left in its rows of the head would move them, and no data would correct it.
            client.state["momentum"] = voted = voted * layout.live(client.task.classes).to(voted.device)
        votes = voted.sign().to(torch.int8)
        packed = votes if self.params.pack == "int8" else pack(votes, *_PACKING[self.params.pack])
        return {"votes": packed, **{piece.name: update[piece.name] for piece in _buffers(layout)}}

    # ---------------------------------------------------------------- server

    def decode(self, message: Message, server: Server) -> Message:
        """Returns votes of -1, 0 and 1 by the weights' names, and the buffers."""
        layout, votes = server.layout, message["votes"]
        if self.params.pack != "int8":
            votes = unpack(votes, *_PACKING[self.params.pack])
        weights = {piece.name: votes[piece.span].view(piece.shape).float() for piece in _weights(layout)}
        return {**weights, **{piece.name: message[piece.name] for piece in _buffers(layout)}}

    def aggregate(self, updates: Updates, server: Server) -> None:
        """Moves each live weight as the majority says, and the buffers by their mean."""
        parts, live = updates.layout, updates.layout.live(server.task.classes).to(server.vector.device)
        equal = self.params.weighting == "uniform"
        # Whole numbers, so that a tie is exactly 0: of shares of the samples it would be what rounding leaves.
        shares = torch.ones(len(updates.samples)) if equal else torch.tensor(updates.samples, dtype=torch.float64)
        majority = weighted_sum(shares, updates.delta[:, parts.trainable]).sign() * live
        server.log("signsgd/moved", float(majority.count_nonzero() / live.count_nonzero()))
        server.step(self.params.server_lr * majority, parts.trainable)
        server.step(updates.mean(parts.buffers), parts.buffers)


def _weights(layout: Layout) -> list[Piece]:
    """Returns the tensors of the trained part, in the vector's order."""
    return [piece for piece in layout.pieces if piece.start < layout.trainable.stop]


def _buffers(layout: Layout) -> list[Piece]:
    return [piece for piece in layout.pieces if piece.start >= layout.trainable.stop]


def pack(votes: torch.Tensor, base: int, count: int) -> torch.Tensor:
    """Returns votes -1, 0, 1 `[P]` as uint8 `[ceil(P / count)]`; a byte is sum_i (v_i + 1) base^i of `count` votes."""
    digits = F.pad(votes + 1, (0, -len(votes) % count)).to(torch.uint8).view(-1, count)
    return (digits * _powers(base, count, votes.device)).sum(dim=1, dtype=torch.uint8)


def unpack(packed: torch.Tensor, base: int, count: int) -> torch.Tensor:
    """Returns the votes of `pack` as int8, with those that filled up the last byte."""
    digits = packed[:, None] // _powers(base, count, packed.device) % base
    return digits.to(torch.int8).flatten() - 1


def _powers(base: int, count: int, device: torch.device) -> torch.Tensor:
    return torch.tensor([base**i for i in range(count)], dtype=torch.uint8, device=device)
