"""What the methods that synthesise images share, beside what test_target.py tests of it."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fcilbench.api import ImageInput
from fcilbench.plugins.aggregators.synthesis import (
    Maps,
    UpConv,
    disagreement,
    eight_bit,
    moments,
    network_input,
    pixels,
)


@pytest.mark.parametrize("shape", [(2, 3, 4, 4), (1, 3, 1, 1), (2, 3, 5, 2)])
def test_upconv_is_a_convolution_of_doubled_images(shape):
    torch.manual_seed(0)
    layer, plain = UpConv(3, 5).double(), nn.Conv2d(3, 5, 3, padding=1).double()
    plain.load_state_dict(layer.state_dict())
    images = torch.randn(shape, dtype=torch.float64)
    found, expected = (images.clone().requires_grad_() for _ in range(2))
    ours, theirs = layer(found), plain(F.interpolate(expected, scale_factor=2.0, mode="nearest"))
    assert torch.allclose(ours, theirs, rtol=0, atol=1e-12)
    weights = torch.randn_like(theirs)
    (weights * ours).sum().backward()
    (weights * theirs).sum().backward()
    assert torch.allclose(found.grad, expected.grad, rtol=0, atol=1e-12)
    for one, two in zip(layer.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(one.grad, two.grad, rtol=0, atol=1e-11)


def test_upconv_begins_with_the_weights_of_a_convolution():
    states = []
    for kind in (lambda: UpConv(3, 4, bias=False), lambda: nn.Conv2d(3, 4, 3, padding=1, bias=False)):
        torch.manual_seed(1)
        states.append(kind().weight.detach())
    assert torch.equal(*states)


def test_moments_have_values_and_gradient_of_mean_and_variance():
    torch.manual_seed(0)
    values = 3 + 2 * torch.randn(4, 3, 5, 2, dtype=torch.float64)
    found, expected = (values.clone().requires_grad_() for _ in range(2))
    ours = moments(found)
    theirs = torch.stack([expected.mean(dim=(0, 2, 3)), expected.var(dim=(0, 2, 3), correction=0)])
    assert torch.allclose(ours, theirs, rtol=1e-12, atol=0)
    weights = torch.randn_like(theirs)
    (weights * ours.square()).sum().backward()
    (weights * theirs.square()).sum().backward()
    assert torch.allclose(found.grad, expected.grad, rtol=1e-10, atol=1e-14)


def test_maps_cut_rows_and_put_channels_last():
    rows = torch.arange(24.0).view(2, 12)
    maps = Maps(3, 2)(rows)
    assert torch.equal(maps, rows.view(2, 3, 2, 2))
    assert maps.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("last", [False, True])
def test_inputs_of_a_network_are_in_its_order(last):
    kind, images = ImageInput(size=6, mean=(0.1, 0.2, 0.3)), torch.rand(2, 3, 4, 4)
    found = network_input(images, kind, channels_last=last)
    assert torch.equal(found, network_input(images, kind))
    assert found.is_contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)


def test_pixels_undo_the_normalisation_and_cut_what_no_image_has():
    """(x * std + mean) of -3, 0, 1 with std .5 and mean .25, and of the second channel with 1 and 0."""
    kind = ImageInput(size=1, channels=2, mean=(0.25, 0.0), std=(0.5, 1.0))
    values = torch.tensor([[-3.0, 0.5], [0.0, 0.25], [1.0, 2.0]])[:, :, None, None]
    found = pixels(values, kind)
    assert found.flatten(1).tolist() == [[0.0, 0.5], [0.25, 0.25], [0.75, 1.0]]
    assert network_input(found, kind).flatten(1).tolist() == [[-0.5, 0.5], [0.0, 0.25], [1.0, 1.0]]
    assert eight_bit(found).flatten().tolist() == [0, 128, 64, 64, 191, 255]


def test_disagreement_counts_where_both_name_the_same_class():
    """KL of (2/3, 1/3) from (1/2, 1/2) is 0.056633; in the second row the student names the other class."""
    taught = torch.tensor([[2.0, 1.0], [2.0, 1.0]]).log()
    own = torch.tensor([[0.0, 0.0], [0.0, 1.0]])
    assert disagreement(own, taught).item() == pytest.approx(0.056633 / 2, abs=1e-6)
