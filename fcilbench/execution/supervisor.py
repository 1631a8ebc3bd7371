"""The supervisor: hands cells to slots, watches clocks and leases, retries, and leaves a row for every cell."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from fcilbench.execution import lease, verdict
from fcilbench.execution.base import Executor, RunOptions
from fcilbench.execution.claim import claim, make_job
from fcilbench.execution.devices import Slot, facts_of
from fcilbench.execution.interrupt import Interrupts
from fcilbench.execution.lease import Owner
from fcilbench.execution.ledger import Ledger
from fcilbench.execution.messages import TERMINAL, Event
from fcilbench.execution.observers import Guard, Progress
from fcilbench.execution.schedule import Running, Schedule, Task, neighbours
from fcilbench.execution.verdict import Verdict
from fcilbench.spec.row import Row

_TICK = 0.2
_OVER = TERMINAL | {"died"}


class Supervisor:
    """Runs tasks until each has its row.

    Args:
        tasks: What to run, in order.
        ledger: Takes the rows.
        executor: Runs the jobs.
        progress: The display.
        options: How to run.

    Attributes:
        elsewhere: Cells that another living process works on, with that process.
        interrupts: How often the user asked to stop.
    """

    def __init__(
        self, tasks: Sequence[Task], ledger: Ledger, executor: Executor, progress: Progress, options: RunOptions
    ) -> None:
        self.elsewhere: dict[str, str] = {}
        self.interrupts = Interrupts()
        self._schedule = Schedule(tasks)
        self._ledger = ledger
        self._executor = executor
        self._options = options
        self._progress = progress
        self._show = Guard("progress display")
        self._running: dict[Slot, Running] = {}
        self._environments: dict[Slot, Mapping[str, Any]] = {}
        self._stop: str | None = None
        self._next_beat = time.monotonic() + lease.HEARTBEAT_SECONDS

    def run(self) -> None:
        """Runs all tasks; returns when each has a row or is left to another process."""
        with self.interrupts.caught():
            try:
                while (self._schedule and not self._stop) or self._running:
                    if self.interrupts.count:
                        self._interrupt()
                        break
                    self._assign()
                    self._listen(_TICK)
                    self._watch()
            finally:
                self._executor.close()
                for running in self._running.values():
                    running.lease.release()
            for task in self._schedule.drain():
                self._never_started(task)

    def _assign(self) -> None:
        for slot in self._executor.slots:
            while slot not in self._running and not self._stop:
                task = self._schedule.take(slot, self._running)
                if task is None:
                    break
                self._begin(task, slot)

    def _begin(self, task: Task, slot: Slot) -> None:
        """Starts an attempt, unless somebody else works on the cell or has finished it."""
        claimed = claim(task, self._ledger)
        if isinstance(claimed, Owner):
            self.elsewhere[task.cell_id] = str(claimed)
            self._show(self._progress.note, f"cell {task.cell_id[:12]} is left to {claimed}, which works on it")
            return
        if isinstance(claimed, Row):
            self._ledger.adopt(claimed, None)
            return
        if task.alone:
            for other in neighbours(slot, self._executor.slots):
                self._executor.kill(other)  # an idle worker still holds memory of the device
        now = time.monotonic()
        self._running[slot] = Running(task, slot, claimed.lease, now, deadline=now + self._options.start_seconds)
        self._show(self._progress.cell_started, slot, task.cell, task.cell_id, task.attempts)
        self._executor.submit(slot, make_job(claimed, task.cell, slot, self._options))

    def _listen(self, timeout: float) -> None:
        for message in self._executor.poll(timeout):
            slot, event = message.slot, message.event
            running = self._running.get(slot)
            if event["event"] == "ready":
                # nvidia-smi's words win over torch's: a plan reads them without torch and must know its hardware again
                self._environments[slot] = {**(event.get("environment") or {}), **facts_of(slot.visible)}
            elif running is None:
                continue  # said by a worker that was stopped meanwhile
            elif event["event"] == "started":
                limit = running.task.cell.limits.wall_seconds
                running.started = True
                running.deadline = None if limit is None else time.monotonic() + limit
            elif event["event"] in _OVER:
                self._over(running, event)
            else:
                self._show(self._progress.cell_event, slot, running.task.cell_id, event)

    def _over(self, running: Running, event: Event) -> None:
        if event["event"] in ("failed", "oom"):
            # Whatever went wrong may have left the process in a bad state; the next cell gets a new one.
            self._executor.kill(running.slot)
        self._end(running, verdict.judge(event, f"cells/{running.task.cell_id}"))

    def _watch(self) -> None:
        """Looks at the clocks and renews the leases."""
        now = time.monotonic()
        for running in list(self._running.values()):
            if running.deadline is not None and now >= running.deadline:
                self._executor.kill(running.slot)
                limit = running.task.cell.limits.wall_seconds
                late = running.started and limit is not None
                self._end(
                    running,
                    verdict.timed_out(limit or 0.0) if late else verdict.never_ready(self._options.start_seconds),
                )
        if now < self._next_beat:
            return
        self._next_beat = now + lease.HEARTBEAT_SECONDS
        for running in list(self._running.values()):
            if not running.lease.beat():  # this machine slept so long that another run took the cell over
                self._executor.kill(running.slot)
                del self._running[running.slot]
                self.elsewhere[running.task.cell_id] = "a run that took it over"
                self._show(self._progress.note, f"cell {running.task.cell_id[:12]} was taken over by another run")

    def _end(self, running: Running, end: Verdict) -> None:
        """Ends an attempt: with another one if the suite allows it and it may help, else with the cell's row."""
        task = running.task
        del self._running[running.slot]
        task.seconds += time.monotonic() - running.begun
        retry = end.status == "killed" or (end.status == "oom" and self._options.jobs > 1 and not task.alone)
        if retry and task.retries_left > 0 and not self._stop and not self.interrupts.count:
            task.alone = task.alone or end.status == "oom"
            running.lease.release()
            reason = end.failure.message if end.failure else end.status
            self._show(self._progress.cell_retried, running.slot, task.cell, task.cell_id, reason)
            self._schedule.add(task)
            return
        self._write(running, end)
        if self._options.fail_fast and end.status not in ("ok", "skipped"):
            self._stop = self._stop or f"not started: --fail-fast after cell {task.cell_id[:12]} was {end.status}"

    def _write(self, running: Running, end: Verdict) -> None:
        task = running.task
        self._ledger.record(task, end, running.slot, self._environments.get(running.slot, {}))
        if end.status == "ok":
            (self._ledger.store.cell_dir(task.cell_id) / "checkpoint.pt").unlink(missing_ok=True)
        running.lease.release()

    def _interrupt(self) -> None:
        """Ends all workers; the cells they were at go on from their checkpoints when the same command runs again."""
        self._stop = "not started: the run was interrupted"
        self._executor.ask_to_end()
        deadline = time.monotonic() + self._options.grace_seconds
        while self._running and time.monotonic() < deadline and self.interrupts.count < 2:
            for message in self._executor.poll(_TICK):
                running = self._running.get(message.slot)
                if running is None:
                    continue
                if message.event["event"] in TERMINAL:
                    self._over(running, message.event)
                elif message.event["event"] == "died":
                    self._stopped(running)
        for running in list(self._running.values()):
            self._executor.kill(running.slot)
            self._stopped(running)

    def _stopped(self, running: Running) -> None:
        del self._running[running.slot]
        running.task.seconds += time.monotonic() - running.begun
        self._write(running, verdict.interrupted("the run was interrupted; the same command resumes the cell"))

    def _never_started(self, task: Task) -> None:
        """Writes the row of a cell that nobody worked on, unless it has one: that must not be shadowed."""
        if task.known is None or task.attempts:
            end = verdict.interrupted(self._stop or "not started")
            self._ledger.record(task, end, None, {})
