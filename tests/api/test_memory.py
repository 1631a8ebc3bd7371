"""Which samples a memory keeps, against values worked out by hand."""

import itertools
from collections import Counter

import numpy as np
import pytest
import torch

from fcilbench.api import Memory, class_balanced, herded, herding, quotas, reservoir

FEATURES = torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 4.0], [1.0, 0.2]])


def memory(labels, start=0, **fields):
    positions = torch.arange(start, start + len(labels))
    return Memory(positions, torch.tensor(labels, dtype=torch.int64), fields)


class Draws:
    """A generator whose integers are given."""

    def __init__(self, *values):
        self.values = list(values)

    def integers(self, low, high):
        value = self.values.pop(0)
        assert low <= value < high
        return value


EMPTY = memory([])


def test_reservoir_by_hand():
    """M = 2, stream a..e: c takes slot 1, d is turned away (3), e takes slot 0: [e, c]."""
    kept = reservoir(EMPTY, memory([0] * 5), 0, 2, Draws(1, 3, 0))
    assert kept.positions.tolist() == [4, 2]


def test_reservoir_keeps_each_sample_with_the_same_probability():
    """Over all 3 x 4 x 5 draws each of five samples is kept in 24 of 60."""
    counts = Counter()
    for draws in itertools.product(range(3), range(4), range(5)):
        counts.update(reservoir(EMPTY, memory([0] * 5), 0, 2, Draws(*draws)).positions.tolist())
    assert counts == dict.fromkeys(range(5), 24)


def test_reservoir_goes_on_where_it_stopped():
    first = reservoir(EMPTY, memory([0] * 3), 0, 2, Draws(1))
    second = reservoir(first, memory([0] * 2, start=3), 3, 2, Draws(3, 0))
    assert second.positions.tolist() == [4, 2]


@pytest.mark.parametrize(
    ("available", "size", "expected"),
    [
        ([9, 9, 9], 5, [2, 2, 1]),
        ([2, 9, 9], 10, [2, 4, 4]),
        ([1, 1, 1, 1, 1], 3, [1, 1, 1, 0, 0]),
        ([1, 1], 9, [1, 1]),
        ([], 4, []),
        ([3, 0], 2, [2, 0]),
    ],
)
def test_quotas_by_hand(available, size, expected):
    assert quotas(available, size) == expected


def test_a_balanced_memory_cuts_old_classes_at_the_end_and_draws_new_ones():
    """4 places for classes 0, 1 (kept) and 2 (offered): 2, 1 and 1."""
    old, new = memory([0, 0, 0, 1, 1]), memory([2] * 6, start=5)
    found = {tuple(class_balanced(old, new, 4, np.random.default_rng(seed)).positions.tolist()) for seed in range(40)}
    assert {own[:3] for own in found} == {(0, 1, 3)}
    assert {own[3] for own in found} == set(range(5, 11))


def test_a_balanced_memory_holds_no_more_than_it_may_and_keeps_fields_with_their_samples():
    old = memory([0, 0, 1], x=torch.tensor([0.0, 1.0, 2.0]))
    new = memory([2, 2, 3], start=3, x=torch.tensor([3.0, 4.0, 5.0]))
    for size in range(8):
        kept = class_balanced(old, new, size, np.random.default_rng(0))
        assert len(kept) == min(size, 6) == len(set(kept.positions.tolist()))
        assert kept.fields["x"].tolist() == kept.positions.tolist()


def test_herding_by_hand():
    """Normalised: distances .612333, .816813, .304338, .451966 take row 2, then row 3, then row 1."""
    assert herding(FEATURES, 3) == [2, 3, 1]
    assert herding(FEATURES, 9) == [2, 3, 1, 0]
    assert [herding(FEATURES, count) for count in (0, 1, 2)] == [[], [2], [2, 3]]  # a prefix of the longer one
    assert herding(torch.ones(3, 2), 2) == [0, 1]  # ties go to the lower row, and none is taken twice


def test_a_herded_memory_takes_what_herding_takes_and_cuts_from_the_end():
    new = memory([0] * 4, start=10)
    first = herded(EMPTY, new, FEATURES, 3)
    assert first.positions.tolist() == [12, 13, 11]
    later = herded(first, memory([1] * 4, start=20), FEATURES, 4)
    assert later.positions.tolist() == [12, 13, 22, 23]


def test_memories_with_other_fields_are_not_joined():
    with pytest.raises(ValueError, match=r"one memory keeps \['x'\] with its samples, the other \[\]"):
        memory([0], x=torch.zeros(1)).join(memory([1]))
    assert len(EMPTY.join(memory([1], x=torch.zeros(1)))) == 1
