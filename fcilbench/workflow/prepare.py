"""Loads a suite and plans it: what a run would do here, what it would cost, and what is missing. Writes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fcilbench.data.root import MissingData, missing_data
from fcilbench.errors import NothingSelectedError, UsageError
from fcilbench.execution.devices import default_jobs, facts_of
from fcilbench.execution.lease import running_cells
from fcilbench.results.agreement import computed_by, computes_here
from fcilbench.results.provenance import environment, same_hardware
from fcilbench.results.stale import stale_rows
from fcilbench.results.store import Store
from fcilbench.suite.expand import expand, missing_lines
from fcilbench.suite.load import LoadedSuite, load_suite
from fcilbench.suite.plan import Plan, make_plan
from fcilbench.suite.select import parse_selectors
from fcilbench.tables import duration


@dataclass(frozen=True)
class Prepared:
    """A plan with the suite, the results folder and the missing data sets of selected cells that it was made from.

    Attributes:
        computes: What numbers are computed with on this machine, as `fcilbench.results.agreement.computed_by` names it.
    """

    loaded: LoadedSuite
    plan: Plan
    store: Store
    missing_data: list[MissingData]
    computes: str = ""

    @property
    def missing(self) -> list[str]:
        """What the selected cells need and this machine lacks, without repetitions."""
        return list(dict.fromkeys([*missing_lines(self.plan.without_id), *map(str, self.missing_data)]))


def prepare(
    suite: Path,
    overrides: Sequence[str] | None,
    out: Path,
    *,
    only: Sequence[str] | None = None,
    rerun: str = "stale",
    devices: Sequence[str] = ("",),
    params: Path | None = None,
) -> Prepared:
    """Loads a suite and plans it; writes nothing.

    The arguments are the options of the command line. Costs are estimated for `devices`.

    Raises:
        NothingSelectedError: If `only` selects no cell, and nothing is missing here that may be why.
        UsageError: If cells want portable numbers, and a device is a GPU.
    """
    loaded = load_suite(suite, overrides or (), params)
    store = Store(out)
    if loaded.suite.runtime.portable and any(devices):
        raise UsageError("runtime.portable: portable numbers are computed on a CPU", hint="add --gpus none")
    rows, running, gpu = store.latest(), running_cells(store), bool(devices[0])
    own = environment(facts_of(devices[0]))
    here = {env for env in {row.env for row in rows.values()} if same_hardware(store.environment(env), own)}
    expansion = expand(loaded)
    lacking = missing_data(expansion.facts)
    stale = stale_rows(rows[each] for each in expansion.ids if each in rows)
    known: dict[str, Any] = {"missing": lacking, "stale": stale, "running": running}
    plan_ = make_plan(expansion, rows, rerun, only or (), **known, environments=here, gpu=gpu)
    selected = dict.fromkeys(item.cell.dataset.label for item in plan_.items)
    absent = dict.fromkeys(lacking[label] for label in selected if label in lacking)
    prepared = Prepared(loaded, plan_, store, list(absent), computes_here(loaded.suite.runtime.portable, own))
    if only and not plan_.items and not prepared.missing:
        coords = [*(cell.coords for cell in expansion.cells), *(coords for coords, _ in expansion.excluded)]
        coords += [each.coords for each in expansion.blocked]
        hint = "the suite's exclude rules may leave such cells out"
        raise NothingSelectedError(parse_selectors(only).why_nothing("the grid", coords), hint=hint)
    return prepared


def slots_per_device(prepared: Prepared, devices: Sequence[str], jobs: int | None) -> int:
    """Returns `--jobs`, or the number that suits the device if it is not given."""
    threads = max((item.cell.runtime.threads for item in prepared.plan.items), default=1)
    return jobs or default_jobs(list(devices), threads)


def describe(prepared: Prepared, slots: int) -> list[str]:
    """Returns lines that say how many cells are in each state, why they run, and what that costs in `slots` slots."""
    plan_, expansion = prepared.plan, prepared.plan.expansion
    axes = {axis: axis + ("es" if axis == "stress" else "s") * (size > 1) for axis, size in expansion.axes.items()}
    product = " x ".join(f"{expansion.axes[axis]} {word}" for axis, word in axes.items())
    excluded = f", {len(expansion.excluded)} excluded" if expansion.excluded else ""
    lines = [f"{expansion.name}: {product}{excluded} -> {len(expansion.cells)} cells"]
    if len(plan_.items) != len(expansion.cells):
        lines[0] += f", {len(plan_.items)} of them selected"
    counted = "   ".join(f"{state} {number}" for state, number in plan_.counts.items())
    lines.append(f"  {counted or 'nothing'}   (store {prepared.store.root})")
    reasons = Counter(item.why for item in plan_.items if item.why and not item.blocked)
    lines += [f"  {number} x {why}" for why, number in reasons.items()]
    lines += [f"  missing here: {line}" for line in prepared.missing]
    if plan_.blocked:
        seconds = sum(item.seconds for item in plan_.items if item.blocked)
        cost = f", about {duration(seconds)} of work" if seconds else ""
        lines.append(f"  {plan_.blocked} cells are left out because of what is missing{cost}")
    lines += [f"  {problem} ({problem.hint})" for problem in expansion.unused]
    lines += [f"  {remark}" for remark in expansion.remarks]
    suite = prepared.loaded.suite
    bare = [item.cell.aggregator.label for item in plan_.items if suite.lock_digest and not item.cell.tuned_from]
    if bare:
        lines.append(f"  no rule of the lock file is about {len(bare)} cells: {', '.join(dict.fromkeys(bare))}")
    # The last rule of a method and scenario gives the values; those before it are of studies that are over.
    last = {tuple(each.where.items()): each.study for each in suite.tuned if each.study}
    studies = [each for each in last.values() if each.trials]
    short = [each for each in studies if each.trials < suite.tuning.trials]
    if short:
        least, wanted = min(each.trials for each in short), suite.tuning.trials
        what = f"{len(short)} of {len(studies)} studies in the lock file have fewer than {wanted} trials"
        lines.append(f"  {what}, the least {least}: `fcilbench tune` continues them")
    if not plan_.todo:
        return [*lines, "  nothing to run" + " but what another run trains" * any(item.awaited for item in plan_.items)]
    lines += _computed_elsewhere(prepared)
    guessed = sum(item.basis == "guess" for item in plan_.todo)
    basis = f"guess for {guessed} of them" if guessed else "measured on this hardware"
    total, wall = duration(plan_.seconds), duration(plan_.seconds / slots)
    return [*lines, f"  to run: {len(plan_.todo)} cells, {total} ({basis}), {slots} slots -> about {wall}"]


def _computed_elsewhere(prepared: Prepared) -> list[str]:
    """Returns a line if finished cells were computed by another instruction set than the cells to run will be."""
    kept = [item.row for item in prepared.plan.items if item.row and item.status == "ok" and not item.run]
    records = {env: prepared.store.environment(env) for env in {row.env for row in kept}}
    counts = Counter(computed_by(row, records[row.env]) or "what was not recorded" for row in kept)
    others = [f"{number} with {name}" for name, number in counts.items() if name != prepared.computes]
    if not others:
        return []
    return [
        f"  finished cells were computed by other instructions than this machine's ({prepared.computes}): "
        f"{', '.join(others)}; that changes results about as much as another seed does (docs/portability.md)"
    ]
