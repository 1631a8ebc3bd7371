"""The local executor: worker processes on this machine, one in each slot, kept alive from cell to cell."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import ClassVar, Literal

from fcilbench.errors import UsageError
from fcilbench.execution.attempt import job_environment
from fcilbench.execution.base import TERMINAL, Handle, Job, RunOptions
from fcilbench.registry.process import WORKER, Event, WorkerProcess, died, wait_for, worker_environment
from fcilbench.spec.cell import PLUGIN_KINDS

_LOOK = 0.1  # seconds; a worker may die while a child of it keeps the pipe open


@dataclass(eq=False)
class _Slot:
    """A place for one worker.

    Attributes:
        visible: Value of `CUDA_VISIBLE_DEVICES` for its worker; empty on a CPU.
        late: Clock at which a worker that has not started its first job is given up.
        foreign: The third-party plugins that the worker has run.
    """

    visible: str
    worker: WorkerProcess | None = None
    handle: Handle | None = None
    alone: bool = False
    late: float | None = None
    foreign: frozenset[str] = frozenset()

    @property
    def label(self) -> str:
        return f"gpu{self.visible}" if self.visible else "cpu"

    def stop(self) -> None:
        """Kills the worker process of this slot and closes its pipes."""
        worker, self.worker, self.late = self.worker, None, None
        if worker is not None:
            worker.close()


class LocalExecutor:
    """Runs jobs in worker processes of this machine.

    A worker that ran third-party plugins is used again only for a cell that has all of them, because they may have
    changed the process. A worker whose job failed is not used again.
    """

    version: ClassVar[str] = "1"

    def __init__(self, options: RunOptions) -> None:
        if options.jobs < 1:
            raise UsageError(f"--jobs {options.jobs}: at least 1 slot a device is needed")
        self._options = options
        # The first slot of each device comes before the second ones, so that the first cells go to different devices.
        self._slots = [_Slot(visible) for visible in list(options.devices) * options.jobs]
        self._waiting: list[tuple[Handle, Event]] = []

    @property
    def device(self) -> Literal["cpu", "cuda"]:
        """`cuda` if there is a GPU to use."""
        return "cuda" if any(self._options.devices) else "cpu"

    @property
    def places(self) -> Sequence[str]:
        """The label of each slot's device."""
        return [slot.label for slot in self._slots]

    def accepts(self, alone: bool) -> bool:
        """Returns whether a slot is idle, on a device without other jobs if the job must be alone."""
        return self._free(alone) is not None

    def submit(self, job: Job) -> Handle:
        """Starts a job, in a new worker if the slot has none that can be used."""
        slot = self._free(job.alone)
        assert slot is not None, "`accepts` comes first"
        if job.alone:
            for other in self._neighbours(slot):
                self._drop(other)  # an idle worker still holds memory of the device
        slot.handle = handle = Handle(uuid.uuid4().hex, slot.label)
        slot.alone = job.alone
        names = {str(job.cell[axis]["name"]) for axis in PLUGIN_KINDS}
        foreign = frozenset(name for name in names if not name.startswith("fcilbench/"))
        if slot.worker is not None and (slot.worker.death() is not None or not slot.foreign <= foreign):
            slot.stop()
        slot.foreign = foreign
        if slot.worker is None:
            try:
                order = os.environ.get("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # the numbers of nvidia-smi
                environment = worker_environment() | job_environment(not slot.visible, self._options.offline)
                environment |= {"CUDA_VISIBLE_DEVICES": slot.visible, "CUDA_DEVICE_ORDER": order}
                slot.worker = WorkerProcess(environment, self._options.worker or WORKER)
            except OSError as error:
                self._end(slot, died(f"worker cannot be started: {error}"))
                return handle
            slot.late = time.monotonic() + self._options.start_seconds
        slot.worker.send({"ask": "run", "token": handle.token, **asdict(job)})
        return handle

    def poll(self, timeout: float) -> list[tuple[Handle, Event]]:
        """Returns the new events, after waiting up to `timeout` seconds for the first one."""
        deadline = time.monotonic() + timeout
        while True:
            rest = 0.0 if self._waiting else max(0.0, min(deadline - time.monotonic(), _LOOK))
            wait_for([slot.worker for slot in self._slots if slot.worker is not None], rest)
            for slot in self._slots:
                self._look(slot)
            if self._waiting or time.monotonic() >= deadline:
                events, self._waiting = self._waiting, []
                return events

    def kill(self, handle: Handle) -> None:
        """Kills the worker of a job at once."""
        for slot in self._slots:
            if slot.handle == handle:
                self._drop(slot)

    def ask_to_end(self) -> None:
        """Sends SIGTERM to every worker."""
        for slot in self._slots:
            if slot.worker is not None:
                slot.worker.terminate()

    def close(self) -> None:
        """Kills the workers of all slots, whatever they are doing."""
        for slot in self._slots:
            self._drop(slot)

    def _free(self, alone: bool) -> _Slot | None:
        for slot in self._slots:
            busy = [other for other in self._neighbours(slot) if other.handle is not None]
            if slot.handle is None and not (busy if alone else any(other.alone for other in busy)):
                return slot
        return None

    def _neighbours(self, slot: _Slot) -> list[_Slot]:
        return [other for other in self._slots if other.visible == slot.visible and other is not slot]

    def _look(self, slot: _Slot) -> None:
        """Takes the events of a slot's job and notices its death. Events with another token are dropped."""
        if slot.worker is None:
            return
        death = slot.worker.death()  # before reading: its last events came before its death
        for event in slot.worker.read():
            handle = slot.handle
            if handle is None or event.pop("token", None) != handle.token:
                continue
            slot.late = None
            if event["event"] not in TERMINAL:
                self._waiting.append((handle, event))
                continue
            self._end(slot, event)
            if event["event"] in ("failed", "oom"):
                slot.stop()  # the failure may have left the process in a bad state
                return
        if death is None and slot.late is not None and time.monotonic() >= slot.late:
            death = died(f"the worker was not ready after {self._options.start_seconds:g} s", "start")
        if death is not None:
            self._end(slot, death)
            slot.stop()

    def _end(self, slot: _Slot, event: Event) -> None:
        if slot.handle is not None:
            self._waiting.append((slot.handle, event))
        slot.handle, slot.alone = None, False

    def _drop(self, slot: _Slot) -> None:
        """Ends a slot's worker and forgets its job."""
        self._waiting = [(handle, event) for handle, event in self._waiting if handle != slot.handle]
        slot.handle, slot.alone = None, False
        slot.stop()
