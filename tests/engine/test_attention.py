import pytest
import timm
import torch
import torch.nn.functional as F

from fcilbench.engine.precision import attention, unfused_attention


def test_plain_by_hand():
    # One query, two keys: products ln 3 and 0 give weights 3/4 and 1/4.
    query = torch.tensor([[1.0]], dtype=torch.float64)
    key = torch.tensor([[3.0], [1.0]], dtype=torch.float64).log()
    value = torch.tensor([[4.0, 0.0], [0.0, 8.0]], dtype=torch.float64)
    assert torch.allclose(attention(query, key, value), torch.tensor([[3.0, 2.0]], dtype=torch.float64))


@pytest.mark.parametrize("scale", [None, 0.3])
def test_equals_torch_in_float64(scale):
    query, key, value = torch.randn(3, 2, 4, 7, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = F.scaled_dot_product_attention(query, key, value, scale=scale)
    with unfused_attention():
        found = F.scaled_dot_product_attention(query, key, value, scale=scale)
    assert torch.allclose(found, expected, atol=1e-14)


@pytest.mark.parametrize(
    "options",
    [
        {"is_causal": True},
        {"attn_mask": torch.ones(7, 7, dtype=torch.bool).tril()},
        {"attn_mask": torch.zeros(7, 7, dtype=torch.bool)},  # rows that see nothing give 0, not NaN
        {"attn_mask": torch.linspace(-3, 3, 49, dtype=torch.float64).view(7, 7)},
    ],
)
def test_masks_are_kept(options):
    query, key, value = torch.randn(3, 2, 4, 7, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = F.scaled_dot_product_attention(query, key, value, **options)
    with unfused_attention():
        found = F.scaled_dot_product_attention(query, key, value, **options)
        mask = options.get("attn_mask")
        by_place = F.scaled_dot_product_attention(query, key, value, mask, 0.0, options.get("is_causal", False))
    assert torch.allclose(found, expected, atol=1e-14)
    assert torch.allclose(by_place, expected, atol=1e-14)


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
