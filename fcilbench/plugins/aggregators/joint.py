"""Joint: the centralised reference, one model trained on all clients' and all tasks' data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np

from fcilbench.api.aggregator import Aggregator
from fcilbench.api.predict import ONE_SCALE, Predictors
from fcilbench.api.schedule import Phase, Schedule, Task
from fcilbench.api.server import Server
from fcilbench.spec.params import Field
from fcilbench.spec.params import Params as BaseParams


class Joint(Aggregator):
    """Joint training on the union of all clients' and all tasks' data: neither federated nor continual.

    L = CE(z, y) over all C logits `[B, C]`. Kim and Do 2026 report such a reference without its recipe: batch size and
    passes are our choice. Not guaranteed to be an upper bound. It reads the data through the clients' partition, so a
    sample that no client holds is missing here too; it sends nothing, and only its last accuracies exist unless `mode`
    is `cumulative`.
    """

    version = "1"
    breaks: ClassVar[Mapping[str, str]] = {
        "measured-bytes": "there are no clients: all data are in one place, and nothing crosses a network",
        "accuracy-matrix": "all tasks are trained at once, so only the final accuracies exist",
    }

    class Params(BaseParams):
        """Hyperparameters of Joint."""

        epochs: Literal["match"] | int = Field(
            "match", description="passes over the data; `match`: rounds x local epochs, as a federated sample is seen"
        )
        batch_size: int = Field(64, ge=1, description="samples per step")
        mode: Literal["final", "cumulative"] = Field(
            "final", description="train once on everything, or again from the start on tasks 0..t after every task"
        )

    def build_schedule(self, schedule: Schedule) -> Schedule:
        """Pools all clients into one, and all tasks (so far) into one phase."""
        phases = schedule.phases
        if self.params.mode == "final":
            return Schedule((self._pool(phases),), federated=False)
        pooled = [self._pool(phases[: t + 1]) for t in range(len(phases))]
        return Schedule(tuple(replace(phase, restart=True) for phase in pooled), federated=False)

    def _pool(self, phases: tuple[Phase, ...]) -> Phase:
        last = phases[-1]
        held = np.sort(np.concatenate([own for phase in phases for own in phase.clients]))
        epochs = last.rounds * last.epochs if self.params.epochs == "match" else self.params.epochs
        task = Task(index=0, offset=0, size=last.task.seen)
        return Phase(task, (held,), 1, epochs, self.params.batch_size, after=last.after)

    def predictors(self, server: Server) -> Predictors:
        """Answers with the one model; its logits compete over all classes, so `inferred` is `none`."""
        return Predictors({"global": lambda: server.vector}, ONE_SCALE)
