"""The contract between the supervisor, executors (entry points `fcilbench.executors`) and displays of a run.

`job_environment` and `attempt` are what executors share.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, TypeVar, cast

from pydantic import ValidationError

from fcilbench.errors import UsageError, nearest
from fcilbench.registry import entrypoints
from fcilbench.spec.cell import Cell
from fcilbench.spec.params import Params
from fcilbench.spec.row import Row
from fcilbench.worker.events import TERMINAL, Event
from fcilbench.worker.portable import PORTABLE
from fcilbench.worker.process import WORKER, WorkerProcess, wait_for

Device = Literal["cpu", "cuda"]
_LOOK_SECONDS = 0.5
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
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
    start_seconds: float = 300.0


@dataclass(frozen=True, eq=False)
class Job:
    """One attempt at a cell, which is in its JSON form as a worker gets it.

    Attributes:
        workdir: The cell's folder in the store, with its log, its curve and perhaps a checkpoint.
        device: Kind of torch device; the executor decides which GPU it is.
        alone: Whether the job must have a device to itself.
    """

    cell: dict[str, Any]
    cell_id: str
    workdir: str
    device: Device = "cpu"
    offline: bool = False
    alone: bool = False
    token: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def request(self) -> dict[str, Any]:
        """What a worker is sent."""
        return {"ask": "run", **vars(self)}


class Executor(Protocol):
    """Runs jobs, and reports their deaths instead of failing. Constructed as `Class(options)`.

    `poll` returns the events of each job, typed in `fcilbench.worker.events`: `ready`, `started`, those of the
    experiment, and last one of `TERMINAL`; `died` stands for a worker that ended without one.

    Attributes:
        Settings: The options that may follow its name on the command line; by default none.
        device: Kind of torch device that jobs run on.
        places: Labels of the places where jobs run at the same time, for the display.
    """

    Settings: ClassVar[type[Params]] = Params
    device: Device
    places: Sequence[str]

    def accepts(self, alone: bool) -> bool:
        """Returns whether `submit` can take a job now, on a device of its own if it must be `alone`."""
        ...

    def submit(self, job: Job) -> str:
        """Takes a job, and returns the label of its place, e.g. `gpu0`; `accepts` must have returned true."""
        ...

    def poll(self, timeout: float) -> list[tuple[Job, Event]]:
        """Waits up to `timeout` seconds and returns the new events, those of one job in their order."""
        ...

    def kill(self, job: Job) -> None:
        """Ends a job at once; no more events of it are reported."""
        ...

    def close(self) -> None:
        """Ends all jobs and frees all resources."""
        ...


def job_environment(request: Mapping[str, Any]) -> dict[str, str]:
    """Returns the environment variables that a worker needs to train, wherever it runs.

    They name the same data root as here, make cuBLAS deterministic, and the numbers of a cell portable if it wants
    that. A worker that was started with them serves no cell that needs others.

    Args:
        request: `Job.request`.
    """
    environment = {name: value for name, value in os.environ.items() if name.startswith("FCILBENCH_")}
    environment["CUBLAS_WORKSPACE_CONFIG"] = os.environ.get("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    environment |= {"CUDA_VISIBLE_DEVICES": ""} if request["device"] == "cpu" else {}
    environment |= _OFFLINE if request["offline"] else {}
    return {**environment, **(PORTABLE if request["cell"]["runtime"]["portable"] else {})}


def attempt(
    request: Mapping[str, Any],
    environment: Mapping[str, str],
    command: Sequence[str] | None = None,
    wanted: Callable[[], bool] = lambda: True,
) -> Iterator[Event]:
    """Runs a job in a worker process of the machine that this code runs on, and yields what it reports.

    Args:
        request: `Job.request`.
        environment: Environment variables to set (`job_environment`).
        command: Command line of the worker without its pipes; `None` for the built-in one.
        wanted: Asked twice a second; once it answers no, the worker is killed and nothing more is yielded.
    """
    worker = WorkerProcess({**os.environ, **environment}, command or WORKER)
    try:
        worker.send(request)
        while wanted():
            wait_for([worker], _LOOK_SECONDS)
            for event in worker.receive(request["token"]):
                yield event
                if event["event"] in TERMINAL:
                    return
    finally:
        worker.close()


def executor_class(executor: str) -> Callable[[RunOptions], Executor]:
    """Returns the class of the executor in `RunOptions.executor`, whose options are legal.

    Raises:
        UsageError: If there is no such executor, or one of its options is unknown or illegal.
    """
    cls = entrypoints.load(entrypoints.lookup("executors", executor.partition(",")[0]))
    executor_settings(getattr(cls, "Settings", Params), executor)
    return cast(Callable[[RunOptions], Executor], cls)


def executor_settings(model: type[P], executor: str) -> P:
    """Returns the options that follow an executor's name in `RunOptions.executor`.

    Raises:
        UsageError: If an option is unknown or its value is missing or illegal.

    Example:
        >>> class Settings(Params):
        ...     minutes: int = 60
        >>> executor_settings(Settings, "slurm,minutes=240")
        Settings(minutes=240)
    """
    name, *given = executor.split(",")
    values = dict(item.partition("=")[::2] for item in given)
    try:
        for key in values.keys() - model.model_fields.keys():
            raise UsageError(
                f"--executor {name}: no option {key!r}{nearest(key, model.model_fields) or '; it has none'}"
            )
        return model.model_validate_strings(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0])
        raise UsageError(f"--executor {name}: {key}={values[key]}: {first['msg']}") from None


class RunDisplay:
    """What shows a run to the user; this one shows nothing.

    It is called in the supervisor's thread and must return quickly. A cell is named by its `cell_id`; only one attempt
    at it runs at a time.
    """

    def run_started(self, cells: int, places: Sequence[str], awaited: int = 0) -> None:
        """A run of `cells` cells starts, with these places for jobs; another run trains `awaited` of them."""

    def cell_started(self, place: str, cell: Cell, cell_id: str, attempt: int) -> None:
        """An executor has taken an attempt at a cell, which runs at a place such as `gpu0`."""

    def cell_event(self, cell_id: str, event: Event) -> None:
        """The worker reports a phase, a round, a task, or how far it is with decoding data."""

    def cell_retried(self, cell: Cell, cell_id: str, reason: str) -> None:
        """An attempt failed, and the cell waits for the next one."""

    def cell_finished(self, row: Row) -> None:
        """A cell has its row, whether it was started in this run or not."""

    def note(self, text: str) -> None:
        """The user should read this."""

    def suite_finished(self, interrupted: bool = False) -> None:
        """The run has written its last row, or was interrupted; called once."""
