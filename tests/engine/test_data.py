"""Data on the device: images against a plain implementation with NumPy and Pillow, one by one, and texts."""

import numpy as np
import pytest
import torch
from PIL import Image

from fcilbench.api.backbone import ImageInput, TokenIds
from fcilbench.api.dataset import Augmentation, Samples
from fcilbench.engine.data import DeviceImages, DeviceTokens
from fcilbench.errors import UsageError

CPU = torch.device("cpu")


def images(channels=3, size=8, count=6, low=0, high=256):
    pixels = np.random.default_rng(0).integers(low, high, (count, size, size, channels), dtype=np.uint8)
    return Samples(pixels, np.arange(count))


def test_augmentation_equals_pad_crop_flip_one_by_one():
    samples = images()
    data = DeviceImages(samples, ImageInput(8, mean=(0.0,) * 3, std=(1.0,) * 3), Augmentation(2, flip=True), CPU)
    draws = data.draw(6, np.random.default_rng(1))
    got = data.augmented(torch.arange(6), draws)
    for i, image in enumerate(samples.inputs):
        padded = np.pad(image, ((2, 2), (2, 2), (0, 0)))
        top, left = int(draws["top"][i]), int(draws["left"][i])
        crop = padded[top : top + 8, left : left + 8]
        expected = crop[:, ::-1] if bool(draws["flip"][i]) else crop
        assert np.array_equal((got[i].permute(1, 2, 0).numpy() * 255).round().astype(np.uint8), expected)
    assert {bool(f) for f in draws["flip"]} == {True, False}


def test_no_augmentation_is_the_test_transform():
    data = DeviceImages(images(), ImageInput(8), Augmentation(), CPU)
    index = torch.arange(6)
    assert torch.equal(data.augmented(index, data.draw(6, np.random.default_rng(0))), data.plain(index))


def test_resize_agrees_with_pillow_bicubic_on_eight_bits():
    # Mid-grey noise: no overshoot, which Pillow clamps once more between its two passes.
    samples = images(size=32, count=2, low=90, high=166)
    data = DeviceImages(samples, ImageInput(64, mean=(0.0,) * 3, std=(1.0,) * 3), Augmentation(), CPU)
    got = data.plain(torch.arange(2)) * 255
    for i, image in enumerate(samples.inputs):
        expected = np.asarray(Image.fromarray(image).resize((64, 64), Image.Resampling.BICUBIC), dtype=np.float32)
        assert (
            np.abs(got[i].permute(1, 2, 0).numpy() - expected).max() <= 1.5
        )  # Pillow rounds twice; without antialiasing the difference is 6


def test_normalisation_and_grey_to_three_channels():
    grey = Samples(np.full((1, 4, 4, 1), 255, dtype=np.uint8), np.zeros(1, dtype=np.int64))
    data = DeviceImages(grey, ImageInput(4, mean=(0.5, 0.0, 1.0), std=(0.5, 1.0, 2.0)), Augmentation(), CPU)
    assert data.plain(torch.tensor([0]))[0, :, 0, 0].tolist() == [1.0, 1.0, 0.0]


def test_draws_cover_every_offset_and_both_sides():
    data = DeviceImages(images(), ImageInput(8), Augmentation(1, flip=True), CPU)
    draws = data.draw(2000, np.random.default_rng(0))
    assert sorted(set(draws["top"].tolist())) == sorted(set(draws["left"].tolist())) == [0, 1, 2]
    assert float(draws["flip"].float().mean()) == pytest.approx(0.5, abs=0.05)


def test_wrong_images_are_refused():
    with pytest.raises(ValueError, match="uint8"):
        DeviceImages(Samples(np.zeros((1, 4, 4, 3)), np.zeros(1, dtype=np.int64)), ImageInput(4), Augmentation(), CPU)
    with pytest.raises(UsageError, match="images have 2 channels, the backbone wants 3") as caught:
        DeviceImages(images(channels=2), ImageInput(8), Augmentation(), CPU)
    assert "a backbone that reads 2 channels" in caught.value.hint


def test_channels_last_changes_the_memory_and_no_value():
    spec, augmentation = ImageInput(8), Augmentation(1, flip=True)
    plain = DeviceImages(images(), spec, augmentation, CPU)
    other = DeviceImages(images(), spec, augmentation, CPU, torch.channels_last)
    index, draws = torch.tensor([1, 0]), plain.draw(2, np.random.default_rng(0))
    for one, two in (
        (plain.plain(index), other.plain(index)),
        (plain.augmented(index, draws), other.augmented(index, draws)),
    ):
        assert torch.equal(one, two)
        assert one.is_contiguous()
        assert two.is_contiguous(memory_format=torch.channels_last)
        assert not two.is_contiguous()


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
