"""Runs the kernels of temporal SUM on whole vectors; see `launch` for what the number of programs depends on."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fcilbench.vectors.kernels import launch, module, projection
from fcilbench.vectors.kernels.tasks import made_for
from fcilbench.vectors.topk import Cut

LOADS = 32
"""Entries that a thread asks for before it computes."""
REGISTERS = 168
"""A thread's of the norms: three programs share a multiprocessor, and nothing spills."""


def products(vector: torch.Tensor, rows: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns `<vector, row_j>` and `||row_j||^2`, float64 `[T]`, in one pass.

    Args:
        vector: `[D]`.
        rows: T vectors `[D]`.
    """
    held, tiles, programs, constants = _shape(rows)
    partial = vector.new_empty(programs, 2, tiles * held, dtype=torch.float64)
    projection.products[(tiles, programs)](_table(rows), len(rows), vector, vector.numel(), partial, **constants)
    inner, norms = launch.fold(partial)[:, : len(rows)]
    return inner, norms


def refine(vector: torch.Tensor, step: torch.Tensor, rows: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns `subtract`'s vector `[D]` and its inner products with the rows, float64 `[T]`.

    In one pass up to T = 12; beyond in two, where a thread cannot hold a column of each row.
    """
    held, tiles, programs, constants = _shape(rows)
    if tiles > 1:
        refined = subtract(vector, step, rows)
        return refined, products(refined, rows)[0]
    refined, partial = torch.empty_like(vector), vector.new_empty(programs, 1, held, dtype=torch.float64)
    projection.refine[(programs,)](
        *(_table(rows), len(rows), step.to(torch.float64), vector, vector.numel(), refined, partial), **constants
    )
    return refined, launch.fold(partial)[0, : len(rows)]


def subtract(vector: torch.Tensor, step: torch.Tensor, rows: Sequence[torch.Tensor]) -> torch.Tensor:
    """Returns `vector - sum_j step_j row_j`, summed in float64 and rounded once, `[D]`, in one pass."""
    refined, (programs, constants) = torch.empty_like(vector), _strides(vector)
    projection.subtract[(programs,)](
        *(_table(rows), len(rows), step.to(torch.float64), vector, vector.numel(), refined), **constants
    )
    return refined


def unify(rows: Sequence[torch.Tensor], cuts: Sequence[Cut] | None, rule: str) -> torch.Tensor:
    """Returns tau_uni `[D]`, in one pass.

    Args:
        rows: T vectors `[D]`.
        cuts: What is kept of each; None: everything.
        rule: See `fcilbench.vectors.unify.elect`.
    """
    unified, (programs, constants) = torch.empty_like(rows[0]), _strides(rows[0])
    kept = [(-1, 0)] * len(rows) if cuts is None else [(cut.magnitude, cut.last) for cut in cuts]
    magnitudes = _on(unified, [magnitude for magnitude, _ in kept], torch.int32)
    lasts = _on(unified, [last for _, last in kept], torch.int64)
    module.unify[(programs,)](
        *(_table(rows), len(rows), magnitudes, lasts, unified.numel(), unified), RULE=rule, **constants
    )
    return unified


def norms(
    rows: Sequence[torch.Tensor], coefficients: Sequence[torch.Tensor] | None, unified: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns ||tau_k||_1 and ||m_k * tau_uni||_1, float64 `[T]`; in one pass up to T = 12.

    Args:
        rows: tau_hat_1 .. tau_hat_T, `[D]` each.
        coefficients: r, with `tau_k = tau_hat_k + sum_j r_kj tau_hat_j`; None: the rows themselves are the tau_k.
        unified: tau_uni, `[D]`.
    """
    held, tiles, programs, constants = _shape(rows)
    matrix = unified.new_zeros(tiles * held, tiles * held)
    for index, own in enumerate(coefficients or ()):
        matrix[index, :index] = own  # rounded to float32 once, as `alpha` is
    partial = unified.new_empty(programs, 2, tiles * held, dtype=torch.float64)
    module.norms[(tiles, programs)](
        *(_table(rows), len(rows), matrix, unified, unified.numel(), partial), **constants, maxnreg=REGISTERS
    )
    size, agreed = launch.fold(partial)[:, : len(rows)]
    return size, agreed


def _shape(rows: Sequence[torch.Tensor]) -> tuple[int, int, int, dict[str, int]]:
    """Returns rows in a tile, tiles, programs and the constants of a kernel that keeps sums for each row."""
    held = made_for(len(rows))
    tiles, unroll = -(-len(rows) // held), max(1, LOADS // held)
    programs = launch.share(rows[0].numel(), launch.THREADS * unroll, launch.PROGRAMS)
    constants = {"ROWS": held, "BLOCK": launch.THREADS, "UNROLL": unroll, "num_warps": launch.THREADS // 32}
    return held, tiles, programs, constants


def _strides(vector: torch.Tensor) -> tuple[int, dict[str, int]]:
    """Returns programs and the constants of a kernel that takes one group of rows after the other, column by column."""
    programs = launch.share(vector.numel(), launch.BLOCK, launch.PROGRAMS)
    return programs, {"ROWS": launch.GROUP, "BLOCK": launch.BLOCK, "num_warps": launch.THREADS // 32}


def _table(rows: Sequence[torch.Tensor]) -> torch.Tensor:
    """Returns the rows' addresses, int64 `[T]`."""
    return _on(rows[0], [row.data_ptr() for row in rows], torch.int64)


def _on(like: torch.Tensor, numbers: list[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor(numbers, dtype=dtype, device=like.device)
