"""What comes with the package beside its code: suites, leaderboards, and the weights of the small network. Torch-free.

In a wheel they lie in the package, in a clone beside it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

Kind = Literal["suites", "leaderboards", "weights"]

_PACKAGE = Path(__file__).parent


def folder(kind: Kind) -> Path:
    """Returns the folder that holds them, which an incomplete installation may lack."""
    packed = _PACKAGE / "shipped_files" / kind
    return packed if packed.is_dir() else _PACKAGE.parent / kind


def named(name: Path, kind: Kind, suffix: str = "") -> Path | None:
    """Returns what is shipped under a name, or `None`.

    `quickstart`, `quickstart.yaml` and `suites/quickstart.yaml` name the same suite; `suffix` is what may be left out.
    """
    if name.is_absolute() or ".." in name.parts or not name.parts:
        return None
    own = Path(*name.parts[1:]) if name.parts[0] == kind and len(name.parts) > 1 else name
    places = (folder(kind) / own, folder(kind) / f"{own}{suffix}")
    return next((place for place in places if place.exists()), None)


def located(given: Path, kind: Kind, suffix: str = "") -> Path:
    """Returns a path of the user's, or what is shipped under that name where there is nothing at the path."""
    try:
        return given if given.exists() else named(given, kind, suffix) or given
    except (OSError, ValueError):  # a path may be too long, or hold a NUL: whoever reads it says so
        return given
