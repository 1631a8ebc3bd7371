"""Z-score trimming: values by hand."""

import pytest
import torch

from fcilbench.vectors.chunks import spans
from fcilbench.vectors.trim import Trimmed, mean_and_sigma


def trim(rows, threshold, **options):
    return Trimmed(rows, threshold, **options).dense()


def test_trim_worked_example():
    row = torch.zeros(1, 100)
    row[0, 99] = 100.0  # mean 1, population sigma 9.9499, z = 9.9499
    assert trim(row, 4.5).abs().sum() == 0
    assert torch.equal(trim(row, 9.95), row)
    assert torch.equal(trim(row, None), row)
    assert Trimmed(row, 4.5).dense().shape == row.shape


def test_trim_never_touches_fewer_than_22_entries_at_4_5():
    # The largest possible z of m entries is sqrt(m - 1): 4.4721 for 21 entries, 4.5826 for 22.
    for count, trimmed in ((21, False), (22, True)):
        row = torch.zeros(1, count, dtype=torch.float64)
        row[0, 0] = 7.0
        assert (trim(row, 4.5)[0, 0].item() == 0.0) is trimmed


def test_trim_without_spread_and_without_mutation():
    row = torch.full((1, 50), 3.0)
    assert torch.equal(trim(row, 4.5), row)
    spike = torch.zeros(1, 100)
    spike[0, 0] = 1.0
    before = spike.clone()
    trim(spike, 4.5)
    assert torch.equal(spike, before)
    with pytest.raises(ValueError, match="z_thr"):
        trim(spike, 0.0)


def test_share_of_zeroed_entries():
    row = torch.zeros(2, 100)
    row[0, 99] = 100.0
    vectors = Trimmed(row, 4.5)
    assert int(vectors.zeroed) == 0  # nothing was read yet
    for _ in range(2):  # a second pass does not add to the first
        vectors.dense()
        assert int(vectors.zeroed) == 1


def test_segments_have_statistics_of_their_own():
    # Whole: mean 50.5, sigma 50.005: nothing is out. Alone, the second segment's 1 among 100s has z = 9.95.
    row = torch.cat([torch.ones(100), torch.full((99,), 100.0), torch.ones(1)])[None]
    assert torch.equal(trim(row, 4.5), row)
    apart = trim(row, 4.5, segments=(100, 100))
    assert apart[0, 199] == 0.0
    assert torch.equal(apart[0, :199], row[0, :199])
    with pytest.raises(ValueError, match="do not fit"):
        Trimmed(row, 4.5, segments=(100, 99))


def test_constant_rows_of_any_value_and_threshold_stay():
    for value in (0.1, 1e-8, -7.3):
        row = torch.full((1, 1001), value)
        assert torch.equal(trim(row, 0.5), row)


def test_statistics_do_not_lose_digits_to_a_large_mean():
    rows = torch.tensor([[1000.0, 1001.0, 1002.0, 1003.0] * 50, [0.0, 0.0, 0.0, 8.0] * 50])
    mean, sigma = mean_and_sigma(rows, list(spans(200, 7)))
    assert mean.tolist() == pytest.approx([1001.5, 2.0], rel=1e-7)
    assert sigma.tolist() == pytest.approx([1.25**0.5, 12.0**0.5], rel=1e-6)
