"""The Slurm executor: cells are tasks of job arrays, submitted with submitit.

The results folder, the data root and the Python environment must be on disks that the nodes share. A job writes the
events of its worker into `events.jsonl` in the cell's folder, and this process reads them there. At its time limit a
job is requeued by Slurm and the cell goes on from its checkpoint.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from typing_extensions import override

from fcilbench.errors import PrerequisiteError
from fcilbench.execution import lease
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
from fcilbench.worker.wire import LineBuffer, events_of

try:
    import submitit
except ImportError as error:
    raise PrerequisiteError("submitit is not installed", hint="pip install 'fcilbench[slurm]'") from error

_READ_SECONDS, _ASK_SECONDS = 1.0, 15.0
_REQUEUES = 1000  # how often one job may reach its time limit: the cell's own limit is `limits.wall_seconds`


class SlurmSettings(Params):
    """Options of `--executor slurm,NAME=VALUE,...`."""

    partition: str | None = Field(None, description="partition of the jobs")
    account: str | None = Field(None, description="account that pays")
    qos: str | None = Field(None, description="quality of service")
    minutes: int = Field(60, ge=1, description="time limit of a job; a cell that needs longer is requeued")
    warning: int = Field(120, ge=1, description="seconds before the time limit at which a job is requeued")
    gpus: int = Field(0, ge=0, description="GPUs of a cell; 0 is the CPU")
    cpus: int = Field(1, ge=1, description="cores of a cell")
    memory: float | None = Field(None, gt=0, description="memory of a cell in GB")
    parallel: int = Field(256, ge=1, description="jobs of one array that run at the same time")
    queue: int = Field(1000, ge=1, description="cells that are handed to Slurm at a time")
    cluster: Literal["slurm", "local"] = Field("slurm", description="`local` runs the jobs on this machine")


@dataclass(eq=False)
class _Submitted:
    """A job that Slurm has, or will have with the next array.

    Attributes:
        offset: Bytes of its events that were read.
        known: What submitit knows of it, once it is submitted.
    """

    job: Job
    work: SlurmJob
    lines: LineBuffer = field(default_factory=LineBuffer)
    offset: int = 0
    known: submitit.Job[None] | None = None


class SlurmExecutor(Executor):
    """Submits jobs in arrays, reads their events from the shared disk, and asks the scheduler every 15 seconds.

    `places` has one label for each job that an array may run at the same time.
    """

    version: ClassVar[str] = "1"
    Settings = SlurmSettings

    def __init__(self, options: RunOptions) -> None:
        self._options = options
        self._settings = executor_settings(SlurmSettings, options.executor)
        self._jobs: dict[Job, _Submitted] = {}
        self._refused: list[tuple[Job, Event]] = []
        self._next_question = 0.0
        self.device: Device = "cuda" if self._settings.gpus else "cpu"
        self._label = self._settings.partition or self._settings.cluster
        self.places = [self._label] * self._settings.parallel
        if self._settings.cluster == "slurm" and _squeue() is None:
            hint = "run on a login node, or say --executor slurm,cluster=local"
            raise PrerequisiteError("`squeue` does not answer: there is no Slurm here", hint=hint)

    def accepts(self, alone: bool) -> bool:
        """Says whether fewer cells than `queue` are with Slurm; those that wait there are among them."""
        return len(self._jobs) < self._settings.queue

    def submit(self, job: Job) -> str:
        """Keeps a job for the next array, which `poll` submits."""
        work = SlurmJob(job.request, self._options.worker)
        work.events.unlink(missing_ok=True)
        self._jobs[job] = _Submitted(job, work)
        return self._label

    def poll(self, timeout: float) -> list[tuple[Job, Event]]:
        """Submits what is new, waits, and returns the events that have come."""
        self._submit_array()
        if not self._refused:
            time.sleep(max(timeout, _READ_SECONDS if self._jobs else 0.0))
        found, self._refused = self._refused, []
        gone = self._gone()  # before reading: the last events of a job came before its end
        for submitted in list(self._jobs.values()):
            events = _read(submitted)
            last = bool(events) and events[-1]["event"] in TERMINAL
            if not last and submitted in gone:
                events.append(died("the job ended without a result; see the folder slurm in the results"))
                last = True
            found += [(submitted.job, event) for event in events]
            if last:
                del self._jobs[submitted.job]
        return found

    def kill(self, job: Job) -> None:
        """Cancels a job with `scancel`, whether it waits or runs."""
        submitted = self._jobs.pop(job, None)
        if submitted is not None and submitted.known is not None:
            submitted.known.cancel(check=False)

    @override
    def close(self) -> None:
        for job in list(self._jobs):
            self.kill(job)

    def _submit_array(self) -> None:
        new = [submitted for submitted in self._jobs.values() if submitted.known is None]
        if not new:
            return
        executor = self._executor(new[0].work.folder.parents[1] / "slurm")
        try:
            with executor.batch():
                for submitted in new:
                    submitted.known = executor.submit(submitted.work)
        except submitit.core.utils.FailedJobError as error:
            for submitted in new:
                del self._jobs[submitted.job]
                self._refused.append((submitted.job, died(f"sbatch refuses the job: {error}")))
        self._next_question = time.monotonic() + _ASK_SECONDS

    def _executor(self, folder: Path) -> submitit.AutoExecutor:
        settings = self._settings
        executor = submitit.AutoExecutor(folder, cluster=settings.cluster, slurm_max_num_timeout=_REQUEUES)
        common = {"timeout_min": settings.minutes, "cpus_per_task": settings.cpus, "gpus_per_node": settings.gpus}
        executor.update_parameters(name="fcilbench", tasks_per_node=1, nodes=1, **common)
        if settings.memory is not None:
            executor.update_parameters(mem_gb=settings.memory)
        if settings.cluster == "slurm":
            named = {"partition": settings.partition, "account": settings.account, "qos": settings.qos}
            executor.update_parameters(
                slurm_array_parallelism=settings.parallel,
                slurm_signal_delay_s=settings.warning,
                slurm_setup=["export PYTHONSAFEPATH=1"],  # nothing is imported from the folder of the command
                **{f"slurm_{name}": value for name, value in named.items() if value is not None},
            )
        return executor

    def _gone(self) -> set[_Submitted]:
        """Returns the jobs that have left the queue; the scheduler is asked for all of them at once."""
        if time.monotonic() < self._next_question:
            return set()
        self._next_question = time.monotonic() + _ASK_SECONDS
        known = {submitted: submitted.known for submitted in self._jobs.values() if submitted.known is not None}
        if self._settings.cluster == "local":
            return {submitted for submitted, job in known.items() if job.done()}
        queued = _squeue()
        if queued is None:  # a scheduler that does not answer says nothing about the jobs
            return set()
        return {submitted for submitted, job in known.items() if job.job_id not in queued}


class SlurmJob:
    """What a job of Slurm runs: one attempt at a cell, whose events it appends to a file."""

    def __init__(self, request: dict[str, Any], command: Sequence[str] | None) -> None:
        self._request, self._command = request, command
        self.folder = Path(request["workdir"])
        self.events = self.folder / "events.jsonl"
        owner = lease.read(self.folder)
        self._lease = owner.token if owner else ""  # of the run that submits it, and of no other

    def __call__(self) -> None:
        """Runs the attempt, unless the run that wanted it has ended meanwhile."""
        watch = _Watch(self.folder, self._lease)
        environment = job_environment(self._request)
        with self.events.open("a", encoding="utf-8") as file:
            for event in attempt(self._request, environment, self._command, watch.alive):
                file.write(json.dumps({"token": self._request["token"], **event}) + "\n")
                file.flush()

    def checkpoint(self) -> submitit.helpers.DelayedSubmission:
        """Called by submitit shortly before the time limit, before it requeues this attempt and exits."""
        return submitit.helpers.DelayedSubmission(self)


class _Watch:
    """Whether the run that submitted a job still lives: the lease is its own, and changes every few seconds."""

    def __init__(self, folder: Path, token: str) -> None:
        self._folder, self._token, self._owner = folder, token, lease.read(folder)
        self._changed = time.monotonic()

    def alive(self) -> bool:
        owner = lease.read(self._folder)
        if owner != self._owner:
            self._owner, self._changed = owner, time.monotonic()
        ours = owner is not None and owner.token == self._token
        return ours and time.monotonic() - self._changed < lease.STALE_SECONDS


def _squeue() -> set[str] | None:
    """Returns the ids of this user's jobs that wait or run, or `None` if the scheduler does not answer."""
    command = ["squeue", "--me", "--array", "--noheader", "--format=%i"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return set(answer.split())


def _read(submitted: _Submitted) -> list[Event]:
    """Returns the new events of a job, without their token."""
    try:
        with submitted.work.events.open("rb") as file:
            file.seek(submitted.offset)
            chunk = file.read()
    except FileNotFoundError:
        return []
    submitted.offset += len(chunk)
    return events_of(submitted.job.token, submitted.lines.feed(chunk))
