"""Runs the trials: a feed that gives the supervisor the cells of the next draw, prunes and scores them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import optuna
from optuna.storages import RDBStorage, fail_stale_trials
from optuna.trial import TrialState

from fcilbench.errors import SuiteError
from fcilbench.execution.assignments import Assignment, Feed
from fcilbench.results.stale import stale_rows
from fcilbench.results.store import Store
from fcilbench.spec.cell import Cell
from fcilbench.spec.identity import cell_id
from fcilbench.spec.row import Row
from fcilbench.suite.plan import state_of
from fcilbench.tuning.study import (
    BEAT_SECONDS,
    GRACE_SECONDS,
    SURPLUS,
    Subject,
    ask,
    attempts,
    draw_number,
    open_study,
    origin,
    retry_lost,
)
from fcilbench.worker.events import Event

_LOOK_SECONDS = 2.0
"""Time between two looks at the trials of other processes while this one is idle."""
Say = Callable[[str], None]


@dataclass
class _Attempt:
    """A trial that this process runs, one tuning seed after the other.

    Attributes:
        scores: Final score of each tuning seed so far.
    """

    subject: Subject
    study: optuna.Study
    trial: optuna.Trial
    cells: Sequence[Cell]
    scores: list[float] = field(default_factory=list)
    rounds: int = 0
    seconds: float = 0.0


class Search(Feed):
    """Draws trials, first for the method with the fewest, until each study has its total or cannot go on.

    Attributes:
        trouble: Why it stopped early, if no method is to blame.
    """

    def __init__(self, subjects: Iterable[Subject], storage: RDBStorage, store: Store, say: Say) -> None:
        self.trouble: str | None = None
        self._storage, self._store, self._say = storage, store, say
        self._studies = [(subject, open_study(subject, storage)) for subject in subjects if subject.space]
        self._known = store.latest()
        self._stale = stale_rows(self._known.values())
        self._ready: list[_Attempt] = []
        self._running: dict[str, _Attempt] = {}
        self._unfinished = bool(self._studies)
        self._next_look = self._next_beat = 0.0

    @property
    def cells(self) -> int:
        """Number of cells that are left to train if no trial is pruned."""
        left = 0
        for subject, study in self._studies:
            found = attempts(study.get_trials(deepcopy=False), subject.trials)
            left += (subject.trials - sum(each.state.is_finished() for each in found)) * len(subject.cells)
        return left

    @property
    def open(self) -> bool:
        """Whether draws are left, here or in another process, whose trials may still be lost."""
        return bool(self._ready or self._running) or (self._unfinished and self.trouble is None)

    def take(self) -> Assignment | None:
        """Returns the next cell of a running trial, or else the first cell of a new draw."""
        while True:
            attempt = self._ready.pop(0) if self._ready else self._draw()
            if attempt is None:
                return None
            cell = attempt.cells[len(attempt.scores)]
            key = cell_id(cell)
            self._running[key] = attempt
            known = self._known.get(key)
            if state_of(known, self._stale.get(key, ()))[0] != "done" or known is None:
                return Assignment(cell, key, known)
            self.ended(known)  # an earlier run has trained it

    def reported(self, cell_id: str, event: Event) -> str | None:
        """Reports the accuracy after each task to the study, and returns a reason if the trial is pruned."""
        attempt = self._running.get(cell_id)
        if attempt is None or event["event"] != "task":
            return None
        found = event["accuracy"][attempt.subject.tuning.task_identity]
        tasks, done = attempt.subject.tasks, len(attempt.scores)
        step = done * tasks + int(event["task"]) + 1
        value = statistics.fmean([*attempt.scores, statistics.fmean(found)])
        try:
            attempt.trial.report(value, step)
            if step == tasks * len(attempt.cells) or not attempt.trial.should_prune():
                return None
        except optuna.exceptions.UpdateFinishedTrialError:  # another process gave it up, and waits for this cell
            return None
        return f"pruned after task {event['task'] + 1} of {tasks}: accuracy {value:.4f} is not in the better half"

    def ended(self, row: Row) -> None:
        """Scores a cell that has ended, and its trial after the last one."""
        attempt = self._running.pop(row.cell_id, None)
        if attempt is None:
            return
        self._known[row.cell_id] = row
        self._stale.pop(row.cell_id, None)
        attempt.rounds += sum(record.get("event") == "round" for record in self._store.rounds(row.cell_id))
        attempt.seconds += row.cost.wall_s
        failure = row.failure.kind if row.failure else ""
        if row.status == "ok":
            self._score(attempt, row)
        elif failure == "pruned":
            (self._store.cell_dir(row.cell_id) / "checkpoint.pt").unlink(missing_ok=True)
            self._tell(attempt, TrialState.PRUNED)
        elif row.status == "interrupted" or failure == "prerequisite":
            self.trouble = row.failure.message if row.failure else row.status
            self._hand_back(attempt.study, attempt.trial.number)
        else:
            if row.skipped:
                attempt.study.set_user_attr("skipped", row.skipped)
            self._tell(attempt, TrialState.FAIL, row.skipped or (row.failure.message if row.failure else row.status))

    def beat(self) -> None:
        """Records the heartbeat of each trial that this process runs."""
        if time.monotonic() < self._next_beat:
            return
        self._next_beat = time.monotonic() + BEAT_SECONDS
        for attempt in (*self._ready, *self._running.values()):
            self._storage.record_heartbeat(attempt.trial._trial_id)

    def close(self) -> None:
        """Queues the unfinished trials of this process again; the next process continues them."""
        for attempt in (*self._ready, *self._running.values()):
            self._hand_back(attempt.study, attempt.trial.number)

    def _draw(self) -> _Attempt | None:
        if self.trouble or time.monotonic() < self._next_look:
            return None
        for subject, study in sorted(self._studies, key=self._turn):
            attempt = self._ask(subject, study)
            if attempt is not None:
                return attempt
        self._next_look = time.monotonic() + _LOOK_SECONDS
        self._unfinished = sum(self._waits(subject, study) for subject, study in self._studies) > 0
        return None

    def _turn(self, of: tuple[Subject, optuna.Study]) -> tuple[int, int]:
        """Orders studies: those without a running trial of this process first, so that a draw knows all scores."""
        mine = sum(attempt.study is of[1] for attempt in self._running.values())
        return mine, len(attempts(of[1].get_trials(deepcopy=False), of[0].trials))

    def _ask(self, subject: Subject, study: optuna.Study) -> _Attempt | None:
        """Takes the study's next trial unless it has its total, which other processes may fill at the same time."""
        trials = study.get_trials(deepcopy=False)
        full = len(attempts(trials, subject.trials)) == subject.trials
        if (full and all(each.state is not TrialState.WAITING for each in trials)) or "skipped" in study.user_attrs:
            return None
        trial = ask(subject, study)
        self._storage.record_heartbeat(trial._trial_id)
        trial.set_user_attr("beats", trial.number)
        trials = study.get_trials(deepcopy=False)
        if draw_number(trials, origin(trials[trial.number])) >= subject.trials:
            trial.set_user_attr(SURPLUS, True)  # another process was faster with the last draw
            study.tell(trial, state=TrialState.FAIL)
            return None
        try:
            return _Attempt(subject, study, trial, subject.drawn(trial.params))
        except SuiteError as error:
            self._tell(_Attempt(subject, study, trial, ()), TrialState.FAIL, str(error))
            return None

    def _waits(self, subject: Subject, study: optuna.Study) -> bool:
        """Queues trials of dead processes again, and returns whether the study has unfinished trials."""
        if "skipped" in study.user_attrs:
            return False
        fail_stale_trials(study)
        oldest = datetime.now() - timedelta(seconds=GRACE_SECONDS)
        for each in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            beats = each.user_attrs.get("beats") == each.number
            if not beats and each.datetime_start and each.datetime_start < oldest:
                self._hand_back(study, each.number)  # its process died before its first heartbeat
        found = attempts(study.get_trials(deepcopy=False), subject.trials)
        return len(found) < subject.trials or not all(each.state.is_finished() for each in found)

    def _score(self, attempt: _Attempt, row: Row) -> None:
        identity = attempt.subject.tuning.task_identity
        metric = row.metrics.get(f"faa/{identity}")
        if metric is None or metric.value is None:
            self._tell(attempt, TrialState.FAIL, "its accuracy is undefined")
            return
        attempt.scores.append(metric.value)
        if len(attempt.scores) < len(attempt.cells):
            self._ready.append(attempt)
        else:
            self._tell(attempt, TrialState.COMPLETE)

    def _tell(self, attempt: _Attempt, state: TrialState, reason: str = "") -> None:
        """Ends a trial in its study, unless another process has given it up meanwhile."""
        value = statistics.fmean(attempt.scores) if state is TrialState.COMPLETE else None
        facts = {"rounds": attempt.rounds, "seconds": attempt.seconds, "reason": reason}
        try:
            for name, fact in facts.items():
                attempt.trial.set_user_attr(name, fact)
        except optuna.exceptions.UpdateFinishedTrialError:
            return
        attempt.study.tell(attempt.trial, value, state=state, skip_if_finished=True)
        score = "" if value is None else f" {value:.4f}"
        name = f"{' '.join(attempt.subject.where.values())} trial {attempt.trial.number}"
        self._say(f"{name} {state.name.lower()}{score}{f': {reason}' if reason else ''}")

    def _hand_back(self, study: optuna.Study, number: int) -> None:
        """Ends a trial that is not to blame, and queues its values again."""
        if study.get_trials(deepcopy=False)[number].state is TrialState.RUNNING:
            study.tell(number, state=TrialState.FAIL, skip_if_finished=True)
            retry_lost(study, study.trials[number])
