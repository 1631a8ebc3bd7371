"""`fcilbench reproduce`: trains a published cell again and compares the results."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from fcilbench.results.agreement import ONE_CELL, Expectation, expected, spread_measured
from fcilbench.results.compare import Comparison, compare, environment_difference
from fcilbench.results.row import task_identities
from fcilbench.results.stale import stale_rows
from fcilbench.results.store import Store
from fcilbench.spec.cell import OWN
from fcilbench.spec.protocol import Runtime
from fcilbench.spec.row import Row

_SHOWN = 4
"""Differences that a line names."""


@dataclass(frozen=True)
class Reproduction:
    """A published cell that was trained here.

    Attributes:
        here: The new row.
        found: What differs; `None` if the cell has no result here.
        problem: Why it is not reproduced, in one line; empty if it is.
    """

    row: Row
    here: Row
    found: Comparison | None
    problem: str

    @property
    def verdict(self) -> str:
        """What a result that agrees rests on, in a few words."""
        if self.found is None or self.problem:
            return "not reproduced"
        return "equal to the bit" if self.found.equal else "within the measured spread between instruction sets"

    @property
    def differences(self) -> dict[str, float]:
        """The metrics that are defined in both rows, published minus here."""
        pairs = self.found.pairs if self.found else ()
        return {each.metric: each.kept - each.other for each in pairs if None not in (each.kept, each.other)}  # type: ignore[operator]


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
    console.warn_of_bf16([row.params.protocol.get("precision", "")], choose_devices(gpus))
    done = train_again(published, row, out, gpus=gpus, offline=offline, tolerance=parse_tolerances(tolerance))
    if done.found is not None:
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


def expectation_text(expectation: Expectation) -> str:
    """Returns which agreement is expected and why, in one line."""
    if expectation.exact:
        return f"equal bits, since {expectation.why}"
    return (
        f"the spread between instruction sets ({spread_measured()}), since {expectation.why}: each metric within "
        f"{ONE_CELL:g} times that of the method"
    )


def train_again(
    published: Store, row: Row, out: Path, *, gpus: str, offline: bool, tolerance: Mapping[str, float]
) -> Reproduction:
    """Trains the cell of a row of a results folder here and compares the results.

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
        return Reproduction(row, here, None, problem)
    records = published.environment(row.env), Store(out).environment(here.env)
    found = compare(row, here, expected(row, here, records), tolerance)
    parts = [f"{each.metric} {each.kept} published, {each.other} here" for each in found.differences]
    parts += [f"another digest of the {name}" for name in found.digests if name == "data" or found.expectation.exact]
    return Reproduction(row, here, found, "; ".join(parts[:_SHOWN]))


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
        "evaluate": {"task_identity": list(task_identities(params.evaluate)), **_selectors(row)},
        "runtime": {key: value for key, value in params.runtime.items() if key in Runtime.model_fields},
    }


def _selectors(row: Row) -> dict[str, Any]:
    """Returns the selectors of a row as a suite names them; nothing for the default."""
    if not row.selectors:
        return {}
    use = {
        label: {"use": each.name.removeprefix("fcilbench/"), "label": label, **each.params}
        for label, each in row.selectors.items()
    }
    picking = [key.partition(":")[2] for key in row.params.evaluate if key.startswith("inferred")]
    return {"selectors": [use.get(label, OWN.label) for label in picking]}


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
