"""Messages between the server and a client: named tensors; and the layout of the largest of them, the state vector.

Client and server share nothing but messages. The federation's channel counts the bytes of each that it delivers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch

Message = Mapping[str, torch.Tensor]
"""Tensors by name."""


def nbytes(message: Message) -> int:
    """Returns the bytes of a message: the sum of `numel * itemsize` over its tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in message.values())


def pack_symmetric(matrix: torch.Tensor) -> torch.Tensor:
    """Returns the upper triangle `[n (n + 1) / 2]` of a symmetric matrix `[n, n]`: its lossless wire format."""
    rows, columns = torch.triu_indices(matrix.shape[0], matrix.shape[1], device=matrix.device)
    return matrix[rows, columns]


def unpack_symmetric(triangle: torch.Tensor, size: int) -> torch.Tensor:
    """Returns the symmetric matrix `[size, size]` of an upper triangle `[size (size + 1) / 2]`."""
    matrix = triangle.new_zeros(size, size)
    rows, columns = torch.triu_indices(size, size, device=triangle.device)
    matrix[rows, columns] = triangle
    matrix[columns, rows] = triangle
    return matrix


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Returns whether a name matches one of the patterns; `*` stands for any characters, dots included.

    Example:
        >>> matches("extractor.body.blocks.0.attn.qkv.weight", ["head.*", "*.qkv.*"])
        True
    """
    return any(fnmatchcase(name, pattern) for pattern in patterns)


@dataclass(frozen=True)
class Piece:
    """One tensor of the network inside the flat state vector.

    Attributes:
        name: Its name in the network, e.g. `extractor.body.blocks.0.attn.qkv.weight`, `head.weight`, `head.bias`.
        start: Position of its first entry in the vector.
    """

    name: str
    shape: tuple[int, ...]
    start: int

    @property
    def span(self) -> slice:
        """Its slice of the vector."""
        return slice(self.start, self.start + math.prod(self.shape))


@dataclass(frozen=True)
class Layout:
    """Named slices of the flat state vector `[D]`.

    Attributes:
        backbone: All trainable parameters but the classifier head.
        head: Weight `[C, F]` then bias `[C]` of the classifier head, flattened.
        buffers: Floating-point buffers (BatchNorm statistics); empty for LayerNorm models.
        classes: Number of classes C.
        features: Number of features F.
    """

    backbone: slice
    head: slice
    buffers: slice
    classes: int
    features: int
    pieces: tuple[Piece, ...] = ()

    def piece(self, name: str) -> Piece:
        """Returns the place of one tensor.

        Raises:
            KeyError: If the vector has no tensor of that name.
        """
        for piece in self.pieces:
            if piece.name == name:
                return piece
        raise KeyError(f"the state vector has no tensor {name!r}")

    def select(self, patterns: Iterable[str]) -> tuple[Piece, ...]:
        """Returns the pieces whose names match one of the patterns (see `matches`), in the vector's order."""
        wanted = tuple(patterns)
        return tuple(piece for piece in self.pieces if matches(piece.name, wanted))

    @property
    def trainable(self) -> slice:
        """Backbone and head: the part `[P]` that has gradients."""
        return slice(self.backbone.start, self.head.stop)

    def live(self, classes: slice, wire: Wire | None = None) -> torch.Tensor:
        """Returns which parameters a task moves, bool `[P]`: of the head the rows of its classes alone.

        Under the masked loss the gradient of all other rows is 0. A correction that a method carries from round to
        round is not, and would move what no data corrects: multiply it by this.

        Args:
            classes: The task's classes, `net.task.classes`.
            wire: What trains; by default everything.
        """
        live = torch.zeros(self.trainable.stop, dtype=torch.bool)
        for piece in self.select(("*",) if wire is None else wire.train):
            if piece.span.stop <= self.trainable.stop:
                live[piece.span] = True
        rows = torch.zeros(self.classes, dtype=torch.bool)
        rows[classes] = True
        live[self.head] &= torch.cat([rows.repeat_interleave(self.features), rows])
        return live


@dataclass(frozen=True)
class Wire:
    """Which pieces of the state vector clients train and upload in a round.

    Patterns are compared with the names of the pieces (see `matches`). A piece that is not trained keeps its value
    and is not uploaded: the server alone moves it, by `server.step`, and clients receive it whenever it has changed.
    Float buffers follow `up` alone.

    Attributes:
        train: Pieces that the local optimiser moves.
        up: Pieces whose update travels; the update of any other piece is 0 on the server.
    """

    train: tuple[str, ...] = ("*",)
    up: tuple[str, ...] = ("*",)
