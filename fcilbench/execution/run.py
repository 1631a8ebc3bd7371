"""Runs a plan: the one function that the command line calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from fcilbench.errors import CELLS_FAILED, INTERRUPTED, OK, PREREQUISITE, PrerequisiteError
from fcilbench.execution.base import Executor, Progress, RunOptions
from fcilbench.execution.supervisor import Supervisor
from fcilbench.execution.tasks import Feed, Task
from fcilbench.registry import entrypoints
from fcilbench.results.store import Store
from fcilbench.spec.row import Row
from fcilbench.tracking.base import Tracker

if TYPE_CHECKING:
    from fcilbench.suite.plan import Plan


@dataclass(frozen=True)
class Summary:
    """What became of the selected cells.

    Attributes:
        rows: The last row of each selected cell that has one, by `cell_id`; rows of earlier runs included.
        ran: Ids of the cells that this run started and that got a row.
        elsewhere: Ids of the cells that another living process works on, with that process.
    """

    rows: Mapping[str, Row]
    ran: Collection[str] = ()
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    interrupted: bool = False

    @property
    def counts(self) -> Counter[str]:
        """Number of selected cells by status."""
        return Counter(row.status for row in self.rows.values())

    @property
    def exit_code(self) -> int:
        """Exit code of the process.

        130 if interrupted; 0 if every selected cell is `ok`; 5 if all that are not lack a prerequisite; else 3.
        """
        if self.interrupted:
            return INTERRUPTED
        bad = [row for row in self.rows.values() if row.status != "ok"]
        if self.elsewhere or not bad:
            return CELLS_FAILED if self.elsewhere else OK
        missing = all(row.failure is not None and row.failure.kind == "prerequisite" for row in bad)
        return PREREQUISITE if missing else CELLS_FAILED


def run_plan(
    plan: Plan,
    store: Store,
    trackers: Iterable[Tracker] = (),
    progress: Progress | None = None,
    options: RunOptions | None = None,
) -> Summary:
    """Trains the cells that a plan marks, and returns the rows of all cells of the plan.

    A plan with nothing to run starts no process and tells no tracker.
    """
    rows = {item.cell_id: item.row for item in plan.items if item.row is not None}
    # Equal points of the grid are one cell. The run also waits for cells that other runs work on.
    todo = {item.cell_id: item for item in plan.items if item.run or item.awaited}
    if not todo:
        return Summary(rows)
    tasks = [Task(item.cell, cell_id, item.row) for cell_id, item in todo.items()]
    run = supervise(
        tasks,
        store,
        suite=plan.expansion.name,
        facts={"planned": len(plan.items), "to_run": len(tasks)},
        trackers=trackers,
        progress=progress or Progress(),
        options=options or RunOptions(),
    )
    return Summary({**rows, **run.written}, run.ran, run.elsewhere, run.interrupted)


def supervise(
    tasks: list[Task],
    store: Store,
    *,
    suite: str,
    facts: Mapping[str, Any],
    trackers: Iterable[Tracker],
    progress: Progress,
    options: RunOptions,
    feed: Feed | None = None,
) -> Supervisor:
    """Runs tasks and those of a feed, and returns the supervisor with what it did.

    `suite` is the name that trackers get, with `facts` about the run.

    Raises:
        PrerequisiteError: If the results folder can no longer be written; the same command continues later.
    """
    plugin = entrypoints.load(entrypoints.lookup("executors", options.executor.partition(",")[0]))
    executor = cast(Callable[[RunOptions], Executor], plugin)(options)
    supervisor = Supervisor(tasks, store, executor, options, trackers=trackers, progress=progress, feed=feed or Feed())
    facts = {**facts, "devices": list(options.devices), "jobs": options.jobs}
    try:
        supervisor.run(suite, facts)
    except OSError as error:
        raise PrerequisiteError(
            f"results cannot be written: {error.filename or store.root}: {error.strerror or error}",
            hint="make room or grant access there; the same command continues where this run stopped",
        ) from error
    return supervisor
