"""What `doctor` looks at; each function returns findings and raises nothing that is about this machine."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fcilbench.errors import FcilbenchError, PrerequisiteError

if TYPE_CHECKING:
    from fcilbench.spec.cell import Cell

_LOW_DISK = 5e9  # bytes; a checkpoint of ten ViT-B clients with their state is of this order
_GB = 1e9


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        state: `fail` if a run cannot work so, `warn` if it may surprise, `info` for what only some suites need.
        what: What was looked at.
        detail: What was found.
    """

    state: Literal["ok", "info", "warn", "fail"]
    what: str
    detail: str


def software() -> list[Finding]:
    """Looks at Python and the versions of the packages that compute, without importing them."""
    findings = [Finding("ok", "python", f"{platform.python_version()} ({sys.executable})")]
    for name in ("torch", "torchvision", "timm", "transformers", "mlflow"):
        version = _version(name)
        findings.append(Finding("ok", name, version) if version else Finding("fail", name, "not installed"))
    return findings


def devices(option: str) -> list[Finding]:
    """Looks at the GPUs that `--gpus` means."""
    from fcilbench.execution.devices import choose_devices, find_gpus

    findings = [
        Finding(
            "ok",
            f"gpu {gpu.index}",
            f"{gpu.name}, {gpu.free / _GB:.1f} of {gpu.memory / _GB:.1f} GB free, driver {gpu.driver}",
        )
        for gpu in find_gpus()
    ]
    try:
        chosen = choose_devices(option)
    except PrerequisiteError as error:
        return [*findings, Finding("fail", "--gpus", str(error))]
    if chosen == [""]:
        return [*findings, Finding("ok", "device", f"the CPU, {os.cpu_count()} cores")]
    build = _version("torch")
    if build is not None and build.endswith("+cpu"):
        detail = f"{build} is built without CUDA; use --gpus none or another build"
        findings.append(Finding("fail", "torch", detail))
    return findings


def plugins() -> list[Finding]:
    """Imports every plugin (in a child process) and tells the broken ones."""
    from fcilbench.registry import catalog
    from fcilbench.registry.entrypoints import KINDS, find

    found = catalog.describe([ref for kind in KINDS for ref in find(kind)])
    broken = [each for each in found if each.problem]
    findings = [Finding("ok", "plugins", f"{len(found) - len(broken)} of {len(found)} usable")]
    return findings + [Finding("warn", f"plugin {each.ref.name}", f"broken: {each.problem}") for each in broken]


def places(out: Path, root: Path) -> list[Finding]:
    """Looks at the results folder and the data root: writable, and with room."""
    findings = []
    for what, place in (("results", out), ("data root", root)):
        there = place.expanduser().absolute()
        while not there.exists():
            there = there.parent
        free = shutil.disk_usage(there).free
        detail = f"{place}{'' if place.exists() else ' (will be created)'}, {free / _GB:.1f} GB free"
        if what == "results" and not os.access(there, os.W_OK):
            findings.append(Finding("fail", what, f"{place} is not writable"))
        else:
            findings.append(Finding("ok" if free > _LOW_DISK else "warn", what, detail))
    return findings


def tracking(out: Path, option: str | None) -> list[Finding]:
    """Looks whether the tracking store answers; a dead one costs a warning, never a cell."""
    from fcilbench.tracking.uri import tracking_uri, unreachable, without_password

    if option == "none":
        return [Finding("ok", "tracking", "off")]
    uri = tracking_uri(out, option)
    reason = unreachable(uri)
    shown = without_password(uri)
    return [Finding("warn", "tracking", f"{reason}") if reason else Finding("ok", "tracking", shown)]


def source() -> list[Finding]:
    """Looks whether results could be traced to a commit."""
    from fcilbench import __version__
    from fcilbench.results.provenance import source_state

    sha, dirty = source_state()
    if sha is None:
        return [Finding("ok", "fcilbench", f"{__version__}, an installed package")]
    changed = Finding("warn", "fcilbench", f"{__version__}, commit {sha[:12]} with uncommitted changes; rows say so")
    return [changed if dirty else Finding("ok", "fcilbench", f"{__version__}, commit {sha[:12]}")]


def datasets(root: Path) -> list[Finding]:
    """Loads every data set; without a suite a missing one is no fault."""
    from fcilbench.registry.entrypoints import find

    return _datasets([(ref.name, {}) for ref in find("datasets")], root, missing="info")


def suite(path: Path, overrides: Sequence[str], root: Path) -> list[Finding]:
    """Looks whether a suite will run here: its plugins, weights and data.

    Raises:
        SuiteError: If the suite itself is wrong.
    """
    from fcilbench.suite.expand import expand
    from fcilbench.suite.load import load_suite

    expansion = expand(load_suite(path, overrides))
    missing = [Finding("fail", "suite", line) for line in expansion.prerequisites]
    uses = list({cell.dataset.name: (cell.dataset.name, cell.dataset.params) for cell in expansion.cells}.values())
    findings = [*missing, *_datasets(uses, root, missing="fail"), *_combinations(expansion.cells, root)]
    if any(each.state == "fail" for each in findings):
        return [*findings, Finding("fail", "suite", f"{expansion.name} will not run here as it is")]
    return [*findings, Finding("ok", "suite", f"{expansion.name} will run here: {len(expansion.cells)} cells")]


def _combinations(cells: Sequence[Cell], root: Path) -> list[Finding]:
    """Runs one tiny step of each distinct combination of backbone, aggregator and stressor."""
    from fcilbench.execution.probe import probe_cells

    distinct: dict[tuple[str, str, str], Cell] = {}
    for cell in cells:
        distinct.setdefault((cell.backbone.label, cell.aggregator.label, cell.stress.label), cell)
    problems = probe_cells(list(distinct.values()), root)
    pairs = zip(distinct, problems, strict=True)
    return [Finding("fail", " + ".join(labels), problem) for labels, problem in pairs if problem is not None]


def _datasets(uses: list[tuple[str, dict[str, Any]]], root: Path, missing: Literal["info", "fail"]) -> list[Finding]:
    from fcilbench.execution.probe import probe_datasets

    try:
        problems = probe_datasets(uses, root)
    except FcilbenchError as error:
        return [Finding(missing, "data", str(error))]
    return [
        Finding(missing, f"data {name}", problem) if problem else Finding("ok", f"data {name}", "present and verified")
        for (name, _), problem in zip(uses, problems, strict=True)
    ]


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
