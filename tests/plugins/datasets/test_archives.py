"""What every built-in data set declares about its archives."""

from __future__ import annotations

import pytest

from fcilbench.plugins.datasets.cars196 import Cars196
from fcilbench.plugins.datasets.cifar import Cifar10, Cifar100
from fcilbench.plugins.datasets.cub200 import Cub200
from fcilbench.plugins.datasets.eurosat import EuroSat
from fcilbench.plugins.datasets.imagenet import ImageNetA, ImageNetR
from fcilbench.plugins.datasets.isic2019 import Isic2019
from fcilbench.plugins.datasets.speech_commands import SpeechCommands
from fcilbench.plugins.datasets.tiny_imagenet import TinyImageNet


@pytest.mark.parametrize(
    "plugin",
    [Cars196, Cifar10, Cifar100, Cub200, EuroSat, ImageNetA, ImageNetR, SpeechCommands, TinyImageNet],
)
def test_no_archive_without_a_published_checksum(plugin) -> None:
    assert plugin.archives
    for archive in plugin.archives:
        algorithm, _, digits = archive.checksum.partition(":")
        assert len(bytes.fromhex(digits)) == {"md5": 16, "sha256": 32}[algorithm]
        assert archive.published
        assert archive.size
        assert archive.url.startswith("https://") or plugin.by_hand


@pytest.mark.parametrize("plugin", [Cars196, Cub200, EuroSat, ImageNetA, ImageNetR, Isic2019, TinyImageNet])
def test_tree_has_the_name_of_the_plugin(plugin) -> None:
    assert plugin.layouts[0] == (f"{plugin.name}/train", f"{plugin.name}/test")
    assert plugin.cached


@pytest.mark.parametrize(
    ("plugin", "classes", "tasks", "train", "test"),
    [
        (Cars196, 196, [19] * 9 + [25], 8_144, 8_041),
        (Cifar10, 10, 5, 50_000, 10_000),
        (Cifar100, 100, 10, 50_000, 10_000),
        (Cub200, 200, 10, 5_994, 5_794),
        (EuroSat, 10, 5, 21_600, 5_400),
        (ImageNetA, 200, 10, 5_981, 1_519),
        (ImageNetR, 200, 10, 24_000, 6_000),
        (Isic2019, 8, 4, 20_265, 5_066),
        (SpeechCommands, 35, 5, 84_843, 11_005),
        (TinyImageNet, 200, 10, 100_000, 10_000),
    ],
)
def test_facts(plugin, classes: int, tasks: int | list[int], train: int, test: int) -> None:
    facts = plugin.facts()
    assert facts == plugin().instance_facts()
    assert (facts["classes"], facts["default_tasks"], facts["train"], facts["test"]) == (classes, tasks, train, test)
