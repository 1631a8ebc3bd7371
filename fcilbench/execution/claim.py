"""Taking a cell: its lease, and what is known of earlier attempts once the lease is held."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from fcilbench.execution import history, lease
from fcilbench.execution.base import RunOptions
from fcilbench.execution.devices import Slot
from fcilbench.execution.lease import Lease, Owner
from fcilbench.execution.ledger import Ledger
from fcilbench.execution.messages import Job
from fcilbench.execution.schedule import Task
from fcilbench.spec.cell import Cell
from fcilbench.spec.row import Row


@dataclass(frozen=True)
class Claim:
    """The right to work on a cell.

    Attributes:
        lease: Its lease.
        folder: Its folder; a checkpoint in it is one to go on from.
    """

    lease: Lease
    folder: Path


def claim(task: Task, ledger: Ledger) -> Claim | Owner | Row:
    """Takes a cell for one more attempt, and counts the attempt.

    Args:
        task: The task.
        ledger: The run's ledger.

    Returns:
        The claim; or the living owner who works on the cell; or the `ok` row that another run has written meanwhile.
    """
    folder = ledger.store.make_cell_dir(task.cell_id)
    held = lease.acquire(folder)
    if isinstance(held, Owner):
        return held
    finished = ledger.finished_meanwhile(task)
    if finished is not None:
        held.release()
        return finished
    if not task.attempts:
        task.started = datetime.now(UTC)
        task.earlier = history.resumable(folder, task.cell, task.known)
        if not task.earlier:
            history.forget(folder)  # before the note below, which vouches for what lies in the folder
    task.attempts += 1
    history.begin(folder, task.cell, task.earlier + task.attempts)
    return Claim(held, folder)


def make_job(claimed: Claim, cell: Cell, slot: Slot, options: RunOptions) -> Job:
    """Returns the job of a claimed cell on a slot."""
    return Job(
        cell=cell.model_dump(mode="json"),
        cell_id=claimed.folder.name,
        workdir=str(claimed.folder.absolute()),
        data_root=str(options.data_root) if options.data_root is not None else None,
        device=slot.device,
        offline=options.offline,
    )
