"""The Ray executor: each cell is a task of a Ray cluster, with the share of GPUs and cores that it needs.

The results folder and the data root must be folders that all nodes share. A node that is lost costs each of its cells
one retry; the cell goes on from its checkpoint on another node.
"""

from __future__ import annotations

import logging
import math
import socket
import time
from typing import Any, ClassVar

try:
    import ray
except ImportError as error:
    from fcilbench.errors import PrerequisiteError

    raise PrerequisiteError("Ray is not installed", hint="pip install 'fcilbench[ray]'") from error

from typing_extensions import override

from fcilbench.errors import PrerequisiteError
from fcilbench.execution.base import (
    Device,
    Executor,
    Job,
    RunOptions,
    attempt,
    executor_settings,
    job_environment,
)
from fcilbench.spec.params import Field, Params
from fcilbench.worker.events import TERMINAL, Event, died


class RaySettings(Params):
    """Options of `--executor ray,NAME=VALUE,...`."""

    address: str = Field("auto", description="address of the cluster; `local` starts one on this machine")
    gpus: float = Field(0.0, ge=0, description="GPUs of a cell, e.g. 0.5 to let two share one; 0 is the CPU")
    cpus: int | None = Field(None, ge=1, description="cores of a cell; by default its runtime.threads")
    queue: int = Field(1000, ge=1, description="cells that are handed to Ray at a time")


class RayExecutor(Executor):
    """Runs jobs as tasks of a Ray cluster; which node takes one, and when, Ray decides.

    `places` has one label for each core or share of a GPU of the cluster as it is at the start; a cluster may grow.
    """

    version: ClassVar[str] = "1"
    Settings = RaySettings

    def __init__(self, options: RunOptions) -> None:
        self._options = options
        self._settings = executor_settings(RaySettings, options.executor)
        self._events: dict[Job, ray.ObjectRefGenerator] = {}
        settings, address = self._settings, self._settings.address
        host, _, port = address.rpartition(":")
        try:
            if host and port.isdecimal():  # Ray itself waits for minutes
                socket.create_connection((host, int(port)), timeout=10).close()
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False)
        except (OSError, RuntimeError, ValueError) as error:
            hint = "start one with `ray start --head`, or say --executor ray,address=local"
            reason = str(error).splitlines()[0]
            raise PrerequisiteError(f"no Ray cluster at {address!r}: {reason}", hint=hint) from error
        self.device: Device = "cuda" if settings.gpus else "cpu"
        whole = ray.cluster_resources()  # type: ignore[no-untyped-call]
        slots = whole.get("GPU", 0) / settings.gpus if settings.gpus else whole.get("CPU", 1) / (settings.cpus or 1)
        self.places = ["ray"] * max(1, int(slots))

    def accepts(self, alone: bool) -> bool:
        """Says whether fewer cells than `queue` are with Ray; those that wait for a node are among them."""
        return len(self._events) < self._settings.queue

    def submit(self, job: Job) -> str:
        """Starts an attempt as a Ray task with the resources that the job needs."""
        cpus, gpus = self._settings.cpus or int(job.cell["runtime"]["threads"]), self._settings.gpus
        if job.alone:  # all cores of the largest node, and no share of a GPU: nothing else runs beside it
            cpus, gpus = max(cpus, _largest_node()), math.ceil(gpus)
        task = _task.options(num_cpus=cpus, num_gpus=gpus, num_returns="streaming", max_retries=0)
        environment = job_environment(job.request)
        self._events[job] = task.remote(job.request, environment, self._options.worker)
        return "ray"

    @override
    def poll(self, timeout: float) -> list[tuple[Job, Event]]:
        if not self._events:
            time.sleep(timeout)
            return []
        running = list(self._events.values())
        ready, _ = ray.wait(running, num_returns=1, timeout=timeout, fetch_local=False)
        if ready:
            ready, _ = ray.wait(running, num_returns=len(running), timeout=0, fetch_local=False)
        found = []
        for job in [job for job, events in self._events.items() if events in ready]:
            event = self._next(self._events[job])
            found.append((job, event))
            if event["event"] in TERMINAL:
                del self._events[job]
        return found

    def _next(self, events: ray.ObjectRefGenerator) -> Event:
        """Returns the next event of a task that has one, or how the task came to its end without a last event."""
        try:
            event: Event = ray.get(next(events))
        except ray.exceptions.OutOfMemoryError as error:
            return {"event": "oom", "type": "OutOfMemoryError", "message": str(error).splitlines()[0]}
        except (ray.exceptions.RayError, StopIteration) as error:
            reason = next(iter(str(error).splitlines()), "") or type(error).__name__
            return died(reason, type(error).__name__)
        return event

    def kill(self, job: Job) -> None:
        """Cancels a job; its worker process dies with the task."""
        if (events := self._events.pop(job, None)) is not None:
            ray.cancel(events, force=True)

    @override
    def close(self) -> None:
        for job in list(self._events):
            self.kill(job)
        ray.shutdown()


_task: Any = ray.remote(attempt)


def _largest_node() -> int:
    """Returns the cores of the node that has most of them."""
    nodes = ray.nodes()  # type: ignore[no-untyped-call]
    return max((int(node["Resources"].get("CPU", 1)) for node in nodes if node["Alive"]), default=1)
