"""Checks of boards, on rows of an invented suite."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fcilbench.api import Board
from fcilbench.boards.render import FORMATS, render
from fcilbench.spec.cell import Cell
from fcilbench.spec.identity import cell_id
from fcilbench.spec.row import Row, Status
from fcilbench.testing.cells import PluginSubject, cells, check_contract, check_torch_free, row
from fcilbench.testing.check import CheckFailed, Checks, NotApplicable

CHECKS: Checks[PluginSubject] = Checks()
_STATUSES: tuple[Status, ...] = ("failed", "skipped", "oom", "timeout", "killed", "interrupted")


def _build(subject: PluginSubject, rows: Iterable[Row], planned: Mapping[str, Cell] | None = None) -> Any:
    """Returns a board that has every form, and its JSON form again as it was."""
    built = subject.cls().build(list(rows), planned)
    if not isinstance(built, Board):
        raise CheckFailed(f"`build` returned a {type(built).__name__}, not a Board")
    for form in FORMATS:
        if not render(built, form).strip():
            raise CheckFailed(f"its form {form!r} is empty")
    if Board.model_validate_json(built.model_dump_json(by_alias=True)) != built:
        raise CheckFailed("the board and what is read from its JSON form differ")
    return built


def _rows() -> list[Row]:
    return [row(each) for each in cells()]


@CHECKS.add
def contract(subject: PluginSubject) -> None:
    """The board has a version, a summary, a `name`, a `title`, and `build`.

    Fix: derive from `fcilbench.api.BaseBoard` and set `version`, `name` and `title`.
    """
    check_contract(subject, ("build",))
    built = _build(subject, _rows())
    if not built.board.strip() or not built.title.strip():
        raise CheckFailed("`name` or `title` is empty")


@CHECKS.add
def torch_free(subject: PluginSubject) -> None:
    """Importing the board does not import torch.

    Fix: import from `fcilbench.api`, which brings torch with the names of methods alone.
    """
    check_torch_free(subject)


@CHECKS.add
def empty(subject: PluginSubject) -> None:
    """A folder without rows is a board without blocks.

    Fix: derive blocks from rows; take no first element and no maximum of nothing.
    """
    if (built := _build(subject, [])).blocks:
        raise CheckFailed(f"it has the block {built.blocks[0].heading!r}")


@CHECKS.add
def one_row(subject: PluginSubject) -> None:
    """One row is enough for a board, or is no block of it: no deviation, no test and no rank needs a second one.

    Fix: return `None` for figures that one row does not define; `fcilbench.api.BaseBoard` makes means and ranks.
    """
    for status in ("ok", *_STATUSES):
        _build(subject, [row(cells()[0], status)])


@CHECKS.add
def order_of_rows(subject: PluginSubject) -> None:
    """The order of the rows changes nothing.

    Fix: sort what you take from rows; address seeds by `cell.seed`, never by position.
    """
    rows = _rows()
    first = _build(subject, rows)
    for other in (rows[::-1], rows[1::2] + rows[::2]):
        if _build(subject, other) != first:
            raise CheckFailed("with the rows in another order the board is another one")


@CHECKS.add
def last_row_counts(subject: PluginSubject) -> None:
    """Of several rows of one cell the last one counts.

    Fix: let `fcilbench.api.BaseBoard.build` choose the rows; or keep the last one of each `cell_id`.
    """
    old = [row(each, shift=-0.3) for each in cells()]
    if _build(subject, [*old, *_rows()]) != _build(subject, _rows()):
        raise CheckFailed("earlier rows of the same cells change the board")


@CHECKS.add
def figures_of_ok_rows(subject: PluginSubject) -> None:
    """Only rows with a result give figures; others are counted by their status.

    Fix: in `figures` use the cells that you are given, which have a result; count no failure as 0.
    """
    planned = cells()
    if not _build(subject, _rows()).blocks:
        raise NotApplicable("the board shows nothing of the kit's suite")
    without = _estimates(_build(subject, _rows()[1:]))
    missing = {cell_id(each): each for each in planned}
    boards: dict[str, Any] = {each: _build(subject, [row(planned[0], each), *_rows()[1:]]) for each in _STATUSES}
    boards["missing"] = _build(subject, _rows()[1:], missing)
    for status, built in boards.items():
        counted = [entry.failures for block in built.blocks for entry in block.entries if entry.failures]
        if counted != [{status: 1}]:
            raise CheckFailed(f"a row with status {status} is counted as {counted}")
        if _estimates(built) != without:
            raise CheckFailed(f"a row with status {status} changes figures")


def _estimates(built: Any) -> list[Any]:
    return [(entry.aggregator, entry.estimates) for block in built.blocks for entry in block.entries]
