"""`fcilbench show` and `fcilbench board`: what a results folder holds, row by row and as a leaderboard."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fcilbench.cli import console, options
from fcilbench.errors import NothingSelectedError, UsageError
from fcilbench.tables import flatten

if TYPE_CHECKING:
    from fcilbench.boards.notes import Here
    from fcilbench.results.store import Store
    from fcilbench.spec.cell import Cell
    from fcilbench.spec.row import Row

_RANKING = ("faa",)
"""Metrics in the list of rows."""
_SUFFIXES = {".md": "md", ".json": "json", ".csv": "csv", ".txt": "table", "": None}


def show(
    cell: Annotated[str | None, typer.Argument(help="First digits of a cell's id.", metavar="[CELL]")] = None,
    out: options.Out = options.RESULTS,
    only: options.Only = None,
    form: options.Format = options.Form.TABLE,
    verbose: options.Verbose = False,
) -> None:
    """List the rows of a results folder, or print one cell: parameters, metrics, cost, failure, files."""
    from fcilbench.results.store import Store

    store = Store(out)
    if cell is not None:
        _show_cell(store, find_row(store, cell), form, verbose)
        return
    if form in ("json", "jsonl"):
        _show_whole(store, only, form)
        return
    rows = select_rows(store, only, metrics=_RANKING)
    if not rows:
        raise _nothing(store)
    metrics = list(dict.fromkeys(name for row in rows for name in row.metrics if name.partition("/")[0] in _RANKING))
    axes = list(dict.fromkeys(axis for row in rows for axis in row.coords))
    table = [
        (
            *(row.cell_id[:12], row.suite, *(row.coords.get(axis, "") for axis in axes), row.status),
            *(_figure(row, name) for name in metrics),
            console.duration(row.cost.wall_s),
        )
        for row in rows
    ]
    headers = ("cell", "suite", *axes, "status", *metrics, "wall")
    first = len(headers) - len(metrics) - 1
    console.show_list(form, headers, table, key="rows", right=range(first, len(headers)))


def board(
    name: Annotated[str, typer.Argument(help="Board, e.g. accuracy; see `fcilbench plugins list --kind boards`.")],
    *,
    out: options.Out = options.RESULTS,
    suite: options.OfSuite = None,
    set_: options.Set = None,
    only: options.Only = None,
    data: options.Data = None,
    form: options.Format = options.Form.TABLE,
    output: options.OutputFile = None,
    verbose: options.Verbose = False,
) -> None:
    """Print a board of the rows in a results folder, or write it to a file.

    With --suite the board holds the cells that the suite plans, and counts those without a row as missing; without
    it, all rows of the folder. Notes name rows of other code, commits and environments than those of this checkout.
    """
    from fcilbench.boards.render import render
    from fcilbench.cli.plan import prepare
    from fcilbench.files import write_atomic
    from fcilbench.registry.entrypoints import lookup
    from fcilbench.results.store import Store

    lookup("boards", name)  # before anything else: a typo is not "no rows"
    chosen = _form(form, output)
    if suite is None:
        store, planned = Store(out), None
        rows = select_rows(store, only, metrics=_board_metrics(name))
    else:
        prepared = prepare(suite, set_, out, only=only, metrics=_board_metrics(name))
        store, planned = prepared.store, {item.cell_id: item.cell for item in prepared.plan.items}
        rows = [row for cell_id, row in prepared.rows.items() if cell_id in planned]
    if not rows:
        raise _nothing(store)
    text = render(
        build_board(name, rows, store, planned), chosen, width=console.width() if not output else console.WIDTH
    )
    if output is None:
        console.show(text)
    else:
        write_atomic(output, text)
        console.say(f"wrote {output}")


def build_board(name: str, rows: Sequence[Row], store: Store, planned: Mapping[str, Cell] | None = None) -> Any:
    """Builds a board by its plugin name, with notes on the origin of its rows; without a plan the rows are the plan."""
    from fcilbench.boards.notes import origin_notes

    built = _board(name).build(rows, planned)
    notes = origin_notes(rows, _here(rows, store))
    return built.model_copy(update={"notes": (*built.notes, *notes)})


def select_rows(store: Store, only: Sequence[str] | None, metrics: Collection[str]) -> list[Row]:
    """Returns the last row of each cell that `--only` selects, light, in the order of the file."""
    from fcilbench.suite.select import parse_selectors

    chosen = parse_selectors(only or ())
    return [row for row in store.latest_light(metrics).values() if chosen.matches(row.coords, row.status)]


def find_row(store: Store, prefix: str) -> Row:
    """Returns the last row of the one cell whose id begins with `prefix`.

    Raises:
        UsageError: If there is none, or more than one.
    """
    found = {row.cell_id: row for row in store.scan() if row.cell_id.startswith(prefix.lower())}
    if len(found) == 1:
        return next(iter(found.values()))
    if not found:
        raise UsageError(f"no cell {prefix} in {store.root}", hint="`fcilbench show` lists the cells")
    raise UsageError(f"{len(found)} cells begin with {prefix}", hint="give more digits of the id")


def _board(name: str) -> Any:
    from fcilbench.registry import entrypoints

    cls: Any = entrypoints.load(entrypoints.lookup("boards", name))
    return cls()


def _board_metrics(name: str) -> tuple[str, ...]:
    """Returns the metrics that a board asks for; one that does not say may look at all of them."""
    from fcilbench.spec.metrics import METRICS

    return tuple(getattr(_board(name), "metrics", METRICS))


def _form(form: options.Form, output: Path | None) -> str:
    """Returns the form to write: a file's name says it, and must not contradict --format."""
    suffix = output.suffix.lower() if output else ""
    if suffix not in _SUFFIXES:
        raise UsageError(f"-o {output}: no form for {suffix!r} files", hint="end the name in .txt, .md, .csv or .json")
    named = _SUFFIXES[suffix]
    if named is not None and form not in (options.Form.TABLE, named):
        raise UsageError(f"-o {output} contradicts --format {form}", hint="leave one of them out")
    return named or str(form)


def _here(rows: Sequence[Row], store: Store) -> Here:
    from fcilbench.boards.notes import Here
    from fcilbench.registry import catalog
    from fcilbench.registry.entrypoints import find
    from fcilbench.results.compare import environment_difference
    from fcilbench.results.provenance import environment, source_state
    from fcilbench.spec.identity import ENGINE_VERSION

    kinds = {"dataset": "datasets", "backbone": "backbones", "aggregator": "aggregators", "stress": "stressors"}
    used = {(kinds[kind], record.name) for row in rows for kind, record in row.plugins.items()}
    refs = [ref for kind in kinds.values() for ref in find(kind) if (kind, ref.name) in used]
    digests = {each.ref.name: each.code_digest for each in catalog.describe(refs) if not each.problem}
    own, environments = environment(), {}
    for env in {row.env for row in rows}:
        record = store.environment(env)
        if record is not None:
            found = environment_difference({**record, "worker": {}}, {**own, "worker": {}})
            environments[env] = _some(
                [f"{key} {there or 'none'} | {here or 'none'}" for key, (there, here) in found.items()]
            )
    return Here(source_state()[0], ENGINE_VERSION, digests, environments)


def _some(parts: Sequence[str], shown: int = 4) -> str:
    rest = f" and {len(parts) - shown} more" if len(parts) > shown else ""
    return ", ".join(parts[:shown]) + rest


def _figure(row: Row, name: str) -> str:
    value = row.metrics[name].value if name in row.metrics else None
    return "" if value is None else f"{value:.4f}"


def _nothing(store: Store) -> NothingSelectedError:
    return NothingSelectedError(f"no rows in {store.root}", hint="`fcilbench run SUITE --out DIR` writes them")


def _show_whole(store: Store, only: Sequence[str] | None, form: options.Form) -> None:
    """Prints whole rows as JSON; thousands of them are kept as texts, which take a tenth of their memory as objects."""
    from fcilbench.suite.select import parse_selectors

    chosen = parse_selectors(only or ())
    texts: dict[str, str] = {}
    for row in store.scan():
        texts.pop(row.cell_id, None)
        if chosen.matches(row.coords, row.status):  # a later row that is not selected takes an earlier one's place
            texts[row.cell_id] = _filled(row).to_json()
    if not texts:
        raise _nothing(store)
    console.show_list(form, (), (), key="rows", records=texts.values())


def _filled(row: Row) -> Row:
    """Returns a row with the metrics that a later fcilbench computes from its matrices."""
    from fcilbench.results.light import metric_values
    from fcilbench.spec.metrics import METRICS

    recorded = {name.partition("/")[0] for name in row.metrics}
    later = [name for name in METRICS if name not in recorded]
    return row.model_copy(update={"metrics": {**row.metrics, **metric_values(row, later)}}) if later else row


def _show_cell(store: Store, row: Row, form: options.Form, verbose: bool) -> None:
    plain = _filled(row).model_dump(mode="json", by_alias=True)
    hidden = {"accuracy", "classes", "test_sizes", "metrics", "plugins"}
    table: list[tuple[str, object]] = [
        (path, value)
        for path, value in flatten(plain, lists=True).items()
        if path.partition(".")[0] not in hidden and value not in (None, "", [], {})
    ]
    for name, metric in plain["metrics"].items():
        value = metric["value"]
        table.append((name, "undefined" if value is None else f"{value:.6g} {metric['unit']}"))
    for identity, matrix in row.accuracy.items():
        for number, line in enumerate(matrix, start=1):
            figures = " ".join("  -  " if value is None else f"{value:.3f}" for value in line)
            table.append((f"accuracy/{identity} after task {number}", figures))
    folder = store.cell_dir(row.cell_id)
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    table += [("file", folder / name) for name in names if not name.startswith((".", "lease"))]
    headers = () if form == "table" else ("what", "value")
    console.show_list(form, headers, table, key="rows", records=[plain])
    trace = folder / "traceback.txt"
    if verbose and trace.is_file():
        console.show(trace.read_text(encoding="utf-8", errors="replace"))
