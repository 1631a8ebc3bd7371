"""A declarative benchmark suite for Federated Class-Incremental Learning (FCIL)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fcilbench.results.frames import Frames

__version__ = "0.1.0"


def load(folder: Path | str = "results") -> Frames:
    """Returns a results folder as pandas tables: `rows`, `curves` and `matrices`."""
    from fcilbench.results.frames import load as load_frames

    return load_frames(folder)
