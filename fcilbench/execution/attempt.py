"""One attempt at a cell on whatever machine this code runs on: what a cluster's executor sends to its nodes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fcilbench.execution.base import TERMINAL
from fcilbench.registry.process import WORKER, Event, WorkerProcess, wait_for

_LOOK_SECONDS = 0.5
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}


def job_environment(cpu: bool, offline: bool) -> dict[str, str]:
    """Returns the environment variables that a worker needs to train, wherever it runs.

    They name the same data root as here, and make cuBLAS deterministic.

    Args:
        cpu: Hide all GPUs; otherwise those that a scheduler has assigned stay visible.
        offline: Tell the Hugging Face libraries to ask nobody.
    """
    environment = {name: value for name, value in os.environ.items() if name.startswith("FCILBENCH_")}
    environment |= {"PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8:replace"}
    environment["CUBLAS_WORKSPACE_CONFIG"] = os.environ.get("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    return environment | ({"CUDA_VISIBLE_DEVICES": ""} if cpu else {}) | (_OFFLINE if offline else {})


def attempt(
    request: Mapping[str, Any],
    environment: Mapping[str, str],
    command: Sequence[str] | None = None,
    wanted: Callable[[], bool] = lambda: True,
) -> Iterator[Event]:
    """Runs a job in a worker process of this machine and yields what it reports; the last event ends the job.

    Args:
        request: The `run` request: the fields of a `Job`, its `ask` and its `token`.
        environment: Environment variables to set (`job_environment`).
        command: Command line of the worker without its pipes; `None` for the built-in one.
        wanted: Asked twice a second; once it answers no, the worker is killed and nothing more is yielded.
    """
    worker = WorkerProcess({**os.environ, **environment}, command or WORKER)
    try:
        worker.send(request)
        while wanted():
            wait_for([worker], _LOOK_SECONDS)
            died = worker.death()  # before reading: its last events came before its death
            for event in worker.read():
                if event.pop("token", None) == request["token"]:
                    yield event
                    if event["event"] in TERMINAL:
                        return
            if died is not None:
                yield died
                return
    finally:
        worker.close()
