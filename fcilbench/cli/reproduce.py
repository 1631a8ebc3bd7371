"""`fcilbench reproduce`: trains a published cell again and compares the results."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from fcilbench.cli import console, options
from fcilbench.cli.plan import prepare
from fcilbench.cli.run import train
from fcilbench.cli.show import find_row
from fcilbench.errors import CELLS_FAILED, INTERRUPTED, OK, PREREQUISITE, PrerequisiteError, UsageError
from fcilbench.execution.base import RunOptions
from fcilbench.execution.devices import choose_devices
from fcilbench.results.compare import Comparison, compare, environment_difference, same_origin
from fcilbench.results.stale import stale_rows
from fcilbench.results.store import Store
from fcilbench.spec.protocol import Runtime
from fcilbench.spec.row import Row

_SAME_ORIGIN = {"*": 1e-9}
_ELSEWHERE = {"accuracy/*": 0.05, "*": 0.01}
"""Tolerances: entries of the matrix are of fewer test images than the metrics."""
_SHOWN = 4
"""Differences that a line names."""


def reproduce(
    cell: options.CellId,
    *,
    source: options.From,
    out: options.Out = Path("reproduced"),
    tolerance: options.Tolerance = None,
    gpus: options.Gpus = "auto",
    data: options.Data = None,
    offline: options.Offline = False,
    form: options.Format = options.Form.TABLE,
) -> None:
    """Train one cell of a results folder on this machine, from its row, and compare the results.

    Every metric is printed with both values. With the environment and code of the row, on a CPU, metrics and model
    digest must be equal; otherwise metrics may differ by 0.01 and entries of the accuracy matrix by 0.05, or by
    --tolerance. Exit codes: 0 equal; 3 results differ or the cell fails here; 5 something is missing here.
    """
    published = Store(source)
    row = find_row(published, cell)
    if row.status != "ok":
        raise UsageError(f"cell {row.cell_id[:12]} is {row.status}: there is no result to reproduce")
    console.warn_of_bf16([row.params.protocol.get("precision", "")], choose_devices(gpus))
    here, found, problem = train_again(row, out, gpus, offline, parse_tolerances(tolerance))
    if found is not None:
        _show(form, found, row, here)
        for line in _origin_lines(published, row, Store(out), here):
            console.say(line)
        same, other = "though environment and code are the same", "as it may by other code or elsewhere"
        for name, (there, now) in found.digests.items():
            console.say(
                f"the {name}'s digest differs, {same if found.same_origin else other}: published {there}, here {now}"
            )
        if "model" not in found.digests:
            console.say("the model's digest is equal")
        console.say(f"cell {row.cell_id[:12]} is {'not reproduced' if problem else 'reproduced'}; rows in {out}")
    raise typer.Exit(CELLS_FAILED if problem else OK)


def train_again(
    row: Row, out: Path, gpus: str, offline: bool, tolerance: Mapping[str, float]
) -> tuple[Row, Comparison | None, str]:
    """Trains the cell of a row here and compares the results.

    Returns:
        The new row; the comparison, or `None` if the cell has no result here; and why it is not reproduced, in one
        line, which is empty if it is.

    Raises:
        PrerequisiteError: If the cell cannot run here.
        typer.Exit: If the user interrupts it, or something is missing when it runs.
    """
    # Portable numbers are computed on a CPU, whatever devices there are.
    devices = tuple(choose_devices("none" if gpus == "auto" and row.params.runtime.get("portable") else gpus))[:1]
    with tempfile.TemporaryDirectory() as folder:
        suite = Path(folder) / "suite.yaml"
        suite.write_text(json.dumps(suite_of(row)), encoding="utf-8")
        prepared = prepare(suite, None, out, only=[f"seed:{row.seed}"], rerun="all", devices=devices)
    if prepared.missing:
        raise PrerequisiteError(f"the cell cannot run here: {'; '.join(prepared.missing)}")
    (item,) = prepared.plan.items
    reasons = "; ".join(stale_rows([row]).get(row.cell_id, ()))
    if item.cell_id != row.cell_id:
        why = reasons or "the identity of cells, a version or a default has changed"
        console.say(f"its id here is {item.cell_id[:12]}: {why}")
    elif reasons:
        console.say(f"the row is of older code than this checkout: {reasons}")
    summary = train(prepared, RunOptions(devices=devices, offline=offline), "none")
    here = summary.rows.get(item.cell_id)
    if here is None or here.status != "ok":
        problem = f"does not end here: {here.reason if here else 'no row'}"
        console.say(f"cell {row.cell_id[:12]} {problem}")
        if here is None or summary.exit_code in (INTERRUPTED, PREREQUISITE):
            raise typer.Exit(summary.exit_code or CELLS_FAILED)
        return here, None, problem
    strict = same_origin(row, here) and here.device == "cpu"
    defaults = (_SAME_ORIGIN if strict else _ELSEWHERE).items()
    others = {pattern: value for pattern, value in defaults if pattern not in tolerance}
    found = compare(row, here, {**tolerance, **others})  # the first pattern that fits counts
    parts = [f"{each.metric} {each.kept} published, {each.other} here" for each in found.differences]
    parts += [f"another digest of the {name}" for name in found.digests if name == "data" or strict]
    return here, found, "; ".join(parts[:_SHOWN])


def parse_tolerances(given: Sequence[str] | None) -> dict[str, float]:
    """Returns the values of `--tolerance` by pattern, the more specific patterns first."""
    found: dict[str, float] = {}
    for text in given or ():
        metric, _, value = text.partition("=")
        try:
            found[metric] = float(value)
        except ValueError:
            metric = ""
        if not metric or not found[metric] >= 0:
            raise UsageError(f"--tolerance {text}: not METRIC=VALUE", hint="e.g. --tolerance 'faa/*=1e-6'")
    return dict(sorted(found.items(), key=lambda each: -len(each[0].replace("*", ""))))


def suite_of(row: Row) -> dict[str, Any]:
    """Returns a suite with a row's cell, made from the parameters that the row records."""
    params = row.params
    options = {kind: getattr(params, kind) for kind in row.plugins}
    # A method may have an option with the name of a protocol field, as `joint` has `batch_size`.
    options["aggregator"] = {f"aggregator.{name}": value for name, value in params.aggregator.items()}
    axes: dict[str, Any] = {
        kind: [{"use": record.name.removeprefix("fcilbench/"), **options[kind]}] for kind, record in row.plugins.items()
    }
    if params.tasks is not None:
        axes["dataset"][0]["tasks"] = params.tasks
    axes["partition"] = [{key: value for key, value in params.partition.items() if value is not None}]
    return {
        "fcilbench": 1,
        "name": row.suite,
        "protocol": params.protocol,
        "grid": axes,
        "seeds": {"count": row.seed + 1, **params.seeds},
        "evaluate": {"task_identity": params.evaluate},
        "runtime": {key: value for key, value in params.runtime.items() if key in Runtime.model_fields},
    }


def _show(form: options.Form, found: Comparison, row: Row, here: Row) -> None:
    matrix = [each for each in found.pairs if each.metric.startswith("accuracy/")]
    rows = [
        (
            each.metric,
            *map(_figure, (each.kept, each.other)),
            f"{each.tolerance:g}",
            "yes" if each.within else "NO",
        )
        for each in found.pairs
        if each not in matrix or not each.within
    ]
    headers = ("metric", "published", "here", "tolerance", "within")
    records = [{**vars(each), "within": each.within} for each in found.pairs]
    about = {"cell_id": row.cell_id, "model_digest": {"published": row.model_digest, "here": here.model_digest}}
    console.show_list(form, headers, rows, key="metrics", records=records, right=(1, 2, 3), **about)
    if matrix and form is options.Form.TABLE:
        inside = sum(each.within for each in matrix)
        console.show(f"accuracy matrices: {inside} of {len(matrix)} entries within {matrix[0].tolerance:g}")


def _figure(value: float | None) -> str:
    return "undefined" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.6f}"


def _origin_lines(published: Store, row: Row, store: Store, here: Row) -> list[str]:
    """Returns the differences in code and environment between the published row and the new one."""
    record = published.environment(row.env)
    codes = [{"code": each.code.model_dump(exclude={"dirty"})} for each in (row, here)]
    if record is not None:
        codes[0]["environment"], codes[1]["environment"] = record, store.environment(here.env) or {}
    lines = [
        f"{what.replace('.', ' ', 1)}: published {there}, here {now}"
        for what, (there, now) in environment_difference(*codes).items()
    ]
    return lines if record is not None else [*lines, f"the row's environment {row.env[:19]} did not travel with it"]
