"""Random streams as coordinates: each is a hash of where it is used, never of what was drawn before.

The aggregator is never a coordinate, so all methods share class order, partition, client sampling and batch order; and
running clients in another order, on another device or after a resume changes nothing.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch


def stream(seed: int, *coordinates: str | int) -> np.random.Generator:
    """Returns the generator at `coordinates`, e.g. `stream(seed, "batches", task, round, client)`.

    Example:
        >>> stream(1, "batches", 0).integers(100) == stream(1, "batches", 0).integers(100)
        np.True_
    """
    return np.random.Generator(np.random.Philox(_number(seed, coordinates)))


def seed_torch(seed: int, *coordinates: str | int) -> None:
    """Seeds torch's global generators (initialisation, dropout) for the coordinates."""
    torch.manual_seed(_number(seed, coordinates) & (2**63 - 1))


def _number(seed: int, coordinates: tuple[str | int, ...]) -> int:
    text = "/".join(str(part) for part in (seed, *coordinates))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "big")
