"""`fcilbench reproduce`: trains a published cell again and compares the results."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fcilbench.cli import console, options
from fcilbench.errors import CELLS_FAILED, OK, PrerequisiteError, UsageError

if TYPE_CHECKING:
    from fcilbench.results.compare import Comparison, Difference
    from fcilbench.results.store import Store
    from fcilbench.spec.row import Row

_SAME_ORIGIN = {"*": 1e-9}
_ELSEWHERE = {"accuracy/*": 0.05, "*": 0.01}
"""Tolerances: entries of the matrix are of fewer test images than the metrics."""
_SHOWN = 4
"""Differences that a line names."""


def reproduce(
    cell: Annotated[str, typer.Argument(help="First digits of a cell's id.", metavar="CELL", show_default=False)],
    *,
    source: options.From,
    out: options.Out = Path("reproduced"),
    tolerance: options.Tolerance = None,
    gpus: options.Gpus = "auto",
    data: options.Data = None,
    offline: options.Offline = False,
    form: options.Format = options.Form.TABLE,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Train one cell of a results folder on this machine, from its row, and compare the results.

    Every metric is printed with both values. With the environment and code of the row, on a CPU, metrics and model
    digest must be equal; otherwise metrics may differ by 0.01 and entries of the accuracy matrix by 0.05, or by
    --tolerance. Exit codes: 0 equal; 3 results differ or the cell fails here; 5 something is missing here.
    """
    from fcilbench.cli.results import parse_tolerances
    from fcilbench.cli.show import find_row
    from fcilbench.results.store import Store

    published = Store(source)
    row = find_row(published, cell)
    if row.status != "ok":
        raise UsageError(f"cell {row.cell_id[:12]} is {row.status}: there is no result to reproduce")
    again = train_again(row, out, gpus, offline, parse_tolerances(tolerance))
    here, digests = again.here, again.found.digests
    if here is None:
        raise typer.Exit(again.exit_code)
    _show(form, again.pairs, row, here)
    for line in _origin_lines(published, row, Store(out), here):
        console.say(line)
    why = "though environment and code are the same" if again.strict else "as it may by other code or elsewhere"
    for name, (there, now) in digests.items():
        console.say(f"the {name}'s digest differs, {why}: published {there}, here {now}")
    if "model" not in digests:
        console.say("the model's digest is equal")
    console.say(f"cell {row.cell_id[:12]} is {'not reproduced' if again.problem else 'reproduced'}; rows in {out}")
    raise typer.Exit(CELLS_FAILED if again.problem else OK)


@dataclass(frozen=True)
class Again:
    """A published cell that was trained again.

    Attributes:
        here: Its new row; `None` if it did not end here.
        strict: Whether results must be equal: the environment and code of the row, on a CPU.
        problem: Why it is not reproduced, in one line; empty if it is.
    """

    here: Row | None
    found: Comparison
    pairs: list[Difference]
    strict: bool
    problem: str
    exit_code: int = OK


def train_again(row: Row, out: Path, gpus: str, offline: bool, tolerance: Mapping[str, float]) -> Again:
    """Trains the cell of a row here and compares the results.

    Raises:
        PrerequisiteError: If the cell cannot run here.
    """
    from fcilbench.cli.plan import prepare
    from fcilbench.cli.run import train
    from fcilbench.execution.base import RunOptions
    from fcilbench.execution.devices import choose_devices
    from fcilbench.results.compare import compare, pair_up

    devices = tuple(choose_devices(gpus))[:1]
    with tempfile.TemporaryDirectory() as folder:
        suite = Path(folder) / "suite.yaml"
        suite.write_text(json.dumps(suite_of(row)), encoding="utf-8")
        prepared = prepare(suite, None, out, only=[f"seed:{row.seed}"], rerun="all", devices=devices)
    if prepared.missing:
        raise PrerequisiteError(f"the cell cannot run here: {'; '.join(prepared.missing)}")
    (item,) = prepared.plan.items
    if item.cell_id != row.cell_id:
        console.say(f"its id here is {item.cell_id[:12]}: the identity of cells, a version or a default has changed")
    summary = train(prepared, RunOptions(devices=devices, offline=offline), "none")
    here = summary.rows.get(item.cell_id)
    found = compare(row, here or row, {})
    if here is None or here.status != "ok":
        problem = f"does not end here: {here.reason if here else 'no row'}"
        console.say(f"cell {row.cell_id[:12]} {problem}")
        return Again(None, found, [], False, problem, summary.exit_code or CELLS_FAILED)
    strict = found.same_origin and here.device == "cpu"
    pairs = pair_up(row, here, {**tolerance, **(_SAME_ORIGIN if strict else _ELSEWHERE), **tolerance})
    parts = [f"{each.metric} {each.kept} published, {each.other} here" for each in pairs if not each.within]
    wrong = [name for name in found.digests if name == "data" or strict]
    parts += [f"another digest of the {name}" for name in wrong]
    return Again(here, found, pairs, strict, "; ".join(parts[:_SHOWN]))


def suite_of(row: Row) -> dict[str, Any]:
    """Returns a suite with a row's cell, made from the parameters that the row records."""
    from fcilbench.spec.protocol import Runtime

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


def _show(form: options.Form, pairs: list[Difference], row: Row, here: Row) -> None:
    matrix = [each for each in pairs if each.metric.startswith("accuracy/")]
    rows = [
        (
            each.metric,
            *("undefined" if value is None else f"{value:.6f}" for value in (each.kept, each.other)),
            f"{each.tolerance:g}",
            "yes" if each.within else "NO",
        )
        for each in pairs
        if each not in matrix or not each.within
    ]
    headers = ("metric", "published", "here", "tolerance", "within")
    records = [{**vars(each), "within": each.within} for each in pairs]
    digests = {"published": row.model_digest, "here": here.model_digest}
    about = {"cell_id": row.cell_id, "model_digest": digests}
    console.show_list(form, headers, rows, key="metrics", records=records, right=(1, 2, 3), **about)
    if matrix and form is options.Form.TABLE:
        inside = sum(each.within for each in matrix)
        console.show(f"accuracy matrices: {inside} of {len(matrix)} entries within {matrix[0].tolerance:g}")


def _origin_lines(published: Store, row: Row, store: Store, here: Row) -> list[str]:
    """Returns the differences in code and environment between the published row and the new one."""
    from fcilbench.results.compare import environment_difference

    differing: dict[str, tuple[Any, Any]] = {
        f"code {name}": (getattr(row.code, name), getattr(here.code, name))
        for name in ("git_sha", "engine_version", "digest")
    }
    record = published.environment(row.env)
    if record is not None:
        found = environment_difference(record, store.environment(here.env) or {})
        differing |= {f"environment {key}": pair for key, pair in found.items()}
    lines = [f"{what}: published {there}, here {now}" for what, (there, now) in differing.items() if there != now]
    return lines if record is not None else [*lines, f"the row's environment {row.env[:19]} did not travel with it"]
