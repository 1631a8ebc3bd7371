"""The final state of a finished experiment's server, kept where `runtime.keep_model` asks for it."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from fcilbench.api.message import Layout, Piece
from fcilbench.api.task import Task
from fcilbench.errors import PrerequisiteError
from fcilbench.federation.server import FederationServer
from fcilbench.spec.protocol import Protocol

FORMAT = 2
NAME = "final.pt"


def save(folder: Path, server: FederationServer) -> None:
    """Writes `final.pt` into a folder, under a temporary name first."""
    parts = server.layout
    record = {
        "format": FORMAT,
        "theta": server.vector,
        "counters": server.counters,
        "state": server.state,
        "protocol": server.protocol.model_dump(mode="json"),
        "cuts": [parts.backbone.stop, parts.head.stop, parts.buffers.stop],
        "head": [parts.classes, parts.features],
        "layout": [(piece.name, list(piece.shape), piece.start) for piece in parts.pieces],
        "tasks": [(task.index, task.offset, task.size) for task in server.tasks],
    }
    temporary = folder / "final.tmp"
    torch.save(record, temporary)
    os.replace(temporary, folder / NAME)


def forget(folder: Path) -> None:
    """Removes the final state of an earlier run."""
    (folder / NAME).unlink(missing_ok=True)


def load(folder: Path) -> FederationServer:
    """Returns the server as it was when the experiment ended, on the CPU.

    Raises:
        PrerequisiteError: If the folder has no final state, or one of another format.
    """
    path = folder / NAME
    if not path.is_file():
        raise PrerequisiteError(
            f"{path} does not exist: the cell ran without keep_model",
            hint="run it again with -s runtime.keep_model=true --rerun all",
        )
    record = torch.load(path, map_location="cpu", weights_only=True)
    if record.get("format") != FORMAT:
        raise PrerequisiteError(f"{path} is of format {record.get('format')}, expected {FORMAT}")
    body, trainable, whole = record["cuts"]
    layout = tuple(Piece(name, tuple(shape), start) for name, shape, start in record["layout"])
    classes, features = record["head"]
    parts = Layout(slice(0, body), slice(body, trainable), slice(trainable, whole), classes, features, layout)
    tasks = [Task(*numbers) for numbers in record["tasks"]]
    protocol = Protocol.model_validate(record["protocol"])
    server = FederationServer(record["theta"], record["counters"], parts, tasks, protocol=protocol)
    server.state = record["state"]
    server.enter(tasks[-1], len(tasks) - 1)
    return server
