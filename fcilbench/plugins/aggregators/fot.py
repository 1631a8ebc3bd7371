"""FOT: Bakman et al. 2024, "Federated Orthogonal Training: Mitigating Global Catastrophic Forgetting ..." (ICLR)."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field as PydanticField
from torch import nn

from fcilbench.api import Aggregator, Client, Field, Message, No, PresetParams, Request, Server, Space, Updates, Wire

Width = Annotated[int, PydanticField(ge=1)] | Literal["wide"] | None
"""Columns of a sketch: at most so many, as many as a `wide` one has, or as many as a layer has inputs."""
_SKETCH, _BASIS, _RHO = "sketch/", "basis/", "rho/"
_TIE = 1e-9
"""Shares of energy this close count as equal, so that rounding does not decide how many directions are kept."""
_RANK = 1e-12
"""Energy, relative to the largest direction's, below which a direction is rounding."""
_WIDE = 5
"""Columns of a wide sketch for each input of a linear layer."""
_SHORT = 1e-6
"""Length below which what is left of a unit vector outside the basis is rounding."""


class Fot(Aggregator):
    """Federated Orthogonal Training: keeps updates orthogonal to the inputs that layers had in earlier tasks.

    For a layer y = W x with W `[out, in]`, let the orthonormal U `[in, k]` span (almost all of) its inputs in the tasks
    before. Each round: W <- W + Delta (I - U U^T), with Delta the mean update. Then W u stays as it is for u in span U.
    Linear layers and convolutions without groups (on patches) are projected; everything else, the head included, is
    averaged.

    At the end of a task (the paper's algorithm "GPSE") client i sends Y_i = X_i Omega_i `[in, s]` for each layer, with
    its inputs X_i `[in, n]` at the final global model and a Gaussian Omega_i `[n, s]`, which hides single inputs. The
    server removes span U from Y = sum_i Y_i and adds the r leading left singular vectors of the rest to U, where

        sum_{j <= r} S_j^2 / sum_j S_j^2 > eps' = (rho - (1 - eps)) / rho,    rho = ||rest|| / ||Y||   (`norm`).

    That is (I - U U^T) X Omega, as in the paper, in which clients remove span U and send rho (`activation_model:
    local`). None is added if eps' <= 0: the old subspace holds enough. `fot/removed` logs the share of the projected
    layers' squared update that the projection removes, `fot/basis` the mean of k / in.
    """

    version = "1"
    card: ClassVar = {
        "family": "geometry",
        "trained": "the whole model",
        "travels": "the model; a sketch of each layer's inputs once a task",
        "memory": "nothing",
        "source": "Bakman et al. 2024, ICLR",
    }

    class Params(PresetParams):
        """Hyperparameters of FOT."""

        presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
            "original": {
                "eps": 0.87,
                "eps_inc": 0.001,
                "sketch": "wide",
                "activation_model": "local",
                "weighting": "uniform",
            }
        }

        eps: float = Field(
            0.9,
            ge=0,
            le=1,
            description="share of the inputs' size that the subspace holds; 0 is FedAvg",
            source="Kim and Do 2026, all data sets; code of Bakman et al. 2024: 0.87 on CIFAR-100",
            space=Space(low=0.5, high=0.99),
        )
        eps_inc: float = Field(0.0, ge=0, description="added to eps after each task", source="as eps")
        sketch: Width = Field(
            256,
            description="largest width s of a sketch; null: as many as inputs; wide: five times as many for linear "
            "layers, as many for convolutions",
            source="ours; code of Bakman et al. 2024: wide",
        )
        ratio: Literal["norm", "energy"] = Field(
            "norm",
            description="rho in eps' as a ratio of norms, or of their squares",
            source="Bakman et al. 2024",
        )
        activation_model: Literal["global", "local"] = Field(
            "global", description="inputs at the task's final model, or at each client's model of its last round"
        )
        freeze_unprojected: bool = Field(
            False, description="from the second task on, train only what is projected, and the head"
        )
        weighting: Literal["samples", "uniform"] = Field(
            "samples", description="weights of the mean update, by sample count or equal"
        )

    def prepare(self, network: nn.Module, request: Request) -> No | None:
        """Declines a network without a layer to project."""
        if not projected(network):
            return No("FOT projects updates of linear layers and convolutions, and this network trains none of them")
        return None

    # ---------------------------------------------------------------- clients

    def statistics(self, client: Client) -> Message:
        """Sends the sketches of what the basis lacks, and rho, at the client's own model if the server asks."""
        if "sketch" not in client.received:
            return {}
        bases = {n.removeprefix(_BASIS): b for n, b in client.received.items() if n.startswith(_BASIS)}
        return sketches(client, self.params.sketch, bases)

    def task_statistics(self, client: Client) -> Message:
        """Sends the sketches at the final global model."""
        return sketches(client, self.params.sketch)

    # ---------------------------------------------------------------- server

    def wire(self, server: Server) -> Wire:
        """Trains everything, or what is projected and the head."""
        bases = server.state.get("bases", {})
        if not (self.params.freeze_unprojected and bases):
            return Wire()
        names = (*(f"{layer}.weight" for layer in bases), "head.*")
        return Wire(train=names, up=names)

    def broadcast(self, server: Server) -> Message:
        """Asks for sketches at the clients' own models in the last round of a task, and sends them the basis."""
        last = server.round == server.protocol.rounds - 1 and not server.last_task
        if not (last and self.params.activation_model == "local"):
            return {}
        bases = {_BASIS + layer: basis for layer, basis in server.state.get("bases", {}).items()}
        return {"sketch": torch.ones((), dtype=torch.bool, device=server.vector.device), **bases}

    def aggregate(self, updates: Updates, server: Server) -> None:
        """Adds the mean update without its components on the basis."""
        bases = server.state.get("bases", {})
        direction = updates.mean(weighting=self.params.weighting)
        whole = kept = 0.0
        for layer, basis in bases.items():
            piece = updates.layout.piece(f"{layer}.weight")
            own = direction[piece.span].view(piece.shape[0], -1)
            whole += float(own.square().sum())
            remove(own, basis)
            kept += float(own.square().sum())
        server.step(direction)
        if bases:
            server.log("fot/removed", 1.0 - kept / whole if whole else 0.0)
            server.log("fot/basis", fmean(basis.shape[1] / len(basis) for basis in bases.values()))
        if updates.statistics[0]:
            self._learn(server, updates.statistics, updates.samples)

    def wants_task_statistics(self, server: Server) -> bool:
        """Needs sketches unless the task is the last one, or clients have sent them already."""
        return not server.last_task and self.params.activation_model == "global"

    def end_task(self, server: Server, statistics: dict[int, Message]) -> None:
        """Adds the directions of the task's inputs to the basis."""
        if statistics:
            self._learn(server, list(statistics.values()), ())

    def _learn(self, server: Server, messages: Sequence[Message], samples: Sequence[int]) -> None:
        """Grows the basis of each layer by the clients' sketches; `samples` weigh their rho, where they send it."""
        eps = min(self.params.eps + server.task.index * self.params.eps_inc, 1.0)
        bases, narrow = server.state.setdefault("bases", {}), []
        for layer in (name.removeprefix(_SKETCH) for name in messages[0] if name.startswith(_SKETCH)):
            total = sum((message[_SKETCH + layer].double() for message in messages), torch.zeros(()))
            basis = bases.get(layer, total.new_zeros(len(total), 0)).double()
            rest = total - basis @ (basis.T @ total)
            if samples:
                own = torch.stack([message[_RHO + layer].double() for message in messages]).cpu()
                rho = float(own @ torch.tensor(samples).double()) / sum(samples)
            else:
                rho = float(rest.norm() / total.norm().clamp(min=1e-30))
            found = directions(rest, needed(eps, rho, self.params.ratio))
            bases[layer] = extend(basis, found).float()
            if 2 * found.shape[1] > total.shape[1] and total.shape[1] < len(total):
                narrow.append(f"{layer} ({found.shape[1]} of {total.shape[1]})")
        if narrow:
            server.warn(f"fot: {len(narrow)} sketches are too narrow for their subspace, as {narrow[0]}: raise sketch")


def projected(network: nn.Module) -> dict[str, int]:
    """Returns name and input size of the backbone's layers whose updates are projected.

    Linear layers and convolutions without groups, with a weight that is trained; layers that compute something else
    with it (a subclass with its own forward pass) are left out.
    """
    plain = (nn.Linear.forward, nn.Conv2d.forward)
    return {
        name: module.weight[0].numel()
        for name, module in network.named_modules()
        if isinstance(module, nn.Linear | nn.Conv2d)
        and type(module).forward in plain
        and getattr(module, "groups", 1) == 1
        and module.weight.requires_grad
        and name.startswith("extractor.")
    }


@torch.no_grad()
def sketches(client: Client, width: Width, bases: Mapping[str, torch.Tensor] | None = None) -> Message:
    """Returns the sketch X Omega `[in, s]` of each projected layer's inputs X, as `sketch/<layer>`, float32.

    s is the smaller of `width` and the number of the layer's inputs; of a `wide` sketch that number, and five times it
    for linear layers. With `bases` (U `[in, k]` by layer, none for k = 0) it is the sketch of R = X - U U^T X, and
    `rho/<layer>` is ||R|| / ||X||.

    Row j of Omega is row j of one Gaussian matrix of the client for all layers: layers that saw equally many rows share
    a draw, and nothing depends on the batches in which the inputs arrive.
    """
    layers = projected(client.network)
    widths = {layer: _columns(client.network.get_submodule(layer), size, width) for layer, size in layers.items()}
    streams = {0: client.random("fot")}  # by the number of rows that have been drawn
    seen, found = dict.fromkeys(layers, 0), dict[str, torch.Tensor]()

    def add(name: str, value: torch.Tensor) -> None:
        found[name] = found[name] + value if name in found else value

    for inputs in client.inputs(list(layers)):
        drawn: dict[tuple[int, int], torch.Tensor] = {}
        for layer, x in inputs.items():
            here = (seen[layer], len(x))
            if here not in drawn:
                stream = copy.deepcopy(streams[seen[layer]])
                omega = stream.standard_normal((len(x), max(widths.values())), dtype=np.float32)
                drawn[here], streams[sum(here)] = torch.from_numpy(omega).to(x), stream
            seen[layer] = sum(here)
            rest = x
            if bases is not None:
                rest = x - (x @ bases[layer]) @ bases[layer].T if layer in bases else x
                energies = [y.square().sum(dtype=torch.float64) for y in (rest, x)]
                add(_RHO + layer, torch.stack(energies))
            add(_SKETCH + layer, (rest.T @ drawn[here][:, : widths[layer]]).double())
    for layer in layers if bases is not None else ():
        rest, whole = found[_RHO + layer]
        found[_RHO + layer] = (rest / whole.clamp(min=1e-30)).sqrt()
    return {name: value.float() for name, value in found.items()}


def _columns(layer: nn.Module, inputs: int, width: Width) -> int:
    if width == "wide":
        return _WIDE * inputs if isinstance(layer, nn.Linear) else inputs
    return min(inputs, width or inputs)


def needed(eps: float, rho: float, ratio: Literal["norm", "energy"]) -> float:
    """Returns eps', the share of the rest's energy that new directions must hold; at most 0 where none is needed."""
    part = rho if ratio == "norm" else rho**2
    return 0.0 if part <= 1.0 - eps else (part - (1.0 - eps)) / part


def directions(rest: torch.Tensor, share: float) -> torch.Tensor:
    """Returns the r leading left singular vectors `[in, r]` of `rest` `[in, s]`: the fewest with more than the share.

    All of them where rounding keeps them below the share, none for a share of at most 0 or a rest of zeros.
    """
    wide = rest.shape[1] > rest.shape[0]  # then the smaller of the two products has the vectors themselves
    values, vectors = torch.linalg.eigh(rest @ rest.T if wide else rest.T @ rest)
    values, vectors = values.flip(0), vectors.flip(1)
    rank = int((values > _RANK * values[0]).sum()) if values[0] > 0 else 0
    below = values.cumsum(0) <= (share + _TIE) * values.sum()
    count = min(int(below.sum()) + 1, rank) if share > _TIE else 0
    found: torch.Tensor = vectors[:, :count] if wide else rest @ vectors[:, :count] / values[:count].sqrt()
    return found


def extend(basis: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
    """Returns an orthonormal basis `[in, k + r]` of both spans; directions already in `basis` `[in, k]` add nothing."""
    rest = found - basis @ (basis.T @ found)
    rest = rest[:, rest.norm(dim=0) >= _SHORT][:, : len(basis) - basis.shape[1]]
    rest = torch.linalg.qr(rest).Q
    rest = rest - basis @ (basis.T @ rest)  # twice is enough
    return torch.cat([basis, torch.linalg.qr(rest).Q], dim=1)


def remove(update: torch.Tensor, basis: torch.Tensor) -> None:
    """Removes from the rows of `update` `[out, in]`, in place, their components on `basis` `[in, k]`."""
    if basis.shape[1] == len(basis):
        update.zero_()  # exactly: nothing may change
    else:
        update.sub_((update @ basis) @ basis.T)
