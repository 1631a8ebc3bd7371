"""Temporal surgery: values by hand, orthogonality, the inverse."""

import pytest
import torch

from fcilbench.vectors.basis import products, project_out, rebuild
from fcilbench.vectors.storage import dense, store


def build(vectors):
    basis, kept = [], []
    for vector in vectors:
        refined, coefficients = project_out(vector, basis)
        basis.append(refined)
        kept.append(coefficients)
    return basis, kept


def test_worked_example():
    taus = [torch.tensor([1.0, 0, 0]), torch.tensor([1.0, 1, 0]), torch.tensor([1.0, 1, 1])]
    basis, _ = build(taus)
    assert torch.stack(basis).tolist() == torch.eye(3).tolist()
    assert torch.stack(build(list(torch.eye(3)))[0]).tolist() == torch.eye(3).tolist()


def test_accumulated_and_incremental_vectors_give_the_same_basis():
    deltas = torch.randn(8, 200, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    accumulated, _ = build(list(deltas.cumsum(0)))
    incremental, _ = build(list(deltas))
    assert torch.allclose(torch.stack(accumulated), torch.stack(incremental), atol=1e-9)


def test_fifty_nearly_parallel_float32_vectors_stay_orthogonal():
    generator = torch.Generator().manual_seed(0)
    steps = torch.randn(50, 4000, generator=generator) * 0.02
    steps[0] += 1.0
    basis, _ = build(list(steps.cumsum(0)))
    rows = torch.stack(basis).double()
    unit = rows / rows.norm(dim=1, keepdim=True)
    cosines = (unit @ unit.T).fill_diagonal_(0.0)
    assert cosines.abs().max() <= 1e-5


def test_zero_basis_vector_is_skipped_and_rebuild_inverts():
    taus = [torch.tensor([0.0, 0.0, 0.0]), torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, -1.0, 0.5])]
    basis, kept = build(taus)
    assert torch.equal(basis[1], taus[1])
    for k, tau in enumerate(taus):
        assert torch.allclose(rebuild(k, basis, kept), tau, atol=1e-6)


def test_input_is_not_changed_and_dot_is_wide():
    vector = torch.tensor([1.0, 1.0])
    project_out(vector, [torch.tensor([1.0, 0.0])])
    assert vector.tolist() == [1.0, 1.0]
    inner, norms = products(torch.tensor([1e8, 1.0]), [torch.tensor([1e8, 1.0]), torch.tensor([0.0, 0.0])])
    assert inner.tolist() == norms.tolist() == [1e16 + 1.0, 0.0]


def test_max_basis_projects_on_the_closest_only():
    basis = [torch.tensor([2.0, 0.0, 0.0]), torch.tensor([0.0, 1.0, 0.0])]
    refined, kept = project_out(torch.tensor([1.0, 3.0, 1.0]), basis, limit=1)
    assert refined.tolist() == [1.0, 0.0, 1.0]
    assert kept.tolist() == [0.0, 3.0]


@pytest.mark.parametrize("kind", ["fp16", "int8", "topk"])
def test_coefficients_rebuild_the_task_vector_from_a_lossy_basis(kind):
    generator = torch.Generator().manual_seed(3)
    taus = torch.randn(4, 1000, generator=generator).cumsum(0)
    basis, kept = [], []
    for tau in taus:
        refined, coefficients = project_out(tau, basis)
        basis.append(store(refined, kind, 0.5))
        kept.append(coefficients)
        # What is lost is the rounding of this vector alone: the projections act on the basis as it is kept.
        lost = refined - dense(basis[-1])
        assert torch.allclose(rebuild(len(basis) - 1, basis, kept) + lost, tau, atol=1e-4)
