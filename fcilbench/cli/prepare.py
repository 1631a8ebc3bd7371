"""From a suite file on the command line to a plan against a results folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fcilbench.cli import console

if TYPE_CHECKING:
    from fcilbench.results.store import Store
    from fcilbench.suite.load import LoadedSuite
    from fcilbench.suite.plan import Plan


@dataclass(frozen=True)
class Prepared:
    """A plan with what it was made from.

    Attributes:
        loaded: The suite.
        plan: The plan.
        store: The results folder, which need not exist.
    """

    loaded: LoadedSuite
    plan: Plan
    store: Store


def prepare(
    suite: Path,
    overrides: Sequence[str] | None,
    out: Path,
    *,
    only: Sequence[str] | None = None,
    rerun: str = "stale",
    devices: Sequence[str] = ("",),
) -> Prepared:
    """Loads a suite and plans it; writes nothing.

    Args:
        suite: Suite file.
        overrides: Values of `-s`.
        out: Results folder.
        only: Values of `--only`.
        rerun: Value of `--rerun`.
        devices: Devices that would run it: costs measured on other hardware are no estimate.
    """
    from fcilbench.execution.devices import facts_of
    from fcilbench.execution.run import running_cells
    from fcilbench.results.provenance import environment, hardware_digest
    from fcilbench.results.store import Store
    from fcilbench.suite.expand import expand
    from fcilbench.suite.load import load_suite
    from fcilbench.suite.plan import StoreView, make_plan

    console.log_to_stderr()
    loaded = load_suite(suite, overrides or ())
    store = Store(out)
    hardware = hardware_digest(environment(facts_of(devices[0])))
    view = StoreView(rows=store.latest(), running=running_cells(store), hardware=hardware, gpu=bool(devices[0]))
    return Prepared(loaded, make_plan(expand(loaded), view, rerun, only or ()), store)


def use_data_root(option: Path | None) -> Path:
    """Returns the data root and puts it into the environment, so that plugins in child processes see the same one."""
    from fcilbench.data.root import ENVIRONMENT, data_root

    root = data_root(option)
    os.environ[ENVIRONMENT] = str(root)
    return root


def build_board(name: str, rows: Any, planned: Any = None) -> Any:
    """Builds a board by its plugin name.

    Args:
        name: Name in the group `fcilbench.boards`.
        rows: Rows to show.
        planned: Planned cells by id, or `None` if the rows are the plan.
    """
    from fcilbench.registry import entrypoints

    board: Any = entrypoints.load(entrypoints.lookup("boards", name))
    return board().build(rows, planned)


def show_board(board: Any) -> None:
    """Prints a board on standard output, as wide as the terminal, or as plain text where there is none."""
    from fcilbench.boards.render import print_board, render

    if console.out().is_terminal:
        print_board(board, console.out())
    else:
        console.show(render(board, width=console.WIDTH))


def duration(seconds: float) -> str:
    """Returns a time as people read it.

    Example:
        >>> duration(3725), duration(42.4), duration(0.25)
        ('1h02', '42 s', '0.2 s')
    """
    if seconds >= 3600:
        return f"{int(seconds // 3600)}h{int(seconds % 3600 // 60):02d}"
    if seconds >= 60:
        return f"{int(seconds // 60)} min {int(seconds % 60):02d} s"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
