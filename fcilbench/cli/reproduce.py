"""`fcilbench reproduce`: trains a published cell again from its row, and compares."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fcilbench.cli import console, options
from fcilbench.errors import CELLS_FAILED, OK, PrerequisiteError, UsageError

if TYPE_CHECKING:
    from fcilbench.cli.plan import Prepared
    from fcilbench.results.compare import Difference
    from fcilbench.results.store import Store
    from fcilbench.spec.row import Row

OUT = Path("reproduced")
_SAME_ORIGIN = {"*": 1e-9}
_ELSEWHERE = {"accuracy/*": 0.05, "*": 0.01}
"""Tolerances: entries of the matrix are of fewer test images than the metrics."""


def reproduce(
    cell: Annotated[str, typer.Argument(help="First digits of a cell's id.", metavar="CELL", show_default=False)],
    *,
    source: options.From,
    out: options.Out = OUT,
    tolerance: options.Tolerance = None,
    gpus: options.Gpus = "auto",
    data: options.Data = None,
    offline: options.Offline = False,
    form: options.Format = options.Form.TABLE,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Train one cell of a results folder here, from what travels with its row, and compare the results.

    Every metric is printed with both values. In the environment and code of the row, on a CPU, results must be equal
    and so must the model's digest; elsewhere metrics may differ by 0.01 and entries of the accuracy matrix by 0.05,
    or by --tolerance. Exit codes: 0 equal; 3 they differ, or the cell fails here; 5 something is missing here.
    """
    from fcilbench.cli.results import parse_tolerances
    from fcilbench.cli.show import find_row
    from fcilbench.results.compare import compare, pair_up
    from fcilbench.results.store import Store

    published = Store(source)
    row = find_row(published, cell)
    if row.status != "ok":
        raise UsageError(f"cell {row.cell_id[:12]} is {row.status}: there is no result to reproduce")
    here = _train(row, out, gpus, data, offline)
    found = compare(row, here, {})
    strict = found.same_origin and here.device == "cpu"
    allowed = {**parse_tolerances(tolerance), **(_SAME_ORIGIN if strict else _ELSEWHERE)}
    pairs = pair_up(row, here, allowed)
    differs = row.model_digest != here.model_digest
    bad = not all(each.within for each in pairs) or (strict and differs) or "data" in found.digests
    _show(form, pairs, row, here)
    for line in [*_origin_lines(published, row, Store(out), here), _digest_line(row, here, strict)]:
        console.say(line)
    if "data" in found.digests:
        console.say(f"data differ: published {row.data.fingerprint}, here {here.data.fingerprint}")
    console.say(f"cell {row.cell_id[:12]} is {'not reproduced' if bad else 'reproduced'}; rows in {out}")
    raise typer.Exit(CELLS_FAILED if bad else OK)


def _train(row: Row, out: Path, gpus: str, data: Path | None, offline: bool) -> Row:
    """Trains the cell of a row and returns its new row.

    Raises:
        Exit: If the cell fails here.
    """
    from fcilbench.cli.plan import use_data_root
    from fcilbench.cli.progress import RunProgress
    from fcilbench.execution.base import RunOptions
    from fcilbench.execution.devices import choose_devices
    from fcilbench.execution.run import run_plan

    root = use_data_root(data)
    devices = tuple(choose_devices(gpus))[:1]
    prepared = _prepare(row, out, devices)
    (item,) = prepared.plan.items
    if item.cell_id != row.cell_id:
        console.say(f"its id here is {item.cell_id[:12]}: the identity of cells, a version or a default has changed")
    prepared.store.prepare()
    digest = prepared.store.save_suite(prepared.loaded.suite.model_dump(mode="json", exclude_none=True))
    settings = RunOptions(devices=devices, data_root=root, offline=offline, suite_digest=digest)
    summary = run_plan(prepared.plan, prepared.store, (), RunProgress(), settings)
    here = summary.rows.get(item.cell_id)
    if here is None or here.status != "ok":
        reason = here.skipped or (here.failure.message if here.failure else here.status) if here else "no row"
        console.say(f"cell {row.cell_id[:12]} does not end here: {reason}")
        raise typer.Exit(summary.exit_code or CELLS_FAILED)
    return here


def _prepare(row: Row, out: Path, devices: tuple[str, ...]) -> Prepared:
    from fcilbench.cli.plan import prepare

    with tempfile.TemporaryDirectory() as folder:
        suite = Path(folder) / "suite.yaml"
        suite.write_text(json.dumps(suite_of(row)), encoding="utf-8")
        only = [f"seed:{row.seed}"]
        prepared = prepare(suite, None, out, only=only, rerun="all", devices=devices)
    if prepared.missing:
        raise PrerequisiteError(f"the cell cannot run here: {'; '.join(prepared.missing)}")
    return prepared


def suite_of(row: Row) -> dict[str, Any]:
    """Returns the suite of a row's cell and of the seeds before it, from the parameters that the row records."""
    from fcilbench.spec.protocol import Runtime

    def entry(kind: str, **more: Any) -> dict[str, Any]:
        name = row.plugins[kind].name.removeprefix("fcilbench/")  # type: ignore[index]
        return {"use": name, **more, **getattr(row.params, kind)}

    split = {} if row.params.tasks is None else {"tasks": row.params.tasks}
    partition = {key: value for key, value in row.params.partition.items() if value is not None}
    runtime = {key: value for key, value in row.params.runtime.items() if key in Runtime.model_fields}
    return {
        "fcilbench": 1,
        "name": row.suite,
        "protocol": row.params.protocol,
        "grid": {
            "dataset": [entry("dataset", **split)],
            "backbone": [entry("backbone")],
            "partition": [partition],
            "aggregator": [entry("aggregator")],
            "stress": [entry("stress")],
        },
        "seeds": {"count": row.seed + 1, **row.params.seeds},
        "evaluate": {"task_identity": row.params.evaluate},
        "runtime": runtime,
    }


def _show(form: options.Form, pairs: list[Difference], row: Row, here: Row) -> None:
    def figure(value: float | None) -> str:
        return "undefined" if value is None else f"{value:.6f}"

    metrics = [each for each in pairs if not each.metric.startswith("accuracy/")]
    matrix = [each for each in pairs if each.metric.startswith("accuracy/")]
    shown = [*metrics, *(each for each in matrix if not each.within)]
    rows = [
        (each.metric, figure(each.kept), figure(each.other), f"{each.tolerance:g}", "yes" if each.within else "NO")
        for each in shown
    ]
    headers = ("metric", "published", "here", "tolerance", "within")
    records = [{**vars(each), "within": each.within} for each in pairs]
    digests = {"published": row.model_digest, "here": here.model_digest}
    console.show_list(
        form, headers, rows, key="metrics", records=records, right=(1, 2, 3), cell_id=row.cell_id, model_digest=digests
    )
    if matrix and form is options.Form.TABLE:
        inside = sum(each.within for each in matrix)
        console.show(f"accuracy matrices: {inside} of {len(matrix)} entries within {matrix[0].tolerance:g}")


def _digest_line(row: Row, here: Row, strict: bool) -> str:
    if row.model_digest == here.model_digest:
        return "the model's digest is equal"
    why = "though environment and code are the same" if strict else "as it may in another environment or by other code"
    return f"the model's digest differs, {why}: published {row.model_digest}, here {here.model_digest}"


def _origin_lines(published: Store, row: Row, store: Store, here: Row) -> list[str]:
    """Returns what differs between where the row was made and here."""
    from fcilbench.results.compare import environment_difference

    lines = []
    for name in ("git_sha", "engine_version", "digest"):
        there, now = getattr(row.code, name), getattr(here.code, name)
        if there != now:
            lines.append(f"code {name}: published {there}, here {now}")
    record = published.environment(row.env)
    if record is None:
        return [*lines, f"the environment {row.env[:19]} of the row did not travel with it"]
    difference = environment_difference(record, store.environment(here.env) or {})
    return lines + [f"environment {key}: published {there}, here {now}" for key, (there, now) in difference.items()]
