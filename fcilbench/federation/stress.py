"""The stressor of an experiment with the clients that it affects: it acts on what they send, and is known to reach it.

A stressor that cannot act leaves the numbers of the clean cell, which would pass as robustness. So this counts what the
stressor could touch, and says why a cell must be declined.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fcilbench.api import Message, Stressor, Turn
from fcilbench.api.stressor import Upload

COUNTERS = "counters"
"""Integer buffers of the network: no stressor needs to touch them."""


@dataclass
class Stress:
    """A stressor and the clients that misbehave.

    Attributes:
        visited: Whether an affected client took part in anything of the method's.
        reached: Numbers in uploads of affected clients that the stressor can touch, so far.
        slow: Whether a client was asked to leave out work.
        slowed: Whether a client left out work, and it mattered.
        outdated: Whether a client trained on an older global model than the present one.
        task_reached: As `reached`, in the current task.
        task_missed: Numbers that the stressor cannot touch, in the current task.
    """

    stressor: Stressor = field(default_factory=Stressor)
    affected: frozenset[int] = frozenset()
    visited: bool = False
    reached: int = 0
    slow: bool = False
    slowed: bool = False
    outdated: bool = False
    task_reached: int = 0
    task_missed: int = 0

    @property
    def behind(self) -> int:
        """How many global models affected clients are behind."""
        return self.stressor.behind() if self.affected else 0

    def share_of(self, client: int, turn: Turn, random: Callable[[], np.random.Generator]) -> float:
        """Returns the share of its work that a client finishes in a round; `random` makes its stream for that."""
        return self.stressor.share(turn, random()) if client in self.affected else 1.0

    def note(self, client: int, *, asked: bool, did: bool, outdated: bool) -> None:
        """Notes of a visit whether the client was asked to leave out work, did so, and trained on an older model."""
        self.visited |= client in self.affected
        self.slow |= asked
        self.slowed |= did
        self.outdated |= outdated

    def uploads(self, messages: Mapping[int, Message], turn: Turn) -> dict[int, Upload | None]:
        """Returns what the affected clients of a round really send, by client id; `None` for no answer.

        Raises:
            ValueError: If the stressor changes clients, names, shapes or types.
        """
        for message in messages.values():
            for name, tensor in message.items():
                if name != COUNTERS and self.stressor.touches(name, tensor):
                    self.task_reached += tensor.numel()
                elif name != COUNTERS:
                    self.task_missed += tensor.numel()
        expected = {client: _shapes(message) for client, message in messages.items()}
        changed = dict(self.stressor.uploads({client: dict(own) for client, own in messages.items()}, turn))
        if changed.keys() != expected.keys():
            raise ValueError(f"the stressor answers for clients {sorted(changed)}, not for {sorted(expected)}")
        for client, own in changed.items():
            if own is not None and _shapes(own) != expected[client]:
                raise ValueError(f"the stressor changed an upload from {expected[client]} to {_shapes(own)}")
        return {client: None if own is None else dict(own) for client, own in changed.items()}

    def end_task(self) -> str:
        """Ends a task; returns why the stressor cannot act on what the method uploads, or "" if it can."""
        reached, missed = self.task_reached, self.task_missed
        self.reached, self.task_reached, self.task_missed = self.reached + reached, 0, 0
        if self._has("upload", "uploads") and missed > reached:
            return (
                f"the stressor cannot touch {missed:,} of the {missed + reached:,} numbers that the affected clients "
                "uploaded in a task, as it changes no whole numbers: a method that compresses its update does so in "
                "`encode`, before which stressors act"
            )
        return ""

    def end(self, trains: bool) -> str:
        """Returns, after the last task, why the stressor changed nothing in this experiment, or "" if it did.

        `trains` says whether the method's clients do.
        """
        if not self.affected:
            return ""
        if not self.visited:
            return "no affected client took part in a round: none was drawn, or none of those had samples"
        if self._has("upload", "uploads") and not self.reached:
            return "no affected client uploaded anything that the stressor can touch"
        if self.slow and not self.slowed:
            return "no affected client had more than one step to take, so none could be slow"
        if self.behind and not (trains and self.outdated):
            return "no affected client trained on an older global model: there was none"
        return ""

    def _has(self, *hooks: str) -> bool:
        return any(getattr(type(self.stressor), hook) is not getattr(Stressor, hook) for hook in hooks)

    def state(self) -> dict[str, Any]:
        """Returns everything that a checkpoint needs."""
        names = ("visited", "reached", "slow", "slowed", "outdated", "task_reached", "task_missed")
        return {name: getattr(self, name) for name in names}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes over what `state` returned."""
        for name, value in state.items():
            setattr(self, name, value)


def _shapes(message: Message) -> dict[str, tuple[tuple[int, ...], str]]:
    return {name: (tuple(tensor.shape), str(tensor.dtype)) for name, tensor in message.items()}
