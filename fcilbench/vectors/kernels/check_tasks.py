"""Compares the kernels of temporal SUM with the torch path on small vectors, once for a device and a number of rows."""

from __future__ import annotations

import torch

from fcilbench.vectors import basis as torch_path
from fcilbench.vectors.kernels import launch_tasks
from fcilbench.vectors.kernels.check import expect, integers
from fcilbench.vectors.kernels.tasks import made_for
from fcilbench.vectors.topk import cut
from fcilbench.vectors.unify import RULES, Modulators, unify

_SIZE = 100_003
"""Entries: many programs, several blocks in each, and a last block that is not full."""
_KEPT = 0.3


def check(device: torch.device, count: int) -> None:
    """Runs all passes both ways on numbers of few bits, whose float64 sums are exact in any order.

    Where float32 rounds (the refined vectors, and each step of the tau_k) the numbers have more bits than it keeps, and
    both ways must round alike: the sum of the magnitudes of a tau_k shows when one of its entries has other bits, and
    so another mask. Torch rounds the product and the sum of `add_` with `alpha` once, as a fused operation.

    Args:
        device: Where.
        count: How many rows the kernels take at once.

    Raises:
        MismatchError: If a result differs.
    """
    for tasks in (count - 1, count, 2 * count - 1):
        if made_for(tasks) != count:
            continue
        generator = torch.Generator(device).manual_seed(tasks)
        _check_products(list(integers(1 << 13, tasks + 1, _SIZE, generator)))
        basis = list(integers(1 << 8, tasks, _SIZE, generator))
        _check_projection(integers(1 << 8, 1, _SIZE, generator)[0], basis, generator)
        _check_election(basis)
        _check_norms(basis, generator)


def _check_products(vectors: list[torch.Tensor]) -> None:
    vector, basis = vectors[0], vectors[1:]
    inner, norms = torch_path.products(vector, basis)
    own_inner, own_norms = launch_tasks.products(vector, basis)
    expect("inner products", own_inner, inner, vector.device)
    expect("squared norms", own_norms, norms, vector.device)


def _check_projection(vector: torch.Tensor, basis: list[torch.Tensor], generator: torch.Generator) -> None:
    step = integers(1 << 18, 1, len(basis), generator)[0].to(torch.float64) / (1 << 15)
    expected, inner = torch_path.refine(vector, step, basis)
    refined, own_inner = launch_tasks.refine(vector, step, basis)
    expect("refined vector", refined, expected, vector.device)
    expect("inner products of the refined vector", own_inner, inner, vector.device)
    expect("second refined vector", launch_tasks.subtract(vector, step, basis), expected, vector.device)


def _check_election(basis: list[torch.Tensor]) -> None:
    cuts = [cut(vector, _KEPT) for vector in basis]
    for rule in RULES:
        expected = unify(basis, cuts, rule, basis[0].device)
        expect(f"election ({rule})", launch_tasks.unify(basis, cuts, rule), expected, basis[0].device)


def _check_norms(basis: list[torch.Tensor], generator: torch.Generator) -> None:
    count, device = len(basis), generator.device
    factors = integers(1 << 17, count, count, generator).to(torch.float64) / (1 << 16)
    coefficients = [own[:index] for index, own in enumerate(factors)]
    unified = integers(1 << 20, 1, _SIZE, generator)[0] * integers(2, 1, _SIZE, generator)[0]
    size, agreed = Modulators(basis, coefficients, unified).norms()
    own_size, own_agreed = launch_tasks.norms(basis, coefficients, unified)
    expect("norms of the tasks", own_size, size, device)
    expect("norms of the masked module", own_agreed, agreed, device)
