"""Where a data set lies under the data root; stdlib only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

Layouts = Sequence[Sequence[str]]
"""Alternatives; each is the paths under the data root that must all be there."""

ARCHIVES = "archives"
"""Folder under the data root for archives, fetched or put there by hand."""


def find_layout(layouts: Layouts, root: Path) -> tuple[Path, ...] | None:
    """Returns the paths of the first alternative that is there, or `None`; looks at names only.

    Args:
        layouts: Alternatives.
        root: The data root.
    """
    for layout in layouts:
        paths = tuple(root / part for part in layout)
        if all(path.exists() for path in paths):
            return paths
    return None


def describe_layouts(layouts: Layouts, root: Path) -> str:
    """Returns the alternatives as words.

    Example:
        >>> describe_layouts([["a/train", "a/test"], ["b"]], Path("/data"))
        '/data/a/train and /data/a/test; or /data/b'
    """
    return "; or ".join(" and ".join(str(root / part) for part in layout) for layout in layouts)
