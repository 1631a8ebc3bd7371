"""A declarative benchmark suite for Federated Class-Incremental Learning (FCIL)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fcilbench.results.frames import Frames

__version__ = "0.1.0"


def load(folder: Path | str = "results") -> Frames:
    """Returns a results folder as pandas tables: `rows`, `curves` and `matrices`."""
    from fcilbench.results.frames import load as load_frames

    return load_frames(folder)


def run(
    suite: Path | str,
    *,
    out: Path | str = "results",
    data: Path | str | None = None,
    jobs: int | None = None,
    gpus: str = "auto",
) -> Frames:
    """Runs a suite and returns `load(out)`; the arguments are those of `fcilbench run`, and so is what it prints.

    A cell that fails raises nothing: its row says why.

    Example:
        >>> fcilbench.run("suites/quickstart.yaml", jobs=2).rows[["aggregator", "faa/none"]]  # doctest: +SKIP
    """
    import typer

    from fcilbench.cli.options import use_data_root
    from fcilbench.cli.run import run as run_verb
    from fcilbench.errors import INTERRUPTED

    if data is not None:
        use_data_root(Path(data))
    try:
        run_verb(Path(suite), out=Path(out), jobs=jobs, gpus=gpus)
    except typer.Exit as end:
        if end.exit_code == INTERRUPTED:
            raise KeyboardInterrupt from None
    return load(out)
