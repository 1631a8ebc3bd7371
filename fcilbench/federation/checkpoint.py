"""Checkpoints: the whole state of an experiment between two rounds. Restoring one continues bit for bit."""

from __future__ import annotations

import os
import pickle
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from fcilbench.federation.experiment import Federation
from fcilbench.spec.protocol import TaskIdentity

FORMAT = 2
Event = dict[str, Any]


@dataclass
class Progress:
    """How far an experiment is, and what it has measured.

    Attributes:
        phase: Index of the phase to go on with.
        round: Round within it to go on with.
        accuracy: Per task identity the measured rows of the accuracy matrix, by task index.
        seconds: Wall-clock seconds by phase of work so far, and `wall`.
        peak_memory: Peak in bytes so far.
        server_state: Largest size of the method's state so far, bytes.
        curve: Events so far: one a round, one a task.
        outside_auroc: Out-of-scope detection of the final model, where the data set asks for it.
    """

    phase: int = 0
    round: int = 0
    accuracy: dict[TaskIdentity, dict[int, list[float]]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    peak_memory: int = 0
    server_state: int = 0
    curve: list[Event] = field(default_factory=list)
    outside_auroc: float | None = None


def save(path: Path, federation: Federation, progress: Progress) -> None:
    """Writes a checkpoint to a temporary name and renames it, so that a crash never leaves half of one."""
    server = federation.server
    record = {
        "format": FORMAT,
        "progress": asdict(progress),
        "theta": server.vector,
        "counters": server.counters,
        "channel": federation.channel.state(),
        "state": server.state,
        "warnings": server.warnings,
        "clients": federation.clients,
    }
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb") as file:
        torch.save(record, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def restore(path: Path, federation: Federation) -> Progress | None:
    """Loads a checkpoint into a freshly built federation.

    Returns:
        The progress to go on with, or `None` if there is no checkpoint that fits this experiment.
    """
    if not path.exists():
        return None
    server = federation.server
    try:
        record = torch.load(path, map_location=server.vector.device, weights_only=True)
    except (RuntimeError, EOFError, OSError, ValueError, pickle.UnpicklingError) as error:
        server.warn(f"an unreadable checkpoint was ignored ({type(error).__name__})")
        return None
    if record.get("format") != FORMAT or record["theta"].shape != server.vector.shape:
        server.warn("a checkpoint of another format or model was ignored")
        return None
    server.vector.copy_(record["theta"])
    server.counters.copy_(record["counters"])
    federation.channel.restore(record["channel"], server.vector, server.counters)
    server.state, server.warnings = record["state"], record["warnings"]
    federation.clients.update(record["clients"])
    return Progress(**record["progress"])
