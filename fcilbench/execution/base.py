"""The contract between the supervisor, executors (entry points `fcilbench.executors`) and displays of a run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar, cast

from pydantic import ValidationError

from fcilbench.errors import UsageError, nearest
from fcilbench.registry.process import Event
from fcilbench.spec.cell import Cell
from fcilbench.spec.params import Params
from fcilbench.spec.row import Row

TERMINAL = frozenset({"finished", "skipped", "failed", "oom"})
"""The events that end a job: a worker sends exactly one of them, as its last one."""

_log = logging.getLogger(__name__)
T = TypeVar("T")
P = TypeVar("P", bound=Params)


@dataclass(frozen=True)
class RunOptions:
    """How a plan is run; nothing here changes what a cell computes.

    Attributes:
        executor: Name of an executor, with its own options after commas: `slurm,partition=gpu,minutes=240`.
        devices: What `choose_devices` returns; one empty value is the CPU.
        jobs: Jobs that share a device.
        wait: Wait at the end for cells that other runs work on, and take over those that they leave.
        fail_fast: Stop after the first cell that is not `ok` or `skipped`.
        offline: Refuse the network to workers.
        suite_digest: Digest of the resolved suite (`Store.save_suite`), which rows record.
        worker: Command line of a worker without its pipes; `None` for the built-in one.
        grace_seconds: Time between asking a worker to end and killing it, on an interrupt.
        start_seconds: Time that a worker may take until it starts with its first job.
    """

    executor: str = "local"
    devices: tuple[str, ...] = ("",)
    jobs: int = 1
    wait: bool = True
    fail_fast: bool = False
    offline: bool = False
    suite_digest: str | None = None
    worker: tuple[str, ...] | None = None
    grace_seconds: float = 5.0
    start_seconds: float = 300.0


@dataclass(frozen=True)
class Job:
    """One cell in its JSON form, as a worker gets it.

    Attributes:
        workdir: The cell's folder in the store, with its log, its curve and perhaps a checkpoint.
        device: Kind of torch device; the executor decides which GPU it is.
        alone: Whether the job must have a device to itself.
    """

    cell: dict[str, Any]
    cell_id: str
    workdir: str
    device: Literal["cpu", "cuda"] = "cpu"
    offline: bool = False
    alone: bool = False


@dataclass(frozen=True)
class Handle:
    """A job that an executor has taken: a unique token, and the name of its place, e.g. `gpu0`, for the display."""

    token: str
    label: str


class Executor(Protocol):
    """Runs jobs, and reports their deaths instead of failing. Constructed as `Class(options)`.

    `poll` returns the events of each job: `ready` with the `environment` of its worker; `started`, when its wall-clock
    limit begins to count; `phase`, `round` and others; and last one of `TERMINAL`, or `died` (with a `type` such as
    `SIGKILL` and a `reason` of one line).
    """

    @property
    def device(self) -> Literal["cpu", "cuda"]:
        """Kind of torch device that jobs run on."""

    @property
    def places(self) -> Sequence[str]:
        """Labels of the places where jobs run at the same time, for the display."""

    def accepts(self, alone: bool) -> bool:
        """Returns whether `submit` can take a job now, on a device of its own if it must be `alone`."""
        ...

    def submit(self, job: Job) -> Handle:
        """Takes a job; `accepts` must have returned true."""
        ...

    def poll(self, timeout: float) -> list[tuple[Handle, Event]]:
        """Waits up to `timeout` seconds and returns the new events, those of one job in their order."""
        ...

    def kill(self, handle: Handle) -> None:
        """Ends a job at once; no more events of it are reported."""
        ...

    def ask_to_end(self) -> None:
        """Asks all jobs to end (SIGTERM); `poll` reports their deaths."""
        ...

    def close(self) -> None:
        """Ends all jobs and frees all resources."""
        ...


def executor_settings(model: type[P], options: RunOptions) -> P:
    """Returns the options that follow an executor's name in `options.executor`.

    Raises:
        UsageError: If an option is unknown or its value is missing or illegal.

    Example:
        >>> class Settings(Params):
        ...     minutes: int = 60
        >>> executor_settings(Settings, RunOptions(executor="slurm,minutes=240"))
        Settings(minutes=240)
    """
    name, *given = options.executor.split(",")
    values = dict(item.partition("=")[::2] for item in given)
    try:
        for key in values.keys() - model.model_fields.keys():
            raise UsageError(f"--executor {name}: no option {key!r}{nearest(key, model.model_fields)}")
        return model.model_validate_strings(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0])
        raise UsageError(f"--executor {name}: {key}={values[key]}: {first['msg']}") from None


class Progress:
    """Display of a run; this one shows nothing. It is called in the supervisor's thread and must return quickly."""

    def run_started(self, cells: int, places: Sequence[str]) -> None:
        """A run starts that will write `cells` rows, with these places for jobs."""

    def cell_started(self, handle: Handle, cell: Cell, cell_id: str, attempt: int) -> None:
        """An executor has taken an attempt at a cell."""

    def cell_event(self, handle: Handle, cell_id: str, event: Event) -> None:
        """The worker reports a phase, a round, a task or a log line."""

    def cell_retried(self, handle: Handle, cell: Cell, cell_id: str, reason: str) -> None:
        """An attempt failed, and the cell waits for the next one."""

    def cell_finished(self, handle: Handle | None, row: Row) -> None:
        """A cell has its row; without a handle it was not started in this run."""

    def note(self, text: str) -> None:
        """The user should read this."""

    def run_finished(self) -> None:
        """The run has written its last row, or was interrupted; called once."""


def guarded(observer: T) -> T:
    """Returns an observer whose exceptions never reach the run; the first one is logged."""
    return cast(T, _Guarded(observer))


class _Guarded:
    def __init__(self, observer: object) -> None:
        self._observer = observer
        self._warned = False

    def __getattr__(self, method: str) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            try:
                getattr(self._observer, method)(*arguments)
            except Exception as error:  # an observer's failure must not end a run
                if not self._warned:
                    self._warned = True
                    _log.warning("%s: %s: %s", type(self._observer).__name__, type(error).__name__, error)

        return call
