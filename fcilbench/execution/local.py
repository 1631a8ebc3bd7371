"""The local executor: child processes of this machine, one a slot, kept alive from cell to cell."""

from __future__ import annotations

import os
import selectors
import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import ClassVar

from fcilbench.execution.base import Message, RunOptions
from fcilbench.execution.child import Child
from fcilbench.execution.devices import Slot, make_slots
from fcilbench.execution.messages import TERMINAL, Job

WORKER = (sys.executable, "-m", "fcilbench.execution.worker")
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
_LOOK = 0.1  # seconds between two looks at processes that may have died with a pipe still open in a grandchild


class LocalExecutor:
    """Runs jobs in child processes of this machine, one a slot.

    Args:
        options: Devices, slots, the worker's command line, and whether the network is refused.
    """

    version: ClassVar[str] = "1"

    def __init__(self, options: RunOptions) -> None:
        self._options = options
        self._slots = make_slots(list(options.devices), options.jobs)
        self._children: dict[Slot, Child] = {}
        self._busy: set[Slot] = set()
        self._waiting: deque[Message] = deque()
        self._selector = selectors.DefaultSelector()

    @property
    def slots(self) -> Sequence[Slot]:
        """All places for a job."""
        return self._slots

    def submit(self, slot: Slot, job: Job) -> None:
        """Starts a job; the worker is started first if the slot has none."""
        child = self._children.get(slot)
        if child is not None and child.death() is not None:  # it died idle, which costs no cell anything
            self._drop(slot)
            child = None
        self._busy.add(slot)
        if child is None:
            try:
                child = Child(self._options.worker or WORKER, self._environment(slot))
            except OSError as error:
                self._busy.discard(slot)
                died = {"event": "died", "signal": None, "code": 1, "output": f"worker cannot be started: {error}"}
                self._waiting.append(Message(slot, died))
                return
            self._children[slot] = child
            self._selector.register(child.events, selectors.EVENT_READ, slot)
        child.send(job)

    def poll(self, timeout: float) -> list[Message]:
        """Returns what has come, waiting up to `timeout` seconds for the first of it."""
        deadline = time.monotonic() + timeout
        while True:
            messages = list(self._waiting)
            self._waiting.clear()
            rest = deadline - time.monotonic()
            ready = self._selector.select(0 if messages else max(0.0, min(rest, _LOOK))) if self._children else []
            if not self._children and not messages and rest > 0:
                time.sleep(min(rest, _LOOK))
            for key, _ in ready:
                messages += self._read(key.data)
            messages += self._deaths()
            if messages or rest <= 0:
                return messages

    def kill(self, slot: Slot) -> None:
        """Kills the slot's worker at once; the next job gets a new one."""
        if slot in self._children:
            self._drop(slot)

    def ask_to_end(self) -> None:
        """Sends SIGTERM to every worker."""
        for child in self._children.values():
            child.terminate()

    def close(self) -> None:
        """Kills all workers."""
        for slot in list(self._children):
            self._drop(slot)
        self._selector.close()

    def _read(self, slot: Slot) -> list[Message]:
        child = self._children[slot]
        events = child.read()
        if child.deaf and child.events in self._selector.get_map():
            self._selector.unregister(child.events)
        if any(event["event"] in TERMINAL for event in events):
            self._busy.discard(slot)
        return [Message(slot, event) for event in events]

    def _deaths(self) -> list[Message]:
        messages: list[Message] = []
        for slot, child in list(self._children.items()):
            died = child.death()
            if died is None:
                continue
            messages += self._read(slot)  # its last events came before its death
            if slot in self._busy:
                messages.append(Message(slot, died))
            self._drop(slot)
        return messages

    def _drop(self, slot: Slot) -> None:
        child = self._children.pop(slot)
        self._busy.discard(slot)
        if child.events in self._selector.get_map():
            self._selector.unregister(child.events)
        child.close()

    def _environment(self, slot: Slot) -> dict[str, str]:
        environment = dict(os.environ)
        environment["CUDA_VISIBLE_DEVICES"] = slot.visible
        environment.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # the numbers of nvidia-smi
        environment.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic cuBLAS
        environment["PYTHONUNBUFFERED"] = "1"
        if self._options.offline:
            environment |= _OFFLINE
        return environment
