import pytest
import torch

from fcilbench.engine.precision import all_finite


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64])
@pytest.mark.parametrize("size", [1, 7, 64, 1000])
def test_every_position_is_looked_at(dtype, size):
    values = torch.linspace(-2, 2, size).to(dtype)
    assert all_finite(values)
    for wrong in (torch.nan, torch.inf, -torch.inf):
        for index in {0, size // 2, size - 1}:
            spoilt = values.clone()
            spoilt[index] = wrong
            assert not all_finite(spoilt)
    both = values.clone()
    both[0], both[-1] = torch.nan, torch.inf
    assert not all_finite(both)


def test_large_but_finite_values_are_finite():
    most = torch.finfo(torch.float32).max
    assert all_finite(torch.tensor([most, most, -most]))


def test_strided_empty_and_integer_tensors():
    matrix = torch.zeros(3, 4)
    matrix[:, 1] = torch.nan
    assert all_finite(matrix[:, 2:])
    assert not all_finite(matrix.T)
    assert all_finite(torch.empty(0))
    assert all_finite(torch.tensor([1, 2]))
    assert all_finite(torch.tensor([True]))
