"""The outcome of a finished federation, the digest of what it deploys, and the file of the deployed module."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from fcilbench.api import Message, Predictors, Task, nbytes
from fcilbench.engine.meters import device_name
from fcilbench.errors import UsageError
from fcilbench.federation.checkpoint import Progress
from fcilbench.federation.evaluation import as_module
from fcilbench.federation.experiment import Federation
from fcilbench.federation.server import FederationServer
from fcilbench.files import write_atomic
from fcilbench.spec.metrics import METRICS, evaluate
from fcilbench.spec.outcome import Cost, Outcome, SelectorCost, Value
from fcilbench.spec.protocol import Scored

FORMAT = "fcilbench-module-3"
MODULE = "module.safetensors"
"""The file in a cell's folder."""


def outcome(federation: Federation, progress: Progress) -> Outcome:
    """Returns the outcome of a federation whose phases are all trained."""
    seeds, seconds, channel = federation.experiment.seeds, progress.seconds, federation.channel
    sizes, device = [len(index) for index in federation.test_index], federation.model.vector.device
    matrices: dict[Scored, list[list[float | None]]] = {
        identity: [list(rows[t]) if t in rows else [None] * (t + 1) for t in range(len(sizes))]
        for identity, rows in progress.accuracy.items()
    }
    named = {
        f"{name}/{identity}": _value(name, value)
        for identity, matrix in matrices.items()
        for name, value in evaluate(matrix, sizes).items()
    }
    named |= {name: _value(name.partition("/")[0], value) for name, value in progress.metrics.items()}
    return Outcome(
        metrics=named,
        accuracy=matrices,
        test_sizes=sizes,
        classes=federation.stream.names(federation.class_names),
        cost=Cost(
            wall_s=seconds.get("wall", 0.0),
            training_s=seconds.get("training", 0.0),
            aggregation_s=seconds.get("aggregation", 0.0),
            task_end_s=seconds.get("task_end", 0.0),
            evaluation_s=seconds.get("evaluation", 0.0),
            device_s=seconds.get("wall", 0.0) if device.type == "cuda" else 0.0,
            peak_mem=progress.peak_memory,
            bytes_up=channel.bytes_up,
            bytes_down=channel.bytes_down,
            server_state=progress.server_state,
            client_state=progress.client_state,
            client_state_mean=progress.client_state_mean,
            module=nbytes(federation.experiment.aggregator.export(federation.server)),
            rounds=sum(event["event"] == "round" for event in progress.curve),
            visits=progress.visits,
            tasks=len(federation.schedule.phases),
            selection_s=seconds.get("selection", 0.0),
            saved_s=seconds.get("saved", 0.0),
            selectors={
                label: SelectorCost(**kept["cost"])
                for label, kept in progress.selectors.items()
                if any(kept["cost"].values())
            },
        ),
        seeds={"order": seeds.of("order"), "partition": seeds.of("partition"), "train": seeds.of("train")},
        model_digest=progress.model_digest,
        data_fingerprint=federation.fingerprint,
        device=device_name(device),
        warnings=list(federation.server.warnings),
    )


def _value(name: str, value: float | None) -> Value:
    return Value(value=value, unit=METRICS[name].unit, better=METRICS[name].better)


def model_digest(predictors: Predictors, server: FederationServer) -> str:
    """Returns the SHA-256 of each deployed module (state vector and frozen tensors), the integer buffers and the state.

    Two methods with equal global vectors and different modules have different digests.
    """
    found = hashlib.sha256()
    for name, build in sorted(predictors.modules.items()):
        module = as_module(build())
        _add(found, {"module": name, "vector": module.vector, "frozen": dict(module.frozen)})
    _add(found, {"counters": server.counters, "state": server.state})
    return f"sha256:{found.hexdigest()}"


def _content(tensors: Message) -> str:
    """Returns the digest of a module file's tensors."""
    found = hashlib.sha256()
    _add(found, dict(tensors))
    return found.hexdigest()


def _add(found: Any, value: Any) -> None:
    """Adds a value to a digest: tensors by type, shape and content, dicts in the order of their keys."""
    if isinstance(value, torch.Tensor):
        found.update(f"tensor {value.dtype} {tuple(value.shape)}:".encode())
        found.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    elif isinstance(value, dict):
        found.update(f"dict {len(value)}:".encode())
        for key in sorted(value, key=repr):
            found.update(f"{key!r}=".encode())
            _add(found, value[key])
    elif isinstance(value, list | tuple):
        found.update(f"list {len(value)}:".encode())
        for each in value:
            _add(found, each)
    else:
        found.update(f"{type(value).__name__} {value!r};".encode())


@dataclass(frozen=True)
class ModuleFile:
    """A module file in memory.

    Attributes:
        facts: `model` (its digest), `tasks` ([offset, size] each), `parts`; after an export also `cell`, `method`
            and `version`.
    """

    tensors: Mapping[str, torch.Tensor]
    facts: Mapping[str, Any]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return nbytes(self.tensors)

    @property
    def dense_nbytes(self) -> int | None:
        """Bytes of the same tensors unpacked, or `None` if the method deploys plain vectors."""
        return int(self.tensors["dense_bytes"]) if "dense_bytes" in self.tensors else None

    @property
    def tasks(self) -> tuple[Task, ...]:
        """The tasks, in order."""
        return tuple(Task(index, *numbers) for index, numbers in enumerate(self.facts["tasks"]))


def save_module(path: Path, tensors: Message, server: FederationServer, model: str) -> None:
    """Writes the tensors that a finished experiment deploys; `model` is the digest of its model."""
    layout = server.layout
    parts = {
        "backbone": layout.backbone.stop,
        "head": layout.head.stop - layout.head.start,
        "buffers": layout.buffers.stop - layout.buffers.start,
        "classes": layout.classes,
        "features": layout.features,
    }
    tasks = [[task.offset, task.size] for task in server.tasks]
    write_module(path, ModuleFile(tensors, {"model": model, "tasks": tasks, "parts": parts}))


def write_module(path: Path, module: ModuleFile) -> None:
    """Replaces a module file, atomically."""
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in module.tensors.items()}
    facts = {**module.facts, "content": _content(plain)}
    write_atomic(path, save(plain, metadata={"format": FORMAT, "facts": json.dumps(facts)}))


def read_module(path: Path) -> ModuleFile:
    """Reads a module file; raises UsageError if it is missing, damaged or another file."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise UsageError(f"{path} is not a module file of format {FORMAT}")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 -- not a mapping
    except (OSError, SafetensorError) as error:
        raise UsageError(
            f"{path} cannot be read: {error}", hint="`fcilbench module export CELL -o FILE` writes one"
        ) from error
    facts = json.loads(metadata["facts"])
    if facts.pop("content") != _content(tensors):
        raise UsageError(f"{path} is damaged")
    return ModuleFile(tensors, facts)
