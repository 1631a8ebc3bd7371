"""Texts on the device."""

import numpy as np
import pytest
import torch

from fcilbench.api.backbone import TokenIds
from fcilbench.engine.data import DeviceTokens

CPU = torch.device("cpu")


def tokens():
    ids = np.zeros((3, 20), dtype=np.int32)
    ids[0, :3], ids[1, :9], ids[2, :20] = 5, 6, 7
    return DeviceTokens(TokenIds(ids, np.array([3, 9, 20]), pad=0), np.array([2, 0, 1]), CPU)


def test_columns_that_are_padding_for_the_batch_are_cut_to_a_multiple_of_eight():
    data = tokens()
    assert data.plain(torch.tensor([0])).shape == (1, 8)
    assert data.plain(torch.tensor([0, 1])).shape == (2, 16)
    assert data.plain(torch.tensor([2])).shape == (1, 20)
    assert data.plain(torch.tensor([1]))[0].tolist() == [6] * 9 + [0] * 7


def test_training_inputs_are_the_test_inputs():
    data = tokens()
    index = torch.tensor([1, 0])
    draws = data.draw(2, np.random.default_rng(0))
    assert torch.equal(data.augmented(index, draws), data.plain(index))
    assert data.labels.tolist() == [2, 0, 1]
    assert len(data) == 3


def test_counts_must_agree():
    with pytest.raises(ValueError, match="3 texts but 2 labels"):
        DeviceTokens(TokenIds(np.zeros((3, 4), np.int32), np.ones(3, np.int64), 0), np.zeros(2, np.int64), CPU)
