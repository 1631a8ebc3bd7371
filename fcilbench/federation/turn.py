"""A turn: one round of one phase, with the coordinates of its random streams."""

from __future__ import annotations

from dataclasses import dataclass

from fcilbench.api.schedule import Phase


@dataclass(frozen=True)
class Turn:
    """Where the schedule stands.

    Attributes:
        phase: The phase that is trained.
        index: Its position in the schedule.
        round: Round within it, from 0; `phase.rounds` at the task's end.
    """

    phase: Phase
    index: int
    round: int

    @property
    def key(self) -> tuple[int, int]:
        """Coordinates of random streams: (phase index, round)."""
        return (self.index, self.round)
