"""The Optuna study of each method and scenario: its space, its cells with tuning seeds, its sampler and its pruner.

A study is found again by its name, which holds a digest of its cells, the code of their plugins and its space: with
another protocol, space, code or validation share it is another study.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import DBAPIError

from fcilbench.errors import PrerequisiteError, SuiteError, nearest
from fcilbench.registry import catalog
from fcilbench.registry.entrypoints import lookup
from fcilbench.spec.cell import Cell
from fcilbench.spec.identity import cell_id
from fcilbench.spec.params import SPACE, Space, search_space
from fcilbench.spec.protocol import Protocol
from fcilbench.suite.expand import expand, missing_lines
from fcilbench.suite.load import LoadedSuite
from fcilbench.suite.lock import AXES
from fcilbench.suite.resolve import GridEntry, read_entries, read_selectors, settings_of
from fcilbench.suite.schema import Scoring, SeedPlan, Suite, Tuning
from fcilbench.suite.select import Selector

GRACE_SECONDS = 30
"""Silence after which a running trial counts as lost."""
BEAT_SECONDS = 5
"""Time between two heartbeats of a running trial."""
_RANDOM_DRAWS = 5
"""Trials that TPE waits for: the suite's own values first, then random ones."""
_FIRST_RUNG = 3
"""Tasks after which the worse half of the trials is pruned: earlier, what learns fast looks better than what lasts."""
_SGD_RATES = (1e-4, 1e-1)
"""Learning rates that are drawn for `sgd`: published ones are larger than those of Adam and AdamW."""
SURPLUS = "surplus"
"""Mark of a trial that was drawn while another process drew the last one of the budget: it is none of the draws."""
_SEARCH = {"first": "own", "sampler": "tpe", "random": _RANDOM_DRAWS, "pruner": "halving", "rung": _FIRST_RUNG}

with warnings.catch_warnings():
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    retry_lost = RetryHeartbeatStaleTrialCallback(inherit_intermediate_values=True)
"""Queues the values of a lost trial as the next trial of its study."""


@dataclass(frozen=True)
class Subject:
    """One method in one scenario.

    Attributes:
        cells: Its cell for each tuning seed, with the suite's values.
        space: What may be drawn, by key of a `set` rule; empty if there is nothing to tune.
    """

    cells: tuple[Cell, ...]
    space: Mapping[str, BaseDistribution]
    tuning: Tuning

    @property
    def where(self) -> dict[str, str]:
        """Its labels on the axes but `stress`: the values are used under all stressors."""
        return {axis: str(self.cells[0].coords[axis]) for axis in AXES}

    @property
    def tasks(self) -> int:
        """Number of tasks T of the stream that each trial learns."""
        tasks = self.cells[0].tasks
        return len(tasks) if isinstance(tasks, tuple) else tasks or 1

    @property
    def trials(self) -> int:
        """Number of draws: none without a space."""
        return self.tuning.trials if self.space else 0

    @property
    def budget(self) -> int:
        """Communication rounds of all trials if none is pruned: trials x seeds x tasks x rounds."""
        return self.trials * len(self.cells) * self.tasks * self.cells[0].protocol.rounds

    @cached_property
    def own(self) -> dict[str, Any]:
        """The suite's own value of each key of the space, which the first draw takes."""
        cell, values = self.cells[0], {}
        for key in self.space:
            target, _, name = key.partition(".")
            values[key] = getattr(cell.protocol, name) if target == "protocol" else cell.aggregator.params.get(name)
        return values

    @cached_property
    def name(self) -> str:
        """Name of its Optuna study: another code, space or cell makes another study."""
        cells = [[cell_id(cell), *(use.code_digest for use in cell.plugins.values())] for cell in self.cells]
        record = [_SEARCH, cells, {k: repr(v) for k, v in self.space.items()}]
        digest = hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
        return f"{self.cells[0].suite} {' '.join(self.where.values())} {digest[:12]}"

    def drawn(self, values: Mapping[str, Any]) -> list[Cell]:
        """Returns the cells of a draw; raises SuiteError if its values do not go together."""
        split: dict[str, dict[str, Any]] = {"protocol": {}, "aggregator": {}}
        for key, value in values.items():
            target, _, name = key.partition(".")
            split[target][name] = value
        cells = []
        for cell in self.cells:
            use = cell.aggregator
            answer = catalog.resolve(lookup("aggregators", use.name), {**use.params, **split["aggregator"]})
            if answer.problems:
                raise SuiteError("; ".join(problem.message for problem in answer.problems))
            changed = use.model_copy(update={"params": answer.params, "identity": answer.identity})
            protocol = Protocol.model_validate({**cell.protocol.model_dump(), **split["protocol"]})
            cells.append(cell.model_copy(update={"aggregator": changed, "protocol": protocol}))
        return cells


def trial_suite(suite: Suite) -> Suite:
    """Returns the suite of the trials: own seeds, a validation split instead of the test data, only the first stressor.

    No seed of the trials is a seed of the suite.
    """
    tuning, seeds = suite.tuning, suite.seeds
    base = int.from_bytes(hashlib.sha256(f"fcilbench/tuning/{seeds.base}".encode()).digest()[:8], "big") >> 1
    stress = suite.grid.stress if "stress" in suite.grid.zip else suite.grid.stress[:1]
    return suite.model_copy(
        update={
            "name": f"{suite.name}-tuning",
            "grid": suite.grid.model_copy(update={"stress": stress}),
            "protocol": suite.protocol.model_copy(update={"validation": tuning.validation}),
            "seeds": SeedPlan(count=tuning.seeds, base=base, vary=seeds.vary),
            "evaluate": _scoring(suite),
            "boards": (),
        }
    )


def _scoring(suite: Suite) -> Scoring:
    """Returns what trials are evaluated under: the one task identity, or the one selector, that scores them.

    Raises:
        SuiteError: If the suite has no such selector.
    """
    identity, _, label = suite.tuning.task_identity.partition(":")
    only = Scoring.model_validate({"task_identity": [identity]})
    if not label:
        return only
    entries, _ = read_selectors(suite.evaluate.selectors)
    chosen = [each.written for each in entries if each.label == label]
    if not chosen:
        known = nearest(label, [each.label for each in entries])
        raise SuiteError(f"tuning.task_identity: evaluate.selectors has no {label!r}{known}")
    return only.model_copy(update={"selectors": (chosen[0].model_copy(update={"label": label}),)})


@catalog.session()
def subjects_of(loaded: LoadedSuite, only: Selector) -> list[Subject]:
    """Returns the methods and scenarios of a suite that `only` selects, in the order of its grid.

    Raises:
        InvalidSuiteError: If the suite is wrong.
        PrerequisiteError: If something that it needs is missing here.
    """
    trials = replace(loaded, suite=trial_suite(loaded.suite))
    expansion = expand(trials)
    if lines := missing_lines(each for each in expansion.blocked if only.matches("", each.coords)):
        raise PrerequisiteError(f"missing here: {'; '.join(lines)}", hint="`fcilbench doctor SUITE` says more")
    entries = {entry.label: entry for entry in read_entries(trials.suite.grid)[0]["aggregator"]}
    grouped: dict[tuple[str, ...], list[Cell]] = {}
    for each in expansion.cells:
        # No value of the suite may take the validation split away: trials would be scored on test data.
        split = each.protocol.model_copy(update={"validation": loaded.suite.tuning.validation})
        cell = each.model_copy(update={"protocol": split})
        grouped.setdefault(tuple(str(value) for axis, value in cell.coords.items() if axis != "seed"), []).append(cell)
    subjects = [
        Subject(tuple(cells), _space(entries[cells[0].aggregator.label], cells[0].protocol), loaded.suite.tuning)
        for cells in grouped.values()
    ]
    return list({subject.name: subject for subject in subjects}.values())


@catalog.session()
def places_missing(loaded: LoadedSuite) -> list[dict[str, str]]:
    """Returns the labels of the methods and scenarios that need something which this machine lacks."""
    blocked = expand(replace(loaded, suite=trial_suite(loaded.suite))).blocked
    return [{axis: str(each.coords[axis]) for axis in AXES} for each in blocked]


def _space(entry: GridEntry, protocol: Protocol) -> dict[str, BaseDistribution]:
    """Returns what may be drawn for an entry: all declared spaces except those of values that the entry gives."""
    (description,) = catalog.describe([entry.ref])
    facts, declared = description.facts, search_space(Protocol)
    rates = facts.get("lr_range") or (_SGD_RATES if protocol.optimizer == "sgd" else None)
    if rates:
        declared["lr"] = Space(low=rates[0], high=rates[1], log=True)
    space = {
        f"protocol.{name}": _distribution(found, "number")
        for name, found in declared.items()
        if facts.get("trains", True) and ("protocol", name) not in entry.settings
    }
    own = {name: setting.value for name, setting in settings_of("aggregator", entry.settings).items()}
    given = own.keys() | _of_preset(entry, own)
    for name, field in description.schema.get("properties", {}).items():
        if SPACE not in field or name in given:
            continue
        space[f"aggregator.{name}"] = _distribution(Space.model_validate(field[SPACE]), field.get("type", "number"))
    return space


def _of_preset(entry: GridEntry, own: Mapping[str, Any]) -> set[str]:
    """Returns the names of the options that the entry's preset sets: drawn values would turn it into something else."""
    if "preset" not in own:
        return set()
    rest = {name: value for name, value in own.items() if name != "preset"}
    without, with_it = (catalog.resolve(entry.ref, options).params for options in (rest, own))
    return {name for name, value in with_it.items() if value != without.get(name)}


def _distribution(space: Space, type_: str) -> BaseDistribution:
    if space.choices is not None:
        return CategoricalDistribution(space.choices)
    assert space.low is not None
    assert space.high is not None
    if type_ == "integer":
        return IntDistribution(int(space.low), int(space.high), log=space.log)
    return FloatDistribution(space.low, space.high, log=space.log)


class SeededTpe(optuna.samplers.BaseSampler):
    """The suite's own values first, then TPE, its random numbers keyed by study, parameter and number of the draw.

    So interruptions change no draw.
    """

    def __init__(self, seed: str, own: Mapping[str, Any]) -> None:
        self._seed, self._own = seed, own

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Returns an empty space: parameters are drawn one by one."""
        return {}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Draws nothing: there is no joint space."""
        return {}

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Draws one parameter."""
        number = draw_number(study.get_trials(deepcopy=False), origin(trial))
        if number == 0:
            return self._own[param_name]
        text = f"{self._seed}/{number}/{param_name}"
        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=_RANDOM_DRAWS)
        return sampler.sample_independent(study, trial, param_name, param_distribution)


class HalvingPruner(optuna.pruners.SuccessiveHalvingPruner):
    """Successive halving that leaves the first draw, the suite's own values, its end: the others are measured by it.

    A lost trial and its retry compete once: the retry stands for both.
    """

    def prune(self, study: optuna.Study, trial: FrozenTrial) -> bool:
        """Returns whether a trial is in the worse half after the tasks that it has reported."""
        once = copy(study)
        once.get_trials = lambda *_, **__: attempts(study.get_trials(deepcopy=False))  # type: ignore[method-assign]
        worse = super().prune(once, trial)  # also of the first: its score is noted, for the others
        return worse and draw_number(study.get_trials(deepcopy=False), origin(trial)) > 0


def origin(trial: FrozenTrial) -> int:
    """Returns the number of the trial that first drew these values: of a retry, the lost trial's."""
    number = RetryHeartbeatStaleTrialCallback.retried_trial_number(trial)
    return trial.number if number is None else number


def draw_number(trials: Iterable[FrozenTrial], number: int) -> int:
    """Returns how many draws came before a trial; retries of lost trials draw nothing, and those `SURPLUS` are none."""
    before = (trial for trial in trials if trial.number < number and SURPLUS not in trial.user_attrs)
    return sum(origin(trial) == trial.number for trial in before)


def attempts(trials: Iterable[FrozenTrial], total: int | None = None) -> list[FrozenTrial]:
    """Returns the last attempt at each of the first `total` draws (`None`: all), in the order of the draws."""
    last: dict[int, FrozenTrial] = {}
    for trial in sorted(trials, key=lambda each: each.number):
        if SURPLUS not in trial.user_attrs:
            last[origin(trial)] = trial
    return [last[number] for number in sorted(last)][:total]


def best(finished: Sequence[FrozenTrial]) -> FrozenTrial | None:
    """Returns the completed trial of the largest score, the earlier one of equals; failed and pruned ones never win."""
    known = [each for each in finished if each.state is TrialState.COMPLETE and math.isfinite(each.value or 0.0)]
    return max(known, key=lambda each: (each.value, -each.number), default=None)


def storage_url(folder: Path, option: str | None) -> str:
    """Returns where studies are kept: the option, else a SQLite file in the folder of the trials."""
    return option or f"sqlite:///{folder.resolve() / 'studies.db'}"


def open_storage(url: str, tries: int = 6) -> RDBStorage:
    """Opens the database of the studies; raises PrerequisiteError if that fails.

    It tries several times, because processes that create the tables of a new database at the same time disturb each
    other.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    for message in ("Heartbeat of storage is supposed", "The reported value is ignored"):  # ours beats, and resumes
        warnings.filterwarnings("ignore", message=message)
    options = {"connect_args": {"timeout": 60}} if url.startswith("sqlite") else {"pool_pre_ping": True}
    try:
        return RDBStorage(
            url,
            engine_kwargs=options,
            heartbeat_interval=BEAT_SECONDS,
            grace_period=GRACE_SECONDS,
            heartbeat_stale_trial_callback=retry_lost,
        )
    except Exception as error:  # of SQLAlchemy, or of a driver that is not installed
        if isinstance(error, DBAPIError) and tries > 1:
            time.sleep(random.uniform(0.1, 1.0))
            return open_storage(url, tries - 1)
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise PrerequisiteError(
            f"the database of the studies cannot be opened: {reason}",
            hint="--storage takes e.g. postgresql+psycopg://user@host/name, after pip install 'fcilbench[postgresql]'",
        ) from error


def open_study(subject: Subject, storage: RDBStorage) -> optuna.Study:
    """Opens or creates the study of a subject, which notes its budget and what scores it."""
    study = optuna.create_study(
        storage=storage,
        study_name=subject.name,
        load_if_exists=True,
        direction="maximize",
        sampler=SeededTpe(subject.name, subject.own),
        pruner=HalvingPruner(min_resource=_FIRST_RUNG, reduction_factor=2),
    )
    study.set_user_attr("budget", subject.budget)
    study.set_user_attr("scored", f"faa/{subject.tuning.task_identity}")
    return study


def ask(subject: Subject, study: optuna.Study) -> optuna.Trial:
    """Draws the next trial of a study.

    The first one has the suite's own values; of those that lie outside of their range, such as `null` for one that the
    method computes, nothing is drawn, so that it keeps them too.
    """
    trial = study.ask()
    trials = study.get_trials(deepcopy=False)
    first = draw_number(trials, origin(trials[trial.number])) == 0
    for key, space in subject.space.items():
        if not first or _holds(space, subject.own[key]):
            trial._suggest(key, space)
    return trial


def _holds(space: BaseDistribution, value: Any) -> bool:
    """Says whether a value can be drawn from a distribution."""
    if isinstance(space, CategoricalDistribution):
        return value in space.choices
    assert isinstance(space, FloatDistribution | IntDistribution)
    if not isinstance(value, int | float) or not space.low <= value <= space.high:
        return False
    return isinstance(space, FloatDistribution) or value == int(value)
