"""Runs a plan: the one function that the command line calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, cast

from fcilbench.errors import PrerequisiteError
from fcilbench.execution.base import Executor, Progress, RunOptions, guarded
from fcilbench.execution.lease import living_owner
from fcilbench.execution.rows import Feed, RowWriter, Summary, Task
from fcilbench.execution.supervisor import Supervisor
from fcilbench.registry import entrypoints
from fcilbench.results.store import Store
from fcilbench.spec.metrics import METRICS
from fcilbench.tracking.base import Tracker

if TYPE_CHECKING:
    from fcilbench.suite.plan import Plan


def run_plan(
    plan: Plan,
    store: Store,
    trackers: Iterable[Tracker] = (),
    progress: Progress | None = None,
    options: RunOptions | None = None,
) -> Summary:
    """Runs the cells that a plan marks to be run, each to its row.

    A plan with nothing to run starts no process and tells no tracker.

    Returns:
        What became of all cells of the plan; one that needs no run counts with the row that it has (a light one, see
        `Store.latest_light`).

    Raises:
        PrerequisiteError: If the results folder cannot be written any more; the same command goes on later.
    """
    options = options or RunOptions()
    known = store.latest_light(METRICS)
    selected = [item.cell_id for item in plan.items]
    # Two equal points of the grid are one cell. What another run works on is waited for.
    todo = {item.cell_id: item.cell for item in plan.items if item.run or item.awaited}
    if not todo:
        return Summary({cell_id: known[cell_id] for cell_id in selected if cell_id in known})
    tasks = [Task(cell, cell_id, known.get(cell_id)) for cell_id, cell in todo.items()]
    facts = {"planned": len(selected), "to_run": len(tasks), "devices": list(options.devices), "jobs": options.jobs}
    writer, supervisor = supervise(
        tasks,
        store,
        trackers=trackers,
        progress=progress or Progress(),
        options=options,
        suite=(plan.expansion.name, facts),
    )
    rows = {**known, **writer.written}
    found = {cell_id: rows[cell_id] for cell_id in selected if cell_id in rows}
    return Summary(found, frozenset(writer.ran), supervisor.elsewhere, supervisor.interrupts > 0)


def supervise(
    tasks: list[Task],
    store: Store,
    *,
    trackers: Iterable[Tracker],
    progress: Progress,
    options: RunOptions,
    suite: tuple[str, dict[str, Any]],
    feed: Feed | None = None,
    cells: int | None = None,
) -> tuple[RowWriter, Supervisor]:
    """Runs tasks, and those of a feed, under a supervisor.

    Args:
        tasks: Tasks that are known beforehand.
        store: Results folder.
        trackers: Get each row.
        progress: Display.
        options: How to run.
        suite: Name of the suite and facts about the run, for the trackers.
        feed: Gives more tasks during the run.
        cells: Number of cells that the display announces, if it is not that of the tasks.

    Raises:
        PrerequisiteError: If the results folder cannot be written any more; the same command goes on later.
    """
    progress = guarded(progress, "progress display")
    watching = [guarded(tracker, type(tracker).__name__) for tracker in trackers]
    writer = RowWriter(store, watching, progress, options.suite_digest)
    plugin = entrypoints.load(entrypoints.lookup("executors", options.executor.partition(",")[0]))
    executor = cast(Callable[[RunOptions], Executor], plugin)(options)
    supervisor = Supervisor(tasks, writer, executor, progress, options, feed=feed)
    progress.run_started(len(tasks) if cells is None else cells, executor.places)
    for tracker in watching:
        tracker.suite_started(*suite)
    try:
        supervisor.run()
    except OSError as error:
        raise PrerequisiteError(
            f"results cannot be written: {error.filename or store.root}: {error.strerror or error}",
            hint="make room or grant access there; the same command goes on where this run stopped",
        ) from error
    finally:
        progress.run_finished()
        for tracker in watching:
            tracker.suite_finished(supervisor.interrupts > 0)
    return writer, supervisor


def running_cells(store: Store) -> dict[str, str]:
    """Returns the cells of a store that a living process works on, with that process; writes nothing."""
    folders = (path.parent for path in store.root.glob("cells/*/lease.json"))
    return {folder.name: str(owner) for folder in folders if (owner := living_owner(folder)) is not None}
