"""Inputs that are no square images: arrays of any shape under a transform of the data set, and images of two sizes."""

import numpy as np
import pytest
import torch
from torch import nn

from fcilbench.api import (
    Augmentation,
    Backbone,
    Corpus,
    DataError,
    Dataset,
    FeatureExtractor,
    ImageInput,
    Samples,
    Transform,
    UsageError,
)
from fcilbench.data.images import read_image
from fcilbench.engine.data import DeviceArrays, DeviceImages
from fcilbench.federation.experiment import Unsupported, build
from fcilbench.federation.probe import probe
from fcilbench.federation.run import run_experiment
from fcilbench.plugins.backbones.timm import Timm

CPU = torch.device("cpu")


class Shift(Transform):
    """Moves a series by up to four steps in training."""

    def draw(self, count, random):
        return {"shift": random.integers(0, 5, count)}

    def apply(self, arrays, draws):
        scaled = super().apply(arrays, draws)
        if not draws:
            return scaled
        steps = (torch.arange(arrays.shape[-1])[None, :] - draws["shift"][:, None]) % arrays.shape[-1]
        return scaled.gather(-1, steps[:, None, :].expand_as(scaled))


class Waves(Dataset):
    """Two channels of 30 time steps, four frequencies."""

    modality, shape, transform = "array", (2, 30), Shift(mean=(1.0, 3.0), std=(0.5, 2.0))
    classes, default_tasks, train_samples, test_samples = 4, 2, 80, 40
    licence, homepage, citation = "CC0", "https://example.org/waves", "Nobody (2026)"

    def load(self, root):
        random, labels = np.random.default_rng(0), np.repeat(np.arange(4), 30)
        angle = 2 * np.pi * ((labels[:, None] + 1) * np.arange(30) / 30 + random.random((120, 1)))
        values = np.stack([1 + 0.5 * np.sin(angle), 3 + 2 * np.cos(angle)], axis=1)
        values += random.normal(0, 0.05, values.shape)
        test = np.arange(120) % 3 == 0
        inputs = values.astype(np.float32)
        return Corpus(Samples(inputs[~test], labels[~test]), Samples(inputs[test], labels[test]), tuple("abcd"))


class Convolution(Backbone):
    """A network of series: it has no idea of images."""

    reads = ("array",)

    def input_shape(self):
        return (2, 30)

    def build(self):
        layers = nn.Conv1d(2, 16, 7), nn.ReLU(), nn.Conv1d(16, 16, 5), nn.ReLU()
        return FeatureExtractor(nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten()), 16)


def test_a_series_is_scaled_by_channel_and_augmented_in_training_alone():
    """(2 - 1) / 0.5 = 2 and (5 - 3) / 2 = 1; a shift of two steps moves the peak from 0 to 2."""
    values = np.full((1, 2, 4), [[1.0], [3.0]], dtype=np.float64)
    values[0, :, 0] = 2.0, 5.0
    data = DeviceArrays(Samples(values, np.array([0])), Waves.transform, CPU)
    rows = torch.tensor([0])
    assert data.plain(rows).tolist() == [[[2.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]]]
    moved = data.augmented(rows, {"shift": torch.tensor([2])})
    assert moved.tolist() == [[[0.0, 0.0, 2.0, 0.0], [0.0, 0.0, 1.0, 0.0]]]
    assert moved.dtype == torch.float32
    assert data.sample_bytes.tolist() == [2 * 4 * 8]  # as the data set gives them: float64
    assert set(data.draw(500, np.random.default_rng(0))["shift"].tolist()) == {0, 1, 2, 3, 4}


def test_a_federation_learns_series(make_experiment, tmp_path):
    experiment = make_experiment(
        dataset=Waves(), backbone=Convolution(), tasks=2, rounds=5, local_epochs=3, batch_size=8
    )
    outcome = run_experiment(experiment, tmp_path)
    assert outcome.metrics["faa/oracle"].value > 0.8  # chance: one half
    assert build(experiment).server.image_input is None
    probe(experiment)


def test_a_method_is_told_that_it_sees_arrays(make_experiment):
    from fcilbench.api import Aggregator, No

    class ImagesOnly(Aggregator):
        def prepare(self, network, request):
            return None if request.modality == "vision" else No(f"not for {request.modality}")

    with pytest.raises(Unsupported, match="not for array"):
        build(make_experiment(ImagesOnly(), dataset=Waves(), backbone=Convolution(), tasks=2))


def test_a_network_of_timm_reads_spectrograms(make_experiment, tmp_path):
    class Spectrograms(Waves):
        shape, transform = (1, 8, 12), Transform(0.5, 2.0)

        def load(self, root):
            random, labels = np.random.default_rng(0), np.repeat(np.arange(4), 30)
            inputs = random.random((120, 1, 8, 12), dtype=np.float32)
            inputs[np.arange(120), 0, :, 3 * labels] += 2.0  # a band whose place tells the class
            test = np.arange(120) % 3 == 0
            return Corpus(Samples(inputs[~test], labels[~test]), Samples(inputs[test], labels[test]), tuple("abcd"))

    args = {"img_size": [8, 12], "patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2, "in_chans": 1}
    backbone = Timm(Timm.Params(model="vit_tiny_patch16_224", weights="none", args=args))
    assert backbone.input_shape() == (1, 8, 12)
    settings = {"tasks": 2, "rounds": 5, "local_epochs": 4, "batch_size": 4, "lr": 3e-3}
    outcome = run_experiment(make_experiment(dataset=Spectrograms(), backbone=backbone, **settings), tmp_path)
    assert outcome.metrics["faa/oracle"].value > 0.8


def test_what_does_not_fit_is_named(make_experiment):
    class Longer(Waves):
        shape = (2, 31)

    class Broken(Waves):
        def load(self, root):
            corpus = super().load(root)
            corpus.train.inputs[7, 1, 3] = np.nan
            return corpus

    settings = {"backbone": Convolution(), "tasks": 2}
    with pytest.raises(DataError, match=r"Longer: train arrays have shape \(2, 30\), expected \(2, 31\)"):
        build(make_experiment(dataset=Longer(), **settings))
    with pytest.raises(DataError, match="Broken: 1 train arrays hold NaN or inf, the first is number 7"):
        build(make_experiment(dataset=Broken(), **settings))
    other = Timm(Timm.Params(model="resnet18", weights="none"))
    with pytest.raises(Unsupported, match=r"arrays of shape \[3, 224, 224\], the data set has \[2, 30\]"):
        build(make_experiment(dataset=Waves(), backbone=other, tasks=2))
    with pytest.raises(Unsupported, match="a backbone for array does not read vision data"):
        build(make_experiment(backbone=Convolution()))


def test_the_kits_take_arrays():
    from fcilbench.testing.others import BackboneSubject, DatasetSubject, input_, samples

    samples(DatasetSubject(Waves, {}))
    input_(BackboneSubject(Convolution, {}))


def test_images_may_be_wide():
    """Pixels of 4 x 6 for a network of 2 x 3: the mean of each square of a ramp; nothing is cut off or stretched."""
    ramp = np.arange(6, dtype=np.uint8).repeat(3).reshape(1, 1, 6, 3) * np.ones((1, 4, 1, 1), dtype=np.uint8) * 40
    spec = ImageInput(size=(2, 3), mean=(0.0,) * 3, std=(1.0,) * 3)
    data = DeviceImages(Samples(ramp, np.array([0])), spec, Augmentation(1, True), CPU)
    found = data.plain(torch.tensor([0]))
    assert found.shape == (1, 3, 2, 3)
    assert torch.allclose(found[0, 0, 0] * 255, torch.tensor([20.0, 100.0, 180.0]), atol=8)
    draws = {"top": torch.tensor([1]), "left": torch.tensor([1]), "flip": torch.tensor([True])}
    assert torch.allclose(data.augmented(torch.tensor([0]), draws), found.flip(3), atol=1e-6)


def test_image_files_are_cut_to_two_sides(tmp_path):
    """100 x 40 pixels to 20 x 20 keeps the middle 40 columns, to 20 x 50 all, to 20 x 80 twenty-five rows."""
    from PIL import Image

    pixels = np.zeros((40, 100, 3), dtype=np.uint8)
    pixels[:, 50:] = 200
    Image.fromarray(pixels).save(tmp_path / "wide.png")
    for size, left in ((20, 10), ((20, 50), 25), ((20, 80), 40)):
        found = read_image(tmp_path / "wide.png", size, 1.0)
        height, width = (size, size) if isinstance(size, int) else size
        assert found.shape == (height, width, 3)
        assert (found[:, : left - 3] == 0).all()
        assert (found[:, left + 3 :] == 200).all()


def test_a_wide_network_of_timm_names_what_its_patches_need():
    for size in ([8, 13], [9, 12]):
        args = {"img_size": size, "patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2}
        backbone = Timm(Timm.Params(model="vit_tiny_patch16_224", weights="none", args=args))
        with pytest.raises(UsageError, match="patches of 4 pixels"):
            backbone.build()
    with pytest.raises(ValueError, match="positive integer"):
        Timm.Params(model="resnet18", weights="none", args={"img_size": [8, 0]})
    assert Timm(Timm.Params(model="resnet18", weights="none", input_size=[32, 48])).input_shape() == (3, 32, 48)
