"""The top-up rule: a minimum per client without redrawing, so that partitioning always ends."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fcilbench.api.schedule import Indices


def top_up(parts: Sequence[Indices], minimum: int, random: np.random.Generator) -> list[Indices]:
    """Moves random samples from the largest client to clients below the minimum until none is.

    Redrawing, as comparable projects do, accepts a draw with probability near zero at small beta. Here each move
    shortens the shortfall by one, so there are at most `clients * minimum` moves. The caller has checked that there
    are enough samples.

    Args:
        parts: Positions of each client.
        minimum: Least number of samples per client.
        random: Source of randomness.
    """
    pools = [list(part) for part in parts]
    for pool in pools:
        while len(pool) < minimum:
            largest = max(pools, key=len)
            pool.append(largest.pop(int(random.integers(len(largest)))))
    return [np.array(pool, dtype=np.int64) for pool in pools]
