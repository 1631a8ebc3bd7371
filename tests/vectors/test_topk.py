"""The k largest magnitudes, exactly."""

import pytest
import torch

from fcilbench.vectors.topk import count_of, cut, top_k


def test_counts_exactly_and_breaks_ties_by_index():
    vector = torch.tensor([1.0, -3.0, 2.0, -2.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    assert top_k(vector, 0.3).tolist() == [0, -3, 2, -2, 0, 0, 0, 0, 0, 0]
    assert top_k(vector, 1.0).tolist() == vector.tolist()
    assert int((top_k(vector, 0.01) != 0).sum()) == 1
    assert int((top_k(torch.arange(1.0, 101.0), 0.29) != 0).sum()) == 29


def test_fractions_are_decimals():
    assert count_of(0.29, 100) == 29  # 0.29 * 100 is 28.999999999999996
    assert count_of(0.05, 10) == 1
    assert count_of(1.0, 7) == 7


@pytest.mark.parametrize("fraction", [0.001, 0.05, 0.5, 0.999])
def test_equals_a_stable_sort(fraction):
    # Few distinct values, so that the threshold has thousands of ties, over several pieces.
    vector = torch.randn(300_000, generator=torch.Generator().manual_seed(0)).mul(4).round().div(4)
    order = vector.abs().argsort(descending=True, stable=True)[: count_of(fraction, len(vector))]
    expected = torch.zeros_like(vector)
    expected[order] = vector[order]
    assert torch.equal(top_k(vector, fraction), expected)


def test_pieces_of_any_size_keep_the_same_entries():
    vector = torch.tensor([1.0, -1.0, 2.0, 1.0, 0.0, -1.0])
    chosen = cut(vector, 0.5)  # 2 and the first two ones
    apart = torch.cat([chosen.keeps(vector[start : start + 2], start) for start in (0, 2, 4)])
    assert apart.tolist() == [True, True, True, False, False, False]


def test_tiny_and_denormal_values_are_ordered():
    assert top_k(torch.tensor([1e-42, 1e-40, -1e-38, 0.0]), 0.5).tolist() == pytest.approx([0.0, 1e-40, -1e-38, 0.0])
