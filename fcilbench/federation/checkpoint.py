"""The checkpoint between two rounds: a resumed run ends bit-equal to an uninterrupted one.

The file is a zip archive. Its checksums are verified first, because torch reads damaged tensors without an error. A
checkpoint that is damaged or of another experiment is ignored with a warning, and the experiment starts over. So is one
of a run that did not compute portable numbers, if this one does; on another processor a run that does not promise
portable numbers goes on, with a warning.
"""

from __future__ import annotations

import zipfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from fcilbench.engine.rounding import rounding
from fcilbench.federation.convergence import Best
from fcilbench.federation.experiment import Federation
from fcilbench.federation.record import ClientRecord
from fcilbench.files import replacing
from fcilbench.spec.events import CurveEvent
from fcilbench.spec.protocol import Scored

FORMAT = 8


@dataclass
class Progress:
    """How far an experiment is, and what it has measured.

    Attributes:
        accuracy: Per task identity and selector the measured rows of the accuracy matrix, by task index.
        seconds: Wall-clock seconds by phase of work so far; `wall`, and those that were `saved` by reading passes.
        peak_memory: Peak of device memory, or of the resident set on a CPU, bytes.
        server_state: Largest size of the method's state so far, bytes.
        client_state: Largest size of what one client has kept so far, bytes.
        client_state_mean: Largest mean of that over all registered clients, bytes.
        curve: Events so far: one a round, one a task.
        metrics: What was measured of the final model beside its accuracy, by `<metric>/<task identity>`.
        visits: Clients with samples that took part in a round, summed over the rounds so far.
        not_finite: The first non-finite thing any client sent.
        selectors: What each selector keeps, by label, see `fcilbench.federation.selection.Selection`.
    """

    phase: int = 0
    round: int = 0
    accuracy: dict[Scored, dict[int, list[float]]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    peak_memory: int = 0
    server_state: int = 0
    client_state: int = 0
    client_state_mean: float = 0.0
    curve: list[CurveEvent] = field(default_factory=list)
    metrics: dict[str, float | None] = field(default_factory=dict)
    model_digest: str = ""
    merged: int = 0
    visits: int = 0
    not_finite: str = ""
    selectors: dict[str, dict[str, Any]] = field(default_factory=dict)


class DamagedError(Exception):
    """A file is not what was written."""


def save(path: Path, federation: Federation, progress: Progress) -> None:
    """Replaces the checkpoint by the present state, atomically."""
    server = federation.server
    record = {
        "format": FORMAT,
        "portable": federation.experiment.runtime.portable,
        "rounding": rounding(),
        "progress": asdict(progress),
        "vector": server.vector,
        "counters": server.counters,
        "channel": federation.channel.state(),
        "state": server.state,
        "warnings": server.warnings,
        "clients": {client: record.saved() for client, record in federation.clients.items()},
        "best": None if federation.best is None else federation.best.state(),
        "moments": None if federation.best is None else federation.trainer.moments(),
    }
    with replacing(path) as file:
        torch.save(record, file)


def restore(path: Path, federation: Federation) -> Progress | None:
    """Loads a checkpoint into a freshly built federation and returns its progress.

    Without a sound checkpoint of this experiment it returns `None` and leaves the federation as it was, with a warning
    if there is a file.

    Raises:
        OutOfMemoryError: If the device has no room for the states that it holds.
    """
    if not path.exists():
        return None
    server = federation.server
    try:
        with zipfile.ZipFile(path) as file:
            if (damaged := file.testzip()) is not None:
                raise DamagedError(f"{damaged} in it is damaged")
        device = server.vector.device
        # Mapped, not read: the states of all clients may be larger than the memory.
        record = torch.load(path, map_location=device, weights_only=True, mmap=device.type == "cpu")
        if record.get("format") != FORMAT:
            raise DamagedError("it is of another version")
        if record["portable"] != federation.experiment.runtime.portable:
            raise DamagedError("it was not computed with the same runtime.portable")
        progress = Progress(**record["progress"])
        if record["vector"].shape != server.vector.shape or record["counters"].shape != server.counters.shape:
            raise DamagedError("it is of another model")
        clients = {int(i): ClientRecord.load(saved, federation.train) for i, saved in record["clients"].items()}
        state, warnings = dict(record["state"]), list(record["warnings"])
        before, now = record["rounding"], rounding()
        if before != now and device.type == "cpu":
            warnings.append(f"begun where sums are rounded otherwise ({before}) than where it went on ({now})")
        best = None if record["best"] is None else Best.of(record["best"])
        if best is not None:
            federation.trainer.restore(record["moments"])
        federation.channel.restore(record["channel"], record["vector"], record["counters"])
    except torch.OutOfMemoryError:
        raise  # of a device that others share: the next attempt may have more, and nothing is wrong with the file
    except Exception as error:
        reason = error if isinstance(error, DamagedError) else f"it cannot be read ({type(error).__name__})"
        server.warn(f"a checkpoint was ignored, the cell starts over: {reason}")
        return None
    server.vector.copy_(record["vector"])
    server.counters.copy_(record["counters"])
    server.state, server.warnings, federation.best = state, warnings, best
    federation.clients.update(clients)
    return progress
