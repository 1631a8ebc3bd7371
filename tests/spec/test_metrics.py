"""Metrics worked out by hand on one matrix, and three faults known elsewhere.

s09: forgetting that leaves out a task (Continvvm/continuum#281). s10: one name for the mean over tasks and over samples
(xialeiliu/GFR-IL#7). s11: one name for forgetting with and without a floor (weiguoPian/AV-CIL_ICCV2023#8).
"""

import copy

import pytest

from fcilbench.spec import metrics

R = [[0.90], [0.70, 0.80], [0.60, 0.75, 0.85]]
HELPED = [[0.50], [0.60, 0.80], [0.70, 0.70, 0.90]]


def test_s09_forgetting_counts_every_task():
    assert metrics.forgetting(R) == pytest.approx(0.175)  # ((90 - 60) + (80 - 75)) / 2, not 15.0
    assert metrics.backward_transfer(R) == pytest.approx(-0.175)


def test_s10_macro_and_micro():
    assert metrics.faa([[0.9], [0.9, 0.2]]) == pytest.approx(0.55)
    assert metrics.accuracy_micro([[0.9], [0.9, 0.2]], [500, 50]) == pytest.approx(460 / 550)


def test_s11_negative_forgetting_has_three_names():
    assert metrics.forgetting(HELPED) == pytest.approx(0.0)  # (-10 + 10) / 2
    assert metrics.forgetting_floored(HELPED) == pytest.approx(0.05)  # (0 + 10) / 2
    assert metrics.forgetting_diagonal(HELPED) == pytest.approx(-0.05)  # (-20 + 10) / 2
    assert metrics.backward_transfer(HELPED) == pytest.approx(0.05)


def test_faa_and_average_incremental_accuracy():
    assert metrics.faa(R) == pytest.approx(2.2 / 3)
    assert metrics.average_incremental_accuracy(R) == pytest.approx((0.9 + 0.75 + 2.2 / 3) / 3)


def test_means_have_the_same_last_digit_in_every_python():
    """`sum([0.1] * 10)` is 0.9999999999999999 before Python 3.12 and 1.0 since: boards printed 48.69 and 48.70."""
    row = [0.1] * 10
    assert metrics.faa([row]) == 0.1
    assert metrics.average_incremental_accuracy([[0.1]] * 10) == 0.1
    assert metrics.accuracy_micro([row], [1] * 10) == 0.1


def test_one_task_has_no_forgetting():
    for metric in (metrics.forgetting, metrics.forgetting_floored, metrics.forgetting_diagonal):
        assert metric([[0.9]]) is None
    assert metrics.backward_transfer([[0.9]]) is None
    assert metrics.faa([[0.9]]) == 0.9


def test_rows_that_were_not_measured_are_undefined_not_zero():
    final_only = [[None], [None, None], [0.6, 0.75, 0.85]]
    assert metrics.faa(final_only) == pytest.approx(2.2 / 3)
    assert metrics.average_incremental_accuracy(final_only) is None
    assert metrics.forgetting(final_only) is None
    assert metrics.backward_transfer(final_only) is None


def test_input_is_left_unchanged():
    before = copy.deepcopy(R)
    for metric in (metrics.faa, metrics.forgetting, metrics.forgetting_floored, metrics.average_incremental_accuracy):
        metric(R)
    assert before == R
