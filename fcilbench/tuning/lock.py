"""Results and costs of the studies: the lock file that `run --params` takes, importances and plots."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.distributions import FloatDistribution
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState

from fcilbench.charts import budget, slices
from fcilbench.charts.draw import write
from fcilbench.charts.theme import LIGHT
from fcilbench.files import write_atomic
from fcilbench.suite.lock import content_digest, rules_of
from fcilbench.suite.schema import Draw, StudyRecord
from fcilbench.suite.yaml import InvalidSuiteError, parse
from fcilbench.tuning.study import Subject, attempts, best, origin

_HEAD = """\
# Written by `fcilbench tune`. Use it with `fcilbench run SUITE --params THIS_FILE`: rows then cite its digest.
# `trials: 0` means that a method has no hyperparameters to tune; an empty `set` leaves the suite's own values.
# It is a record: its digest shows if it was edited. Values of your own belong into a `tuned:` rule of your suite.
"""
_EDGE = 0.05
_PAGE = 640
"""Width of a picture of a study in pixels."""


@dataclass(frozen=True)
class StudyResult:
    """What the study of a subject has found so far.

    Attributes:
        study: The study; `None` if there is nothing to tune, or nothing has been tried.
        earlier: Other studies of this method and scenario in the database: with another space, code or protocol.
    """

    subject: Subject
    study: optuna.Study | None = None
    finished: tuple[FrozenTrial, ...] = ()
    earlier: tuple[StudyRecord, ...] = ()

    @property
    def skipped(self) -> str:
        """Why the method does not run in this scenario; empty if it does."""
        return str(self.study.user_attrs.get("skipped", "")) if self.study else ""

    @property
    def best(self) -> FrozenTrial | None:
        """The completed trial with the largest score; `None` before there is one."""
        return best(self.finished)

    @property
    def at_bounds(self) -> list[str]:
        """Keys whose best value lies in the outer 5 % of its range: better ones may lie outside."""
        keys = []
        for key, value in (self.best.params if self.best else {}).items():
            space = self.subject.space[key]
            if isinstance(space, FloatDistribution):
                scale = math.log if space.log else float
                place = (scale(value) - scale(space.low)) / (scale(space.high) - scale(space.low))
                keys += [key] if min(place, 1 - place) < _EDGE else []
        return keys

    @property
    def complete(self) -> bool:
        """Whether all of the budget's trials are finished."""
        return len(self.finished) == self.subject.trials or bool(self.skipped)

    @property
    def record(self) -> StudyRecord:
        """What the study spent and found, as the lock file and the rows cite it."""
        scored = f"faa/{self.subject.tuning.task_identity}" if self.subject.space else ""
        return _record(self.subject.name, self.finished, self.subject.budget, scored, self.subject.own)

    @property
    def rule(self) -> dict[str, Any]:
        """The rule of the lock file that gives the values."""
        values = {**self.subject.own, **self.best.params} if self.best else {}
        return {"where": self.subject.where, "set": values, "study": self.record.model_dump(mode="json")}

    @property
    def rules(self) -> list[dict[str, Any]]:
        """All rules of the lock file: those of earlier studies set nothing, but say what was spent.

        A method that could be tuned and has no finished trial has none: whatever was spent gave it no values.
        """
        if self.subject.space and not self.finished:
            return []
        spent = [record.model_dump(mode="json") for record in self.earlier]
        return [*({"where": self.subject.where, "set": {}, "study": study} for study in spent), self.rule]

    @property
    def importances(self) -> dict[str, float]:
        """Share of the score's variance that each hyperparameter explains (fANOVA); empty with too few trials."""
        scored = sum(trial.state is TrialState.COMPLETE for trial in self.finished)
        if self.study is None or len(self.subject.space) < 2 or scored <= len(self.subject.space):
            return {}
        with contextlib.suppress(ValueError, RuntimeError):
            evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
            return dict(optuna.importance.get_param_importances(self.study, evaluator=evaluator))
        return {}


def _record(
    name: str, finished: Sequence[FrozenTrial], budget: int, scored: str, own: Mapping[str, Any] | None = None
) -> StudyRecord:
    """Returns what a study spent and tried.

    With the suite's `own` values, which a draw has where it draws nothing, its best trial is the winner; without, it is
    a study whose values are not used, and all are losers.
    """
    content = [[origin(trial), trial.params, trial.state.name, trial.value] for trial in finished]
    winner, states = best(finished) if own is not None else None, [trial.state for trial in finished]
    rounds, seconds = (
        sum(float(trial.user_attrs.get(key, 0.0)) for trial in finished) for key in ("rounds", "seconds")
    )
    return StudyRecord(
        digest=f"sha256:{hashlib.sha256(json.dumps([name, content]).encode()).hexdigest()}",
        trials=len(states),
        losers=len(states) - (winner is not None),
        pruned=states.count(TrialState.PRUNED),
        failed=states.count(TrialState.FAIL),
        budget=budget,
        rounds=round(rounds),
        seconds=round(seconds, 1),
        score=winner.value if winner else None,
        scored=scored,
        draws=tuple(_draw(trial, own or {}) for trial in finished),
    )


def _draw(trial: FrozenTrial, own: Mapping[str, Any]) -> Draw:
    ends: Mapping[TrialState, Literal["pruned"] | None] = {TrialState.COMPLETE: None, TrialState.PRUNED: "pruned"}
    ended = ends.get(trial.state, "failed")
    rounds = round(float(trial.user_attrs.get("rounds", 0.0)))
    score = trial.value if trial.state is TrialState.COMPLETE else None
    return Draw(set={**own, **trial.params}, rounds=rounds, score=score, ended=ended)


def _earlier(subject: Subject, storage: RDBStorage) -> tuple[StudyRecord, ...]:
    """Returns the records of other studies of a subject's labels with finished trials, in the order of their start.

    The budget of a study that did not note it is what it spent.
    """
    same = re.compile(re.escape(subject.name.rpartition(" ")[0]) + " [0-9a-f]{12}")
    records = []
    for name in optuna.get_all_study_names(storage):
        if name == subject.name or not same.fullmatch(name):
            continue
        study = optuna.load_study(study_name=name, storage=storage)
        finished = [trial for trial in attempts(study.get_trials(deepcopy=False)) if trial.state.is_finished()]
        spent = round(sum(float(trial.user_attrs.get("rounds", 0.0)) for trial in finished))
        budget, scored = (study.user_attrs.get(key) for key in ("budget", "scored"))
        if finished:
            start = min(trial.datetime_start or datetime.max for trial in finished)
            records.append((start, _record(name, finished, int(budget or spent), str(scored or ""))))
    return tuple(record for _, record in sorted(records, key=lambda started: started[0]))


def results_of(subjects: Iterable[Subject], storage: RDBStorage) -> list[StudyResult]:
    """Returns what the study of each subject has found; a study that does not exist is not made."""
    results = []
    for subject in subjects:
        result = StudyResult(subject)
        if subject.space:
            with contextlib.suppress(KeyError):
                study = optuna.load_study(study_name=subject.name, storage=storage)
                last = attempts(study.get_trials(deepcopy=False), subject.trials)
                finished = tuple(trial for trial in last if trial.state.is_finished())
                result = StudyResult(subject, study, finished, _earlier(subject, storage))
        results.append(result)
    return results


def rules_kept(path: Path, places: Sequence[Mapping[str, str]]) -> list[dict[str, Any]]:
    """Returns the rules about some methods and scenarios in a lock file; none if it is not there or not valid."""
    try:
        lock = parse(path.read_bytes(), str(path))
        rules_of(lock, path)
    except (FileNotFoundError, InvalidSuiteError):
        return []
    return [rule for rule in lock.plain()["tuned"] if rule["where"] in places]


def write_lock(path: Path, results: Sequence[StudyResult], kept: Sequence[dict[str, Any]] = ()) -> None:
    """Writes the lock file: the rules of each method and scenario that runs (`StudyResult.rules`), and those `kept`.

    A digest covers them all.
    """
    from ruamel.yaml import YAML

    text, yaml = io.StringIO(), YAML()
    yaml.width = 1000
    rules = [*(rule for result in results if not result.skipped for rule in result.rules), *kept]
    digest = content_digest({"fcilbench": 1, "tuned": rules})
    for rule in rules:
        draws = rule["study"].get("draws", [])
        draws[:] = map(_in_one_line, draws)
    yaml.dump({"fcilbench": 1, "digest": digest, "tuned": rules}, text)
    write_atomic(path, _HEAD + text.getvalue())


def _in_one_line(draw: Mapping[str, Any]) -> Any:
    from ruamel.yaml.comments import CommentedMap

    line = CommentedMap(draw)
    line.fa.set_flow_style()
    return line


def plot(result: StudyResult, folder: Path) -> list[Path]:
    """Draws two PNG files of a study and returns them; none without two scores.

    They show the best score so far against the rounds spent, and the score against each hyperparameter.
    """
    scores = [each for each in result.finished if each.state is TrialState.COMPLETE and each.value is not None]
    if result.study is None or len(scores) < 2:
        return []
    where, scored = result.subject.where, result.record.scored
    draws = [(round(float(each.user_attrs.get("rounds", 0.0))), each.value) for each in result.finished]
    spaces = result.subject.space.items()
    logarithmic = [key for key, space in spaces if isinstance(space, FloatDistribution) and space.log]
    pictures = {
        "budget": (budget, budget.data({where["aggregator"]: draws}, scored)),
        "slices": (slices, slices.data([(each.params, each.value or 0.0) for each in scores], logarithmic, scored)),
    }
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for kind, (module, data) in pictures.items():
        files.append(folder / f"{'-'.join(where.values()).replace('/', '_')}-{kind}.png")
        write(module, data, " ".join(where.values()), files[-1], theme=LIGHT, width=_PAGE)
    return files
