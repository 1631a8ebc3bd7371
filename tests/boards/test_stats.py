from __future__ import annotations

import math

import pytest

from fcilbench.boards.model import Rank
from fcilbench.boards.stats import align, estimate, holm, paired_p, ranks, t_quantile


@pytest.mark.parametrize(
    ("values", "mean", "half_width", "n"),
    [
        # s = 0.1, half width = t(0.975, 2) * 0.1 / sqrt(3) = 4.302653 * 0.057735 = 0.248414
        ({0: 0.5, 1: 0.6, 2: 0.7}, 0.6, 0.248414, 3),
        # s = 0.1 * sqrt(2), half width = t(0.975, 1) * 0.1 = 12.706205 * 0.1
        ({0: 0.5, 4: 0.7}, 0.6, 1.2706205, 2),
        ({0: 0.5, 1: 0.5}, 0.5, None, 2),  # public report 4: equal seeds are no evidence
        ({3: 0.5}, 0.5, None, 1),
        ({0: None, 3: 0.5}, 0.5, None, 1),  # undefined is left out, and no zero
        ({0: None}, None, None, 0),
        ({}, None, None, 0),
    ],
)
def test_mean_and_interval(values, mean, half_width, n):
    found = estimate(values)
    assert found.mean == (None if mean is None else pytest.approx(mean, abs=1e-12))
    assert found.half_width == (None if half_width is None else pytest.approx(half_width, abs=5e-7))
    assert (found.n, found.values) == (n, {seed: value for seed, value in values.items() if value is not None})


@pytest.mark.parametrize(("degrees", "quantile"), [(1, 12.706205), (2, 4.302653), (4, 2.776445), (9, 2.262157)])
def test_quantiles_are_those_of_the_table(degrees, quantile):
    assert t_quantile(degrees) == pytest.approx(quantile, abs=5e-7)


def test_paired_test_with_two_degrees_of_freedom():
    # differences 1, 2, 3: mean 2, s 1, t = 2 sqrt(3); for 2 degrees p = 1 - t / sqrt(2 + t^2) = 1 - sqrt(12/14)
    assert paired_p([2.0, 4.0, 6.0], [1.0, 2.0, 3.0]) == pytest.approx(1 - math.sqrt(12 / 14), abs=1e-12)
    assert paired_p([1.0, 2.0, 3.0], [2.0, 4.0, 6.0]) == pytest.approx(1 - math.sqrt(12 / 14), abs=1e-12)


def test_paired_test_without_spread():
    assert paired_p([1.0, 2.0], [1.0, 2.0]) == 1.0
    assert paired_p([2.0, 3.0], [1.0, 2.0]) == 0.0


def test_rounding_is_no_difference():
    """0.1 + 0.2 is 5.6e-17 more than 0.3; so alike in five seeds it must not make one method better."""
    assert paired_p([0.1 + 0.2] * 5, [0.3] * 5) == 1.0
    assert paired_p([0.1 + 0.2, 0.3], [0.3, 0.1 + 0.2]) == 1.0
    assert paired_p([0.3 + 1e-9] * 5, [0.3] * 5) == 0.0


def test_holm_steps_down_and_never_decreases():
    # sorted 0.01, 0.03, 0.04 -> 3 * 0.01, 2 * 0.03, max(0.06, 0.04)
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


A = {0: 0.50, 1: 0.60, 2: 0.70, 3: 0.80, 4: 0.90}


def test_a_clearly_better_method_ranks_first_and_ties_share_a_rank():
    # b - a is +-0.01 with mean 0.002 (t = 0.41): tied. c - a is 0.05 and 0.06 by turns (t > 20): better than both.
    b = {seed: value + d for (seed, value), d in zip(A.items(), (0.01, -0.01, 0.01, -0.01, 0.01), strict=True)}
    c = {seed: value + d for (seed, value), d in zip(A.items(), (0.05, 0.06, 0.05, 0.06, 0.05), strict=True)}
    found = ranks({"a": A, "b": b, "c": c})
    assert found == {"a": Rank(rank=2, of=3), "b": Rank(rank=2, of=3), "c": Rank(rank=1, of=3)}
    found = ranks({"a": A, "b": b, "c": c}, higher=False)
    assert {name: rank.rank for name, rank in found.items()} == {"a": 1, "b": 1, "c": 3}


def test_fewer_than_five_common_seeds_or_one_method_have_no_rank():
    four = {seed: A[seed] + 0.2 for seed in range(4)}
    assert ranks({"a": A, "b": four}) == {}
    assert ranks({"a": A}) == {}
    assert ranks({}) == {}
    assert align({"a": A, "b": four})[0] == [0, 1, 2, 3]
    assert align({}) == ([], {})
