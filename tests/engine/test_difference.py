import math

import pytest
import torch

from fcilbench.engine.precision import relative_difference


def test_by_hand():
    assert relative_difference(torch.tensor([3.0, 5.0]), torch.tensor([3.0, 4.0])) == pytest.approx(1 / 5)
    assert relative_difference(torch.tensor([0.0, 0.0]), torch.tensor([3.0, 4.0])) == pytest.approx(1.0)
    assert relative_difference(torch.zeros(2), torch.zeros(2)) == 0.0


def test_a_nan_passes_no_tolerance():
    for found, expected in ((torch.tensor([math.nan]), torch.ones(1)), (torch.ones(1), torch.tensor([math.nan]))):
        assert not relative_difference(found, expected) < math.inf
