"""The supervisor: hands cells to an executor, watches clocks and leases, retries, and writes a row for every cell."""

from __future__ import annotations

import json
import logging
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import FrameType
from typing import TYPE_CHECKING, Any

from fcilbench.errors import PrerequisiteError
from fcilbench.execution import lease
from fcilbench.execution.assignments import (
    Assignment,
    End,
    Feed,
    claim,
    end_of,
    interrupted,
    make_ready,
    news,
    stopped,
)
from fcilbench.execution.base import Executor, Job, RunDisplay, RunOptions, executor_class
from fcilbench.execution.lease import Lease, Owner
from fcilbench.execution.summary import Summary
from fcilbench.registry.entrypoints import blaming, lookup
from fcilbench.results.provenance import Provenance, capture
from fcilbench.results.row import build_row
from fcilbench.results.store import Store
from fcilbench.spec.outcome import Cost
from fcilbench.spec.row import Row
from fcilbench.tracking.base import Tracker
from fcilbench.worker.events import TERMINAL

if TYPE_CHECKING:
    from fcilbench.suite.plan import Plan

_log = logging.getLogger(__name__)
_TICK = 0.2
Observer = Tracker | RunDisplay
_ANEW = "begun anew and not finished; the same command goes on with the cell"
_RESUMABLE = "the run was interrupted; the same command resumes the cell"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(eq=False)
class _Running:
    """An attempt in progress.

    Attributes:
        begun: Clock (`time.monotonic`) when the worker started with it, or when it was submitted.
        heard: Clock of the worker's last event, once it has started.
        used: Seconds that it had trained when it started again, as a job does that its scheduler requeues.
        deadline: Clock at which it is stopped, once the worker has started, if it has a limit.
    """

    assignment: Assignment
    job: Job
    lease: Lease
    begun: float
    heard: float | None = None
    used: float = 0.0
    deadline: float | None = None
    environment: Mapping[str, Any] = field(default_factory=dict)

    def start(self) -> None:
        """Sets the clocks: time that it waited to start again does not count, time that it trained before does."""
        if self.heard is not None:
            self.used += self.heard - self.begun
        self.begun = self.heard = time.monotonic()
        limit = self.assignment.cell.limits.wall_seconds
        self.deadline = None if limit is None else self.begun + limit - self.used


class Supervisor:
    """Runs assignments, in order, until each has its row; then those of the feed, until it closes.

    It calls the hooks of the observers, trackers and a `RunDisplay`, and fills the summary.
    """

    def __init__(
        self,
        assignments: Sequence[Assignment],
        store: Store,
        executor: Executor,
        options: RunOptions,
        summary: Summary,
        *,
        observers: Sequence[Observer],
        feed: Feed,
    ) -> None:
        self._waiting = deque(assignments)
        self._awaited: list[Assignment] = []  # another run works on them
        self._store, self._executor, self._options, self._feed = store, executor, options, feed
        self._summary, self._observers = summary, observers
        self._broken: set[int] = set()
        self._running: dict[Job, _Running] = {}
        self._stop: str | None = None
        self._next_beat = time.monotonic() + lease.HEARTBEAT_SECONDS
        self._provenance: dict[str, Provenance] = {}

    def run(self, suite: str, facts: Mapping[str, Any]) -> None:
        """Runs all assignments; returns when each has a row or is left to another process.

        Trackers get the name of the suite and facts about the run.
        """
        awaited = sum(assignment.awaited for assignment in self._waiting) if self._options.wait else 0
        self._tell("run_started", len(self._waiting) + self._feed.cells, self._executor.places, awaited)
        self._tell("suite_started", suite, facts)
        try:
            self._run()
        finally:
            self._tell("suite_finished", self._summary.interrupted)

    def _tell(self, hook: str, *arguments: Any, trackers: bool = True) -> None:
        """Calls a hook of all trackers and of the display, where they have it; logs the first exception of each."""
        for number, observer in enumerate(self._observers):
            if not (trackers or isinstance(observer, RunDisplay)):
                continue
            try:
                getattr(observer, hook, lambda *_: None)(*arguments)
            except Exception as error:  # an observer's failure must not end a run
                if number not in self._broken:
                    self._broken.add(number)
                    _log.warning("%s: %s: %s", type(observer).__name__, type(error).__name__, error)

    def _run(self) -> None:
        with self._signals_noted():
            try:
                while self._running or (self._more and not self._stop):
                    if self._summary.interrupted:
                        self._interrupt()
                        break
                    self._assign()
                    self._listen()
                    self._watch()
            finally:
                self._executor.close()
                for running in self._running.values():
                    running.lease.release()
            self._leave_waiting()

    def _leave_waiting(self) -> None:
        """Gives the cells that still wait their rows; one of an earlier run, or of another run since, stays last."""
        latest = self._store.latest() if self._waiting else {}
        for assignment in self._waiting:
            theirs = news(assignment, latest.get(assignment.cell_id))
            if theirs is not None:
                self._adopt(theirs, trackers=False)
            elif assignment.known is None or assignment.attempts:
                self._record(assignment, interrupted(self._stop or "not started"))

    @property
    def _more(self) -> bool:
        return bool(self._waiting or self._awaited or self._feed.open)

    def _assign(self) -> None:
        while not self._stop:
            if not self._executor.accepts(bool(self._waiting) and self._waiting[0].alone):
                return
            assignment = self._waiting.popleft() if self._waiting else self._feed.take()
            if assignment is None:
                return
            self._begin(assignment)

    def _begin(self, assignment: Assignment) -> None:
        """Starts an attempt, unless another run works on the cell or has finished it."""
        held = claim(assignment, self._store)
        if isinstance(held, Owner):
            self._summary.elsewhere[assignment.cell_id] = str(held)
            self._tell("note", f"cell {assignment.cell_id[:12]} is left to {held}, which works on it")
            if self._options.wait:
                self._awaited.append(assignment)
            return
        self._summary.elsewhere.pop(assignment.cell_id, None)
        if isinstance(held, Row):
            self._adopt(held, trackers=False)  # the run that trained the cell has told its own
            return
        if assignment.anew and assignment.attempts == 1:
            self._store.extend([self._row(assignment, interrupted(_ANEW))])  # true also if this run is killed
        make_ready(assignment, self._store)
        job = Job(
            cell=assignment.cell.model_dump(mode="json"),
            cell_id=assignment.cell_id,
            workdir=str(self._store.cell_dir(assignment.cell_id).absolute()),
            device=self._executor.device,
            offline=self._options.offline,
            alone=assignment.alone,
        )
        place = self._executor.submit(job)
        self._running[job] = _Running(assignment, job, held, time.monotonic())
        self._tell("cell_started", place, assignment.cell, assignment.cell_id, assignment.attempts)

    def _listen(self) -> None:
        for job, event in self._executor.poll(_TICK):
            running = self._running.get(job)
            if running is None:
                continue  # of a job that has ended meanwhile
            if event["event"] == "ready":
                running.environment = event.get("environment") or {}
            elif event["event"] == "started":
                running.start()
            elif event["event"] in TERMINAL:
                asked = self._summary.interrupted and event["event"] == "died"
                self._end(running, interrupted(_RESUMABLE) if asked else end_of(event, f"cells/{job.cell_id}"))
            else:
                self._tell("cell_event", job.cell_id, event)
                if reason := self._feed.reported(job.cell_id, event):
                    self._end(running, stopped("interrupted", "pruned", "pruned", reason))
            if running.heard is not None:
                running.heard = time.monotonic()

    def _watch(self) -> None:
        """Ends cells at their time limit, looks at other runs and renews the leases."""
        self._feed.beat()
        for assignment in [*self._awaited]:
            if lease.living_owner(self._store.cell_dir(assignment.cell_id)) is None:  # it is over, or has died
                self._awaited.remove(assignment)
                self._waiting.append(assignment)
        now = time.monotonic()
        for running in list(self._running.values()):
            if running.deadline is not None and now >= running.deadline:
                message = f"stopped after {running.assignment.cell.limits.wall_seconds:g} s, the suite's limits.wall"
                self._end(running, stopped("timeout", "timeout", "wall", message))
        if now < self._next_beat:
            return
        self._next_beat = now + lease.HEARTBEAT_SECONDS
        for running in list(self._running.values()):
            if not running.lease.beat():
                self._give_up(running)

    def _give_up(self, running: _Running) -> None:
        """Leaves a cell, and what becomes of it, to the run that took it over while this machine slept."""
        self._executor.kill(running.job)
        del self._running[running.job]
        running.lease.release()
        self._summary.elsewhere[running.assignment.cell_id] = "a run that took it over"
        self._tell("note", f"cell {running.assignment.cell_id[:12]} was taken over by another run")

    def _end(self, running: _Running, end: End) -> None:
        """Ends an attempt: the cell is tried again if the suite allows it and that may help, else it gets its row."""
        if not running.lease.beat():
            self._give_up(running)
            return
        assignment = running.assignment
        self._executor.kill(running.job)  # does nothing to a job that has ended
        del self._running[running.job]
        assignment.seconds += running.used + time.monotonic() - running.begun
        retry = end.status == "killed" or (end.status == "oom" and self._options.jobs > 1 and not assignment.alone)
        allowed = assignment.attempts <= assignment.cell.limits.retries
        if retry and allowed and not (self._stop or self._summary.interrupted):
            assignment.alone = assignment.alone or end.status == "oom"
            running.lease.release()
            reason = end.failure.message if end.failure else end.status
            self._tell("cell_retried", assignment.cell, assignment.cell_id, reason)
            self._waiting.append(assignment)  # retries come last: other cells do not wait for them
            return
        try:
            self._record(assignment, end, running)
            if end.status in ("ok", "failed"):  # no attempt continues it
                (self._store.cell_dir(assignment.cell_id) / "checkpoint.pt").unlink(missing_ok=True)
        finally:
            running.lease.release()
        if self._options.fail_fast and end.status not in ("ok", "skipped"):
            self._stop = self._stop or f"not started: --fail-fast after cell {assignment.cell_id[:12]} was {end.status}"

    def _interrupt(self) -> None:
        """Ends all jobs; the same command resumes their cells from the checkpoints."""
        self._stop = "not started: the run was interrupted"
        self._tell("note", "stopping: finished cells and saved rounds are kept")
        self._listen()  # a job may have ended just now
        for running in list(self._running.values()):
            self._end(running, interrupted(_RESUMABLE))

    def _record(self, assignment: Assignment, end: End, running: _Running | None = None) -> None:
        """Writes the row of an assignment; `running` is its last attempt, if there was one."""
        if running is not None:
            self._summary.ran.add(assignment.cell_id)
        self._adopt(self._store.append(self._row(assignment, end, running)))

    def _row(self, assignment: Assignment, end: End, running: _Running | None = None) -> Row:
        on_gpu = running is not None and self._executor.device == "cuda"
        return build_row(
            assignment.cell,
            assignment.cell_id,
            end.status,
            end.outcome,
            provenance=self._capture(running.environment if running else {}),
            started=assignment.started,
            ended=datetime.now(UTC),
            failure=end.failure,
            skipped=end.skipped,
            cost=None if end.outcome else Cost(wall_s=assignment.seconds, device_s=assignment.seconds * on_gpu),
            attempts=assignment.attempts + assignment.earlier,
            suite_digest=self._options.suite_digest,
        )

    def _adopt(self, row: Row, trackers: bool = True) -> None:
        """Shows a row that is in the store to trackers, display and feed."""
        self._summary.rows[row.cell_id] = row
        self._tell("cell_finished", row, trackers=trackers)
        self._feed.ended(row)

    def _capture(self, worker: Mapping[str, Any]) -> Provenance:
        """Returns where a row is computed, from what its worker reported; stores the environment once."""
        key = json.dumps(worker, sort_keys=True, default=repr)
        if key not in self._provenance:
            self._provenance[key] = capture(json.loads(key))
            self._store.save_environment(self._provenance[key].environment)
        return self._provenance[key]

    @contextmanager
    def _signals_noted(self) -> Iterator[None]:
        """Notes Ctrl-C, SIGTERM and SIGHUP for the loop to read, instead of raising exceptions in it.

        Python allows this in the main thread only; in another one it does nothing.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in _SIGNALS}
        before = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}  # nohup
        for number in before:
            signal.signal(number, self._note_interrupt)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note_interrupt(self, _number: int, _frame: FrameType | None) -> None:
        self._summary.interrupted = True


def run_plan(
    plan: Plan, store: Store, observers: Sequence[Observer] = (), options: RunOptions | None = None
) -> Summary:
    """Trains the cells that a plan marks, and returns the rows of all cells of the plan.

    A plan with nothing to run starts no process and tells no observer.
    """
    summary = Summary({item.cell_id: item.row for item in plan.items if item.row is not None})
    # Equal points of the grid are one cell. The run also waits for cells that other runs work on.
    todo = {item.cell_id: item for item in plan.items if item.run or item.awaited}
    if todo:
        assignments = [Assignment(item.cell, cell_id, item.row, item.awaited) for cell_id, item in todo.items()]
        facts = {"planned": len(plan.items), "to_run": len(todo)}
        supervise(assignments, store, summary, plan.expansion.name, facts, observers=observers, options=options)
    return summary


def supervise(
    assignments: Sequence[Assignment],
    store: Store,
    summary: Summary,
    suite: str,
    facts: Mapping[str, Any],
    *,
    observers: Sequence[Observer] = (),
    options: RunOptions | None = None,
    feed: Feed | None = None,
) -> None:
    """Runs assignments and those of a feed, and notes in the summary what becomes of them.

    `suite` is the name that trackers get, with `facts` about the run.

    Raises:
        PrerequisiteError: If the results folder can no longer be written; the same command continues later.
    """
    options = options or RunOptions()
    cls = executor_class(options.executor)
    with blaming(lookup("executors", options.executor.partition(",")[0])):
        executor = cls(options)
    supervisor = Supervisor(assignments, store, executor, options, summary, observers=observers, feed=feed or Feed())
    try:
        supervisor.run(suite, {**facts, "devices": list(options.devices), "jobs": options.jobs})
    except OSError as error:
        raise PrerequisiteError(
            f"results cannot be written: {error.filename or store.root}: {error.strerror or error}",
            hint="make room or grant access there; the same command continues where this run stopped",
        ) from error
