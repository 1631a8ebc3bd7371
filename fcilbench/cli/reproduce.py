"""`fcilbench reproduce`: trains a published cell again and compares the results."""

from __future__ import annotations

from pathlib import Path

import typer

from fcilbench.cli import console, options
from fcilbench.cli.terminal import SCREEN
from fcilbench.errors import CELLS_FAILED, OK, UsageError
from fcilbench.execution.bf16 import slow_bf16
from fcilbench.execution.devices import choose_devices
from fcilbench.results.chosen import find_row
from fcilbench.results.compare import Comparison, environment_difference
from fcilbench.results.store import Store
from fcilbench.spec.row import Row
from fcilbench.workflow.again import expectation_text, parse_tolerances
from fcilbench.workflow.again import reproduce as train_again


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

    Every metric is printed with both values. Portable numbers must be equal to the bit, and so must others where code,
    libraries and processor are those of the row. Elsewhere metrics may differ by four times the spread that was
    measured between instruction sets (docs/portability.md), or by --tolerance; bytes and counts must be equal.
    Exit codes: 0 as expected; 3 results differ or the cell fails here; 5 something is missing here.
    """
    published = Store(source)
    row = find_row(published, cell)
    if row.status != "ok":
        raise UsageError(f"cell {row.cell_id[:12]} is {row.status}: there is no result to reproduce")
    console.warn(slow_bf16([row.params.protocol.get("precision", "")], choose_devices(gpus)))
    given = parse_tolerances(tolerance)
    done = train_again(published, row, out, gpus=gpus, offline=offline, tolerance=given, screen=SCREEN)
    if done.broken_off:
        raise typer.Exit(done.broken_off)
    if done.found is not None and done.here is not None:
        _show(form, done.found, row, done.here)
        for line in _origin_lines(published, row, Store(out), done.here):
            console.say(line)
        console.say(f"expected: {expectation_text(done.found.expectation)}")
        for name, (there, now) in done.found.digests.items():
            console.say(f"the {name}'s digest differs: published {there}, here {now}")
        if "model" not in done.found.digests:
            console.say("the model's digest is equal")
        how = f"reproduced, {done.verdict}" if not done.problem else "not reproduced"
        console.say(f"cell {row.cell_id[:12]} is {how}; rows in {out}")
    raise typer.Exit(CELLS_FAILED if done.problem else OK)


def _show(form: options.Form, found: Comparison, row: Row, here: Row) -> None:
    matrix = [each for each in found.pairs if each.metric.startswith("accuracy/")]
    rows = [
        (
            each.metric,
            *map(_figure, (each.kept, each.other)),
            "not judged" if each.tolerance is None else f"{each.tolerance:g}",
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
        limit = matrix[0].tolerance
        judged = "are not judged one by one" if limit is None else f"within {limit:g}"
        console.show(f"accuracy matrices: {inside} of {len(matrix)} entries {judged}")


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
