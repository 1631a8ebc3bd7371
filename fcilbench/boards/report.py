"""The HTML report: all boards, their charts and every cell in one static file that needs no network.

The page is a template of jinja2, which torch brings along. It draws its charts as SVG from its own data when one is
opened: figures of a plotting library for each of a hundred scenarios would make the file ten times as large, and could
not open the cells behind a point.
"""

from __future__ import annotations

import base64
import gzip
import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any

from fcilbench.boards.model import Block, Board, Entry, Group
from fcilbench.boards.notes import CONTROL_MARK, REFERENCE_MARK
from fcilbench.boards.records import environment_of, rounds_of
from fcilbench.boards.render import Head, facts_of, group_title, notes_of, overall_tables, table_of
from fcilbench.boards.scenario import METHOD_FIELDS
from fcilbench.escape import clean, page_link
from fcilbench.results.private import hidden
from fcilbench.results.store import Store
from fcilbench.spec.metrics import Matrix, faa
from fcilbench.spec.row import Row
from fcilbench.tables import flatten


def render_report(boards: Sequence[Board], rows: Iterable[Row], store: Store, title: str = "fcilbench report") -> str:
    """Returns the report of boards, in their order, without those that have no block.

    `store` is the results folder of the rows behind them, for curves and environments.
    """
    whole = {row.cell_id: row for row in rows}
    place = {cell_id: number for number, cell_id in enumerate(whole)}
    data = {**_data(whole.values(), store), "charts": []}
    shown = [_board(board, place, whole, data["charts"]) for board in boards if board.blocks]
    return _page(
        title=title, boards=shown, control=CONTROL_MARK, reference=REFERENCE_MARK, count=len(whole), data=_packed(data)
    )


def render_index(title: str, heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Returns a page that lists other pages in one table; the first cell of a row is the folder of its page."""
    return _page(title=title, heads=heads, rows=rows, boards=[], data=_packed({}))


def _page(**values: Any) -> str:
    from jinja2 import Environment

    text = files("fcilbench.boards").joinpath("report.html.jinja").read_text(encoding="utf-8")
    page = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(text)
    return clean(page.render(page_link=page_link, **values))


def _packed(value: Any) -> str:
    """Returns JSON, packed by gzip and written in base 64; the browser unpacks it."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def _board(board: Board, place: Mapping[str, int], rows: Mapping[str, Row], charts: list[Any]) -> dict[str, Any]:
    blocks = []
    for block in board.blocks:
        if board.board == "accuracy":
            charts.append(_charts(block, place, rows))
        blocks.append(
            {
                "heading": block.heading,
                "facts": facts_of(block),
                "notes": notes_of(block),
                "tables": [_table(block, group, table_of(block, (group,)), place) for group in block.groups],
                "charts": len(charts) - 1 if board.board == "accuracy" else None,
                "sweeps": board.board == "accuracy" and any(each["sweeps"] for each in charts[-1]),
            }
        )
    return {"name": board.board, "title": board.title, "notes": board.notes, "blocks": blocks} | {
        "overall": overall_tables(board)
    }


def _table(block: Block, group: Group, heads: Sequence[Head], place: Mapping[str, int]) -> dict[str, Any]:
    rows = []
    for entry in block.entries:
        cells = [(head.text(entry), _sort_key(entry, group, head), head.column is not None) for head in heads]
        rows.append({"cells": cells, "own": " ".join(str(place[each]) for each in entry.cells if each in place)})
    return {
        "key": group_title(group.key),
        "heads": [head.title for head in heads],
        "rows": rows,
    }


def _sort_key(entry: Entry, group: Group, head: Head) -> float | int | str:
    """Returns what a table is sorted by; what is undefined has no key and comes last."""
    if head.column is not None:
        mean = entry.estimates[group.key][head.column.metric].mean
        return "" if mean is None else float(f"{mean:.6g}")
    rank = entry.ranks.get(group.key)
    if head.title == "rank":
        return "" if rank is None else 1000 * rank.low + rank.high
    return head.text(entry)


def _charts(block: Block, place: Mapping[str, int], rows: Mapping[str, Row]) -> list[dict[str, Any]]:
    """Returns for each task identity the points of accuracy against bytes, the learning curves and the sweeps."""
    charts = []
    for group in block.groups:
        methods: list[dict[str, Any]] = []
        options = []
        for entry in block.entries:
            found = entry.estimates[group.key][group.columns[0].metric]
            own = [rows[each] for each in entry.cells if each in rows and rows[each].status == "ok"]
            if found.mean is None or not own:
                continue
            matrices = [row.accuracy.get(group.key, []) for row in own]
            methods.append(
                {
                    "name": entry.aggregator,
                    "x": statistics.fmean(row.cost.bytes_up + row.cost.bytes_down for row in own),
                    "y": found.mean,
                    "half": found.half_width and float(f"{found.half_width:.6g}"),  # equal on every machine
                    "curve": _mean_curve(matrices),
                    "own": [place[each] for each in entry.cells if each in place],
                }
            )
            tuned = {key: value for key, value in own[0].params.protocol.items() if key in METHOD_FIELDS}
            options.append((entry.plugin, {**flatten(own[0].params.aggregator), **tuned}))
        charts.append({"key": group.key, "methods": methods, "sweeps": _sweeps(options)})
    return charts


def _sweeps(methods: Sequence[tuple[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Returns the hyperparameters that have three values or more in methods that differ in nothing else.

    A method is its plugin and its options. Of each such hyperparameter there is its name and its points: the value and
    the method's place, in the order of values.
    """
    found: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for place, (plugin, options) in enumerate(methods):
        for name, value in options.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                others = {key: other for key, other in options.items() if key != name}
                key = [f"{plugin.removeprefix('fcilbench/')}: {name}", others]
                found[json.dumps(key, sort_keys=True)].append((value, place))
    return [{"name": json.loads(key)[0], "points": sorted(own)} for key, own in found.items() if len(own) > 2]


def _mean_curve(matrices: Iterable[Matrix]) -> list[float | None]:
    """Returns the mean over seeds of the accuracy on the tasks seen, after each task."""
    curves = [[faa([line]) for line in matrix] for matrix in matrices]
    points = zip(*curves, strict=False)
    return [None if None in own else round(statistics.fmean(v for v in own if v is not None), 4) for own in points]


def _data(rows: Iterable[Row], store: Store) -> dict[str, Any]:
    """Returns every cell; parameters and environments that cells share are there once."""
    shared: dict[str, int] = {}
    environments: dict[str, str] = {}
    cells = []
    for row in map(hidden, rows):
        if row.env not in environments:
            environments[row.env] = _environment(environment_of(store, row.env))
        params = {
            name: value for name, value in flatten(row.params.model_dump(mode="json")).items() if value not in ({}, [])
        }
        metrics = {name: None if each.value is None else round(each.value, 4) for name, each in row.metrics.items()}
        losses = [each["loss"] for each in rounds_of(store, row.cell_id)]
        cells.append(
            {
                "id": row.cell_id[:12],
                "at": " / ".join(str(value) for value in row.coords.values()),
                "suite": row.suite,
                "status": row.status,
                "why": row.reason,
                "seeds": {role: str(seed) for role, seed in row.seeds.items()},  # too large for numbers of JavaScript
                "device": row.device or "",
                "env": list(environments).index(row.env),
                "params": shared.setdefault(json.dumps(params, default=str), len(shared)),
                "metrics": metrics,
                "matrix": {
                    key: [[None if value is None else round(value, 3) for value in line] for line in matrix]
                    for key, matrix in row.accuracy.items()
                },
                "loss": [loss if loss is None else round(loss, 3) for loss in losses],
                "cost": {name: round(value, 2) for name, value in row.cost.figures.items() if value},
                "log": f"cells/{row.cell_id}/log.txt",
            }
        )
    return {"cells": cells, "params": [json.loads(each) for each in shared], "envs": list(environments.values())}


def _environment(record: Mapping[str, Any] | None) -> str:
    if record is None:
        return "no record of it travelled with the row"
    worker, packages = record.get("worker") or {}, record.get("packages") or {}
    parts = {"python": record.get("python"), "cpu": record.get("cpu"), "torch": packages.get("torch"), **worker}
    return ", ".join(f"{name} {value}" for name, value in parts.items() if value)
