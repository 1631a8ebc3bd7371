"""A worker for the checks of executors: it trains nothing, and ends as the `script` of the job's aggregator says.

It is started by its path, as `python scripted_worker.py REQUESTS EVENTS` with the numbers of two pipes, and imports
nothing of this package.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

PID = "pid.txt"
"""File in the job's folder with the number of the worker's process."""


def main(requests: int, events: int) -> None:
    """Answers requests, one JSON object a line, until their pipe closes."""
    with os.fdopen(requests, encoding="utf-8") as lines:
        for line in lines:
            work(json.loads(line), events)


def work(job: dict[str, Any], events: int) -> None:
    """Reports one job's events."""

    def emit(event: str, token: str = job["token"], **values: Any) -> None:
        os.write(events, json.dumps({"token": token, "event": event, **values}).encode() + b"\n")

    (Path(job["workdir"]) / PID).write_text(str(os.getpid()), encoding="utf-8")
    emit("ready", environment={})
    emit("started", pid=os.getpid())
    match job["cell"]["aggregator"]["params"]["script"]:
        case "finish":
            emit("round", task=0, tasks=1, round=0, rounds=1)
            emit("finished", outcome={})
        case "skip":
            emit("finished", "the token of another job", outcome={})
            emit("skipped", reason="the method declines")
        case "fail":
            emit("failed", kind="plugin", type="ValueError", message="a fault")
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit":
            os._exit(7)
        case "hang":
            time.sleep(600)


if __name__ == "__main__":
    main(int(sys.argv[-2]), int(sys.argv[-1]))
