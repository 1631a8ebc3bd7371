"""Squared distances between clients' updates, of which robust merges make their weights."""

from __future__ import annotations

import torch

from fcilbench.vectors.sums import columns, spans


def squared_distances(rows: torch.Tensor) -> torch.Tensor:
    """Returns `||x_i - x_j||^2` of rows x_i `[N, P]`, float64 `[N, N]` on the CPU, summed in float64.

    Differences are squared as they are: by way of a Gram matrix, updates that are nearly alike would lose the digits by
    which they differ. Equal rows have the distance 0.
    """
    count = len(rows)
    total = torch.zeros(count, count, dtype=torch.float64, device=rows.device)
    for span in spans(rows.shape[1], columns(count, rows.device)):
        piece = rows[:, span].double()
        for i in range(count - 1):
            total[i, i + 1 :] += (piece[i + 1 :] - piece[i]).square_().sum(dim=1)
    return (total + total.T).cpu()
