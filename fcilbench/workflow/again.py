"""Trains published rows again and compares the results: one of them, or a sample of a folder that is checked first."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from fcilbench.boards.notes import coverage_notes
from fcilbench.errors import CELLS_FAILED, INTERRUPTED, OK, PREREQUISITE, PrerequisiteError, UsageError
from fcilbench.execution.base import RunOptions
from fcilbench.execution.bf16 import slow_bf16
from fcilbench.execution.data_check import data_problems
from fcilbench.execution.devices import choose_devices
from fcilbench.registry import catalog
from fcilbench.registry.entrypoints import lookup
from fcilbench.results.agreement import ONE_CELL, Expectation, expected, off_in_the_mean, spread_measured
from fcilbench.results.compare import Comparison, compare
from fcilbench.results.row import task_identities
from fcilbench.results.stale import stale_rows
from fcilbench.results.store import Store
from fcilbench.results.verify import verify as verify_store
from fcilbench.spec.cell import OWN, PLUGIN_KINDS, PluginKind
from fcilbench.spec.protocol import Runtime
from fcilbench.spec.row import Row
from fcilbench.workflow.prepare import prepare
from fcilbench.workflow.screen import SILENT, Screen
from fcilbench.workflow.train import train

_SHOWN = 4
"""Differences that a line names."""


@dataclass(frozen=True)
class Reproduction:
    """A published cell that was trained here.

    Attributes:
        here: The new row; `None` if there is none.
        found: What differs; `None` if the cell has no result here.
        problem: Why it is not reproduced, in one line; empty if it is.
        broken_off: Exit code of a run that says nothing about the row: it was interrupted, or lacked something here.
    """

    row: Row
    here: Row | None
    found: Comparison | None
    problem: str
    broken_off: int = OK

    @property
    def verdict(self) -> str:
        """What a result that agrees rests on, in a few words."""
        if self.found is None or self.problem:
            return "not reproduced"
        if self.found.equal:
            return "equal to the bit"
        exact = self.found.expectation.exact
        return f"within the {'given tolerance' if exact else 'measured spread between instruction sets'}"

    @property
    def differences(self) -> dict[str, float]:
        """The metrics that are defined in both rows, published minus here."""
        pairs = self.found.pairs if self.found else ()
        return {each.metric: each.kept - each.other for each in pairs if None not in (each.kept, each.other)}  # type: ignore[operator]


def reproduce(
    published: Store,
    row: Row,
    out: Path,
    *,
    gpus: str = "auto",
    offline: bool = False,
    tolerance: Mapping[str, float] | None = None,
    screen: Screen = SILENT,
) -> Reproduction:
    """Trains the cell of a row of a results folder here and compares the results.

    Args:
        published: The results folder of the row.
        row: A row with a result.
        out: Results folder of the new row.
        gpus: Value of `--gpus`; of several devices the first one.
        offline: Refuse the network to workers.
        tolerance: What `parse_tolerances` returns.
        screen: Where it tells what it does.

    Raises:
        PrerequisiteError: If the cell cannot run here.
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
    if not (item.run or item.awaited):  # its row there is that of another training
        raise PrerequisiteError(
            f"cell {item.cell_id[:12]} is {item.why}", hint="wait for its end, or name another --out"
        )
    reasons = "; ".join(stale_rows([row]).get(row.cell_id, ()))
    if item.cell_id != row.cell_id:
        why = reasons or "the identity of cells, a version or a default has changed"
        screen.say(f"its id here is {item.cell_id[:12]}: {why}")
    elif reasons:
        screen.say(f"the row is of older code than this checkout: {reasons}")
    summary = train(prepared, RunOptions(devices=devices, offline=offline), "none", screen)
    here = summary.rows.get(item.cell_id)
    if here is None or here.status != "ok":
        problem = f"does not end here: {here.reason if here else 'no row'}"
        screen.say(f"cell {row.cell_id[:12]} {problem}")
        broken_off = here is None or summary.exit_code in (INTERRUPTED, PREREQUISITE)
        return Reproduction(row, here, None, problem, (summary.exit_code or CELLS_FAILED) if broken_off else OK)
    records = published.environment(row.env), Store(out).environment(here.env)
    found = compare(row, here, expected(row, here, records), tolerance or {})
    parts = [f"{each.metric} {each.kept} published, {each.other} here" for each in found.differences]
    parts += [f"another digest of the {name}" for name in found.digests if name == "data" or found.expectation.exact]
    return Reproduction(row, here, found, "; ".join(parts[:_SHOWN]))


@dataclass(frozen=True)
class Verified:
    """A folder of rows that was checked, and of which a sample was trained again.

    Attributes:
        rows: Number of rows that were checked.
        problems: The number of a line of `rows.jsonl` (0 for all of them) and what is wrong with it.
        trained: The cells of the sample that were trained again.
        broken_off: Exit code of the run that broke the check off, see `Reproduction`.
    """

    rows: int
    problems: Sequence[tuple[int, str]]
    trained: Sequence[Reproduction]
    broken_off: int = OK

    @property
    def verdict(self) -> str:
        """What was found, and what that rests on, in one line."""
        counts = Counter(done.verdict for done in self.trained if not done.problem)
        rests = f" ({', '.join(f'{number} {verdict}' for verdict, number in counts.items())})" if counts else ""
        clean = "no problem: clean as far as docs/trust.md says can be known"
        end = f"{len(self.problems)} problems" if self.problems else clean
        return f"{self.rows} rows checked, {len(self.trained)} of them trained again{rests}; {end}"


def verify(
    folder: Path,
    out: Path,
    *,
    sample: int = 3,
    seed: int = 0,
    tolerance: Mapping[str, float] | None = None,
    gpus: str = "auto",
    offline: bool = False,
    screen: Screen = SILENT,
    show: Callable[[str], None] = lambda _: None,
) -> Verified:
    """Checks all rows of a folder that can be computed again, then trains a sample of its cells again.

    Args:
        folder: Folder that was exported.
        out: Results folder of the new rows.
        sample: Number of cells to train again; they are drawn from the results without a problem.
        seed: Seed of the sample.
        tolerance: What `parse_tolerances` returns.
        gpus: Value of `--gpus`.
        offline: Refuse the network to workers.
        screen: Where it tells what it does.
        show: Is told each problem as it is found, as `file:line: what`.

    Raises:
        PrerequisiteError: If a cell of the sample cannot run here.
    """
    checked = verify_store(store := Store(folder))
    rows, problems, trained = checked.rows, list[tuple[int, str]](), list[Reproduction]()

    def add(number: int, text: str) -> None:
        problems.append((number, text))
        show(f"{store.rows_path}{f':{number}' if number else ''}: {text}")

    for note in checked.notes:
        screen.say(f"note: {note}")
    for number, text in (*checked.problems, *data_problems(rows, screen.say)):
        add(number, text)
    drawn = _sample(rows, {number for number, _ in problems}, sample, seed, screen)
    if slow := slow_bf16((rows[n].params.protocol.get("precision", "") for _, n in drawn), choose_devices(gpus)):
        screen.warn(slow)
    for cell_id, number in drawn:
        try:
            done = reproduce(store, rows[number], out, gpus=gpus, offline=offline, tolerance=tolerance, screen=screen)
        except UsageError as error:  # the suite that its parameters make is none
            add(number, f"cell {cell_id[:12]}: cannot be trained again: {error}")
            continue
        trained.append(done)
        if done.broken_off:
            return Verified(len(rows), problems, trained, done.broken_off)
        if done.found is not None:
            screen.say(f"cell {cell_id[:12]}: expected {expectation_text(done.found.expectation)}; {done.verdict}")
        if done.problem:
            add(number, f"cell {cell_id[:12]}: not reproduced: {done.problem}")
    for text in _off_in_the_mean(trained):
        add(0, text)
    suites = {digest: store.suite(digest) for digest in {row.suite_digest for row in rows.values()} if digest}
    for text in coverage_notes(rows.values(), suites):
        screen.say(f"note: {text}")
    return Verified(len(rows), problems, trained)


def _sample(
    rows: Mapping[int, Row], wrong: Collection[int], size: int, seed: int, screen: Screen
) -> list[tuple[str, int]]:
    """Draws cells with the lines of their results, of those that are not `wrong` and can be trained again here."""
    # The order of the lines must not choose the sample.
    results = sorted((row.cell_id, n) for n, row in rows.items() if row.status == "ok" and n not in wrong)
    drawn = list[tuple[str, int]]()
    for cell_id, number in Random(seed).sample(results, len(results)):
        if len(drawn) == size:
            break
        try:
            suite_of(rows[number])
        except UsageError as error:
            screen.say(f"note: {error}")
        else:
            drawn.append((cell_id, number))
    return drawn


def _off_in_the_mean(trained: Sequence[Reproduction]) -> list[str]:
    """Returns the metrics in which the cells of a sample are together further off than each alone may be."""
    found = [(each.found.expectation, each.differences) for each in trained if each.found]
    judged = [pair for pair in found if not pair[0].exact]
    return [
        f"{metric} of the {len(judged)} cells trained again is {abs(mean):.4f} {'above' if mean > 0 else 'below'} what "
        f"they give here, in the mean, and the spread between instruction sets explains {limit:.4f}"
        for metric, (mean, limit) in off_in_the_mean(judged).items()
    ]


def expectation_text(expectation: Expectation) -> str:
    """Returns which agreement is expected and why, in one line."""
    if expectation.exact:
        return f"equal bits, since {expectation.why}"
    return (
        f"the spread between instruction sets ({spread_measured()}), since {expectation.why}: each metric within "
        f"{ONE_CELL:g} times that of the method"
    )


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
    options = {str(kind): _options(row, kind) for kind in row.plugins}
    # A method may have an option with the name of a protocol field, as `joint` has `batch_size`.
    options["aggregator"] = {f"aggregator.{name}": value for name, value in options["aggregator"].items()}
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


def _options(row: Row, kind: PluginKind) -> dict[str, Any]:
    """Returns the options of a row's plugin, without those that it had at a default and that are no options here.

    Raises:
        UsageError: If an option that was chosen is none here: no cell of this fcilbench is that of the row.
    """
    record, params = row.plugins[kind], getattr(row.params, kind)
    try:
        (here,) = catalog.describe([lookup(PLUGIN_KINDS[kind], record.name)])
    except UsageError:  # a plugin that is not here, which the plan of the suite says better
        return dict(params)
    if here.problem:
        return dict(params)
    chosen = [key for key in params if key in record.identity and key not in here.field_names]
    if chosen:
        commit = f"commit {row.code.git_sha[:12]}" if row.code.git_sha else f"version {record.version} of {record.name}"
        raise UsageError(
            f"cell {row.cell_id[:12]} sets {', '.join(f'{key}={params[key]}' for key in chosen)} of {record.name}, "
            f"which version {here.version} does not have: it cannot be trained again here",
            hint=f"train it with {commit}, of which the row is",
        )
    return {key: value for key, value in params.items() if key in here.field_names}


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
