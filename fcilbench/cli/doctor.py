"""`fcilbench doctor`: reports what this machine has, and whether a suite will run on it."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, NamedTuple

import typer

from fcilbench import __version__
from fcilbench.cli import console, options
from fcilbench.data.root import data_root
from fcilbench.errors import PREREQUISITE, PrerequisiteError
from fcilbench.execution.devices import choose_devices
from fcilbench.execution.probe import probe_cells, verify_datasets
from fcilbench.registry import catalog
from fcilbench.registry.entrypoints import KINDS, find, lookup
from fcilbench.results.provenance import source_state
from fcilbench.suite.expand import expand, missing_lines, probe_combinations
from fcilbench.suite.load import load_suite
from fcilbench.tracking.base import parse_tracking, tracking_uri, unreachable, without_password
from fcilbench.worker.gpus import find_gpus

_LOW_DISK = 5e9  # bytes; a checkpoint of ten ViT-B clients with their state is of this order
_GB = 1e9
_PACKAGES = ("torch", "timm", "transformers", "mlflow")


class Finding(NamedTuple):
    """One finding: `fail` if a run cannot work, `warn` if it may go wrong, `info` if only some suites need it."""

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
) -> None:
    """Report python, torch, GPUs, plugins, data, disk, tracking and source; with a suite, whether it will run here.

    Exit codes: 0; 5 if something is missing that the suite (or, without one, any run) needs.
    """
    with catalog.session():  # one process imports the plugins, for all questions
        findings = [
            *_software(),
            *_devices(gpus),
            *_plugins(),
            _place("results", out),
            _place("data root", data_root()),
            _tracking(out, tracking),
            _source(),
            *(_suite(suite, set_ or []) if suite else _every_dataset()),
        ]
    findings = list(dict.fromkeys(findings))
    records = [each._asdict() for each in findings]
    console.show_list(form, Finding._fields, findings, key="findings", records=records)
    if any(each.state == "fail" for each in findings):
        raise typer.Exit(PREREQUISITE)


def _software() -> Iterable[Finding]:
    """Reports the versions of Python and of the heavy packages, without importing them."""
    yield Finding("ok", "python", f"{platform.python_version()} ({sys.executable})")
    for name in _PACKAGES:
        try:
            yield Finding("ok", name, metadata.version(name))
        except metadata.PackageNotFoundError:
            yield Finding("fail", name, "not installed")


def _devices(option: str) -> Iterable[Finding]:
    """Reports the GPUs, and whether those that `--gpus` names can be used."""
    for gpu in find_gpus():
        memory = f"{gpu.free / _GB:.1f} of {gpu.memory / _GB:.1f} GB free"
        yield Finding("ok", f"gpu {gpu.index}", f"{gpu.name}, {memory}, driver {gpu.driver}")
    try:
        if choose_devices(option) == [""]:
            yield Finding("ok", "device", f"the CPU, {os.cpu_count()} cores")
        elif (build := metadata.version("torch")).endswith("+cpu"):
            yield Finding("fail", "torch", f"{build} is built without CUDA; use --gpus none or another build")
    except PrerequisiteError as error:
        yield Finding("fail", "--gpus", str(error))


def _plugins() -> Iterable[Finding]:
    """Imports every plugin (in a child process) and reports those that cannot be used, and what they need."""
    found = catalog.describe([ref for kind in KINDS for ref in find(kind)])
    unusable = [each for each in found if each.problem]
    yield Finding("ok", "plugins", f"{len(found) - len(unusable)} of {len(found)} usable")
    for each in unusable:
        yield Finding("info" if each.needs else "warn", f"plugin {each.ref.name}", each.fault)


def _place(what: str, place: Path) -> Finding:
    """Reports whether a folder is writable and has space; it need not exist."""
    there = place.expanduser().absolute()
    while not there.exists():
        there = there.parent
    if what == "results" and not os.access(there, os.W_OK):
        return Finding("fail", what, f"{place} is not writable")
    free = shutil.disk_usage(there).free
    created = "" if place.exists() else " (will be created)"
    return Finding("ok" if free > _LOW_DISK else "warn", what, f"{place}{created}, {free / _GB:.1f} GB free")


def _tracking(out: Path, option: str | None) -> Finding:
    """Reports whether the tracking server answers; if not, cells run all the same."""
    name, uri = parse_tracking(option)
    if name == "none":
        return Finding("ok", "tracking", "off")
    if lookup("trackers", name).name != "fcilbench/mlflow":
        return Finding("ok", "tracking", f"{name}, not asked whether it answers")
    uri = tracking_uri(out, uri)
    reason = unreachable(uri)
    return Finding("warn", "tracking", reason) if reason else Finding("ok", "tracking", without_password(uri))


def _source() -> Finding:
    """Reports whether results can be traced to a commit."""
    sha, dirty = source_state()
    if sha is None:
        return Finding("ok", "fcilbench", f"{__version__}, an installed package")
    changes = " with uncommitted changes; rows say so" if dirty else ""
    return Finding("warn" if dirty else "ok", "fcilbench", f"{__version__}, commit {sha[:12]}{changes}")


def _suite(path: Path, overrides: Sequence[str]) -> Iterable[Finding]:
    """Reports whether a suite will run here: plugins, weights, data, and a tiny round of each combination."""
    expansion = expand(load_suite(path, overrides))
    uses = {cell.dataset.name: cell.dataset.params for cell in expansion.cells}
    findings = [Finding("fail", "suite", line) for line in missing_lines(expansion.blocked)]
    findings += _datasets(list(uses.items()), missing="fail")
    problems = probe_combinations(expansion.cells, probe_cells)
    findings += [Finding("fail", ", ".join(names), problem) for problem, names in problems.items()]
    if any(each.state == "fail" for each in findings):
        return [*findings, Finding("fail", "suite", f"{expansion.name} will not run here")]
    return [*findings, Finding("ok", "suite", f"{expansion.name} will run here: {len(expansion.cells)} cells")]


def _every_dataset() -> Iterable[Finding]:
    """Verifies the data sets that need no option; of the others it names what a suite has to say."""
    needs = {each.ref.name: each.schema.get("required", []) for each in catalog.describe(find("datasets"))}
    for name, wanted in needs.items():
        if wanted:
            yield Finding("info", f"data {name}", f"needs {' and '.join(wanted)}: `doctor SUITE` verifies a suite's")
    yield from _datasets([(name, {}) for name, wanted in needs.items() if not wanted], "info")


def _datasets(uses: Sequence[tuple[str, dict[str, Any]]], missing: Literal["info", "fail"]) -> Iterable[Finding]:
    """Loads data sets and verifies them."""
    for (name, _), (problem, _) in zip(uses, verify_datasets(uses), strict=True):
        state: Literal["ok", "info", "fail"] = missing if problem else "ok"
        yield Finding(state, f"data {name}", problem or "present and verified")
