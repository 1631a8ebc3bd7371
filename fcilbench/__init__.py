"""A declarative benchmark suite for Federated Class-Incremental Learning (FCIL)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fcilbench.charts.notebook import Results

__version__ = "0.2.0"
__all__ = ["load", "run"]


def load(folder: Path | str = "results") -> Results:
    """Returns a results folder as pandas tables: `rows`, `curves` and `matrices`, joined by `cell_id`.

    Accuracies are in [0, 1], times in seconds, sizes in bytes. All numbers of tasks and rounds count from 0.

    - `rows` has a line for each cell: its labels on the axes (`dataset`, `backbone`, `partition`, `aggregator`,
      `stress`) and its `seed`, its `status`, its metrics as `<metric>/<task identity>` (`faa/none`), its cost
      (`cost.wall_s` and others in seconds, `cost.bytes_up` and others in bytes) and its parameters
      (`params.protocol.lr`).
    - `curves` has a line for each round and for each end of a task (`event` is `round` or `task`): `task`, `round`, the
      mean local `loss`, `seconds.training` and others, `bytes_up`, `bytes_down`, and as `logs.*` what the method logs.
    - `matrices` has a line for each task seen: the `accuracy` on `task` after training on the task `after`, under the
      task identity `identity`; `task` <= `after`.

    The result is a tuple of the three, and its `plot` draws the charts of boards and papers, e.g.
    `load().plot.forest("dataset:cifar100")`; see `fcilbench.charts.notebook.Plots`.

    Raises:
        NoRowsError: If the folder holds no rows.
    """
    from fcilbench.charts.notebook import load as load_results
    from fcilbench.workflow.survey import spread_of

    return load_results(folder, spread_of)


def run(
    suite: Path | str,
    *,
    out: Path | str = "results",
    data: Path | str | None = None,
    jobs: int | None = None,
    gpus: str = "auto",
) -> Results:
    """Runs a suite and returns `load(out)`; the arguments are those of `fcilbench run`, and so is what it prints.

    A cell that fails raises nothing: its row says why.

    Example:
        >>> fcilbench.run("suites/quickstart.yaml", jobs=2).rows[["aggregator", "faa/none"]]  # doctest: +SKIP
    """
    from fcilbench.cli import console
    from fcilbench.cli.terminal import SCREEN, show_run
    from fcilbench.data.root import use_data_root
    from fcilbench.workflow import train

    console.log_to_stderr()
    if data is not None:
        use_data_root(Path(data))
    ended = train.run(Path(suite), Path(out), jobs=jobs, gpus=gpus, screen=SCREEN)
    show_run(ended)
    if ended.summary.interrupted:
        raise KeyboardInterrupt
    return load(out)
