"""All that a worker says: one JSON object an event, which its `event` names.

A job's events are `ready`, `started`, those of its experiment (`fcilbench.spec.events`), and last one of `TERMINAL`. A
question gets one `answer`. The types say what this package writes; what a worker really sends may be anything, since a
plugin runs in it, so whoever reads an event takes no field for granted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NotRequired, TypedDict

from fcilbench.spec.events import ExperimentEvent


class Ready(TypedDict):
    """The worker has imported what it needs; `environment` is what it sees of machine, device and libraries."""

    event: Literal["ready"]
    environment: dict[str, Any]


class Started(TypedDict):
    """The worker builds the cell: its wall-clock limit begins to count."""

    event: Literal["started"]
    pid: int


class Finished(TypedDict):
    """The cell has a result: `fcilbench.spec.outcome.Outcome` as JSON."""

    event: Literal["finished"]
    outcome: dict[str, Any]


class Skipped(TypedDict):
    """The method does not run on this cell, for the reason that its plugin gives."""

    event: Literal["skipped"]
    reason: str


class Failed(TypedDict):
    """An exception ended the cell.

    `kind` is what is to blame, as in `Failure.kind`, or `environment` (a full disk); `type` is the exception's class;
    `traceback_path` is relative to the cell's folder.
    """

    event: Literal["failed"]
    kind: str
    type: str
    message: str
    traceback_path: NotRequired[str]


class OutOfMemory(TypedDict):
    """Memory of the device or the machine ran out."""

    event: Literal["oom"]
    type: str
    message: str
    traceback_path: NotRequired[str]


class Died(TypedDict):
    """No worker says this: it stands for one that ended without a last event. `type` is e.g. `SIGKILL`."""

    event: Literal["died"]
    type: str
    reason: str


class Answer(TypedDict):
    """The answer to a question; what is in it depends on the question."""

    event: Literal["answer"]
    answer: dict[str, Any]


LastEvent = Finished | Skipped | Failed | OutOfMemory | Died
Event = Ready | Started | ExperimentEvent | LastEvent | Answer
Emit = Callable[[Event], None]
"""Sends an event of the request that is being served."""

TERMINAL = frozenset({"finished", "skipped", "failed", "oom", "died"})
"""The events that end a job: a worker sends one as its last one, or `died` stands for a worker that sent none."""


def died(reason: str, type_: str = "exit") -> Died:
    """Returns the event of a job that ended without a last event of its own."""
    return {"event": "died", "type": type_, "reason": reason}
