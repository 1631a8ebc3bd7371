"""The supervisor: hands cells to an executor, watches clocks and leases, retries, and leaves a row for every cell."""

from __future__ import annotations

import signal
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from fcilbench.execution import lease, rows
from fcilbench.execution.base import TERMINAL, Executor, Handle, Job, Progress, RunOptions
from fcilbench.execution.lease import Lease, Owner, take
from fcilbench.execution.rows import Feed, Result, RowWriter, Task
from fcilbench.spec.row import Row

_TICK = 0.2
_OVER = TERMINAL | {"died"}
_RESUMABLE = "the run was interrupted; the same command resumes the cell"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(eq=False)
class _Running:
    """An attempt in progress.

    Attributes:
        begun: Clock (`time.monotonic`) when the worker started with it, or when it was submitted.
        deadline: Clock at which it is stopped, once the worker has started, if it has a limit.
        environment: What the worker reported of its environment.
    """

    task: Task
    handle: Handle
    lease: Lease
    begun: float
    deadline: float | None = None
    environment: Mapping[str, Any] = field(default_factory=dict)


class Supervisor:
    """Runs tasks, in order, until each has its row; then those of the feed, until it closes.

    Attributes:
        elsewhere: Cells that another living process works on, with that process.
        interrupts: How often the user asked to stop: 0 go on, 1 end in good order, 2 or more end at once.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        writer: RowWriter,
        executor: Executor,
        progress: Progress,
        options: RunOptions,
        *,
        feed: Feed | None = None,
    ) -> None:
        self.elsewhere: dict[str, str] = {}
        self.interrupts = 0
        self._waiting = deque(tasks)
        self._alone: deque[Task] = deque()
        self._awaited: list[Task] = []  # another run works on them
        self._rows = writer
        self._executor = executor
        self._options = options
        self._device = executor.device
        self._progress = progress
        self._feed = feed or Feed()
        self._running: dict[Handle, _Running] = {}
        self._stop: str | None = None
        self._next_beat = time.monotonic() + lease.HEARTBEAT_SECONDS

    def run(self) -> None:
        """Runs all tasks; returns when each has a row or is left to another process."""
        with self._signals_counted():
            try:
                while (self._more and not self._stop) or self._running:
                    if self.interrupts:
                        self._interrupt()
                        break
                    self._assign()
                    self._listen()
                    self._watch()
            finally:
                self._executor.close()
                for running in self._running.values():
                    running.lease.release()
            for task in (*self._waiting, *self._alone):
                self._never_started(task)

    @property
    def _more(self) -> bool:
        return bool(self._waiting or self._alone or self._awaited or self._feed.open)

    def _assign(self) -> None:
        while not self._stop:
            # Tasks that need a device for themselves come last, so that devices run empty once and nobody starves.
            queue = self._waiting or self._alone
            if not self._executor.accepts(bool(queue) and queue[0].alone):
                return
            task = queue.popleft() if queue else self._feed.take()
            if task is None:
                return
            self._begin(task)

    def _begin(self, task: Task) -> None:
        """Starts an attempt, unless somebody else works on the cell or has finished it."""
        held = take(task, self._rows)
        if isinstance(held, Owner):
            self.elsewhere[task.cell_id] = str(held)
            self._progress.note(f"cell {task.cell_id[:12]} is left to {held}, which works on it")
            if self._options.wait:
                self._awaited.append(task)
            return
        self.elsewhere.pop(task.cell_id, None)
        if isinstance(held, Row):
            self._rows.adopt(held, None)
            self._feed.ended(held)
            return
        job = Job(
            cell=task.cell.model_dump(mode="json"),
            cell_id=task.cell_id,
            workdir=str(self._rows.store.cell_dir(task.cell_id).absolute()),
            device=self._device,
            offline=self._options.offline,
            alone=task.alone,
        )
        handle = self._executor.submit(job)
        self._running[handle] = _Running(task, handle, held, time.monotonic())
        self._progress.cell_started(handle, task.cell, task.cell_id, task.attempts)

    def _listen(self) -> None:
        for handle, event in self._executor.poll(_TICK):
            running = self._running.get(handle)
            if running is None:
                continue  # of a job that was ended meanwhile
            if event["event"] == "ready":
                running.environment = event.get("environment") or {}
            elif event["event"] == "started":
                limit = running.task.cell.limits.wall_seconds
                running.begun = time.monotonic()
                running.deadline = None if limit is None else running.begun + limit
            elif event["event"] in _OVER:
                asked = self.interrupts and event["event"] == "died"
                folder = f"cells/{running.task.cell_id}"
                self._end(running, rows.interrupted(_RESUMABLE) if asked else rows.result_of(event, folder))
            else:
                self._progress.cell_event(handle, running.task.cell_id, event)
                if reason := self._feed.reported(running.task.cell_id, event):
                    self._executor.kill(handle)
                    self._end(running, rows.ended_early(reason))

    def _watch(self) -> None:
        """Looks at the clocks and at other runs, and renews the leases."""
        self._feed.beat()
        for task in [*self._awaited]:
            if lease.living_owner(self._rows.store.cell_dir(task.cell_id)) is None:  # it is over, or has died
                self._awaited.remove(task)
                self._waiting.append(task)
        now = time.monotonic()
        for running in list(self._running.values()):
            if running.deadline is not None and now >= running.deadline:
                self._executor.kill(running.handle)
                self._end(running, rows.timed_out(running.task.cell.limits.wall_seconds or 0.0))
        if now < self._next_beat:
            return
        self._next_beat = now + lease.HEARTBEAT_SECONDS
        for running in list(self._running.values()):
            if not running.lease.beat():  # this machine slept so long that another run took the cell over
                self._executor.kill(running.handle)
                del self._running[running.handle]
                running.lease.release()
                self.elsewhere[running.task.cell_id] = "a run that took it over"
                self._progress.note(f"cell {running.task.cell_id[:12]} was taken over by another run")

    def _end(self, running: _Running, end: Result) -> None:
        """Ends an attempt: with another one if the suite allows it and it may help, else with the cell's row."""
        task = running.task
        del self._running[running.handle]
        task.seconds += time.monotonic() - running.begun
        retry = end.status == "killed" or (end.status == "oom" and self._options.jobs > 1 and not task.alone)
        if retry and task.retries_left > 0 and not self._stop and not self.interrupts:
            task.alone = task.alone or end.status == "oom"
            running.lease.release()
            reason = end.failure.message if end.failure else end.status
            self._progress.cell_retried(running.handle, task.cell, task.cell_id, reason)
            # At the end: what failed once may pass later, and nobody waits for it meanwhile.
            (self._alone if task.alone else self._waiting).append(task)
            return
        try:
            row = self._rows.record(task, end, running.handle, self._device, running.environment)
            if end.status in ("ok", "failed"):  # nothing goes on from it
                (self._rows.store.cell_dir(task.cell_id) / "checkpoint.pt").unlink(missing_ok=True)
        finally:
            running.lease.release()
        self._feed.ended(row)
        if self._options.fail_fast and end.status not in ("ok", "skipped"):
            self._stop = self._stop or f"not started: --fail-fast after cell {task.cell_id[:12]} was {end.status}"

    def _interrupt(self) -> None:
        """Ends all jobs; the cells they were at go on from their checkpoints when the same command runs again."""
        self._stop = "not started: the run was interrupted"
        self._executor.ask_to_end()
        deadline = time.monotonic() + self._options.grace_seconds
        while self._running and time.monotonic() < deadline and self.interrupts < 2:
            self._listen()
        for running in list(self._running.values()):
            self._executor.kill(running.handle)
            self._end(running, rows.interrupted(_RESUMABLE))

    def _never_started(self, task: Task) -> None:
        """Writes the row of a cell that nobody worked on, unless it has one: that must not be shadowed."""
        if task.known is None or task.attempts:
            self._feed.ended(self._rows.record(task, rows.interrupted(self._stop or "not started")))

    @contextmanager
    def _signals_counted(self) -> Iterator[None]:
        """Makes Ctrl-C, SIGTERM and a closed terminal wishes that the loop reads, not exceptions amid its work.

        Outside the main thread, where that is impossible, it does nothing.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in _SIGNALS}
        before = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}  # nohup
        for number in before:
            signal.signal(number, self._count_interrupt)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _count_interrupt(self, _number: int, _frame: FrameType | None) -> None:
        self.interrupts += 1
