"""Partitions of labels over clients, and two faults known elsewhere.

s01: endless redrawing at small beta (SMILELab-FL/FedLab#232). s02: a large beta that does not become IID
(KarhouTam/FL-bench#110).
"""

import numpy as np
import pytest

from fcilbench.errors import PartitionError
from fcilbench.federation.tasks import partition, stream
from fcilbench.spec.protocol import Partition


def spec(kind, value=None, minimum=1):
    return Partition(kind=kind, value=value, min_samples=minimum)


def check_cover(parts, count):
    assert np.sort(np.concatenate(parts)).tolist() == list(range(count))


def test_s01_small_beta_ends_at_once_and_keeps_the_minimum():
    labels = np.repeat(np.arange(2), 2160)
    for seed in range(20):
        parts = partition(labels, 10, spec("dirichlet", 0.05, 6), stream(seed, "p"))
        check_cover(parts, 4320)
        assert min(map(len, parts)) >= 6


def test_s01_too_few_samples_is_one_clear_error():
    with pytest.raises(PartitionError, match=r"dirichlet-0\.05-min6: 20 samples cannot give 10 clients 6 each"):
        partition(np.repeat(np.arange(2), 10), 10, spec("dirichlet", 0.05, 6), stream(0, "p"))


@pytest.mark.parametrize("beta", [1e-8, 1e-3, 0.05])
def test_vanishing_beta_still_covers_every_sample(beta):
    parts = partition(np.repeat(np.arange(10), 50), 7, spec("dirichlet", beta, 0), stream(0, "p"))
    check_cover(parts, 500)


def test_s02_large_beta_becomes_iid():
    labels = np.repeat(np.arange(10), 100)
    for seed in range(50):
        parts = partition(labels, 5, spec("dirichlet", 1000.0), stream(seed, "p"))
        check_cover(parts, 1000)
        counts = np.array([np.bincount(labels[part], minlength=10) for part in parts])
        assert counts.min() >= 17
        assert counts.max() <= 23


def test_s02_smaller_beta_is_more_skewed():
    """Mean largest class share of 10 clients x 10 classes x 100 (values of the fault, simulated there)."""
    labels = np.repeat(np.arange(10), 100)
    for beta, expected in ((1000.0, 0.15), (1.0, 0.28), (0.5, 0.36), (0.1, 0.61), (0.05, 0.71)):
        shares = []
        for seed in range(60):
            for part in partition(labels, 10, spec("dirichlet", beta, 0), stream(seed, "p")):
                if len(part):
                    shares.append(np.bincount(labels[part]).max() / len(part))
        # The fault's simulation draws multinomially; at beta 1000 a proportional cut is more even (0.10 is the floor).
        assert np.mean(shares) == pytest.approx(expected, abs=0.06)


def test_iid_sizes_differ_by_at_most_one():
    parts = partition(np.zeros(103, dtype=np.int64), 10, spec("iid"), stream(0, "p"))
    check_cover(parts, 103)
    assert sorted(map(len, parts)) == [10] * 7 + [11] * 3


def test_quantity_skews_sizes_but_not_labels():
    labels = np.tile(np.arange(2), 5000)
    parts = partition(labels, 5, spec("quantity", 0.5), stream(3, "p"))
    check_cover(parts, 10_000)
    sizes = sorted(map(len, parts))
    assert sizes[-1] > 3 * sizes[0]
    for part in parts:
        if len(part) > 500:
            assert labels[part].mean() == pytest.approx(0.5, abs=0.08)


def test_a_client_may_stay_empty_when_asked():
    labels = np.zeros(30, dtype=np.int64)
    parts = [partition(labels, 10, spec("dirichlet", 0.05, 0), stream(s, "p")) for s in range(5)]
    assert any(len(part) == 0 for split in parts for part in split)
    assert all(len(part) > 0 for part in partition(labels, 10, spec("dirichlet", 0.05, 1), stream(0, "p")))


def test_same_stream_same_split():
    labels = np.repeat(np.arange(4), 25)
    one = partition(labels, 3, spec("dirichlet", 0.5), stream(7, "p"))
    two = partition(labels, 3, spec("dirichlet", 0.5), stream(7, "p"))
    assert [part.tolist() for part in one] == [part.tolist() for part in two]


def test_no_client_id_is_favoured_where_a_class_has_few_samples():
    """2 classes x 4 samples, 10 clients, beta 100: each client gets 0.8 samples on average."""
    total = np.zeros(10)
    for seed in range(500):
        parts = partition(np.repeat(np.arange(2), 4), 10, spec("dirichlet", 100.0, 0), stream(seed, "p"))
        check_cover(parts, 8)
        total += [len(part) for part in parts]
    assert np.abs(total / 500 - 0.8).max() < 0.15


def test_edge_8_a_huge_beta_gives_equal_shares():
    """Edge case 8: where the draw overflowed, each class went to one client."""
    parts = partition(np.repeat([0, 1], 40), 4, Partition(kind="dirichlet", value=1e308), stream(0, "partition"))
    assert [len(part) for part in parts] == [20] * 4
