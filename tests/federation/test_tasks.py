"""Class order, uneven splits; s12: tasks that show the labels of another order (Continvvm/continuum#290)."""

import numpy as np
import torch

from fcilbench.federation.tasks import TaskStream


def test_s12_class_order_and_relabelling():
    stream = TaskStream((5, 4, 3, 2, 1, 0, 6, 7, 8, 9), (5, 5))
    assert stream.internal(np.array([5, 0])).tolist() == [0, 5]
    assert stream.names("abcdefghij")[0] == list("fedcb")


def test_cars_split_has_offsets_from_cumulative_sizes():
    sizes = [19] * 9 + [25]
    last = TaskStream.draw(196, sizes, seed=1).tasks[9]
    assert (last.offset, last.size, last.seen) == (171, 25, 196)
    assert last.local(torch.arange(171, 196)).tolist() == list(range(25))


def test_small_uneven_split():
    tasks = TaskStream(tuple(range(6)), (3, 1, 2)).tasks
    assert [(t.offset, t.seen) for t in tasks] == [(0, 3), (3, 4), (4, 6)]
    assert [t.classes for t in tasks] == [slice(0, 3), slice(3, 4), slice(4, 6)]
