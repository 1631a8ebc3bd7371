"""A turn: one round of one phase, with the coordinates of its random streams."""

from __future__ import annotations

from dataclasses import dataclass

from fcilbench.api.schedule import Phase


@dataclass(frozen=True)
class Turn:
    """Where the schedule stands.

    Attributes:
        phase: The phase that is trained.
        round: Round within it, from 0; `phase.rounds` at the task's end.
    """

    phase: Phase
    round: int

    @property
    def key(self) -> tuple[int, int]:
        """Coordinates of random streams: (last task seen, round)."""
        return (self.phase.after, self.round)
