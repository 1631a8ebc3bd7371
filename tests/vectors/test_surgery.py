"""Spatial surgery: values by hand, and the printed formula as a second, plain implementation."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fcilbench.vectors.sums import weighted_sum
from fcilbench.vectors.surgery import coefficients, gram, mean_pairwise_cosine, merge, surgery_matrix
from fcilbench.vectors.trim import Trimmed


def printed_formula(rows, target="both"):
    """Refined vectors by N (N - 1) projections, as Kim and Do 2026 print them (equation 5)."""
    refined = []
    for i, row in enumerate(rows):
        out = row.clone()
        for j, other in enumerate(rows):
            inner = float(row @ other)
            wanted = {"both": True, "positive": inner > 0, "negative": inner < 0, "none": False}[target]
            if j != i and wanted and float(other @ other) > 0:
                out -= inner / float(other @ other) * other
        refined.append(out)
    return torch.stack(refined)


def test_worked_example():
    rows = torch.tensor([[3.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    products = gram(rows)
    assert products.tolist() == [[9.0, 3.0], [3.0, 2.0]]
    matrix = surgery_matrix(products)
    assert torch.allclose(matrix @ rows, torch.tensor([[1.5, -1.5], [0.0, 1.0]], dtype=torch.float64))
    weights = coefficients(matrix)
    assert torch.allclose(weights, torch.tensor([2 / 3, -1 / 2], dtype=torch.float64))
    assert torch.allclose(weights @ rows, torch.tensor([1.5, -0.5], dtype=torch.float64))
    assert torch.allclose(printed_formula(rows).sum(0), torch.tensor([1.5, -0.5], dtype=torch.float64))


def test_orthogonal_vectors_are_unchanged():
    rows = torch.diag(torch.tensor([1.0, 2.0, 3.0]))
    assert torch.equal(surgery_matrix(gram(rows)), torch.eye(3, dtype=torch.float64))


def test_opposite_vectors_cancel():
    rows = torch.tensor([[1.0, 2.0], [-1.0, -2.0]])
    assert torch.equal(surgery_matrix(gram(rows)) @ rows.double(), torch.zeros(2, 2, dtype=torch.float64))


@pytest.mark.parametrize("n", [1, 2, 3, 10])
def test_n_identical_vectors_have_coefficient_2_minus_n(n):
    rows = torch.tensor([[1.0, -2.0, 0.5]]).repeat(n, 1)
    assert coefficients(surgery_matrix(gram(rows))).tolist() == [2.0 - n] * n


def test_equal_pairwise_cosine_gives_1_minus_n_minus_1_times_c():
    c, n = 0.25, 5
    products = torch.full((n, n), c, dtype=torch.float64).fill_diagonal_(1.0)
    assert torch.allclose(coefficients(surgery_matrix(products)), torch.full((n,), 1 - (n - 1) * c).double())
    assert mean_pairwise_cosine(products) == pytest.approx(c)


@pytest.mark.parametrize("target", ["both", "positive", "negative", "none"])
def test_closed_form_equals_printed_formula(target):
    rows = torch.randn(6, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    matrix = surgery_matrix(gram(rows), target)
    expected = printed_formula(rows, target)
    assert torch.allclose(matrix @ rows, expected, atol=1e-12)
    assert torch.allclose(weighted_sum(coefficients(matrix), rows), expected.sum(0), atol=1e-12)
    assert torch.allclose(matrix @ gram(rows) @ matrix.T, expected @ expected.T, atol=1e-10)


def test_zero_vector_projects_nothing():
    rows = torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    matrix = surgery_matrix(gram(rows))
    assert torch.isfinite(matrix).all()
    assert torch.equal(matrix @ rows.double(), rows.double())


def test_client_order_changes_nothing():
    rows = torch.randn(7, 30, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    order = torch.tensor([3, 1, 6, 0, 2, 5, 4])
    one = weighted_sum(coefficients(surgery_matrix(gram(rows))), rows)
    two = weighted_sum(coefficients(surgery_matrix(gram(rows[order]))), rows[order])
    assert torch.allclose(one, two, rtol=1e-6)


def test_max_clients_keeps_the_closest_pairs():
    # Cosines: 0.6 between 0 and 1, 0.8 between 1 and 2, 0.1 between 0 and 2 (unit vectors).
    products = torch.tensor([[1.0, 0.6, 0.1], [0.6, 1.0, 0.8], [0.1, 0.8, 1.0]], dtype=torch.float64)
    assert surgery_matrix(products, limit=1).tolist() == [[1.0, -0.6, 0.0], [0.0, 1.0, -0.8], [0.0, -0.8, 1.0]]
    assert torch.equal(surgery_matrix(products, limit=2), surgery_matrix(products))
    assert torch.equal(surgery_matrix(-products.abs(), "positive", 1), torch.eye(3, dtype=torch.float64))


def test_merge_counts_the_signs_that_it_turns():
    # Plain sum (3, 4, 0, -1); with c = (1, -1): (-1, 2, 2, -1): one of the four coordinates turns.
    rows = torch.tensor([[1.0, 3.0, 1.0, -1.0], [2.0, 1.0, -1.0, 0.0]])
    merged, flips = merge(torch.tensor([1.0, -1.0]), rows)
    assert merged.tolist() == [-1.0, 2.0, 2.0, -1.0]
    assert flips == 0.25


def test_weighted_sum_adds_in_row_order_in_float32():
    rows = torch.tensor([[1e8], [1.0], [-1e8]])
    assert weighted_sum(torch.ones(3), rows).item() == 0.0  # (1e8 + 1) - 1e8 in float32
    assert weighted_sum(torch.ones(3), rows[[0, 2, 1]]).item() == 1.0


def test_weighted_sum_rejects_shapes_that_do_not_fit():
    with pytest.raises(ValueError, match="do not fit"):
        weighted_sum(torch.ones(2), torch.ones(3, 4))
    with pytest.raises(ValueError, match="do not fit"):
        weighted_sum(torch.ones(0), torch.ones(0, 4))


class LargestAllocation(TorchDispatchMode):
    """Remembers the bytes of the largest storage that an operation made."""

    def __init__(self, rows):
        super().__init__()
        self._given, self.nbytes = rows.untyped_storage().data_ptr(), 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().data_ptr() != self._given:
                self.nbytes = max(self.nbytes, tensor.untyped_storage().nbytes())
        return out


def test_a_round_never_makes_a_second_matrix():
    rows = torch.randn(10, 400_000, generator=torch.Generator().manual_seed(0))
    with LargestAllocation(rows) as largest:
        vectors = Trimmed(rows, 4.5)
        merge(coefficients(surgery_matrix(gram(vectors))), vectors)
    # The merge itself, 4 D bytes, is the largest thing; the rows are 40 D.
    assert largest.nbytes == 4 * 400_000
