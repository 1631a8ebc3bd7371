"""Prints the lowest versions that pyproject.toml allows of what the package and a smoke part of its tests need.

`python .ci/lowest_pins.py [NAME ...]` leaves out the packages that are named.
"""

import re
import sys
import tomllib
from pathlib import Path

TESTS = ("pytest", "torchvision", "pytest-xdist", "hypothesis", "jsonschema")
"""What the smoke part needs of the extra `dev`."""

project = tomllib.loads(Path(__file__).parents[1].joinpath("pyproject.toml").read_text(encoding="utf-8"))["project"]
dev = [each for each in project["optional-dependencies"]["dev"] if re.split(r"[>\[]", each)[0] in TESTS]
for requirement in [*project["dependencies"], *dev]:
    found = re.fullmatch(r"([\w.-]+)>=([\w.]+)", requirement)
    assert found, f"{requirement}: no lower bound"
    if found[1] not in sys.argv[1:]:
        print(f"{found[1]}=={found[2]}")
