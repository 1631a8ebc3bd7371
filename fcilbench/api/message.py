"""Messages: named tensors, the only thing that passes between a client and the server."""

from __future__ import annotations

from collections.abc import Mapping

import torch

Message = Mapping[str, torch.Tensor]


def nbytes(message: Message) -> int:
    """Returns the payload of a message in bytes: the sum of `numel * itemsize` over its tensors.

    Counted from what is sent, so that a method cannot under-report.

    Example:
        >>> nbytes({"A": torch.zeros(4, 768), "B": torch.zeros(768, 4)})
        24576
    """
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
