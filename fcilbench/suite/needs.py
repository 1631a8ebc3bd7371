"""What a suite needs on this machine beside its plugins: the files of its data sets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fcilbench.data.root import find_layout
from fcilbench.suite.expand import Expansion


@dataclass(frozen=True)
class Missing:
    """A data set whose files are not under the data root.

    Attributes:
        name: Full name of the plugin.
        bytes: What there is to download; `None` if nobody says.
        how: How to get it.
    """

    name: str
    bytes: int | None
    how: str

    def __str__(self) -> str:
        size = "" if self.bytes is None else f", {self.bytes / 1e9:.2f} GB to download"
        return f"data set {self.name}{size}: {self.how}"


def missing_data(expansion: Expansion, root: Path | None = None) -> list[Missing]:
    """Returns the data sets of a suite that are not here; looks at names only, `data verify` reads them.

    Args:
        expansion: The expanded suite.
        root: The data root; the default one if not given.
    """
    from fcilbench.data.root import data_root

    base = data_root(root)
    found = []
    for key, facts in sorted(expansion.facts.items()):
        axis, _, name = key.partition(":")
        layouts = facts.get("layouts") or []
        if axis == "dataset" and layouts and find_layout(layouts, base) is None:
            found.append(_missing(name, facts))
    return found


def download_bytes(missing: list[Missing]) -> int | None:
    """Returns the bytes to download for all of them; `None` if the size of one is not known."""
    sizes = [each.bytes for each in missing]
    return None if None in sizes else sum(size for size in sizes if size is not None)


def _missing(name: str, facts: dict[str, Any]) -> Missing:
    archives = facts.get("archives") or []
    sizes = [archive["size"] for archive in archives]
    known = bool(sizes) and None not in sizes
    fetchable = bool(archives) and all(archive["url"] for archive in archives)
    how = f"fcilbench data fetch {name}" if fetchable else f"put it there by hand, from {facts.get('homepage', '')}"
    return Missing(name, sum(sizes) if known else None, how)
