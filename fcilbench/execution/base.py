"""The contract between the supervisor and what runs its jobs (entry points `fcilbench.executors`; `local` today)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from fcilbench.execution.devices import Slot
from fcilbench.execution.messages import Event, Job


@dataclass(frozen=True)
class RunOptions:
    """How a plan is run; nothing here changes what a cell computes.

    Attributes:
        executor: Name in the entry-point group `fcilbench.executors`.
        devices: `CUDA_VISIBLE_DEVICES` value of each device; one empty value is the CPU (`choose_devices`).
        jobs: Slots on each device.
        fail_fast: Stop after the first cell that is not `ok` or `skipped`.
        data_root: Folder of the data sets, or `None` for the default.
        offline: Refuse the network to workers.
        suite_digest: Digest of the resolved suite (`Store.save_suite`), which rows record.
        worker: Command line of a worker without its pipes; `None` for the built-in one.
        grace_seconds: Time between asking a worker to end and killing it, on an interrupt.
        start_seconds: Time that a worker may take until it is ready.
    """

    executor: str = "local"
    devices: tuple[str, ...] = ("",)
    jobs: int = 1
    fail_fast: bool = False
    data_root: Path | None = None
    offline: bool = False
    suite_digest: str | None = None
    worker: tuple[str, ...] | None = None
    grace_seconds: float = 5.0
    start_seconds: float = 300.0


@dataclass(frozen=True)
class Message:
    """What a slot reports: a worker's event, or its death.

    Attributes:
        slot: The slot.
        event: The event; a death is `{"event": "died", "signal": 9 | None, "code": int, "output": last words}`.
    """

    slot: Slot
    event: Event = field(default_factory=dict)


class Executor(Protocol):
    """Runs one job at a time on each of its slots and survives whatever happens to them."""

    @property
    def slots(self) -> Sequence[Slot]:
        """All places for a job."""
        ...

    def submit(self, slot: Slot, job: Job) -> None:
        """Starts a job on an idle slot; its worker is started first if there is none."""
        ...

    def poll(self, timeout: float) -> list[Message]:
        """Waits up to `timeout` seconds for news and returns what has come, in order for each slot.

        After `submit` a slot reports events that end with one of `messages.TERMINAL` or with `died`.
        """
        ...

    def kill(self, slot: Slot) -> None:
        """Kills the worker of a slot at once, if it has one; the slot reports nothing of it any more."""
        ...

    def ask_to_end(self) -> None:
        """Asks every worker to end now (SIGTERM or its like); their deaths are reported by `poll`."""
        ...

    def close(self) -> None:
        """Kills what still runs and frees all resources."""
        ...
