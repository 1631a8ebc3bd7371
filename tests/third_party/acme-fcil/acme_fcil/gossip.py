"""Gossip averaging: an example of a third party's aggregator."""

from typing import ClassVar

from fcilbench.api import Aggregator, Field, Params, Server, Updates


class Gossip(Aggregator):
    """Average each client with its ring neighbours before the global mean."""

    version = "1"
    breaks: ClassVar = {"permutation": "neighbours on the ring are those of the clients' order"}

    class Params(Params):
        neighbours: int = Field(1, ge=0, description="clients on either side of the ring")

    def aggregate(self, updates: Updates, server: Server) -> None:
        k = self.params.neighbours  # updates.delta: [N, D] on the device
        near = sum(updates.delta.roll(shift, dims=0) for shift in range(-k, k + 1)) / (2 * k + 1)
        server.step(updates.weights @ near)
