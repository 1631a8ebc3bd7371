"""What makes two cells the same: a digest of one canonical record of their identity fields."""

from __future__ import annotations

from typing import Any

from fcilbench.suite.cell import Cell

IDENTITY_VERSION = 1


def canonical(cell: Cell) -> dict[str, Any]:
    """Returns the identity record of a cell."""
    raise NotImplementedError


def cell_id(cell: Cell) -> str:
    """Returns the cell's identity: 64 hexadecimal digits."""
    raise NotImplementedError
