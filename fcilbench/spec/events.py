"""What an experiment reports while it runs, and what its curve (`rounds.jsonl`) keeps: one JSON object an event."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NotRequired, TypedDict

from fcilbench.spec.protocol import Scored

Accuracy = dict[Scored, list[float]]
"""Accuracy on each task seen so far, by task identity or selector."""


class Decoding(TypedDict):
    """A data set is being decoded: `done` of `total` samples."""

    event: Literal["decoding"]
    done: int
    total: int


class PhaseStarted(TypedDict):
    """The training of a task starts; tasks count from 0."""

    event: Literal["phase"]
    task: int
    tasks: int


class RoundEnded(TypedDict):
    """A round has ended; rounds count from 0 in each task.

    `loss` is the mean local loss, `None` if no client has a finite one; `seconds` are by phase of work; `bytes_up` and
    `bytes_down` are those of the round; `logs` is what the method logs. `accuracy` is there if the curve is analysed.
    """

    event: Literal["round"]
    task: int
    tasks: int
    round: int
    rounds: int
    loss: float | None
    seconds: dict[str, float]
    bytes_up: int
    bytes_down: int
    visits: int
    logs: dict[str, float | None]
    accuracy: NotRequired[Accuracy]


class TaskEnded(TypedDict):
    """A task has ended and was evaluated; bytes, seconds and logs are those since its last round.

    `selectors` are the bytes up and down of each selector that learns, by label.
    """

    event: Literal["task"]
    task: int
    tasks: int
    accuracy: Accuracy
    seconds: dict[str, float]
    bytes_up: int
    bytes_down: int
    logs: dict[str, float | None]
    selectors: NotRequired[dict[str, dict[str, int]]]
    margins: NotRequired[Any]


CurveEvent = RoundEnded | TaskEnded
"""What a curve keeps."""
ExperimentEvent = Decoding | PhaseStarted | CurveEvent


def standing(event: Mapping[str, Any]) -> tuple[float, str]:
    """Returns how far a cell is, in [0, 1] and in words (empty if the event does not say).

    Example:
        >>> standing({"event": "round", "task": 1, "tasks": 4, "round": 0, "rounds": 2, "loss": 0.41234})
        (0.375, 'task 2/4 round 1/2 loss 0.412')
    """
    kind, task, tasks = event["event"], int(event.get("task", 0)), max(1, int(event.get("tasks", 1)))
    text = f"task {task + 1}/{tasks}"
    if kind == "decoding":
        return 0.0, f"decoding {event.get('done', 0)}/{event.get('total', 0)} samples"
    if kind == "round":
        number, rounds, loss = int(event.get("round", 0)) + 1, max(1, int(event.get("rounds", 1))), event.get("loss")
        shown = f" loss {loss:.3f}" if isinstance(loss, float) else ""
        return min(1.0, (task + number / rounds) / tasks), f"{text} round {number}/{rounds}{shown}"
    if kind in ("phase", "task"):
        return (task + (kind == "task")) / tasks, text
    return 0.0, ""
