"""What a supervisor and a worker say to each other: one JSON object a line, over two pipes of their own."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

Event = dict[str, Any]
"""An event of a worker: a JSON object whose `event` names its kind, e.g. `{"event": "round", "loss": 0.4, ...}`."""

TERMINAL = frozenset({"finished", "skipped", "failed", "oom"})
"""The events that end a job; exactly one of them is a worker's last word about it."""


@dataclass(frozen=True)
class Job:
    """One cell as a worker gets it.

    Attributes:
        cell: The cell in its JSON form (`Cell.model_dump(mode="json")`).
        cell_id: Its identity.
        workdir: The cell's folder in the store: log, curve, and a checkpoint if there is one to go on from.
        data_root: Folder of the data sets, or `None` for the default.
        device: Device of torch that the cell runs on; which GPU that is, the slot's environment decides.
        offline: Whether the network is refused.
    """

    cell: dict[str, Any]
    cell_id: str
    workdir: str
    data_root: str | None = None
    device: Literal["cpu", "cuda"] = "cpu"
    offline: bool = False


def encode(message: Job | Event) -> bytes:
    """Returns a message as one line; what JSON cannot say is written as its `repr` rather than lost."""
    body = asdict(message) if isinstance(message, Job) else message
    return json.dumps(body, default=repr, separators=(",", ":")).encode() + b"\n"


def decode_event(line: bytes) -> Event | None:
    """Returns the event on a line, or `None` if the line is not one (a stray write must not break a run)."""
    try:
        body = json.loads(line)
    except ValueError:
        return None
    return body if isinstance(body, dict) and isinstance(body.get("event"), str) else None


def decode_job(line: bytes) -> Job:
    """Returns the job on a line.

    Raises:
        ValueError: If the line is not a job.
    """
    try:
        return Job(**json.loads(line))
    except TypeError as error:
        raise ValueError(f"not a job: {error}") from error


class LineBuffer:
    """Cuts a stream of bytes into lines, whatever the chunks."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Returns the lines that `chunk` completes, without their newline."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        return lines
