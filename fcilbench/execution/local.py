"""The local executor: worker processes on this machine, one in each slot, kept alive from cell to cell."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from fcilbench.errors import UsageError
from fcilbench.execution.base import Device, Executor, Job, RunOptions, job_environment
from fcilbench.spec.cell import PLUGIN_KINDS
from fcilbench.worker.events import TERMINAL, Event, died
from fcilbench.worker.process import WORKER, WorkerProcess, wait_for, worker_environment

_LOOK = 0.1  # seconds; a worker may die while a child of it keeps the pipe open


@dataclass(eq=False)
class _Slot:
    """A place for one worker.

    Attributes:
        visible: Value of `CUDA_VISIBLE_DEVICES` for its worker; empty on a CPU.
        late: Clock at which a worker that has not started its first job is given up.
        foreign: The third-party plugins that the worker has run.
        portable: Whether the worker was started for portable numbers.
    """

    visible: str
    worker: WorkerProcess | None = None
    job: Job | None = None
    late: float | None = None
    foreign: frozenset[str] = frozenset()
    portable: bool = False

    @property
    def label(self) -> str:
        return f"gpu{self.visible}" if self.visible else "cpu"

    def stop(self) -> None:
        """Kills the worker process of this slot and forgets its job."""
        worker, self.worker, self.job, self.late = self.worker, None, None, None
        if worker is not None:
            worker.close()


class LocalExecutor(Executor):
    """Runs jobs in worker processes of this machine.

    A worker that ran third-party plugins is used again only for a cell that has all of them, because they may have
    changed the process. Cells with portable numbers have workers of their own. A worker whose job failed is not used
    again.
    """

    version: ClassVar[str] = "1"

    def __init__(self, options: RunOptions) -> None:
        if options.jobs < 1:
            raise UsageError(f"--jobs {options.jobs}: at least 1 slot a device is needed")
        self._options = options
        # The first slot of each device comes before the second ones, so that the first cells go to different devices.
        self._slots = [_Slot(visible) for visible in list(options.devices) * options.jobs]
        self._events: list[tuple[Job, Event]] = []
        self.device: Device = "cuda" if any(options.devices) else "cpu"
        self.places = [slot.label for slot in self._slots]

    @override
    def accepts(self, alone: bool) -> bool:
        return self._free(alone) is not None

    def submit(self, job: Job) -> str:
        """Starts a job, in a new worker if the slot has none that can be used."""
        slot = self._free(job.alone)
        assert slot is not None, "`accepts` comes first"
        if job.alone:
            for other in self._neighbours(slot):
                other.stop()  # an idle worker still holds memory of the device
        names = {str(job.cell[axis]["name"]) for axis in PLUGIN_KINDS}
        foreign = frozenset(name for name in names if not name.startswith("fcilbench/"))
        portable = bool(job.cell["runtime"]["portable"])
        if slot.worker is not None:
            changed = not slot.foreign <= foreign or slot.portable != portable
            if changed or slot.worker.death() is not None:
                slot.stop()
        slot.job, slot.foreign, slot.portable = job, foreign, portable
        if slot.worker is None:
            try:
                order = os.environ.get("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # the numbers of nvidia-smi
                environment = worker_environment() | job_environment(job.request)
                environment |= {"CUDA_VISIBLE_DEVICES": slot.visible, "CUDA_DEVICE_ORDER": order}
                slot.worker = WorkerProcess(environment, self._options.worker or WORKER)
            except OSError as error:
                self._take(slot, died(f"worker cannot be started: {error}"))
                return slot.label
            slot.late = time.monotonic() + self._options.start_seconds
        slot.worker.send(job.request)
        return slot.label

    @override
    def poll(self, timeout: float) -> list[tuple[Job, Event]]:
        deadline = time.monotonic() + timeout
        while True:
            rest = 0.0 if self._events else max(0.0, min(deadline - time.monotonic(), _LOOK))
            wait_for([slot.worker for slot in self._slots if slot.worker is not None], rest)
            for slot in self._slots:
                if slot.worker is not None:
                    self._look(slot, slot.worker)
            if self._events or time.monotonic() >= deadline:
                events, self._events = self._events, []
                return events

    @override
    def kill(self, job: Job) -> None:
        self._events = [each for each in self._events if each[0] is not job]
        for slot in self._slots:
            if slot.job is job:
                slot.stop()

    @override
    def close(self) -> None:
        for slot in self._slots:
            slot.stop()

    def _free(self, alone: bool) -> _Slot | None:
        for slot in self._slots:
            busy = [other.job for other in self._neighbours(slot) if other.job is not None]
            if slot.job is None and not (busy if alone else any(job.alone for job in busy)):
                return slot
        return None

    def _neighbours(self, slot: _Slot) -> list[_Slot]:
        return [other for other in self._slots if other.visible == slot.visible and other is not slot]

    def _look(self, slot: _Slot, worker: WorkerProcess) -> None:
        """Takes the events of a slot's job, and the death of its worker."""
        events = worker.receive(slot.job.token if slot.job else "")
        if not events and slot.late is not None and time.monotonic() >= slot.late:
            events = [died(f"the worker was not ready after {self._options.start_seconds:g} s", "start")]
        for event in events:
            self._take(slot, event)

    def _take(self, slot: _Slot, event: Event) -> None:
        """Keeps an event of a slot's job for `poll`; the last one frees the slot."""
        if slot.job is not None:
            self._events.append((slot.job, event))
        slot.late = None
        if event["event"] in ("failed", "oom", "died"):
            slot.stop()  # the failure may have left the process in a bad state
        elif event["event"] in TERMINAL:
            slot.job = None
