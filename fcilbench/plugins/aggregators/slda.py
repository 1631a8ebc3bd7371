"""SLDA: Hayes and Kanan 2020, "Lifelong Machine Learning with Deep Streaming Linear Discriminant Analysis"."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import field_validator

from fcilbench.api import Client, Field, Message, Server, Space, Updates, unpack_symmetric
from fcilbench.api import Params as BaseParams
from fcilbench.plugins.aggregators.ncm import write_head
from fcilbench.plugins.aggregators.ridge import SecondMoments
from fcilbench.vectors.lda import lda_head, oas_shrinkage, within_covariance


class Slda(SecondMoments):
    """Linear discriminant analysis on frozen features: class means mu_c, and one covariance Sigma for all classes.

    Clients upload S = sum f f^T, class sums s_c and counts n_c once a task; over all clients and tasks so far
    Sigma = (S - sum_c s_c s_c^T / n_c) / n, and with Lam = ((1 - e) Sigma + e m I)^-1 the class of the largest
    mu_c^T Lam f - mu_c^T Lam mu_c / 2 answers. m is tr(Sigma) / F, or 1 (`relative: false`).

    Sums are exact, whatever the partition and the order of the tasks. The original reads one sample after another; its
    Sigma then depends on their order, and the means leak into it, since a class's first sample differs from a mean of
    0. That cannot be done by clients side by side, and is left out.
    """

    version = "1"
    card: ClassVar = {
        "family": "controls",
        "trained": "nothing",
        "travels": "a Gram matrix of features, and sums of each class, once a task",
        "memory": "nothing",
        "source": "Hayes and Kanan 2020, CVPR workshops",
    }
    role = "control"

    class Params(BaseParams):
        """Hyperparameters of the linear discriminant."""

        shrinkage: Literal["oas"] | float = Field(
            1e-4,
            description="share e of the identity in the covariance, in (0, 1]; oas: chosen from the covariance and the "
            "number of samples; 1 is the nearest mean",
            source="Hayes and Kanan 2020",
            space=Space(low=1e-6, high=1.0, log=True),
        )
        relative: bool = Field(
            True, description="whether the identity is scaled by the mean variance of the features; oas always does it"
        )
        sigma: Literal["exact", "base"] = Field(
            "exact", description="the covariance of all tasks so far, or that of the first task, which then stays"
        )
        priors: Literal["none", "counts"] = Field(
            "none", description="whether a class's share of the samples enters its score"
        )

        @field_validator("shrinkage")
        @classmethod
        def _shrinks(cls, shrinkage: Literal["oas"] | float) -> Literal["oas"] | float:
            if shrinkage != "oas" and not 0 < shrinkage <= 1:
                raise ValueError("must be above 0 and at most 1, or oas")
            return shrinkage

    params: Params

    def statistics(self, client: Client) -> Message:
        """Sends the sums; without the Gram where the covariance stays that of the first task."""
        sent = super().statistics(client)
        if self.params.sigma == "base" and client.task.index > 0:
            return {name: tensor for name, tensor in sent.items() if name != "gram"}
        return sent

    def aggregate(self, updates: Updates, server: Server) -> None:
        """Adds the clients' sums and writes the discriminant."""
        super().aggregate(updates, server)
        state, params = server.state, self.params
        sums, counts = state["sums"], state["counts"]
        of = slice(None) if params.sigma == "exact" else server.tasks[0].classes
        covariance = within_covariance(unpack_symmetric(state["gram"], server.layout.features), sums[of], counts[of])
        variance = float(covariance.diagonal().mean())
        if params.shrinkage == "oas":
            share, level = oas_shrinkage(covariance, float(counts[of].sum())), variance
        else:
            share, level = params.shrinkage, variance if params.relative else 1.0
        server.log("slda/shrinkage", share)
        weight, bias = lda_head(covariance, sums / counts.clamp(min=1)[:, None], share, level)
        if params.priors == "counts":
            bias = bias + (counts / counts.sum()).log()
        known = counts > 0
        # What all classes have in common ranks none; without it a head in float32 keeps more digits.
        write_head(server, weight - weight[known].mean(dim=0), known, bias - bias[known].mean())
