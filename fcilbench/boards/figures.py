"""Figures for a paper's column, drawn by matplotlib (which mlflow brings along): safe for the colour-blind."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fcilbench.boards.model import Board
from fcilbench.boards.stats import align, critical_difference, mean_ranks, tie_groups
from fcilbench.errors import NothingSelectedError, UsageError
from fcilbench.spec.row import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH = 3.4
"""Inches of a column."""
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""The palette of Okabe and Ito."""
_MARKERS = "osv^Dpx*"
SUFFIXES = (".svg", ".pdf", ".png")


def draw(name: str, board: Board, rows: Sequence[Row], identity: str, path: Path) -> None:
    """Draws a figure of one block's rows, or of a whole board, into a file.

    Args:
        name: One of `FIGURES`.
        board: The accuracy board of the rows.
        rows: Whole rows, with their matrices.
        identity: The task identity that is shown.
        path: An `.svg`, `.pdf` or `.png` file.

    Raises:
        UsageError: If the file has another ending, or the rows are of several scenarios and the figure shows one.
        NothingSelectedError: If there is nothing to draw.
    """
    if path.suffix not in SUFFIXES:
        raise UsageError(
            f"{path}: no figure is written to {path.suffix!r} files", hint=f"end it in {', '.join(SUFFIXES)}"
        )
    if name != "critical-difference" and len(board.blocks) != 1:
        raise UsageError(
            f"{name} shows one scenario, here are {len(board.blocks)}", hint="choose one, e.g. --only dataset:cifar100"
        )
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    with pyplot.rc_context(
        {"font.size": 8, "svg.fonttype": "none", "axes.spines.top": False, "axes.spines.right": False}
    ):
        figure, axes = pyplot.subplots(figsize=(WIDTH, WIDTH * 0.7), layout="constrained")
        FIGURES[name](axes, board, rows, identity)
        figure.savefig(path, dpi=300, bbox_inches="tight", metadata={"Date": None} if path.suffix == ".svg" else None)
        pyplot.close(figure)


def _curves(axes: Axes, board: Board, rows: Sequence[Row], identity: str) -> None:
    """Mean accuracy on the tasks seen, after each task; the band is one standard deviation over seeds."""
    for number, (method, matrices) in enumerate(_matrices(board, rows, identity).items()):
        lines = [[statistics.fmean(line) for line in matrix if None not in line] for matrix in matrices]
        points = list(zip(*(line for line in lines if len(line) == max(map(len, lines))), strict=True))
        means = [100 * statistics.fmean(point) for point in points]
        spread = [100 * statistics.pstdev(point) for point in points]
        colour, tasks = COLOURS[number % len(COLOURS)], range(len(matrices[0]) - len(points) + 1, len(matrices[0]) + 1)
        axes.plot(tasks, means, color=colour, marker=_MARKERS[number % len(_MARKERS)], markersize=3, label=method)
        low, high = zip(*((m - s, m + s) for m, s in zip(means, spread, strict=True)), strict=True)
        axes.fill_between(tasks, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.set(xlabel="task", ylabel=f"accuracy on tasks seen, {identity} (%)")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, fontsize=7, frameon=False)


def _forgetting(axes: Axes, board: Board, rows: Sequence[Row], identity: str) -> None:
    """Loss on each task since its best accuracy, after each later task; one method."""
    found = _matrices(board, rows, identity)
    if len(found) != 1:
        names = ", ".join(found)
        raise UsageError(f"a forgetting matrix shows one method, here are {names}", hint="e.g. --only aggregator:sum")
    ((method, matrices),) = found.items()
    tasks = len(matrices[0])
    values = [[float("nan")] * tasks for _ in range(tasks)]
    for t in range(tasks):
        for s in range(t + 1):
            seen = [[m[u][s] for u in range(s, t + 1) if m[u][s] is not None] for m in matrices if m[t][s] is not None]
            if seen:
                values[t][s] = 100 * statistics.fmean(max(own) - own[-1] for own in seen)
    image = axes.imshow(values, cmap="cividis", vmin=0)
    ticks = range(0, tasks, max(1, tasks // 10))
    labels = [str(tick + 1) for tick in ticks]
    axes.set(xlabel="on task", ylabel="after task", title=f"{method}, {identity}")
    axes.set_xticks(ticks, labels)
    axes.set_yticks(ticks, labels)
    axes.figure.colorbar(image, ax=axes, label="forgotten (points)")


def _critical_difference(axes: Axes, board: Board, _: Sequence[Row], identity: str) -> None:
    """Mean ranks (Demšar 2006) over scenarios, or over the seeds of one; a bar joins what is not told apart."""
    overall = next((each for each in board.overall if each.key == identity), None)
    if overall is not None:
        ranked, units = [(each.aggregator, each.mean) for each in overall.methods], f"{overall.blocks} scenarios"
        difference = overall.critical_difference
    else:
        ranked, units, difference = _over_seeds(board, identity)
    axes.set(
        xlim=(0.8, len(ranked) + 0.2), ylim=(len(ranked) + 1.5, -0.5), xlabel=f"mean rank over {units}, {identity}"
    )
    axes.spines["left"].set_visible(False)
    axes.set_yticks([])
    for line, (name, rank) in enumerate(ranked, start=1):
        axes.plot([rank, rank], [0, line], color="#888888", linewidth=0.7)
        axes.annotate(
            f"{name} {rank:.2f}", (rank, line), xytext=(3, 0), textcoords="offset points", va="center", fontsize=7
        )
    places = dict(ranked)
    for number, group in enumerate(tie_groups(ranked, difference)):
        axes.plot([places[group[0]], places[group[-1]]], [0.15 + 0.2 * number] * 2, color=COLOURS[0], linewidth=2.5)
    axes.set_title(f"critical difference {difference:.2f} (Nemenyi, 5 %)", fontsize=8)


def _over_seeds(board: Board, identity: str) -> tuple[list[tuple[str, float]], str, float]:
    """Returns the mean ranks of one block over its common seeds, each of which counts as a scenario."""
    seeds, values = align(
        {
            entry.aggregator: entry.estimates[identity][group.columns[0].metric].values
            for block in board.blocks[:1]
            for group in block.groups
            for entry in block.entries
            if group.key == identity in entry.ranks
        }
    )
    if len(values) < 2 or len(board.blocks) > 1:
        reason = f"no ranks under {identity}: two methods need three seeds in common, or two scenarios"
        raise NothingSelectedError(reason)
    units = [{name: [own[place]] for name, own in values.items()} for place in range(len(seeds))]
    ranks = [(each.aggregator, each.mean) for each in mean_ranks(units, higher=True)]
    return ranks, f"{len(seeds)} seeds", critical_difference(len(values), len(seeds))


def _matrices(board: Board, rows: Sequence[Row], identity: str) -> dict[str, list[Any]]:
    """Returns the accuracy matrices of each method's seeds.

    Raises:
        NothingSelectedError: If there is none.
    """
    by_id: dict[str, Any] = {row.cell_id: row.accuracy.get(identity) for row in rows}  # type: ignore[call-overload]
    found = {
        entry.aggregator: matrices
        for entry in board.blocks[0].entries
        if (matrices := [by_id[each] for each in entry.cells if by_id.get(each)])
    }
    if not found:
        raise NothingSelectedError(f"no accuracy matrix under {identity} in these rows")
    return found


FIGURES: Mapping[str, Callable[[Axes, Board, Sequence[Row], str], None]] = {
    "curves": _curves,
    "forgetting": _forgetting,
    "critical-difference": _critical_difference,
}
