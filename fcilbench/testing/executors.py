"""Checks of executors: real processes of a worker that trains nothing, and ends as it is told."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fcilbench.execution import lease
from fcilbench.execution.base import Executor, Job, RunOptions
from fcilbench.spec.identity import cell_id
from fcilbench.testing import scripted_worker
from fcilbench.testing.cells import PluginSubject, cell, check_contract, check_torch_free
from fcilbench.testing.check import CheckFailed, Checks
from fcilbench.worker.events import TERMINAL

CHECKS: Checks[PluginSubject] = Checks()
_WORKER = (sys.executable, str(Path(scripted_worker.__file__)))
_PATIENCE = 120.0
"""Seconds until a cluster has begun with a job, and until it has noticed that one is over."""
_GONE_SECONDS = 20.0
_HOOKS = ("accepts", "submit", "poll", "kill", "close")


class _Bed:
    """An executor with jobs in a folder of their own, and the events that it has reported."""

    def __init__(self, subject: PluginSubject, folder: Path, worker: Sequence[str]) -> None:
        options = "".join(f",{name}={value}" for name, value in subject.options.items())
        self.folder = folder
        self.executor: Executor = subject.cls(RunOptions(subject.ref.name + options, worker=tuple(worker)))
        self.events: dict[str, list[dict[str, Any]]] = {}
        self.leases: list[Any] = []
        self.open = True

    def job(self, script: str) -> Job:
        """Returns a job that ends as the script says; this process holds its lease, as that of a run does."""
        of = cell(seed=len(self.leases), script=script)
        workdir = self.folder / "cells" / cell_id(of)
        self.leases.append(lease.acquire(workdir))
        job = Job(of.model_dump(mode="json"), cell_id(of), str(workdir), device=self.executor.device)
        self.events[job.token] = []
        return job

    def submit(self, job: Job) -> None:
        """Submits a job once the executor accepts one."""
        self.wait(lambda: self.executor.accepts(False), "it accepts no further job")
        if (place := self.executor.submit(job)) not in self.executor.places:
            raise CheckFailed(
                f"`submit` returned {place!r}, which is not among its places {list(self.executor.places)}"
            )

    def close(self) -> None:
        """Closes the executor, once."""
        if self.open:
            self.open = False
            self.executor.close()

    def look(self, seconds: float = 0.1) -> None:
        """Takes the events that have come."""
        for job, event in self.executor.poll(seconds):
            self.events[job.token].append(dict(event))

    def wait(self, until: Callable[[], bool], else_: str) -> None:
        """Takes events until something holds."""
        deadline = time.monotonic() + _PATIENCE
        while not until():
            if time.monotonic() > deadline:
                raise CheckFailed(f"within {_PATIENCE:g} s {else_}")
            self.look()

    def kinds(self, job: Job) -> list[str]:
        """Returns the kinds of a job's events so far."""
        return [event["event"] for event in self.events[job.token]]

    def ended(self, job: Job) -> bool:
        """Says whether a job has ended."""
        return bool(TERMINAL & {*self.kinds(job)})

    def run(self, *scripts: str) -> list[Job]:
        """Runs jobs to their end and a little longer."""
        jobs = [self.job(script) for script in scripts]
        for job in jobs:
            self.submit(job)
        self.wait(lambda: all(map(self.ended, jobs)), f"not every one of the jobs {scripts} has ended")
        self.look()
        return jobs

    def start_hanging(self) -> tuple[Job, int]:
        """Returns a job that has started and would never end, with the number of its process."""
        job = self.job("hang")
        self.submit(job)
        self.wait(lambda: "started" in self.kinds(job), "a job that was submitted has not started")
        return job, int((Path(job.workdir) / scripted_worker.PID).read_text())


@contextlib.contextmanager
def _bed(subject: PluginSubject, worker: Sequence[str] = _WORKER) -> Iterator[_Bed]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        bed = _Bed(subject, Path(folder), worker)
        try:
            yield bed
        finally:
            bed.close()
            for each in bed.leases:
                each.release()


def _expect_gone(pid: int, after: str) -> None:
    """Expects that a process ends; a zombie that nobody reaps counts as ended, and so does one elsewhere."""
    deadline = time.monotonic() + _GONE_SECONDS
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return
        except OSError:
            return
        time.sleep(0.05)
    raise CheckFailed(f"the worker's process still lives {_GONE_SECONDS:g} s after `{after}`")


@CHECKS.add
def contract(subject: PluginSubject) -> None:
    """The executor has a version, a summary, all hooks, a kind of device, and a label for each place.

    Fix: derive from `fcilbench.api.Executor`, and set `version`, `device` and `places`.
    """
    check_contract(subject, _HOOKS)
    with _bed(subject) as bed:
        device, places = bed.executor.device, bed.executor.places
        if device not in ("cpu", "cuda"):
            raise CheckFailed(f"its device is {device!r}, neither cpu nor cuda")
        if not places or not all(isinstance(place, str) and place for place in places):
            raise CheckFailed(f"its places are {places!r}, not texts")


@CHECKS.add
def torch_free(subject: PluginSubject) -> None:
    """Importing the executor does not import torch.

    Fix: import from `fcilbench.api`, which brings torch with the names of methods alone.
    """
    check_torch_free(subject)


@CHECKS.add
def one_end(subject: PluginSubject) -> None:
    """Each job is reported from `ready` and `started` to one last event, in order, and nothing after it.

    Fix: pass on what the worker reports with the job's token, up to the first event of `TERMINAL`.
    """
    ends = {"finish": "finished", "skip": "skipped", "fail": "failed"}
    with _bed(subject) as bed:
        for job, script in zip(bed.run(*ends), ends, strict=True):
            kinds = bed.kinds(job)
            expected = ["ready", "started", *(["round"] if script == "finish" else []), ends[script]]
            if kinds != expected:
                raise CheckFailed(f"of a job that reports {expected} it reports {kinds}")
        again = bed.run("finish")[0]
        if bed.kinds(again)[-1] != "finished":
            raise CheckFailed(f"a later job ends as {bed.kinds(again)}")


@CHECKS.add
def dead_worker(subject: PluginSubject) -> None:
    """A worker that dies ends its job as `died`, with a type and a reason of one line; other jobs go on.

    Fix: when the process, or its node, is gone without a last event, report `died(reason, type)`.
    """
    with _bed(subject) as bed:
        for job in bed.run("die", "exit", "finish"):
            last = bed.events[job.token][-1]
            wanted = "finished" if "finish" in str(job.cell["aggregator"]) else "died"
            if last["event"] != wanted or [kind for kind in bed.kinds(job) if kind in TERMINAL] != [wanted]:
                raise CheckFailed(f"a job that ends as {wanted} is reported as {bed.kinds(job)}")
            reason = str(last.get("reason", ""))
            if wanted == "died" and (not last.get("type") or not reason or "\n" in reason):
                raise CheckFailed(f"the death says {last}")


@CHECKS.add
def no_worker(subject: PluginSubject) -> None:
    """A worker that cannot be started ends its job as `died`, and raises nothing.

    Fix: catch OSError where the worker is started, and report `died(reason)`.
    """
    with _bed(subject, ["/nowhere/python"]) as bed:
        (job,) = bed.run("finish")
        if bed.kinds(job) != ["died"]:
            raise CheckFailed(f"a job without a worker is reported as {bed.kinds(job)}")


@CHECKS.add
def kill(subject: PluginSubject) -> None:
    """A job that is killed ends at once and is not reported any more; the next one runs, and a second kill is none.

    Fix: kill the worker's process in `kill`, forget the job's events, and free its place.
    """
    with _bed(subject) as bed:
        job, pid = bed.start_hanging()
        before = bed.kinds(job)
        bed.executor.kill(job)
        _expect_gone(pid, "kill")
        bed.executor.kill(job)
        (after,) = bed.run("finish")
        if bed.kinds(job) != before:
            raise CheckFailed(f"after `kill` it reports {bed.kinds(job)[len(before) :]} of the job")
        if bed.kinds(after)[-1] != "finished":
            raise CheckFailed(f"the job after a killed one ends as {bed.kinds(after)}")
        bed.executor.kill(after)


@CHECKS.add
def close(subject: PluginSubject) -> None:
    """Closing ends all jobs and their processes.

    Fix: kill every job that has not ended in `close`, and free what `__init__` took.
    """
    with _bed(subject) as bed:
        _, pid = bed.start_hanging()
        bed.close()
        _expect_gone(pid, "close")
    if pid == os.getpid():
        raise CheckFailed("the job ran in this process: what a plugin breaks would break the run")


@CHECKS.add
def quiet_poll(subject: PluginSubject) -> None:
    """Without jobs `poll` waits for about its timeout, and returns nothing.

    Fix: wait at most `timeout` seconds for events; do not spin.
    """
    with _bed(subject) as bed:
        begun = time.monotonic()
        found = bed.executor.poll(0.3)
        took = time.monotonic() - begun
    if found or not 0.2 <= took <= 10.0:
        raise CheckFailed(f"`poll(0.3)` took {took:.2f} s and returned {found}")
