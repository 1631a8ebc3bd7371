"""Runs a plan: the one function that the command line calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from fcilbench.errors import PrerequisiteError
from fcilbench.execution.base import Executor, RunOptions
from fcilbench.execution.supervisor import Observer, Summary, Supervisor
from fcilbench.execution.tasks import Feed, Task
from fcilbench.registry import entrypoints
from fcilbench.results.store import Store

if TYPE_CHECKING:
    from fcilbench.suite.plan import Plan


def run_plan(
    plan: Plan, store: Store, observers: Sequence[Observer] = (), options: RunOptions | None = None
) -> Summary:
    """Trains the cells that a plan marks, and returns the rows of all cells of the plan.

    A plan with nothing to run starts no process and tells no observer.
    """
    summary = Summary({item.cell_id: item.row for item in plan.items if item.row is not None})
    # Equal points of the grid are one cell. The run also waits for cells that other runs work on.
    todo = {item.cell_id: item for item in plan.items if item.run or item.awaited}
    if todo:
        tasks = [Task(item.cell, cell_id, item.row) for cell_id, item in todo.items()]
        facts = {"planned": len(plan.items), "to_run": len(todo)}
        supervise(tasks, store, summary, plan.expansion.name, facts, observers=observers, options=options)
    return summary


def supervise(
    tasks: Sequence[Task],
    store: Store,
    summary: Summary,
    suite: str,
    facts: Mapping[str, Any],
    *,
    observers: Sequence[Observer] = (),
    options: RunOptions | None = None,
    feed: Feed | None = None,
) -> None:
    """Runs tasks and those of a feed, and notes in the summary what becomes of them.

    `suite` is the name that trackers get, with `facts` about the run.

    Raises:
        PrerequisiteError: If the results folder can no longer be written; the same command continues later.
    """
    options = options or RunOptions()
    plugin = entrypoints.load(entrypoints.lookup("executors", options.executor.partition(",")[0]))
    executor = cast(Callable[[RunOptions], Executor], plugin)(options)
    supervisor = Supervisor(tasks, store, executor, options, summary, observers=observers, feed=feed or Feed())
    try:
        supervisor.run(suite, {**facts, "devices": list(options.devices), "jobs": options.jobs})
    except OSError as error:
        raise PrerequisiteError(
            f"results cannot be written: {error.filename or store.root}: {error.strerror or error}",
            hint="make room or grant access there; the same command continues where this run stopped",
        ) from error
