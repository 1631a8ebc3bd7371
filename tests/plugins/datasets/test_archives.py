"""What every built-in data set declares about its archives."""

from __future__ import annotations

import pytest

from fcilbench.plugins.datasets.cars196 import Cars196
from fcilbench.plugins.datasets.cifar100 import Cifar100
from fcilbench.plugins.datasets.cub200 import Cub200
from fcilbench.plugins.datasets.eurosat import EuroSat
from fcilbench.plugins.datasets.imagenet_a import ImageNetA
from fcilbench.plugins.datasets.imagenet_r import ImageNetR


@pytest.mark.parametrize("plugin", [Cars196, Cifar100, Cub200, EuroSat, ImageNetA, ImageNetR])
def test_no_archive_without_a_published_checksum(plugin) -> None:
    assert plugin.archives
    for archive in plugin.archives:
        algorithm, _, digits = archive.checksum.partition(":")
        assert len(bytes.fromhex(digits)) == {"md5": 16, "sha256": 32}[algorithm]
        assert archive.published
        assert archive.size
        assert archive.url.startswith("https://") or plugin.by_hand


@pytest.mark.parametrize("plugin", [Cars196, Cub200, EuroSat, ImageNetA, ImageNetR])
def test_tree_has_the_name_of_the_plugin(plugin) -> None:
    assert plugin.layouts[0] == (f"{plugin.name}/train", f"{plugin.name}/test")
    assert plugin.cached
