"""Tasks: the one place where labels are turned into task-local targets."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Task:
    """One step of the class-incremental stream, in internal labels `0..C-1` (the order of arrival).

    Attributes:
        index: Position t in the stream, from 0.
        offset: Sum of the class counts of all earlier tasks; never `t * size`, tasks may be uneven.
        size: Number of classes of this task.
    """

    index: int
    offset: int
    size: int

    @property
    def seen(self) -> int:
        """Number of classes seen once this task has been learned."""
        return self.offset + self.size

    @property
    def classes(self) -> slice:
        """Slice of this task's classes in a head or a logit row."""
        return slice(self.offset, self.seen)

    def local(self, labels: torch.Tensor) -> torch.Tensor:
        """Maps internal labels of this task to `0..size-1`.

        Example:
            >>> Task(index=9, offset=171, size=25).local(torch.tensor([171, 195]))
            tensor([ 0, 24])
        """
        return labels - self.offset
