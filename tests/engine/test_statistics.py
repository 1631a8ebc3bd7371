"""Gram matrices by hooks against the layers' inputs written out."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fcilbench.api.aggregator import masked_cross_entropy
from fcilbench.api.backbone import FeatureExtractor, ImageInput, TokenIds
from fcilbench.api.client import Batch
from fcilbench.api.dataset import Augmentation, Samples
from fcilbench.api.schedule import Task
from fcilbench.engine.data import DeviceImages, DeviceTokens
from fcilbench.engine.model import FlatModel, Network
from fcilbench.engine.statistics import layer_grams, layer_inputs, mean_gradient

FIRST, SECOND = "extractor.body.0", "extractor.body.2"


def never(name):
    return False


def model():
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 5))
    return FlatModel(Network(FeatureExtractor(body, 5), 3), torch.device("cpu"))


def run(flat, batches, diagonal=never, mask=None):
    return layer_grams(flat, diagonal, [(inputs, mask) for inputs in batches])


def test_grams_of_every_layer_over_batches_and_tokens():
    flat, inputs = model(), torch.randn(7, 6, 4)  # 7 samples of 6 tokens
    grams = run(flat, inputs.split(3))
    body = flat.network.extractor.body
    with torch.no_grad():
        hidden = torch.tanh(body[0](inputs))
        features = body[2](hidden)
    assert list(grams) == [FIRST, SECOND, "head"]
    for name, x in ((FIRST, inputs), (SECOND, hidden), ("head", features)):
        flat_x = x.reshape(-1, x.shape[-1]).double()
        assert grams[name].total.dtype == torch.float64
        assert torch.allclose(grams[name].total, flat_x.T @ flat_x, rtol=1e-5, atol=1e-5)
        assert grams[name].rows.item() == 42


def test_diagonals_equal_those_of_the_matrices():
    flat, inputs = model(), torch.randn(9, 4)
    full = run(flat, [inputs])
    some = run(flat, [inputs], lambda name: name != "head")
    assert torch.allclose(some[FIRST].total, full[FIRST].total.diagonal(), rtol=1e-5)
    assert some["head"].total.shape == (5, 5)


def test_padding_tokens_are_left_out():
    flat = model()
    mask = torch.tensor([[True, True, False], [True, False, False]])
    inputs = torch.randn(2, 3, 4)
    grams = run(flat, [inputs], mask=mask)
    kept = inputs[mask].double()
    assert torch.allclose(grams[FIRST].total, kept.T @ kept, rtol=1e-5)
    assert grams[FIRST].rows.item() == 3


def test_hooks_are_removed_and_a_gradient_is_not_needed():
    flat = model()
    run(flat, [torch.randn(2, 4)])
    assert not any(module._forward_pre_hooks for module in flat.network.modules())
    with pytest.raises(RuntimeError):
        run(flat, [torch.randn(2, 5)])
    assert not any(module._forward_pre_hooks for module in flat.network.modules())


def test_a_shared_weight_gets_one_sum_and_frozen_or_idle_layers_none():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.idle, self.frozen = (nn.Linear(4, 4) for _ in range(4))
            self.b.weight = self.a.weight
            self.frozen.requires_grad_(False)

        def forward(self, x):
            return self.frozen(self.b(2 * self.a(x)))

    torch.manual_seed(0)
    flat = FlatModel(Network(FeatureExtractor(Twice(), 4), 3), torch.device("cpu"))
    inputs = torch.randn(6, 4)
    grams = run(flat, [inputs])
    assert list(grams) == ["extractor.body.a", "head"]
    with torch.no_grad():
        second = 2 * flat.network.extractor.body.a(inputs)
    expected = inputs.T @ inputs + second.T @ second
    assert torch.allclose(grams["extractor.body.a"].total, expected.double(), rtol=1e-5)
    assert grams["extractor.body.a"].rows.item() == 12


class Often(nn.Module):
    """Runs one frozen layer twice, on all tokens and on the first, and one on windows: samples times four."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.a.requires_grad_(False)

    def forward(self, x):
        x = self.a(x) + self.a(2 * x[:, :1])
        return self.b(x).mean(dim=1) + self.c(x.reshape(-1, 1, 4)).view(x.shape).mean(dim=1)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("size", [5, 2, 1])
def test_layer_inputs_are_the_rows_of_one_sample_after_another_whatever_the_batch_size(size, masked):
    torch.manual_seed(0)
    flat = FlatModel(Network(FeatureExtractor(Often(), 4), 3), torch.device("cpu"))
    inputs, mask = torch.randn(5, 4, 4), torch.arange(4) < torch.tensor([1, 4, 3, 2, 4])[:, None]
    batches = [(x, m if masked else None) for x, m in zip(inputs.split(size), mask.split(size), strict=True)]
    parts = list(layer_inputs(flat, ["*.a", "*.c"], batches))
    found = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    assert set(found) == {"extractor.body.a", "extractor.body.c"}
    rows = []
    for x, m in zip(inputs, mask, strict=True):
        rows += [*(x[m] if masked else x), 2 * x[0]]
    assert torch.equal(found["extractor.body.a"], torch.stack(rows))
    a = flat.network.extractor.body.a
    expected = torch.cat([a(x) + a(2 * x[:1]) for x in inputs])  # windows have no mask
    assert torch.allclose(found["extractor.body.c"], expected, atol=1e-6)
    assert found["extractor.body.c"].dtype == torch.float32
    assert not any(module._forward_pre_hooks for module in flat.network.modules())


def test_layers_that_nobody_has_are_refused():
    with pytest.raises(ValueError, match=r"no layer matches \*\.qkv; there are extractor\.body\.0, "):
        next(layer_inputs(model(), ["*.qkv"], []))


@pytest.mark.parametrize(
    "options",
    [{}, {"stride": 2, "padding": 1}, {"padding": "same", "dilation": 2}, {"padding": 1, "padding_mode": "reflect"}],
)
def test_a_convolution_is_its_flat_weight_on_the_rows(options):
    torch.manual_seed(0)
    conv, grouped = nn.Conv2d(2, 5, 3, bias=False, **options), nn.Conv2d(5, 5, 3, groups=5)
    body = nn.Sequential(conv, grouped, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    flat = FlatModel(Network(FeatureExtractor(body, 5), 3), torch.device("cpu"))
    images = torch.randn(3, 2, 9, 9)
    (found,) = layer_inputs(flat, ["extractor.*"], [(images, None)])
    assert list(found) == ["extractor.body.0"]  # not the grouped one
    expected = conv(images).permute(0, 2, 3, 1).reshape(-1, 5)
    assert torch.allclose(found["extractor.body.0"] @ conv.weight.flatten(1).T, expected, atol=1e-5)


@pytest.mark.parametrize("size", [7, 3, 1])
def test_the_mean_gradient_does_not_depend_on_the_batch_size_and_leaves_padding_out(size):
    flat, task = model(), Task(0, 0, 3)
    x, y, mask = torch.randn(7, 4), torch.arange(7) % 3, torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 1.0])
    batches = [Batch(a, b, m, task) for a, b, m in zip(x.split(size), y.split(size), mask.split(size), strict=True)]
    with torch.no_grad():
        found = mean_gradient(flat, batches, lambda net, batch: masked_cross_entropy(net.logits(batch.inputs), batch))
    assert not flat.gradient.any()
    kept = mask.bool()
    F.cross_entropy(flat.network(x[kept]), y[kept]).backward()
    assert torch.allclose(found, flat.gradient, atol=1e-6)


def test_tokens_tell_their_padding_and_images_have_none():
    tokens = TokenIds(np.array([[5, 6, 0], [7, 0, 0]], dtype=np.int32), np.array([2, 1]), pad=0)
    data = DeviceTokens(tokens, np.array([0, 1]), torch.device("cpu"))
    inputs = data.plain(torch.tensor([0, 1]))
    assert data.token_mask(inputs)[:, :2].tolist() == [[True, True], [True, False]]
    pixels = Samples(np.zeros((2, 4, 4, 1), dtype=np.uint8), np.array([0, 1]))
    images = DeviceImages(pixels, ImageInput(4, 1, (0.5,), (0.5,)), Augmentation(), torch.device("cpu"))
    assert images.token_mask(images.plain(torch.tensor([0]))) is None
