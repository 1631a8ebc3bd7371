"""Reads a suite: file, the files it extends, `-s` overrides; every value keeps where it comes from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fcilbench.suite.schema import Suite


@dataclass(frozen=True)
class LoadedSuite:
    """A valid suite and where each of its values comes from.

    Attributes:
        suite: The suite.
        origins: By dotted path (`protocol.rounds`, `grid.dataset.0.use`): `file:line:column` or `-s path=value`.
            A path that is missing here has its default.
        path: The file.
    """

    suite: Suite
    origins: dict[str, str]
    path: Path


def load_suite(path: Path | str, overrides: Sequence[str] = ()) -> LoadedSuite:
    """Loads and validates a suite."""
    raise NotImplementedError
