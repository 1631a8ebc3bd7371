"""Temporal SUM's passes over the basis as Triton kernels: whether they run. Imported only where vectors are on a GPU.

As in the package itself, each pass returns None where its kernel does not run: on a CPU, on a basis that is not kept
in float32, and where the kernels are off.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fcilbench.vectors import kernels
from fcilbench.vectors.basis import Basis
from fcilbench.vectors.topk import Cut

MOST = 12
"""Up to so many rows a thread's registers hold an entry and two float64 sums of each, and the norms' coefficients."""


def usable(basis: Basis, *others: torch.Tensor) -> list[torch.Tensor] | None:
    """Returns the basis as tensors if the kernels run on it: float32, of one size, contiguous, on one GPU, checked.

    Args:
        basis: tau_hat_1 .. tau_hat_T.
        others: What else is read, `[D]` each.
    """
    rows = [entry if isinstance(entry, torch.Tensor) else entry["values"] for entry in basis]
    kinds = ["fp32" if isinstance(entry, torch.Tensor) else entry["kind"] for entry in basis]
    if not rows or any(kind != "fp32" for kind in kinds):
        return None
    first = rows[0]
    for tensor in (*rows, *others):
        alike = tensor.shape == first.shape and tensor.device == first.device
        if not (alike and tensor.is_cuda and tensor.dtype == torch.float32 and tensor.is_contiguous()):
            return None
    return rows if first.numel() and kernels.ready(first, "tasks", made_for(len(rows))) else None


def made_for(tasks: int) -> int:
    """Returns how many rows the kernels for T basis vectors take at once, 4, 8 or 12: in as many tiles as need be.

    A multiple of four, so that three of four new tasks compile nothing. Rows that are missing are not read.

    Example:
        >>> [made_for(tasks) for tasks in (1, 4, 10, 12, 13, 20, 50)]
        [4, 4, 12, 12, 8, 12, 12]
    """
    tiles = -(-tasks // MOST)
    return -(-tasks // (4 * tiles)) * 4


def products(vector: torch.Tensor, basis: Basis) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Runs `launch_tasks.products`, or returns None."""
    if (rows := usable(basis, vector)) is None:
        return None
    from fcilbench.vectors.kernels import launch_tasks

    return kernels.guarded("tasks", vector, lambda: launch_tasks.products(vector, rows))


def refine(vector: torch.Tensor, step: torch.Tensor, basis: Basis) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Runs `launch_tasks.refine`, or returns None."""
    if (rows := usable(basis, vector)) is None:
        return None
    from fcilbench.vectors.kernels import launch_tasks

    return kernels.guarded("tasks", vector, lambda: launch_tasks.refine(vector, step, rows))


def subtract(vector: torch.Tensor, step: torch.Tensor, basis: Basis) -> torch.Tensor | None:
    """Runs `launch_tasks.subtract`, or returns None."""
    if (rows := usable(basis, vector)) is None:
        return None
    from fcilbench.vectors.kernels import launch_tasks

    return kernels.guarded("tasks", vector, lambda: launch_tasks.subtract(vector, step, rows))


def unify(basis: Basis, cuts: Sequence[Cut] | None, rule: str) -> torch.Tensor | None:
    """Runs `launch_tasks.unify`, or returns None."""
    if (rows := usable(basis)) is None or (cuts is not None and len(cuts) != len(rows)):
        return None
    from fcilbench.vectors.kernels import launch_tasks

    return kernels.guarded("tasks", rows[0], lambda: launch_tasks.unify(rows, cuts, rule))


def norms(
    basis: Basis, coefficients: Sequence[torch.Tensor] | None, unified: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Runs `launch_tasks.norms`, or returns None."""
    if (rows := usable(basis, unified)) is None:
        return None
    from fcilbench.vectors.kernels import launch_tasks

    return kernels.guarded("tasks", unified, lambda: launch_tasks.norms(rows, coefficients, unified))
