"""Cells and rows of an invented suite, on which the kit tries executors, boards and trackers; nothing is trained."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any, get_args

from fcilbench.registry.entrypoints import PluginRef
from fcilbench.results.provenance import Provenance, capture
from fcilbench.results.row import build_row
from fcilbench.spec.cell import Cell, PluginUse
from fcilbench.spec.identity import cell_id
from fcilbench.spec.metrics import evaluate
from fcilbench.spec.outcome import Cost, Outcome, Value
from fcilbench.spec.protocol import Evaluation, Partition, SeedRole, Seeds
from fcilbench.spec.row import Failure, Row, Status
from fcilbench.testing.check import CheckFailed

METHODS, SEEDS, STRESSES = ("alpha", "beta"), 3, ("none", "dropout")
_MOMENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
_SIZES = [10, 10]


@dataclass(frozen=True)
class PluginSubject:
    """A plugin of the torch-free half, as it is registered, with the options that differ from the defaults."""

    ref: PluginRef
    cls: Any
    options: Mapping[str, Any]


def check_contract(subject: PluginSubject, hooks: tuple[str, ...]) -> None:
    """Fails a class without version, summary or one of the hooks."""
    cls = subject.cls
    if not str(getattr(cls, "version", "")).strip():
        raise CheckFailed("the class has no `version`")
    if not (cls.__doc__ or "").strip():
        raise CheckFailed("the class has no docstring; `plugins list` shows its first line")
    if missing := [hook for hook in hooks if not callable(getattr(cls, hook, None))]:
        raise CheckFailed(f"the class has no `{missing[0]}`")


def check_torch_free(subject: PluginSubject) -> None:
    """Fails a plugin whose import brings torch, in a process of its own."""
    module = subject.ref.target.partition(":")[0]
    code = f"import sys; sys.path[:] = {sys.path!r}; import {module}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        raise CheckFailed(f"it cannot be imported in a fresh process: {done.stderr.strip().splitlines()[-1:]}")
    if done.stdout.strip().endswith("True"):
        raise CheckFailed(f"importing {module} imports torch, for seconds, in every command that names the plugin")


def cell(aggregator: str = METHODS[0], seed: int = 0, stress: str = STRESSES[0], script: str = "") -> Cell:
    """Returns a cell; `script` tells the kit's worker how the job ends."""

    def use(name: str, **params: Any) -> PluginUse:
        return PluginUse(name=f"fcilbench/{name}", label=name, version="1", params=params, identity=params)

    return Cell(
        suite="kit",
        dataset=use("digits"),
        tasks=(5, 5),
        data_fingerprint="sha256:" + "d" * 64,
        backbone=use("timm"),
        partition=Partition(kind="iid"),
        aggregator=use(aggregator, **({"script": script} if script else {})),
        stress=use(stress),
        seeds=Seeds(index=seed),
        evaluate=Evaluation(task_identity=("none", "oracle")),
    )


def cells() -> list[Cell]:
    """Returns the cells of the suite: two methods, three seeds, clean and under one stressor."""
    return [cell(method, seed, stress) for stress in STRESSES for method in METHODS for seed in range(SEEDS)]


@cache
def _here() -> Provenance:
    return capture()


def row(of: Cell, status: Status = "ok", shift: float = 0.0) -> Row:
    """Returns a finished cell's row, with figures that depend on method, seed and stress, moved by `shift`."""
    moments: dict[str, Any] = {"provenance": _here(), "started": _MOMENT, "ended": _MOMENT}
    if status == "skipped":
        return build_row(of, cell_id(of), status, skipped="the method declines", **moments)
    if status != "ok":
        failure = Failure(kind="plugin", type="ValueError", message="a fault")
        return build_row(of, cell_id(of), status, failure=failure, **moments)
    place = METHODS.index(of.aggregator.label) + 10 * STRESSES.index(of.stress.label) + 3 * of.seeds.index
    first, last = 0.9 - 0.01 * place + shift, 0.8 - 0.013 * place + shift
    matrix: list[list[float | None]] = [[first], [first - 0.1, last]]
    metrics = {
        f"{name}/{identity}": Value(value=value)
        for identity in of.evaluate.task_identity
        for name, value in evaluate(matrix, _SIZES).items()
    }
    outcome = Outcome(
        metrics=metrics,
        accuracy=dict.fromkeys(of.evaluate.task_identity, matrix),
        test_sizes=_SIZES,
        classes=[list("abcde"), list("fghij")],
        cost=Cost(
            wall_s=2.5 + place, training_s=2.0, bytes_up=80 + place, bytes_down=160, module=40, rounds=4, tasks=2
        ),
        seeds={role: of.seeds.of(role) for role in get_args(SeedRole)},
        model_digest=f"sha256:{place:064d}",
        data_fingerprint=of.data_fingerprint,
        device="cpu",
    )
    return build_row(of, cell_id(of), status, outcome, **moments)
