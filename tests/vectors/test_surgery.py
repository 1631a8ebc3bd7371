"""Spatial surgery: trimming, Gram matrix, surgery and merge against values by hand and the printed formula."""

import pytest
import torch

from fcilbench.vectors.sums import spans, weighted_sum
from fcilbench.vectors.surgery import (
    Trimmed,
    coefficients,
    gram,
    mean_and_sigma,
    mean_pairwise_cosine,
    merge,
    step_cosine,
    surgery_matrix,
)


def whole(rows):
    return Trimmed(rows, None)


def trim(rows, threshold, **options):
    return torch.cat([piece.clone() for _, piece in Trimmed(rows, threshold, **options).pieces()], dim=1)


# ---------------------------------------------------------------- trimming


def test_trim_worked_example():
    row = torch.zeros(1, 100)
    row[0, 99] = 100.0  # mean 1, population sigma 9.9499, z = 9.9499
    before = row.clone()
    assert trim(row, 4.5).abs().sum() == 0
    assert torch.equal(trim(row, 9.95), row)
    assert torch.equal(trim(row, None), row)
    assert torch.equal(row, before)


def test_trim_never_touches_fewer_than_22_entries_at_4_5():
    # The largest possible z of m entries is sqrt(m - 1): 4.4721 for 21 entries, 4.5826 for 22.
    for count, trimmed in ((21, False), (22, True)):
        row = torch.zeros(1, count, dtype=torch.float64)
        row[0, 0] = 7.0
        assert (trim(row, 4.5)[0, 0].item() == 0.0) is trimmed


def test_share_of_zeroed_entries():
    row = torch.zeros(2, 100)
    row[0, 99] = 100.0
    vectors = Trimmed(row, 4.5)
    assert int(vectors.zeroed) == 0  # nothing was read yet
    for _ in range(2):  # a second pass does not add to the first
        gram(vectors)
        assert int(vectors.zeroed) == 1


def test_segments_have_statistics_of_their_own():
    # Whole: mean 50.5, sigma 50.005: nothing is out. Alone, the second segment's 1 among 100s has z = 9.95.
    row = torch.cat([torch.ones(100), torch.full((99,), 100.0), torch.ones(1)])[None]
    assert torch.equal(trim(row, 4.5), row)
    apart = trim(row, 4.5, segments=(100, 100))
    assert apart[0, 199] == 0.0
    assert torch.equal(apart[0, :199], row[0, :199])


@pytest.mark.parametrize("value", [0.1, 1e-8, -7.3])
def test_constant_rows_of_any_value_and_threshold_stay(value):
    row = torch.full((1, 1001), value)
    assert torch.equal(trim(row, 0.5), row)


def test_statistics_do_not_lose_digits_to_a_large_mean():
    rows = torch.tensor([[1000.0, 1001.0, 1002.0, 1003.0] * 50, [0.0, 0.0, 0.0, 8.0] * 50])
    mean, sigma = mean_and_sigma(rows, list(spans(200, 7)))
    assert mean.tolist() == pytest.approx([1001.5, 2.0], rel=1e-7)
    assert sigma.tolist() == pytest.approx([1.25**0.5, 12.0**0.5], rel=1e-6)


# ---------------------------------------------------------------- surgery


def test_worked_example():
    rows = torch.tensor([[3.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    products = gram(whole(rows))
    assert products.tolist() == [[9.0, 3.0], [3.0, 2.0]]
    matrix = surgery_matrix(products)
    assert torch.allclose(matrix @ rows, torch.tensor([[1.5, -1.5], [0.0, 1.0]], dtype=torch.float64))
    weights = coefficients(matrix)
    assert torch.allclose(weights, torch.tensor([2 / 3, -1 / 2], dtype=torch.float64))
    assert torch.allclose(merge(weights, whole(rows))[0], torch.tensor([1.5, -0.5], dtype=torch.float64))


def test_orthogonal_vectors_are_unchanged_and_opposite_ones_cancel():
    rows = torch.diag(torch.tensor([1.0, 2.0, 3.0]))
    assert torch.equal(surgery_matrix(gram(whole(rows))), torch.eye(3, dtype=torch.float64))
    rows = torch.tensor([[1.0, 2.0], [-1.0, -2.0]])
    assert torch.equal(surgery_matrix(gram(whole(rows))) @ rows.double(), torch.zeros(2, 2, dtype=torch.float64))


def test_equal_pairwise_cosine_gives_1_minus_n_minus_1_times_c():
    c, n = 0.25, 5
    products = torch.full((n, n), c, dtype=torch.float64).fill_diagonal_(1.0)
    assert torch.allclose(coefficients(surgery_matrix(products)), torch.full((n,), 1 - (n - 1) * c).double())
    assert mean_pairwise_cosine(products) == pytest.approx(c)


def test_max_clients_keeps_the_closest_pairs():
    # Cosines: 0.6 between 0 and 1, 0.8 between 1 and 2, 0.1 between 0 and 2 (unit vectors).
    products = torch.tensor([[1.0, 0.6, 0.1], [0.6, 1.0, 0.8], [0.1, 0.8, 1.0]], dtype=torch.float64)
    assert surgery_matrix(products, limit=1).tolist() == [[1.0, -0.6, 0.0], [0.0, 1.0, -0.8], [0.0, -0.8, 1.0]]
    assert torch.equal(surgery_matrix(products, limit=2), surgery_matrix(products))
    assert torch.equal(surgery_matrix(-products.abs(), "positive", 1), torch.eye(3, dtype=torch.float64))


def test_merge_counts_the_signs_that_it_turns():
    # Plain sum (3, 4, 0, -1); with c = (1, -1): (-1, 2, 2, -1): one of the four coordinates turns.
    rows = torch.tensor([[1.0, 3.0, 1.0, -1.0], [2.0, 1.0, -1.0, 0.0]])
    merged, flips = merge(torch.tensor([1.0, -1.0]), whole(rows))
    assert merged.tolist() == [-1.0, 2.0, 2.0, -1.0]
    assert flips == 0.25


def test_step_cosine_by_hand():
    # (3, 0), (1, 1) with c = (2/3, -1/2): the step (1.5, -0.5) and the sum (4, 1): 5.5 / sqrt(2.5 * 17).
    rows = torch.tensor([[3.0, 0.0], [1.0, 1.0]])
    products = gram(whole(rows))
    weights = coefficients(surgery_matrix(products))
    assert step_cosine(weights, products) == pytest.approx(5.5 / (2.5 * 17) ** 0.5)
    assert step_cosine(-weights, products) == pytest.approx(-5.5 / (2.5 * 17) ** 0.5)
    # Vectors that cancel leave rounding only, which has no direction.
    opposite = torch.tensor([[0.1, 0.7], [-0.3, -2.1]])
    products = gram(whole(opposite))
    assert step_cosine(coefficients(surgery_matrix(products)), products) == 0.0


# ---------------------------------------------------------------- sums


def test_weighted_sum_adds_in_row_order_in_float32():
    rows = torch.tensor([[1e8], [1.0], [-1e8]])
    assert weighted_sum(torch.ones(3), rows).item() == 0.0  # (1e8 + 1) - 1e8 in float32
    assert weighted_sum(torch.ones(3), rows[[0, 2, 1]]).item() == 1.0
