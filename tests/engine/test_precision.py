"""Precision, attention, and the checks of results."""

import math

import pytest
import timm
import torch
import torch.nn.functional as F

from fcilbench.engine.precision import (
    all_finite,
    attention,
    autocast,
    forbid_tf32,
    relative_difference,
    unfused_attention,
)


def test_fp32_means_fp32():
    torch.backends.cudnn.allow_tf32 = True
    forbid_tf32()
    assert not torch.backends.cudnn.allow_tf32
    assert not torch.backends.cuda.matmul.allow_tf32


def test_autocast_runs_products_in_bfloat16_only_when_asked():
    a = torch.ones(4, 4)
    cpu = torch.device("cpu")
    with autocast("bf16", cpu):
        assert (a @ a).dtype == torch.bfloat16
    with autocast("fp32", cpu):
        assert (a @ a).dtype == torch.float32


def test_plain_by_hand():
    # One query, two keys: products ln 3 and 0 give weights 3/4 and 1/4.
    query = torch.tensor([[1.0]], dtype=torch.float64)
    key = torch.tensor([[3.0], [1.0]], dtype=torch.float64).log()
    value = torch.tensor([[4.0, 0.0], [0.0, 8.0]], dtype=torch.float64)
    assert torch.allclose(attention(query, key, value), torch.tensor([[3.0, 2.0]], dtype=torch.float64))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"scale": 0.3},
        {"is_causal": True},
        {"attn_mask": torch.ones(7, 7, dtype=torch.bool).tril()},
        {"attn_mask": torch.zeros(7, 7, dtype=torch.bool)},  # rows that see nothing give 0, not NaN
        {"attn_mask": torch.linspace(-3, 3, 49, dtype=torch.float64).view(7, 7)},
    ],
)
def test_equals_torch_in_float64(options):
    query, key, value = torch.randn(3, 2, 4, 7, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = F.scaled_dot_product_attention(query, key, value, **options)
    with unfused_attention():
        found = F.scaled_dot_product_attention(query, key, value, **options)
    assert torch.allclose(found, expected, atol=1e-14)


def test_arguments_may_be_given_by_place():
    query = torch.randn(2, 4, 7, 5, dtype=torch.float64)
    expected = F.scaled_dot_product_attention(query, query, query, None, 0.0, True)
    with unfused_attention():
        assert torch.allclose(F.scaled_dot_product_attention(query, query, query, None, 0.0, True), expected)


def test_grouped_heads_and_dropout_are_kept():
    query = torch.randn(2, 4, 7, 5)
    key, value = torch.randn(2, 2, 2, 7, 5)
    expected = F.scaled_dot_product_attention(query, key, value, enable_gqa=True)
    with unfused_attention():
        assert torch.allclose(F.scaled_dot_product_attention(query, key, value, enable_gqa=True), expected, atol=1e-6)
        assert not F.scaled_dot_product_attention(query, query, query, dropout_p=1.0).any()


def test_gradients_of_a_vit():
    model = timm.create_model("vit_tiny_patch16_224", img_size=16, patch_size=8, depth=2, num_classes=3).double()
    images = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    expected = torch.autograd.grad(model(images).square().sum(), list(model.parameters()))
    with unfused_attention():
        loss = model(images).square().sum()
    for one, other in zip(torch.autograd.grad(loss, list(model.parameters())), expected, strict=True):
        assert torch.allclose(one, other, atol=1e-10)


def test_by_hand():
    assert relative_difference(torch.tensor([3.0, 5.0]), torch.tensor([3.0, 4.0])) == pytest.approx(1 / 5)
    assert relative_difference(torch.tensor([0.0, 0.0]), torch.tensor([3.0, 4.0])) == pytest.approx(1.0)
    assert relative_difference(torch.zeros(2), torch.zeros(2)) == 0.0


def test_a_nan_passes_no_tolerance():
    for found, expected in ((torch.tensor([math.nan]), torch.ones(1)), (torch.ones(1), torch.tensor([math.nan]))):
        assert not relative_difference(found, expected) < math.inf


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
