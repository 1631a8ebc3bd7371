"""The contract between the supervisor, what runs its jobs (entry points `fcilbench.executors`) and who watches."""

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
"""The events that end a job; exactly one of them is a worker's last word about it."""

_log = logging.getLogger(__name__)
T = TypeVar("T")
P = TypeVar("P", bound=Params)


@dataclass(frozen=True)
class RunOptions:
    """How a plan is run; nothing here changes what a cell computes.

    Workers find the data sets where `FCILBENCH_DATA` of the environment says.

    Attributes:
        executor: Name in the entry-point group `fcilbench.executors`, with the executor's own options after commas,
            e.g. `slurm,partition=gpu,minutes=240`.
        devices: Devices to use, as `--gpus` names them (`choose_devices`); one empty value is the CPU.
        jobs: Jobs that share a device.
        wait: Wait at the end for cells that other runs on the store work on, and take over those they leave.
        fail_fast: Stop after the first cell that is not `ok` or `skipped`.
        offline: Refuse the network to workers.
        suite_digest: Digest of the resolved suite (`Store.save_suite`), which rows record.
        worker: Command line of a worker without its pipes; `None` for the built-in one.
        grace_seconds: Time between asking a worker to end and killing it, on an interrupt.
        start_seconds: Time that a worker may take until it begins with its first job.
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
    """One cell as a worker gets it, and what it needs.

    Attributes:
        cell: The cell in its JSON form.
        workdir: The cell's folder in the store: log, curve, and a checkpoint if there is one to go on from.
        device: Device of torch that the cell runs on; which GPU that is, the executor decides.
        alone: Whether it needs the device for itself, after memory ran out on a shared one.
    """

    cell: dict[str, Any]
    cell_id: str
    workdir: str
    device: Literal["cpu", "cuda"] = "cpu"
    offline: bool = False
    alone: bool = False


@dataclass(frozen=True)
class Handle:
    """A job that an executor has taken: its unique token, and how progress names its place, e.g. `gpu0` or `cpu`."""

    token: str
    label: str


class Executor(Protocol):
    """Runs jobs and survives whatever happens to them. Constructed as `Class(options)`.

    A job reports, by `poll`: `ready` with the `environment` of its worker, where facts of the device come from;
    `started`, from when on its wall-clock limit counts (waiting in a queue costs nothing); whatever happens meanwhile;
    and at last one event of `TERMINAL`, or `died` (`{"type": "SIGKILL", "reason": one line}`).
    """

    @property
    def device(self) -> Literal["cpu", "cuda"]:
        """Kind of device that jobs run on."""

    @property
    def places(self) -> Sequence[str]:
        """Labels of the places for jobs that run at the same time, for the display."""

    def accepts(self, alone: bool) -> bool:
        """Says whether a job would be taken now, and had a device for itself if it must be `alone`."""
        ...

    def submit(self, job: Job) -> Handle:
        """Takes a job that `accepts` allows."""
        ...

    def poll(self, timeout: float) -> list[tuple[Handle, Event]]:
        """Waits up to `timeout` seconds for events and returns what has come, in order for each job."""
        ...

    def kill(self, handle: Handle) -> None:
        """Ends a job at once; it reports nothing any more."""
        ...

    def ask_to_end(self) -> None:
        """Asks all jobs to end now (SIGTERM or its like); `poll` reports their deaths."""
        ...

    def close(self) -> None:
        """Ends what still runs and frees all resources."""
        ...


def executor_settings(model: type[P], options: RunOptions) -> P:
    """Returns the options of an executor that follow its name in `options.executor`.

    Args:
        model: The executor's options, a `Params` class.
        options: The run's options.

    Raises:
        UsageError: If an option is unknown, has no value or an illegal one.

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
    """What a display of a run is told, in the supervisor's thread; it should return quickly. This one shows nothing."""

    def run_started(self, cells: int, places: Sequence[str]) -> None:
        """A run starts that will write `cells` rows, with these places for jobs."""

    def cell_started(self, handle: Handle, cell: Cell, cell_id: str, attempt: int) -> None:
        """An attempt at a cell was handed to the executor."""

    def cell_event(self, handle: Handle, cell_id: str, event: Event) -> None:
        """The worker reports a phase, a round, a task or a log line."""

    def cell_retried(self, handle: Handle, cell: Cell, cell_id: str, reason: str) -> None:
        """An attempt failed and the cell waits for its next one."""

    def cell_finished(self, handle: Handle | None, row: Row) -> None:
        """A cell has its row; without a handle it was not started in this run."""

    def note(self, text: str) -> None:
        """Something that the user should know."""

    def run_finished(self) -> None:
        """Called once, when the last cell of the run has its row."""


def guarded(observer: T, name: str) -> T:
    """Returns an observer whose first exception is logged, and whose exceptions never reach the run."""
    return cast(T, _Guarded(observer, name))


class _Guarded:
    def __init__(self, observer: object, name: str) -> None:
        self._observer = observer
        self._name = name
        self._warned = False

    def __getattr__(self, method: str) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            try:
                getattr(self._observer, method)(*arguments)
            except Exception as error:  # whatever it is, it is not the cell's problem
                if not self._warned:
                    self._warned = True
                    _log.warning("%s: %s: %s", self._name, type(error).__name__, error)

        return call
