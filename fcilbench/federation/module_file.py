"""Module files: what a finished cell deploys, in one safetensors file. `Aggregator.restore` rebuilds the model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from fcilbench.api.message import Layout, Message, nbytes
from fcilbench.api.task import Task
from fcilbench.errors import UsageError
from fcilbench.federation.server import FederationServer
from fcilbench.files import write_atomic

FORMAT = "fcilbench-module-2"


@dataclass(frozen=True)
class ModuleFile:
    """A module file in memory.

    Attributes:
        tensors: Everything in the file.
        facts: `cell`, `method`, `version`, `tasks` ([offset, size] each), `parts`.
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


def write(path: Path, tensors: Message, server: FederationServer, about: Mapping[str, str]) -> None:
    """Replaces a module file in one step.

    Args:
        path: Where to.
        tensors: What the method exported.
        server: Where it comes from.
        about: `cell`, `method` and `version`.
    """
    facts: dict[str, Any] = {
        **about,
        "tasks": [[task.offset, task.size] for task in server.tasks],
        "parts": _parts(server.layout),
    }
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    write_atomic(path, save(plain, metadata={"format": FORMAT, "facts": json.dumps(facts)}))


def read(path: Path) -> ModuleFile:
    """Reads a module file.

    Raises:
        UsageError: If it is missing or something else.
    """
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
    return ModuleFile(tensors, json.loads(metadata["facts"]))


def _parts(parts: Layout) -> dict[str, int]:
    return {
        "backbone": parts.backbone.stop,
        "head": parts.head.stop - parts.head.start,
        "buffers": parts.buffers.stop - parts.buffers.start,
        "classes": parts.classes,
        "features": parts.features,
    }
