"""Which cell runs next on which slot: the queue of a run, with retries and cells that need a device for themselves."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from fcilbench.execution.devices import Slot
from fcilbench.execution.lease import Lease
from fcilbench.spec.cell import Cell
from fcilbench.spec.row import Row


@dataclass(eq=False)
class Task:
    """A cell that this run owes a row.

    Attributes:
        cell: The cell.
        cell_id: Its identity.
        known: Its row when the run was planned.
        attempts: Attempts that this run has begun.
        earlier: Attempts of earlier runs that the first one went on from.
        alone: Whether its next attempt gets a device for itself, after memory ran out on a shared one.
        started: When the first attempt of this run began.
        seconds: What the attempts that ended without a result took together.
    """

    cell: Cell
    cell_id: str
    known: Row | None = None
    attempts: int = 0
    earlier: int = 0
    alone: bool = False
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    seconds: float = 0.0

    @property
    def retries_left(self) -> int:
        """How many more attempts the suite allows after this one."""
        return self.cell.limits.retries + 1 - self.attempts


@dataclass(eq=False)
class Running:
    """An attempt in progress.

    Attributes:
        task: The task.
        slot: Where it runs.
        lease: The lease on its cell.
        begun: Clock (`time.monotonic`) at its beginning.
        deadline: Clock at which it is stopped, if it has a limit.
        started: Whether the worker has begun with it.
    """

    task: Task
    slot: Slot
    lease: Lease
    begun: float
    deadline: float | None = None
    started: bool = False


class Schedule:
    """The tasks that still wait.

    Args:
        tasks: All tasks, in the order they should run.
    """

    def __init__(self, tasks: Iterable[Task]) -> None:
        self._waiting: deque[Task] = deque()
        self._alone: deque[Task] = deque()
        for task in tasks:
            self.add(task)

    def __len__(self) -> int:
        return len(self._waiting) + len(self._alone)

    def add(self, task: Task) -> None:
        """Puts a task at the end: what failed once may pass later, and nobody waits for it meanwhile."""
        (self._alone if task.alone else self._waiting).append(task)

    def drain(self) -> list[Task]:
        """Takes all tasks out."""
        tasks = [*self._waiting, *self._alone]
        self._waiting.clear()
        self._alone.clear()
        return tasks

    def take(self, slot: Slot, running: Mapping[Slot, Running]) -> Task | None:
        """Returns the next task for an idle slot, or `None` if it has to wait.

        Tasks that need a device for themselves come last, so that devices run empty once and nobody starves.

        Args:
            slot: The idle slot.
            running: What runs on the other slots.
        """
        neighbours = [other for other in running.values() if other.slot.visible == slot.visible]
        if any(other.task.alone for other in neighbours):
            return None
        if self._waiting:
            return self._waiting.popleft()
        if self._alone and not neighbours:
            return self._alone.popleft()
        return None


def neighbours(slot: Slot, slots: Collection[Slot]) -> list[Slot]:
    """Returns the other slots on a slot's device."""
    return [other for other in slots if other.visible == slot.visible and other != slot]
