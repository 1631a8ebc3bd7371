from __future__ import annotations

import math

import pytest

from fcilbench.boards.stats import (
    align,
    critical_difference,
    estimate,
    holm,
    mean_ranks,
    paired_p,
    ranks,
    tie_groups,
)


@pytest.mark.parametrize(
    ("values", "mean", "half_width", "n"),
    [
        # s = 0.1, half width = t(0.975, 2) * 0.1 / sqrt(3) = 4.302653 * 0.057735 = 0.248414
        ({0: 0.5, 1: 0.6, 2: 0.7}, 0.6, 0.248414, 3),
        # s = 0.1 * sqrt(2), half width = t(0.975, 1) * 0.1 = 12.706205 * 0.1
        ({0: 0.5, 4: 0.7}, 0.6, 1.2706205, 2),
        ({0: 0.5, 1: 0.5}, 0.5, None, 2),  # public report 4: equal seeds are no evidence
        ({0: 0.7991, 1: 0.7990999999999999, 2: 0.7991}, 0.7991, None, 3),  # sums of equal accuracies in other orders
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
    assert found.constant == (n > 1 and half_width is None)
    assert (found.n, found.values) == (n, {seed: value for seed, value in values.items() if value is not None})


def test_paired_tests_with_two_degrees_of_freedom():
    # differences 1, 2, 3: mean 2, s 1, t = 2 sqrt(3); for 2 degrees p = 1 - t / sqrt(2 + t^2) = 1 - sqrt(12/14)
    assert paired_p([[1.0, 2.0, 3.0], [-1.0, -2.0, -3.0]]) == pytest.approx([1 - math.sqrt(12 / 14)] * 2, abs=1e-12)


def test_paired_tests_without_spread():
    """0.1 + 0.2 is 5.6e-17 more than 0.3; so alike in all seeds it must not make one method better."""
    assert paired_p([[0.0, 0.0], [1.0, 1.0], [0.1 + 0.2 - 0.3] * 2, [5.6e-17, -5.6e-17], [1e-9] * 2]).tolist() == [
        *(1, 0, 1, 1, 0)
    ]


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
    found, tests = ranks({"a": A, "b": b, "c": c})
    assert {name: (r.low, r.high, r.best, r.tied) for name, r in found.items()} == {
        "a": (2, 3, False, False),
        "b": (2, 3, False, False),
        "c": (1, 1, True, True),
    }
    assert [(pair.first, pair.second) for pair in tests] == [("b", "a"), ("c", "a"), ("c", "b")]
    assert tests[1].difference == pytest.approx(0.054)
    found, _ = ranks({"a": A, "b": b, "c": c}, higher=False)
    assert {name: (rank.low, rank.high, rank.tied) for name, rank in found.items()} == {
        "a": (1, 2, True),
        "b": (1, 2, True),
        "c": (3, 3, False),
    }


def test_three_seeds_tell_apart_what_the_corrected_tests_tell_apart():
    """Two degrees of freedom: p = 1 - t / sqrt(2 + t^2).

    c - d is 4, 4, 4.1 (t = 121, p = 7e-5), a - d 5, 5.5, 8 (t = 6.6, p = 0.022), a - c 1, 1.5, 3.9 (t = 2.4, p = 0.1).
    Holm takes them to 2e-4, 0.0432 and 0.14; with e, which is d plus 0, 0.1 and 1 (p = 0.37), a - d is no longer apart.
    """
    samples = {"a": {0: 6.0, 1: 6.5, 2: 9.0}, "c": {0: 5.0, 1: 5.0, 2: 5.1}, "d": {0: 1.0, 1: 1.0, 2: 1.0}}
    found, tests = ranks(samples)
    assert {name: (r.low, r.high, r.tied) for name, r in found.items()} == {
        "a": (1, 2, True),
        "c": (1, 2, True),
        "d": (3, 3, False),
    }
    assert [name for name, r in found.items() if r.best] == ["a"]
    t = (18.5 / 3) / (math.sqrt(sum((d - 18.5 / 3) ** 2 for d in (5.0, 5.5, 8.0)) / 2) / math.sqrt(3))
    p = {(pair.first, pair.second): pair.p for pair in tests}["a", "d"]
    assert p == pytest.approx(2 * (1 - t / math.sqrt(2 + t**2)))
    more, _ = ranks({**samples, "e": {0: 1.0, 1: 1.1, 2: 2.0}})
    assert (more["a"].high, more["d"].low) == (3, 2)  # a is above e alone, and d below c alone


def test_two_constants_are_not_tested_against_each_other():
    """c and d are equal in all seeds: the seeds say that a is below both (p = 0.0041 and 0.0004), not which is better.

    a - c is -0.20 -0.18 -0.16 (t = 9 sqrt 3), a - d 0.4 lower (t = 29 sqrt 3), and Holm corrects two tests, not three.
    """
    samples = {"a": {0: 0.30, 1: 0.32, 2: 0.34}, "c": dict.fromkeys(range(3), 0.5), "d": dict.fromkeys(range(3), 0.9)}
    found, tests = ranks(samples)
    assert {name: (rank.low, rank.high) for name, rank in found.items()} == {"a": (3, 3), "c": (1, 2), "d": (1, 2)}
    assert {(pair.first, pair.second) for pair in tests} == {("c", "a"), ("d", "a")}
    p = {pair.first: pair.p for pair in tests}
    assert p["c"] == pytest.approx(1 - math.sqrt(243 / 245))
    assert p["d"] == pytest.approx(2 * (1 - math.sqrt(2523 / 2525)))
    assert ranks({"c": samples["c"], "d": samples["d"]}) == ({}, ())


def test_fewer_than_three_common_seeds_or_one_method_have_no_rank():
    two = {seed: A[seed] + 0.2 for seed in range(2)}
    assert ranks({"a": A, "b": two}) == ({}, ())
    assert ranks({"a": A}) == ({}, ())
    assert ranks({}) == ({}, ())
    assert align({"a": A, "b": two})[0] == [0, 1]
    assert align({}) == ([], {})


def test_mean_ranks_over_blocks():
    """Places 1 2 3, 1 3 2 and 2 1 3: means 4/3, 2 and 8/3."""
    blocks = [
        {"a": 3.0, "b": 2.0, "c": 1.0},
        {"a": 3.0, "b": 1.0, "c": 2.0},
        {"a": 2.0, "b": 3.0, "c": 1.0},
    ]
    assert [(each.aggregator, each.mean) for each in mean_ranks(blocks, higher=True)] == [
        ("a", pytest.approx(4 / 3)),
        ("b", pytest.approx(2)),
        ("c", pytest.approx(8 / 3)),
    ]
    tied = mean_ranks([{"a": 0.7991, "b": 0.7990999999999999, "c": 0.9}], higher=False)
    assert [(each.aggregator, each.mean) for each in tied] == [("a", 1.5), ("b", 1.5), ("c", 3.0)]


def test_critical_difference_and_tie_groups():
    # Demšar 2006, table 5: q = 2.343 for 3 methods and 2.728 for 5, so CD = q sqrt(k (k + 1) / (6 N))
    assert critical_difference(3, 10) == pytest.approx(2.343 * math.sqrt(12 / 60), abs=5e-4)
    assert critical_difference(5, 30) == pytest.approx(2.728 * math.sqrt(30 / 180), abs=5e-4)
    ranked = [("a", 1.2), ("b", 1.9), ("c", 2.4), ("d", 4.5)]
    assert tie_groups(ranked, 1.0) == [["a", "b"], ["b", "c"]]
    assert tie_groups(ranked, 1.2) == [["a", "b", "c"]]
    assert tie_groups(ranked, 0.1) == []
