"""Tunes the methods of a suite at equal budgets, and reads the studies that were made. Imports Optuna."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage

from fcilbench.errors import NothingSelectedError, PrerequisiteError
from fcilbench.execution.base import RunOptions
from fcilbench.execution.bf16 import slow_bf16
from fcilbench.execution.devices import choose_devices, default_jobs
from fcilbench.execution.summary import Summary
from fcilbench.execution.supervisor import Observer, supervise
from fcilbench.registry import catalog
from fcilbench.results.store import Store
from fcilbench.spec.identity import cell_id
from fcilbench.suite.load import LoadedSuite, load_suite
from fcilbench.suite.select import parse_selectors
from fcilbench.tracking.base import tracking_uri
from fcilbench.tuning.lock import StudyResult, results_of, rules_kept, write_lock
from fcilbench.tuning.search import Search
from fcilbench.tuning.study import Subject, open_storage, places_missing, storage_url, subjects_of, trial_suite
from fcilbench.workflow.screen import SILENT, Screen
from fcilbench.workflow.train import open_trackers


@dataclass(frozen=True)
class Tuned:
    """What a search has found.

    Attributes:
        studies: One for each method and scenario.
        lock: The lock file that was written.
        trouble: Why it stopped before its budget was spent, if no method is to blame.
    """

    studies: Sequence[StudyResult]
    lock: Path
    trouble: str | None
    interrupted: bool


def tune(
    suite: Path,
    out: Path,
    *,
    overrides: Sequence[str] = (),
    only: Sequence[str] = (),
    storage: str | None = None,
    gpus: str = "auto",
    jobs: int | None = None,
    options: RunOptions | None = None,
    tracking: str | None = None,
    screen: Screen = SILENT,
) -> Tuned:
    """Draws hyperparameters, trains each draw on tuning seeds, and writes the best ones to a lock file.

    Args:
        suite: Suite file; its `tuning:` section sets the budget.
        out: Results folder; the trials are in `tuning/` within it.
        overrides: Values of `-s`.
        only: Values of `--only`.
        storage: Database of the studies; `None` is a file beside the trials.
        gpus: Value of `--gpus`; it and `jobs` decide `devices` and `jobs` of the options.
        jobs: Cells at a time on each device; `None` is the number that suits it.
        options: How the cells are run.
        tracking: Value of `--tracking`.
        screen: Where it tells what it does.

    Raises:
        FcilbenchError: If the suite is wrong, or nothing is selected; trials that fail raise nothing.
    """
    devices = choose_devices(gpus)
    loaded, every, subjects = _subjects(suite, overrides, only)
    for subject in subjects:
        screen.say(_budget(subject))
    options = options or RunOptions()
    precisions = [cell.protocol.precision for subject in subjects for cell in subject.cells]
    if slow := slow_bf16(precisions, devices, options.executor):
        screen.warn(slow)
    store = Store(out / "tuning")
    store.prepare()
    trials = trial_suite(loaded.suite)
    jobs = jobs or default_jobs(devices, trials.runtime.threads)
    digest = store.save_suite(trials.model_dump(mode="json", exclude_none=True))
    options = replace(options, devices=tuple(devices), jobs=jobs, suite_digest=digest)
    database = open_storage(storage_url(store.root, storage))
    uri = tracking or f"mlflow={tracking_uri(out)}"
    observers: list[Observer] = [*open_trackers(store, uri, screen), screen.display()]
    facts = {
        "trials": sum(subject.trials for subject in subjects),
        "rounds": sum(subject.budget for subject in subjects),
    }
    with _writable(store):
        search, summary = Search(subjects, database, store, screen.say), Summary()
        if search.open:
            with contextlib.closing(search), catalog.session():
                supervise([], store, summary, trials.name, facts, observers=observers, options=options, feed=search)
        lock, results = _write_lock(loaded, every, store, database)
    names = {subject.name for subject in subjects}
    chosen = [result for result in results if result.subject.name in names]
    return Tuned(chosen, lock, search.trouble, summary.interrupted)


@contextlib.contextmanager
def _writable(store: Store) -> Iterator[None]:
    """Says in one line that the database of the studies could not be written."""
    try:
        yield
    except StorageInternalError as error:
        reason = str(error.__cause__ or error).partition("\n")[0]
        raise PrerequisiteError(
            f"the studies of {store.root} cannot be written: {reason}",
            hint="make room or grant access there; the same command continues where this one stopped",
        ) from error


def _write_lock(
    loaded: LoadedSuite, every: Sequence[Subject], store: Store, database: RDBStorage
) -> tuple[Path, list[StudyResult]]:
    """Writes the lock file of the whole suite, and returns it with what each study has found.

    Other commands may have tuned other parts of the suite, and `run` takes one file: it has them all. Of the parts that
    need what this machine lacks, it keeps what it has.
    """
    lock, results = store.root / f"{loaded.suite.name}.lock.yaml", results_of(every, database)
    write_lock(lock, results, rules_kept(lock, places_missing(loaded)) if lock.exists() else ())
    return lock, results


def studies(
    suite: Path,
    out: Path,
    *,
    overrides: Sequence[str] = (),
    only: Sequence[str] = (),
    storage: str | None = None,
) -> tuple[list[StudyResult], bool]:
    """Reads the studies of a suite; the arguments are those of `tune`. Trains nothing.

    Returns:
        What was found for each method and scenario; and whether there are only studies with other settings.

    Raises:
        NothingSelectedError: If there are no studies.
    """
    _, _, subjects = _subjects(suite, overrides, only)
    folder = out / "tuning"
    if storage is None and not (folder / "studies.db").is_file():
        raise NothingSelectedError(f"no studies in {folder}", hint="`fcilbench tune SUITE --out DIR` makes them")
    database = open_storage(storage_url(folder, storage))
    results = list(results_of(subjects, database))
    name = f"{subjects[0].cells[0].suite} "
    others = (study.study_name.startswith(name) for study in database.get_all_studies())
    return results, not any(result.finished for result in results) and any(others)


def _subjects(
    suite: Path, overrides: Sequence[str], only: Sequence[str]
) -> tuple[LoadedSuite, list[Subject], list[Subject]]:
    """Loads a suite and returns it with all its methods and scenarios, and with those that `--only` selects."""
    loaded, chosen = load_suite(suite, overrides), parse_selectors(only)
    every = subjects_of(loaded, chosen)
    firsts = [(subject, subject.cells[0]) for subject in every]
    subjects = [subject for subject, cell in firsts if chosen.matches(cell_id(cell), cell.coords)]
    if not subjects:
        message = chosen.why_nothing("the grid", [cell.coords for _, cell in firsts]) if firsts and only else None
        raise NothingSelectedError(message or "no method is selected", hint="look at the suite's exclude rules")
    return loaded, every, subjects


def _budget(subject: Subject) -> str:
    """Returns a line that says what a study may spend, and on what."""
    cell, name = subject.cells[0], " ".join(subject.where.values())
    if not subject.space:
        return f"{name}: no hyperparameters to tune, spends nothing"
    counts = {
        "trial": subject.trials,
        "seed": len(subject.cells),
        "task": subject.tasks,
        "round": cell.protocol.rounds,
    }
    product = " x ".join(f"{number} {word}{'s' * (number > 1)}" for word, number in counts.items())
    return f"{name}: {product} = at most {subject.budget} rounds; draws {', '.join(subject.space)}"
