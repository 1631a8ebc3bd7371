"""FedAdam, FedYogi, FedAdagrad: Reddi et al. 2021, "Adaptive Federated Optimization"."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch

from fcilbench.api import Aggregator, Field, PresetParams, Server, Space, State, Updates


class FedOpt(Aggregator):
    """Adaptive server optimisers: the clients' mean update is the pseudo-gradient of Adam, Yogi or Adagrad.

    With Delta = sum_k p_k Delta_k over the trained entries `[P]` (Reddi et al. 2021, algorithm 2)

        m <- b1 m + (1 - b1) Delta,  v as the subclass says,  theta <- theta + eta m / (sqrt(v) + tau).

    m, v and Delta are 0 on head rows of other tasks, which therefore keep every bit. The paper has no tasks: m and v
    begin anew with each one, or are carried without those rows (`memory: carry`). Buffers are averaged by samples.

    Where sqrt(v) is far below tau the method is FedAvg with server momentum at rate eta / tau; where it is far above,
    every entry moves by about eta. `fedopt/below_tau` is the share of trained entries with sqrt(v) < tau.
    """

    card: ClassVar = {
        "family": "optimisation",
        "trained": "the whole model",
        "travels": "the model",
        "memory": "nothing",
        "source": "Reddi et al. 2021, ICLR",
    }
    breaks: ClassVar = {
        "one-client": "the server moves by its own rate and moments, not by the client's step",
        "identical-clients": "the server moves by its own rate and moments, not by the clients' common step",
    }

    class Params(PresetParams):
        """Hyperparameters that all three have."""

        server_lr: float = Field(
            3e-3,
            gt=0,
            description="learning rate eta of the server",
            source="not measured: with tau = 1e-3 five rounds of equal small updates move 0.79 of FedAvg's way",
            space=Space(low=1e-4, high=1.0, log=True),
        )
        tau: float = Field(
            1e-3,
            gt=0,
            description="degree of adaptivity, added to sqrt(v)",
            source="code of Reddi et al. 2021: where their tuning starts",
            space=Space(low=1e-6, high=1e-1, log=True),
        )
        b1: float = Field(0.9, ge=0, lt=1, description="decay of the first moment", source="Reddi et al. 2021")
        v0: Literal["zero", "tau2"] = Field("zero", description="what the second moment begins with: 0, or tau^2")
        memory: Literal["task", "carry"] = Field(
            "task", description="whether the moments begin anew with each task, or are kept"
        )

    # ---------------------------------------------------------------- what the three differ in

    @abstractmethod
    def _accumulate(self, v: torch.Tensor, delta: torch.Tensor) -> None:
        """Updates the second moment `[P]` in place."""

    def _rate(self, state: State) -> float:
        """Returns the learning rate of this merge."""
        return float(self.params.server_lr)

    # ---------------------------------------------------------------- server

    def begin_task(self, server: Server) -> None:
        """Begins the moments, or clears what carried ones have on head rows that no longer train."""
        state, live = server.state, self._live(server)
        m = torch.zeros_like(server.vector[server.layout.trainable])
        v = torch.full_like(m, self.params.tau**2 if self.params.v0 == "tau2" else 0.0)
        if self.params.memory == "carry" and "m" in state:
            state["m"], state["v"] = torch.where(live, state["m"], m), torch.where(live, state["v"], v)
        else:
            state["m"], state["v"], state["merges"] = m, v, 0

    @staticmethod
    def _live(server: Server) -> torch.Tensor:
        """Returns which entries train in this task, bool `[P]`."""
        return server.layout.live(server.task.classes).to(server.vector.device)

    def aggregate(self, updates: Updates, server: Server) -> None:
        """Moves the trained entries by the server's optimiser, and buffers to their mean."""
        state, parts, live = server.state, updates.layout, self._live(server)
        delta = updates.mean(parts.trainable) * live
        state["merges"] += 1
        state["m"].mul_(self.params.b1).add_(delta, alpha=1.0 - self.params.b1)
        self._accumulate(state["v"], delta)
        size = state["v"].sqrt()
        server.log("fedopt/below_tau", int(((size < self.params.tau) & live).sum()) / int(live.sum()))
        server.step(self._rate(state) * state["m"] / (size + self.params.tau), parts.trainable)
        server.step(updates.mean(parts.buffers), parts.buffers)


class _Decaying(FedOpt):
    """Those whose second moment decays, as Keras's Adam and the authors' Yogi: with an optional bias correction."""

    class Params(FedOpt.Params):
        """Hyperparameters of FedAdam and FedYogi."""

        presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
            "original": {"server_lr": 1.0, "tau": 0.1, "b2": 0.999, "bias_correction": True}
        }

        b2: float = Field(0.99, ge=0, lt=1, description="decay of the second moment", source="Reddi et al. 2021")
        bias_correction: bool = Field(
            False,
            description="multiply the rate of merge t by sqrt(1 - b2^t) / (1 - b1^t), as the authors' code does and "
            "their paper does not",
        )

    def _rate(self, state: State) -> float:
        if not self.params.bias_correction:
            return super()._rate(state)
        first, second = (1.0 - decay ** state["merges"] for decay in (self.params.b1, self.params.b2))
        return float(self.params.server_lr * math.sqrt(second) / first)


class FedAdam(_Decaying):
    """FedAdam: `FedOpt` with v <- b2 v + (1 - b2) Delta^2."""

    version = "1"

    def _accumulate(self, v: torch.Tensor, delta: torch.Tensor) -> None:
        v.mul_(self.params.b2).addcmul_(delta, delta, value=1.0 - self.params.b2)


class FedYogi(_Decaying):
    """FedYogi: `FedOpt` with v <- v - (1 - b2) Delta^2 sign(v - Delta^2)."""

    version = "1"

    def _accumulate(self, v: torch.Tensor, delta: torch.Tensor) -> None:
        square = delta.square()
        v.addcmul_(square, (v - square).sign_(), value=self.params.b2 - 1.0)


class FedAdagrad(FedOpt):
    """FedAdagrad: `FedOpt` with v <- v + Delta^2, and by default without momentum (b1 = 0)."""

    version = "1"

    class Params(FedOpt.Params):
        """Hyperparameters of FedAdagrad."""

        presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"original": {"server_lr": 0.1, "tau": 0.01}}

        server_lr: float = Field(
            1e-3,
            gt=0,
            description="learning rate eta of the server",
            source="not measured: with tau = 1e-3 updates far below tau move as far as under FedAvg",
            space=Space(low=1e-4, high=1.0, log=True),
        )
        b1: float = Field(0.0, ge=0, lt=1, description="decay of the first moment", source="Reddi et al. 2021")

    def _accumulate(self, v: torch.Tensor, delta: torch.Tensor) -> None:
        v.addcmul_(delta, delta)
