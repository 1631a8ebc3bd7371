"""Figures for a paper's column, drawn by matplotlib: safe for the colour-blind."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fcilbench.boards.model import Board
from fcilbench.boards.records import rounds_of
from fcilbench.boards.stats import align, critical_difference, mean_ranks, tie_groups
from fcilbench.errors import NothingSelectedError, UsageError
from fcilbench.escape import escape_figure
from fcilbench.results.store import Store
from fcilbench.spec.row import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH = 3.4
"""Inches of a column."""
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""The palette of Okabe and Ito."""
_MARKERS = "osv^Dpx*"
_LEAST_SEEDS = 5
"""Seeds of one scenario that stand for scenarios in mean ranks."""
SUFFIXES = (".svg", ".pdf", ".png")


def draw(name: str, board: Board, store: Store, identity: str, path: Path) -> None:
    """Draws one of `FIGURES`, of an accuracy board under a task identity, into an `.svg`, `.pdf` or `.png` file.

    `store` is the results folder of the rows, for matrices and curves.

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
        FIGURES[name](axes, board, store, identity)
        figure.savefig(path, dpi=300, bbox_inches="tight", metadata={"Date": None} if path.suffix == ".svg" else None)
        pyplot.close(figure)


def _curves(axes: Axes, board: Board, store: Store, identity: str) -> None:
    """Mean accuracy on the tasks seen after each task, and where it was measured during tasks."""

    def line(row: Row) -> dict[float, float]:
        measured = {
            each["task"] + (each["round"] + 1) / (each["rounds"] + 1): each["accuracy"][identity]
            for each in rounds_of(store, row.cell_id)
            if identity in each["accuracy"]
        }
        measured |= {t + 1.0: own for t, own in enumerate(_matrix(row, identity)) if None not in own}
        return {x: 100 * statistics.fmean(own) for x, own in measured.items()}

    _lines(axes, {method: [line(row) for row in own] for method, own in _measured(board, store, identity).items()})
    axes.set(xlabel="task", ylabel=f"accuracy on tasks seen, {identity} (%)")


def _loss(axes: Axes, board: Board, store: Store, identity: str) -> None:
    """Training loss of the clients, weighted by their samples, after each round."""

    def line(row: Row) -> dict[float, float]:
        found = {  # of two records of a round, in a resumed cell, the later counts
            (each["task"], each["round"]): each["loss"] for each in rounds_of(store, row.cell_id)
        }
        steps = enumerate(sorted(found), start=1)
        return {float(step): loss for step, key in steps if (loss := found[key]) is not None}

    rows = _measured(board, store, identity)
    found = {method: lines for method, own in rows.items() if (lines := [each for row in own if (each := line(row))])}
    if not found:
        raise NothingSelectedError("no training loss in the curves of these rows: they hold no rounds.jsonl")
    _lines(axes, found)
    axes.set(xlabel="round", ylabel="training loss")


def _lines(axes: Axes, found: Mapping[str, Sequence[Mapping[float, float]]]) -> None:
    """Draws a line for each method through the places that all seeds share; the band is their standard deviation."""
    for number, (method, lines) in enumerate(found.items()):
        places = sorted(set.intersection(*map(set, lines)))
        means = [statistics.fmean(line[x] for line in lines) for x in places]
        colour, marker = COLOURS[number % len(COLOURS)], _MARKERS[number % len(_MARKERS)]
        axes.plot(places, means, color=colour, marker=marker, markersize=3, label=escape_figure(method))
        if len(lines) > 1:
            spread = [statistics.stdev(line[x] for line in lines) for x in places]
            low, high = ([m + sign * s for m, s in zip(means, spread, strict=True)] for sign in (-1, 1))
            axes.fill_between(places, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, fontsize=7, frameon=False)


def _forgetting(axes: Axes, board: Board, store: Store, identity: str) -> None:
    """Loss on each task since its best accuracy, after each later task; one method."""
    found = _measured(board, store, identity)
    if len(found) != 1:
        names = ", ".join(found)
        raise UsageError(f"a forgetting matrix shows one method, here are {names}", hint="e.g. --only aggregator:sum")
    ((method, own_rows),) = found.items()
    matrices = [_matrix(row, identity) for row in own_rows]
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
    axes.set(xlabel="on task", ylabel="after task", title=escape_figure(f"{method}, {identity}"))
    axes.set_xticks(ticks, labels)
    axes.set_yticks(ticks, labels)
    axes.figure.colorbar(image, ax=axes, label="forgotten (points)")


def _critical_difference(axes: Axes, board: Board, _: Store, identity: str) -> None:
    """Mean ranks (Demšar 2006) over scenarios, or over the seeds of one; a bar joins what is not told apart."""
    overall = next((each for each in board.overall if each.key == identity), None)
    if overall is not None:
        ranked, units = [(each.aggregator, each.mean) for each in overall.methods], f"{overall.blocks} scenarios"
        difference = overall.critical_difference
    else:
        ranked, units, difference = _over_seeds(board, identity)
    groups, places = tie_groups(ranked, difference), dict(ranked)
    bars = 0.5 * len(groups)
    axes.set(
        xlim=(0.8, len(ranked) + 0.2), ylim=(bars + len(ranked) + 1, -0.5), xlabel=f"mean rank over {units}, {identity}"
    )
    axes.spines["left"].set_visible(False)
    axes.set_yticks([])
    for line, (name, rank) in enumerate(reversed(ranked), start=1):  # lines to the right end above a method's name
        axes.plot([rank, rank], [0, bars + line], color="#888888", linewidth=0.7)
        place = (rank, bars + line)
        axes.annotate(
            escape_figure(f"{name} {rank:.2f}"), place, (3, 0), textcoords="offset points", va="center", fontsize=7
        )
    for number, group in enumerate(groups):
        axes.plot([places[group[0]], places[group[-1]]], [0.3 + 0.5 * number] * 2, color=COLOURS[0], linewidth=2.5)
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
    if len(values) < 2 or len(seeds) < _LEAST_SEEDS or len(board.blocks) > 1:
        reason = f"no test under {identity}: two methods need {_LEAST_SEEDS} seeds in common, or two scenarios"
        raise NothingSelectedError(reason)
    units = [{name: own[place] for name, own in values.items()} for place in range(len(seeds))]
    ranks = [(each.aggregator, each.mean) for each in mean_ranks(units, higher=True)]
    return ranks, f"{len(seeds)} seeds", critical_difference(len(values), len(seeds))


def _matrix(row: Row, identity: str) -> Any:
    return row.accuracy.get(identity)


def _measured(board: Board, store: Store, identity: str) -> dict[str, list[Row]]:
    """Returns the rows of each method that have an accuracy matrix, a row for each seed.

    Raises:
        NothingSelectedError: If there is none.
    """
    by_id = {cell_id: row for cell_id, row in store.latest().items() if _matrix(row, identity)}
    found = {
        entry.aggregator: own
        for entry in board.blocks[0].entries
        if (own := [by_id[each] for each in entry.cells if each in by_id])
    }
    if not found:
        raise NothingSelectedError(f"no accuracy matrix under {identity} in these rows")
    return found


FIGURES: Mapping[str, Callable[[Axes, Board, Store, str], None]] = {
    "curves": _curves,
    "loss": _loss,
    "forgetting": _forgetting,
    "critical-difference": _critical_difference,
}
