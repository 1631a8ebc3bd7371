"""Files of a scaffolded package, by path; `$name`s are filled in by `fcilbench.testing.scaffold`."""

from __future__ import annotations

PYPROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "$dist"
version = "0.1.0"
description = "The aggregator $name for fcilbench"
readme = "README.md"
requires-python = ">=3.11"
dependencies = ["fcilbench"]

[project.optional-dependencies]
dev = ["pytest>=8"]

[project.entry-points."fcilbench.aggregators"]
$name = "$module:$cls"

[tool.setuptools]
py-modules = ["$module"]

[tool.pytest.ini_options]
testpaths = ["tests"]
addopts = "--import-mode=importlib"
"""

PLUGIN = '''\
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

TEST = """\
from fcilbench.testing import AggregatorConformance


class Test$cls(AggregatorConformance):
    plugin = "$dist/$name"
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
---
title: $cls
description: What it does, in one line
author: Your name
tags: [aggregator, fcil]
paper: ""
license: Apache-2.0
---

# $cls

What the method does, where it comes from, and what it costs (bytes, server memory).

```console
$$ pip install -e .[dev]
$$ pytest
$$ fcilbench plugins test $dist/$name
$$ fcilbench plugins show $dist/$name
```

Use it in a suite beside the built-in methods:

```yaml
grid:
  aggregator: [fedavg, sum, $dist/$name]
```
"""

IGNORE = """\
__pycache__/
*.egg-info/
build/
dist/
results/
"""

FILES = {
    "pyproject.toml": PYPROJECT,
    "$module.py": PLUGIN,
    "tests/test_$test.py": TEST,
    ".github/workflows/test.yml": WORKFLOW,
    "README.md": README,
    ".gitignore": IGNORE,
}
"""Content of each file by path; both are templates."""
