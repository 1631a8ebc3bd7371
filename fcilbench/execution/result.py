"""From a worker's last word, or its death, to the status of a cell."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fcilbench.registry.process import Event
from fcilbench.spec.outcome import Outcome
from fcilbench.spec.row import Failure, Status


@dataclass(frozen=True)
class Result:
    """How an attempt ended.

    Attributes:
        status: Status of the row.
        outcome: The result of an `ok` cell.
        failure: Why there is no result.
        skipped: The plugin's reason for a `skipped` cell.
    """

    status: Status
    outcome: Outcome | None = None
    failure: Failure | None = None
    skipped: str | None = None


def result_of(event: Event, cell_folder: str) -> Result:
    """Returns the result of a terminal event or of `died`.

    Args:
        event: The event.
        cell_folder: The cell's folder, relative to the store's.
    """
    match event["event"]:
        case "finished":
            return _finished(event)
        case "skipped":
            return Result("skipped", skipped=_line(event.get("reason")) or "no reason given")
        case "oom":
            return Result("oom", failure=_failure(event, "oom", cell_folder))
        case "failed" if event.get("kind") == "environment":
            return interrupted(
                f"{_line(event.get('message'))}; make room there, then the same command resumes the cell"
            )
        case "failed":
            return Result("failed", failure=_failure(event, str(event.get("kind", "internal")), cell_folder))
        case _:
            return Result("killed", failure=_death(event))


def timed_out(seconds: float) -> Result:
    """Returns the result of an attempt that reached its wall-clock limit."""
    message = f"stopped after {seconds:g} s, the suite's limits.wall"
    return Result("timeout", failure=Failure(kind="timeout", type="wall", message=message))


def interrupted(message: str) -> Result:
    """Returns the result of a cell that was stopped, or not started, because the run ended early."""
    return Result("interrupted", failure=Failure(kind="interrupted", type="interrupt", message=message))


def _finished(event: Event) -> Result:
    try:
        return Result("ok", outcome=Outcome.model_validate(event.get("outcome")))
    except ValueError as error:
        message = f"the worker's result is invalid: {_line(error)}"
        return Result("failed", failure=Failure(kind="internal", type=type(error).__name__, message=message))


def _failure(event: Mapping[str, Any], kind: str, cell_folder: str) -> Failure:
    path = event.get("traceback_path")
    return Failure(
        kind=kind,
        type=str(event.get("type") or kind),
        message=_line(event.get("message")) or "no message",
        traceback_path=f"{cell_folder}/{path}" if path else None,
    )


def _death(event: Event) -> Failure:
    if "reason" in event:
        return Failure(kind="killed", type=str(event.get("type")), message=_line(event["reason"]))
    number = event.get("signal")
    if isinstance(number, int):
        try:
            name = signal.Signals(number).name
        except ValueError:
            name = f"signal {number}"
        hint = "; the machine may have run out of memory" if name == "SIGKILL" else ""
        return Failure(kind="killed", type=name, message=f"the worker died of {name}{hint}")
    last = str(event.get("output") or "").strip().rpartition("\n")[2]
    message = f"the worker exited with code {event.get('code')}" + (f": {last}" if last else "")
    return Failure(kind="killed", type="exit", message=message)


def _line(text: object) -> str:
    """Returns a text as one line, cut where it gets too long to read in a table."""
    line = " ".join(str(text or "").split())
    return line if len(line) <= 500 else line[:499] + "…"
