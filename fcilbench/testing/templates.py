"""Files of a scaffolded plugin, by path; `fcilbench.testing.scaffold` fills in each `$name`."""

from __future__ import annotations

AGGREGATOR = '''\
"""$cls: an aggregator for fcilbench."""

from fcilbench.api import Aggregator, Field, Params, Server, Space, Updates


class $cls(Aggregator):
    """Averages the clients' updates with weights n_k ** power: FedAvg at 1, the plain mean at 0."""

    version = "1"  # raise it whenever results change

    class Params(Params):
        power: float = Field(1.0, ge=0, description="exponent of the sample counts", space=Space(low=0.0, high=2.0))

    def aggregate(self, updates: Updates, server: Server) -> None:
        weights = updates.weights**self.params.power  # [N], on the device
        server.step((weights / weights.sum()) @ updates.delta)  # delta: [N, D], what each client changed
'''

BACKBONE = '''\
"""$cls: a backbone for fcilbench."""

from torch import nn

from fcilbench.api import Backbone, FeatureExtractor, Field, ImageInput, Params


class $cls(Backbone):
    """One convolution and one linear layer, 32 features, from scratch."""

    version = "1"  # raise it whenever results change

    class Params(Params):
        channels: int = Field(8, ge=1, description="channels of the convolution")

    def build(self) -> FeatureExtractor:
        layers = nn.Conv2d(3, self.params.channels, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten()
        return FeatureExtractor(nn.Sequential(*layers, nn.Linear(16 * self.params.channels, 32), nn.ReLU()), 32)

    def image_input(self) -> ImageInput:
        return ImageInput(size=32)
'''

DATASET = '''\
"""$cls: a data set for fcilbench."""

from pathlib import Path

import numpy as np

from fcilbench.api import Corpus, Dataset, Samples


class $cls(Dataset):
    """Noisy stripes in four directions, 8x8 pixels; replace them by what you read below `root`."""

    version = "1"  # raise it whenever samples change
    classes, default_tasks, train_samples, test_samples = 4, 2, 80, 20
    licence, homepage, citation = "CC0", "https://example.org", "Your name (2026)"
    fingerprint = ""  # copy it from the message of `fcilbench data verify`

    def load(self, root: Path) -> Corpus:
        across, down = np.meshgrid(np.arange(8), np.arange(8))
        waves = np.stack([across, down, across + down, across - down]) % 4 < 2
        labels = np.repeat(np.arange(4), 25)
        noise = np.random.default_rng(0).integers(0, 100, (100, 8, 8))
        inputs = (155 * waves[labels] + noise).astype(np.uint8)[..., None]
        test = np.arange(100) % 5 == 0
        names = ("vertical", "horizontal", "rising", "falling")
        return Corpus(Samples(inputs[~test], labels[~test]), Samples(inputs[test], labels[test]), names)
'''

PLUGINS = {"aggregator": AGGREGATOR, "backbone": BACKBONE, "dataset": DATASET}
"""The class file of each kind."""

TEST = """\
from fcilbench.testing import ${base}Conformance


class Test$cls(${base}Conformance):
    plugin = "$dist/$name"
"""

PYPROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "$dist"
version = "0.1.0"
description = "The $kind $name for fcilbench"
readme = "README.md"
requires-python = ">=3.11"
dependencies = ["fcilbench"]

[project.optional-dependencies]
dev = ["pytest>=8"]

[project.entry-points."fcilbench.${kind}s"]
$name = "$package.$module:$cls"

[tool.setuptools.packages.find]
include = ["$package*"]

[tool.pytest.ini_options]
testpaths = ["tests"]
addopts = "--import-mode=importlib"
"""

WORKFLOW = """\
name: test
on: [push, pull_request]
jobs:
  test:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with: {python-version: "3.12"}
      - run: pip install -e .[dev]
      - run: pytest
      - run: fcilbench plugins test $dist/$name
"""

README = """\
# $cls

What it does, where it comes from, and what it costs (bytes, memory). Licence: yours to choose.

```console
$$ pip install -e .[dev]
$$ pytest
$$ fcilbench plugins show $dist/$name
```

In a suite, beside the built-in plugins: `$kind: [$dist/$name]`.
"""

IGNORE = "__pycache__/\n*.egg-info/\nbuild/\ndist/\nresults/\n"

PACKAGE = {
    "pyproject.toml": PYPROJECT,
    "$package/__init__.py": "",
    ".github/workflows/test.yml": WORKFLOW,
    "README.md": README,
    ".gitignore": IGNORE,
}
"""The other files of a new package by path."""
