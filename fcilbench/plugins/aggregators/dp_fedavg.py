"""DP-FedAvg: McMahan et al. 2018, "Learning Differentially Private Recurrent Language Models"."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import model_validator
from torch import nn

from fcilbench.api import Aggregator, Field, Message, No, PrerequisiteError, Request, Server, Space, Updates
from fcilbench.api import Params as BaseParams
from fcilbench.vectors.sums import columns, spans, weighted_sum

_CHUNK = 1 << 20

Sampling = Literal["none", "fixed", "poisson"]

RELATION: Mapping[Sampling, str] = {"none": "zero-out", "fixed": "replace-one", "poisson": "add-or-remove-one"}
"""Which federations an epsilon compares, by what the accountant takes credit for; they are not comparable."""


class DpFedAvg(Aggregator):
    """Central DP-FedAvg: clipped updates and Gaussian noise, with an accountant (McMahan et al. 2018, algorithm 1).

    A trusted server clips each update as one vector over the entries that the task trains, sums with equal weights,
    divides by the number of clients that the protocol draws, and adds noise to the same entries:

        theta <- theta + sum_k Delta_k min(1, S / ||Delta_k||) / (q N) + N(0, (z S / (q N))^2 I).

    q N is fixed before a round: it is not how many answered, on which the sensitivity would depend. T merged rounds are
    one Gaussian release with mu = sqrt(T) / z, so that epsilon is exact (Dong, Roth and Su 2022):

        delta(epsilon) = Phi(mu / 2 - epsilon / mu) - e^epsilon Phi(-mu / 2 - epsilon / mu).

    The unit is a client with all its data of all tasks. No credit is taken for the sampling of clients unless
    `sampling` asks for it. Noise comes from the suite's seed, so a row simulates privacy. Losses, evaluations and
    what clients send for a selector are not private at all.
    """

    version = "1"
    card: ClassVar = {
        "family": "private",
        "trained": "the whole model",
        "travels": "the model",
        "memory": "nothing",
        "source": "McMahan et al. 2018, ICLR",
    }
    breaks: ClassVar = {
        "one-client": "noise is added, and the denominator is the number of clients that are drawn",
        "identical-clients": "noise is added, and the denominator is the number of clients that are drawn",
    }

    class Params(BaseParams):
        """Hyperparameters of DP-FedAvg."""

        clip: float = Field(
            1.0,
            gt=0,
            description="largest norm S of a client's update; the median norm of a clean run is a start",
            source="ours",
            space=Space(low=1e-2, high=10, log=True),
        )
        noise: float = Field(
            1.0, ge=0, description="noise multiplier z; 0: clipping alone, epsilon is infinite", source="ours"
        )
        delta: float = Field(
            1e-5, gt=0, lt=1, description="delta of the epsilon that is reported; less than 1 / clients", source="ours"
        )
        sampling: Sampling = Field(
            "none",
            description="credit for sampled clients: none, for the protocol's draws without replacement (fixed), or "
            "for a coin of the server for each client (poisson); the latter need fcilbench[dp]",
        )
        rate: float = Field(
            0.1, gt=0, le=1, description="sampling: poisson, probability that a client's update is used in a round"
        )

        @model_validator(mode="after")
        def _no_idle_option(self) -> Self:
            if self.noise == 0 and self.sampling == "fixed":
                raise ValueError("sampling: fixed has no effect with noise: 0, whose epsilon is infinite")
            if self.sampling != "poisson" and self.rate != 0.1:
                raise ValueError("rate has no effect here: it needs sampling: poisson")
            return self

    def prepare(self, network: nn.Module, request: Request) -> No | None:
        """Declines buffers, which would be released without noise, and sampling that the protocol does not do."""
        sampling, drawn = self.params.sampling, _drawn(request.protocol.participation, request.clients)
        state = network.state_dict()
        if any(buffer.is_floating_point() for name, buffer in network.named_buffers() if name in state):
            return No("DP-FedAvg: buffers such as BatchNorm's would be averaged without noise: use another backbone")
        if sampling == "fixed" and drawn == request.clients:
            return No("sampling: fixed takes credit for a draw of clients: it needs protocol.participation below 1")
        if sampling == "poisson" and request.protocol.participation < 1:
            return No("sampling: poisson tosses its own coins: it needs protocol.participation: 1")
        if sampling != "none" and self.params.noise:
            dp_accounting()
        return None

    def begin(self, server: Server) -> None:
        """Counts releases, of which there are none yet."""
        server.state["releases"] = 0

    def aggregate(self, updates: Updates, server: Server) -> None:
        """Releases the noisy mean of the clipped updates."""
        params, part = self.params, updates.layout.trainable
        live = updates.layout.live(server.task.classes).to(server.vector.device)
        rows, lengths = updates.delta[:, part], norms(updates.delta[:, part], live)
        drawn = params.rate * server.clients if params.sampling == "poisson" else _expected(server)
        factors = clip_factors(lengths, params.clip) / drawn
        if params.sampling == "poisson":
            coins = torch.from_numpy(server.random("dp-sampling").random(server.clients))
            factors *= coins[list(updates.clients)] < params.rate
        direction = weighted_sum(factors, rows) * live
        if params.noise:
            add_noise(direction, params.noise * params.clip / drawn, live, server)
        server.step(direction, part)
        server.state["releases"] += 1
        if params.sampling == "none":  # the other accountants take half a second
            server.log("dp/epsilon", self._epsilon(server))
        server.log("dp/clipped", float((lengths > params.clip).double().mean()))
        server.log("dp/median_norm", float(lengths.quantile(0.5)))

    def end_task(self, server: Server, statistics: dict[int, Message]) -> None:
        """Notes the guarantee so far, and writes that of the whole stream into the row."""
        params, epsilon = self.params, self._epsilon(server)
        server.log("dp/epsilon", epsilon)
        if server.last_task:
            server.warn(
                f"simulated client-level DP: epsilon = {epsilon:.6g} at delta = {params.delta:g}, "
                f"{RELATION[params.sampling]} neighbours, {server.state['releases']} releases, clip {params.clip:g}, "
                f"noise multiplier {params.noise:g}"
            )

    def _epsilon(self, server: Server) -> float:
        """Returns the epsilon of all releases so far."""
        params, releases = self.params, server.state["releases"]
        if releases == 0:
            return 0.0
        if params.noise == 0:
            return math.inf
        if params.sampling == "fixed":
            return fixed_epsilon(server.clients, _expected(server), releases, params.noise, params.delta)
        if params.sampling == "poisson":
            return poisson_epsilon(params.rate, releases, params.noise, params.delta)
        return gaussian_epsilon(math.sqrt(releases) / params.noise, params.delta)


# ---------------------------------------------------------------- the release


def _drawn(participation: float, clients: int) -> int:
    """Returns how many clients the protocol draws in a round, those without samples included."""
    return max(1, round(participation * clients))


def _expected(server: Server) -> int:
    return _drawn(server.protocol.participation, server.clients)


def norms(rows: torch.Tensor, live: torch.Tensor) -> torch.Tensor:
    """Returns the norms `[N]` of rows `[N, P]` over the `live` entries `[P]`, in float64 on the CPU."""
    total = torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
    for span in spans(rows.shape[1], columns(len(rows), rows.device)):
        total += (rows[:, span].double() * live[span]).square_().sum(dim=1)
    return total.sqrt().cpu()


def clip_factors(lengths: torch.Tensor, clip: float) -> torch.Tensor:
    """Returns min(1, S / ||Delta_k||) `[N]` of norms `[N]`; 1 for an update of 0."""
    return torch.where(lengths > clip, clip / lengths, 1.0)


def add_noise(direction: torch.Tensor, sigma: float, live: torch.Tensor, server: Server) -> None:
    """Adds noise of standard deviation `sigma` to the live entries of `direction` `[P]` in place.

    It is drawn on the CPU, so that every device adds the same.
    """
    random = server.random("dp-noise")
    for span in spans(len(direction), _CHUNK):
        drawn = torch.from_numpy(random.standard_normal(len(direction[span])))
        direction[span] += (drawn * sigma).to(direction) * live[span]


# ---------------------------------------------------------------- the accountants


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Returns the least delta of a Gaussian release whose mean moves by `mu` standard deviations."""
    first, second = torch.special.log_ndtr(
        torch.tensor([mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu], dtype=torch.float64)
    ).tolist()
    return -math.expm1(epsilon + second - first) * math.exp(first)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Returns the least epsilon >= 0 at which such a release is (epsilon, delta)-private, by bisection from above."""
    if gaussian_delta(0.0, mu) <= delta:
        return 0.0
    low, high = 0.0, 1.0
    while gaussian_delta(high, mu) > delta:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian_delta(middle, mu) > delta else (low, middle)
    return high


def fixed_epsilon(clients: int, drawn: int, releases: int, noise: float, delta: float) -> float:
    """Returns epsilon for draws of `drawn` of `clients` without replacement, by Renyi accounting.

    If one client is replaced by another, the clipped sum moves by up to 2 S, so its noise is z / 2 of the sensitivity:
    this accountant takes noise over sensitivity as it is told, under either relation.
    """
    library = dp_accounting()
    accountant = library.rdp.RdpAccountant(neighboring_relation=library.NeighboringRelation.REPLACE_ONE)
    event = library.SampledWithoutReplacementDpEvent(clients, drawn, library.GaussianDpEvent(noise / 2))
    return float(accountant.compose(event, releases).get_epsilon(delta))


def poisson_epsilon(rate: float, releases: int, noise: float, delta: float) -> float:
    """Returns epsilon where each client takes part by a coin of its own, by its privacy loss distribution.

    Losses are rounded up, so a wider grid gives a bound too; it widens as losses do where there is little noise.
    """
    library = dp_accounting()
    event = library.PoissonSampledDpEvent(rate, library.GaussianDpEvent(noise))
    accountant = library.pld.PLDAccountant(value_discretization_interval=1e-4 * max(1.0, noise**-2))
    return float(accountant.compose(event, releases).get_epsilon(delta))


def dp_accounting() -> Any:
    """Returns Google's library of accountants.

    Raises:
        PrerequisiteError: If it is not installed.
    """
    try:
        for part in ("pld", "rdp"):
            importlib.import_module(f"dp_accounting.{part}")
        return importlib.import_module("dp_accounting")
    except ImportError as error:
        raise PrerequisiteError(
            "dp-fedavg: `sampling` needs the package dp-accounting", hint="pip install 'fcilbench[dp]'"
        ) from error
