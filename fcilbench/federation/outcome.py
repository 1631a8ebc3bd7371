"""From a finished federation to an `Outcome`: metrics with unit and direction, cost, digests."""

from __future__ import annotations

import hashlib

import torch

from fcilbench.engine.meters import device_name
from fcilbench.federation.checkpoint import Progress
from fcilbench.federation.experiment import Federation
from fcilbench.spec.metrics import METRICS, evaluate
from fcilbench.spec.outcome import Cost, Outcome, Value
from fcilbench.spec.protocol import TaskIdentity


def outcome(federation: Federation, progress: Progress) -> Outcome:
    """Returns the outcome of a federation whose phases are all trained."""
    seeds = federation.experiment.seeds
    sizes = [len(index) for index in federation.test_index]
    matrices = {identity: _matrix(rows, len(sizes)) for identity, rows in progress.accuracy.items()}
    named: dict[str, Value] = {}
    for identity, matrix in matrices.items():
        named |= _metrics(identity, matrix, sizes)
    if progress.outside_auroc is not None:
        named["oos_auroc/none"] = _value("oos_auroc", progress.outside_auroc)
    return Outcome(
        metrics=named,
        accuracy=matrices,
        test_sizes=sizes,
        classes=federation.stream.names(federation.class_names),
        cost=_cost(federation, progress),
        seeds={"order": seeds.of("order"), "partition": seeds.of("partition"), "train": seeds.of("train")},
        model_digest=digest(federation.server.vector),
        data_fingerprint=federation.fingerprint,
        device=device_name(federation.model.vector.device),
        warnings=list(federation.server.warnings),
    )


def digest(vector: torch.Tensor) -> str:
    """Returns the SHA-256 of a float32 vector's little-endian bytes."""
    return "sha256:" + hashlib.sha256(vector.detach().cpu().numpy().astype("<f4").tobytes()).hexdigest()


def _matrix(rows: dict[int, list[float]], tasks: int) -> list[list[float | None]]:
    return [list(rows[t]) if t in rows else [None] * (t + 1) for t in range(tasks)]


def _metrics(identity: TaskIdentity, matrix: list[list[float | None]], sizes: list[int]) -> dict[str, Value]:
    return {f"{name}/{identity}": _value(name, value) for name, value in evaluate(matrix, sizes).items()}


def _value(name: str, value: float | None) -> Value:
    return Value(value=value, unit=METRICS[name].unit, better=METRICS[name].better)


def _cost(federation: Federation, progress: Progress) -> Cost:
    seconds = progress.seconds
    wall = seconds.get("wall", 0.0)
    return Cost(
        wall_s=wall,
        training_s=seconds.get("training", 0.0),
        aggregation_s=seconds.get("aggregation", 0.0),
        task_end_s=seconds.get("task_end", 0.0),
        evaluation_s=seconds.get("evaluation", 0.0),
        device_s=wall if federation.model.vector.device.type == "cuda" else 0.0,
        peak_mem=progress.peak_memory,
        bytes_up=federation.channel.bytes_up,
        bytes_down=federation.channel.bytes_down,
        server_state=progress.server_state,
    )
