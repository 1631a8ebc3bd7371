"""Joint: the centralised reference, one model trained on all clients' and all tasks' data until it has converged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import model_validator

from fcilbench.api import (
    ONE_SCALE,
    UNCONVERGED,
    Aggregator,
    Convergence,
    Field,
    Phase,
    Predictors,
    Schedule,
    Server,
    Task,
)
from fcilbench.api import Params as BaseParams

_STOPPING = ("max_epochs", "patience", "held_out")


class Joint(Aggregator):
    """Joint training on the union of all clients' and all tasks' data: neither federated nor continual.

    L = CE(z, y) over all C logits `[B, C]`. An epoch is a round; training ends when accuracy on held-out training
    samples has not risen for `patience` epochs, and the model of the best epoch is kept (Prechelt 1998). Kim and Do
    2026 report such a reference without its recipe: batch size and epochs are our choice. Not guaranteed to be an upper
    bound. It reads the data through the clients' partition, so a sample that no client holds is missing here too; it
    sends nothing, and only its last accuracies exist unless `mode` is `cumulative`.
    """

    version = "2"
    card: ClassVar = {
        "family": "reference",
        "trained": "the whole model",
        "travels": "nothing: all data are in one place",
        "memory": "nothing",
        "source": "none: centralised training",
    }
    role = "reference"
    breaks: ClassVar[Mapping[str, str]] = {
        "measured-bytes": "there are no clients: all data are in one place, and nothing crosses a network",
        "accuracy-matrix": "all tasks are trained at once, so only the final accuracies exist",
    }

    class Params(BaseParams):
        """Hyperparameters of Joint."""

        epochs: Literal["converge", "match"] | Annotated[int, Field(ge=1)] = Field(
            "converge",
            description="passes over the data: `converge`, until accuracy on held-out training samples no longer "
            "rises; `match`, rounds x local epochs, as a federated sample is seen; or a number",
        )
        max_epochs: int = Field(100, ge=1, description="largest number of epochs of `converge`")
        patience: int = Field(10, ge=1, description="epochs without a larger accuracy after which `converge` ends")
        held_out: float = Field(
            0.1, gt=0.0, le=0.5, description="share of each class's training samples that `converge` does not train on"
        )
        batch_size: int = Field(64, ge=1, description="samples per step")
        mode: Literal["final", "cumulative"] = Field(
            "final", description="train once on everything, or again from the start on tasks 0..t after every task"
        )

        @model_validator(mode="after")
        def _stopping_of_converge(self) -> Joint.Params:
            fields = type(self).model_fields
            changed = [name for name in _STOPPING if getattr(self, name) != fields[name].default]
            if self.epochs != "converge" and changed:
                raise ValueError(f"{changed[0]} has no effect with epochs: {self.epochs}, only with epochs: converge")
            return self

    def build_schedule(self, schedule: Schedule) -> Schedule:
        """Pools all clients into one, and all tasks (so far) into one phase."""
        phases = schedule.phases
        if self.params.mode == "final":
            return Schedule((self._pool(phases),), federated=False)
        pooled = [self._pool(phases[: t + 1]) for t in range(len(phases))]
        return Schedule(tuple(replace(phase, restart=True) for phase in pooled), federated=False)

    def _pool(self, phases: tuple[Phase, ...]) -> Phase:
        last, own = phases[-1], self.params
        held = np.sort(np.concatenate([own for phase in phases for own in phase.clients]))
        task = Task(index=0, offset=0, size=last.task.seen)
        if own.epochs == "converge":
            until = Convergence(own.held_out, own.patience)
            return Phase(task, (held,), own.max_epochs, 1, own.batch_size, after=last.after, until=until)
        epochs = last.rounds * last.epochs if own.epochs == "match" else own.epochs
        return Phase(task, (held,), 1, epochs, own.batch_size, after=last.after)

    def begin(self, server: Server) -> None:
        """Warns where nothing tells whether training has converged."""
        if self.params.epochs != "converge":
            server.warn(f"{UNCONVERGED}, but for a fixed number of epochs")

    def predictors(self, server: Server) -> Predictors:
        """Answers with the one model; its logits compete over all classes, so `inferred` is `none`."""
        return Predictors({"global": lambda: server.vector}, ONE_SCALE)
