"""`fcilbench doctor`: what this machine has, and whether a suite will run on it."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import typer

from fcilbench.cli import console, options
from fcilbench.errors import PREREQUISITE, FcilbenchError, PrerequisiteError

if TYPE_CHECKING:
    from fcilbench.spec.cell import Cell

_LOW_DISK = 5e9  # bytes; a checkpoint of ten ViT-B clients with their state is of this order
_GB = 1e9
_PACKAGES = ("torch", "timm", "transformers", "mlflow")


class Finding(NamedTuple):
    """What was looked at, and what was found.

    Its state is `fail` if a run cannot work so, `warn` if it may surprise, `info` for what only some suites need.
    """

    state: Literal["ok", "info", "warn", "fail"]
    what: str
    detail: str


def doctor(
    suite: options.MaybeSuite = None,
    *,
    out: options.Out = options.RESULTS,
    set_: options.Set = None,
    gpus: options.Gpus = "auto",
    data: options.Data = None,
    tracking: options.Tracking = None,
    form: options.Format = options.Form.TABLE,
    verbose: options.Verbose = False,
) -> None:
    """Report python, torch, GPUs, plugins, data, disk, tracking and source; with a suite, whether it will run here.

    Exit codes: 0; 5 if something is missing that the suite (or, without one, any run) needs.
    """
    from fcilbench.cli.plan import use_data_root

    root = use_data_root(data)
    findings = [
        *_software(),
        *_devices(gpus),
        *_plugins(),
        *_places(out, root),
        _tracking(out, tracking),
        _source(),
        *(_suite(suite, set_ or [], root) if suite else _all_datasets(root)),
    ]
    findings = list(dict.fromkeys(findings))
    records = [each._asdict() for each in findings]
    console.show_list(form, Finding._fields, findings, key="findings", records=records)
    if any(each.state == "fail" for each in findings):
        raise typer.Exit(PREREQUISITE)


def _software() -> Iterable[Finding]:
    """Looks at Python and the versions of the packages that compute, without importing them."""
    yield Finding("ok", "python", f"{platform.python_version()} ({sys.executable})")
    for name in _PACKAGES:
        version = _version(name)
        yield Finding("ok", name, version) if version else Finding("fail", name, "not installed")


def _devices(option: str) -> Iterable[Finding]:
    """Looks at the GPUs that `--gpus` means."""
    from fcilbench.execution.devices import choose_devices, find_gpus

    for gpu in find_gpus():
        memory = f"{gpu.free / _GB:.1f} of {gpu.memory / _GB:.1f} GB free"
        yield Finding("ok", f"gpu {gpu.index}", f"{gpu.name}, {memory}, driver {gpu.driver}")
    try:
        chosen = choose_devices(option)
    except PrerequisiteError as error:
        yield Finding("fail", "--gpus", str(error))
        return
    build = _version("torch") or ""
    if chosen == [""]:
        yield Finding("ok", "device", f"the CPU, {os.cpu_count()} cores")
    elif build.endswith("+cpu"):
        yield Finding("fail", "torch", f"{build} is built without CUDA; use --gpus none or another build")


def _plugins() -> Iterable[Finding]:
    """Imports every plugin (in a child process) and reports the broken ones."""
    from fcilbench.registry import catalog
    from fcilbench.registry.entrypoints import KINDS, find

    found = catalog.describe([ref for kind in KINDS for ref in find(kind)])
    broken = [each for each in found if each.problem]
    yield Finding("ok", "plugins", f"{len(found) - len(broken)} of {len(found)} usable")
    for each in broken:
        yield Finding("warn", f"plugin {each.ref.name}", f"broken: {each.problem}")


def _places(out: Path, root: Path) -> Iterable[Finding]:
    """Looks at the results folder and the data root: writable, and with room."""
    for what, place in (("results", out), ("data root", root)):
        there = place.expanduser().absolute()
        while not there.exists():
            there = there.parent
        free = shutil.disk_usage(there).free
        if what == "results" and not os.access(there, os.W_OK):
            yield Finding("fail", what, f"{place} is not writable")
        else:
            created = "" if place.exists() else " (will be created)"
            yield Finding("ok" if free > _LOW_DISK else "warn", what, f"{place}{created}, {free / _GB:.1f} GB free")


def _tracking(out: Path, option: str | None) -> Finding:
    """Checks whether the tracking store answers; a dead one costs a warning, never a cell."""
    from fcilbench.cli.results import parse_tracking
    from fcilbench.registry.entrypoints import lookup
    from fcilbench.tracking.uri import tracking_uri, unreachable, without_password

    name, uri = parse_tracking(option)
    if name == "none":
        return Finding("ok", "tracking", "off")
    if lookup("trackers", name).name != "fcilbench/mlflow":
        return Finding("ok", "tracking", f"{name}, not asked whether it answers")
    uri = tracking_uri(out, uri)
    reason = unreachable(uri)
    return Finding("warn", "tracking", reason) if reason else Finding("ok", "tracking", without_password(uri))


def _source() -> Finding:
    """Looks whether results could be traced to a commit."""
    from fcilbench import __version__
    from fcilbench.results.provenance import source_state

    sha, dirty = source_state()
    if sha is None:
        return Finding("ok", "fcilbench", f"{__version__}, an installed package")
    changes = " with uncommitted changes; rows say so" if dirty else ""
    return Finding("warn" if dirty else "ok", "fcilbench", f"{__version__}, commit {sha[:12]}{changes}")


def _all_datasets(root: Path) -> Iterable[Finding]:
    """Loads every data set; without a suite a missing one is no fault."""
    from fcilbench.registry.entrypoints import find

    return _datasets([(ref.name, {}) for ref in find("datasets")], root, missing="info")


def _suite(path: Path, overrides: Sequence[str], root: Path) -> Iterable[Finding]:
    """Looks whether a suite will run here: its plugins, weights and data."""
    from fcilbench.suite.expand import expand
    from fcilbench.suite.load import load_suite

    expansion = expand(load_suite(path, overrides))
    uses = list({cell.dataset.name: (cell.dataset.name, cell.dataset.params) for cell in expansion.cells}.values())
    findings = [Finding("fail", "suite", line) for line in expansion.prerequisites]
    findings += [*_datasets(uses, root, missing="fail"), *_combinations(expansion.cells, root)]
    if any(each.state == "fail" for each in findings):
        return [*findings, Finding("fail", "suite", f"{expansion.name} will not run here as it is")]
    return [*findings, Finding("ok", "suite", f"{expansion.name} will run here: {len(expansion.cells)} cells")]


def _combinations(cells: Sequence[Cell], root: Path) -> Iterable[Finding]:
    """Runs one tiny step of each distinct combination of backbone, aggregator and stressor."""
    from fcilbench.execution.probe import probe_cells

    distinct: dict[tuple[str, str, str], Cell] = {}
    for cell in cells:
        distinct.setdefault((cell.backbone.label, cell.aggregator.label, cell.stress.label), cell)
    problems: dict[str, list[str]] = {}
    for labels, problem in zip(distinct, probe_cells(list(distinct.values()), root), strict=True):
        if problem is not None:
            problems.setdefault(problem, []).append(" + ".join(labels))
    return [Finding("fail", ", ".join(names), problem) for problem, names in problems.items()]


def _datasets(
    uses: Sequence[tuple[str, dict[str, Any]]], root: Path, missing: Literal["info", "fail"]
) -> Iterable[Finding]:
    from fcilbench.execution.probe import verify_datasets

    try:
        found = verify_datasets(list(uses), root)
    except FcilbenchError as error:
        return [Finding(missing, "data", str(error))]
    return [
        Finding(missing, f"data {name}", problem) if problem else Finding("ok", f"data {name}", "present and verified")
        for (name, _), (problem, _) in zip(uses, found, strict=True)
    ]


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
