"""Trimmed mean and median by coordinate: Yin et al. 2018, "Byzantine-Robust Distributed Learning"."""

from __future__ import annotations

import math
from typing import ClassVar

import torch

from fcilbench.api import Aggregator, Field, Server, Updates
from fcilbench.api import Params as BaseParams
from fcilbench.vectors.sums import add_rows, columns, spans


class Median(Aggregator):
    """Coordinate-wise median of the clients' updates (Yin et al. 2018, "Byzantine-Robust Distributed Learning").

    theta <- theta + med_k Delta_k in each of the D coordinates, buffers included: the middle one of the m values, or
    the mean of the two in the middle. That is the trimmed mean that drops all others, b = floor((m - 1) / 2) on either
    side. Clients have equal votes, whatever their samples. Fewer than m / 2 clients, whatever they send, leave every
    coordinate between values of the others; two clients or one give their mean.
    """

    version = "1"
    card: ClassVar = {
        "family": "robust",
        "trained": "the whole model",
        "travels": "the model",
        "memory": "nothing",
        "source": "Yin et al. 2018, ICML",
    }

    def aggregate(self, updates: Updates, server: Server) -> None:
        """Moves every coordinate by what is left of the sorted updates."""
        count = len(updates.delta)
        server.step(trimmed_mean(updates.delta, self._dropped(count, server)))

    def _dropped(self, count: int, server: Server) -> int:
        """Returns how many of `count` values are dropped at either end."""
        return (count - 1) // 2


class TrimmedMean(Median):
    """Coordinate-wise trimmed mean of the clients' updates (Yin et al. 2018).

    theta <- theta + the mean, in each of the D coordinates, of the m values Delta_k without the b smallest and the b
    largest, b = floor(beta m) of the m clients that answered. Clients have equal votes. Up to b clients,
    whatever they send, leave every coordinate between values of the others, so beta must be at least the share of
    attackers. beta = 0 is FedAvg with `weighting: uniform`, bit for bit.
    """

    version = "1"
    card: ClassVar = Median.card

    class Params(BaseParams):
        """Hyperparameters of the trimmed mean."""

        trim: float = Field(
            0.2,
            ge=0,
            lt=0.5,
            description="share beta of the values of a coordinate that is dropped at either end",
            source="ours: one client of 5, two of 10; the paper takes the share of Byzantine workers",
        )

    def _dropped(self, count: int, server: Server) -> int:
        beta: float = self.params.trim
        # A product such as 0.29 * 100 lies just below the whole number that is meant.
        dropped = min(math.floor(beta * count + 1e-9), (count - 1) // 2)
        if beta > 0 and dropped == 0:
            server.warn(f"trim: {beta:g} of {count} clients drops none of them: such a round is a plain mean")
        return dropped


def trimmed_mean(rows: torch.Tensor, dropped: int) -> torch.Tensor:
    """Returns the mean `[D]` of rows `[m, D]` without the `dropped` smallest and largest values of each column.

    Twice `dropped` must be less than m.
    """
    kept = len(rows) - 2 * dropped
    mean = rows.new_zeros(rows.shape[1])
    for span in spans(rows.shape[1], columns(len(rows), rows.device)):
        piece = rows[:, span]
        if dropped:  # the order of the sum stays that of the clients where nothing is dropped
            piece = torch.sort(piece, dim=0).values[dropped : dropped + kept]
        add_rows(mean[span], [1.0 / kept] * kept, piece)
    return mean
