"""`fcilbench tune`: searches hyperparameters at equal budgets, and shows the results."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from fcilbench.cli import console, options
from fcilbench.cli.progress import RunProgress
from fcilbench.cli.run import open_trackers
from fcilbench.errors import CELLS_FAILED, INTERRUPTED, NothingSelectedError, PrerequisiteError
from fcilbench.execution.base import RunOptions
from fcilbench.execution.devices import choose_devices, default_jobs
from fcilbench.execution.supervisor import Observer, Summary, supervise
from fcilbench.registry import catalog
from fcilbench.results.store import Store
from fcilbench.spec.identity import cell_id
from fcilbench.suite.load import load_suite
from fcilbench.suite.select import parse_selectors
from fcilbench.tracking.base import tracking_uri

if TYPE_CHECKING:
    from fcilbench.tuning.lock import Found
    from fcilbench.tuning.study import Subject


class _SuiteFirst(TyperGroup):
    """A group in which `tune SUITE` means `tune start SUITE`."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        if args and args[0] not in (*self.commands, "--help"):
            args = ["start", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_SuiteFirst,
    no_args_is_help=True,
    help="Tune the methods of a suite at equal budgets. `tune SUITE` is short for `tune start SUITE`.",
)


@options.command(app, "tune start suites/quickstart.yaml -s tuning.trials=8")
def start(
    suite: options.SuiteFile,
    *,
    out: options.Out = options.RESULTS,
    set_: options.Set = None,
    only: options.Only = None,
    storage: options.Storage = None,
    gpus: options.Gpus = "auto",
    jobs: options.Jobs = None,
    executor: options.Executor = "local",
    data: options.Data = None,
    tracking: options.Tracking = None,
    offline: options.Offline = False,
) -> None:
    """Draw hyperparameters, train each draw on tuning seeds, and write the best ones to a lock file.

    The suite's `tuning:` section sets the budget, which is equal for every method and scenario. Scores come from a
    validation split of the training data; test data are never used. The same command again continues up to the budget;
    several processes may share the work. `fcilbench run SUITE --params LOCK` uses the result.
    """
    from fcilbench.tuning.lock import found_by
    from fcilbench.tuning.search import Search
    from fcilbench.tuning.study import open_storage, storage_url, trial_suite

    devices = choose_devices(gpus)
    loaded, subjects = _subjects(suite, set_, only)
    _say_budget(subjects)
    console.warn_of_bf16((cell.protocol.precision for each in subjects for cell in each.cells), devices, executor)
    store = Store(out / "tuning")
    store.prepare()
    trials = trial_suite(loaded.suite)
    jobs = jobs or default_jobs(devices, trials.runtime.threads)
    digest = store.save_suite(trials.model_dump(mode="json", exclude_none=True))
    settings = RunOptions(executor, tuple(devices), jobs, offline=offline, suite_digest=digest)
    database = open_storage(storage_url(store.root, storage))
    observers: list[Observer] = [*open_trackers(store, tracking or f"mlflow={tracking_uri(out)}"), RunProgress()]
    facts = {"trials": sum(each.trials for each in subjects), "rounds": sum(each.budget for each in subjects)}
    search, name, summary = Search(subjects, database, store, console.say), trials.name, Summary()
    if search.open:
        with contextlib.closing(search), catalog.session():
            supervise([], store, summary, name, facts, observers=observers, options=settings, feed=search)
    lock = store.root / f"{loaded.suite.name}.lock.yaml"
    same = [word for each in set_ or () for word in ("-s", each)]
    command = shlex.join(["fcilbench", "run", str(suite), "--params", str(lock), "--out", str(out), *same])
    _end(found_by(subjects, database), lock, command, search.trouble, summary.interrupted)


def _end(found: Sequence[Found], lock: Path, command: str, trouble: str | None, interrupted: bool) -> None:
    """Writes the lock file, shows what was found and the command that uses it; ends with the exit code of failures."""
    from fcilbench.tuning.lock import write_lock

    write_lock(lock, found)
    _show(found, options.Form.TABLE)
    console.say(f"wrote {lock}{'' if all(each.complete for each in found) else ', of unfinished studies'}")
    if interrupted:
        raise typer.Exit(INTERRUPTED)
    if trouble:
        raise PrerequisiteError(f"tuning stopped: {trouble}", hint="the same command continues up to the budget")
    console.say(f"Next: {command}")
    if any(each.subject.space and each.best is None and not each.skipped for each in found):
        raise typer.Exit(CELLS_FAILED)


@options.command(app, "tune show suites/quickstart.yaml --plots plots")
def show(
    suite: options.SuiteFile,
    *,
    out: options.Out = options.RESULTS,
    set_: options.Set = None,
    only: options.Only = None,
    storage: options.Storage = None,
    plots: options.Plots = None,
    data: options.Data = None,
    form: options.Format = options.Form.TABLE,
) -> None:
    """Show the best values, their importances and the cost of each method and scenario; trains nothing."""
    from fcilbench.tuning.lock import found_by, plot
    from fcilbench.tuning.study import open_storage, storage_url

    _, subjects = _subjects(suite, set_, only)
    folder = out / "tuning"
    if storage is None and not (folder / "studies.db").is_file():
        raise NothingSelectedError(f"no studies in {folder}", hint="`fcilbench tune SUITE --out DIR` makes them")
    database = open_storage(storage_url(folder, storage))
    found = found_by(subjects, database)
    _show(found, form)
    name = f"{subjects[0].cells[0].suite} "
    others = (each.study_name.startswith(name) for each in database.get_all_studies())
    if not any(each.finished for each in found) and any(others):
        console.warn(
            "no trial has these settings and this code; studies with other settings are here: pass the same -s"
        )
    if plots is not None:
        for each in found:
            for file in plot(each, plots):
                console.say(f"wrote {file}")


def _subjects(suite: Path, overrides: Sequence[str] | None, only: Sequence[str] | None) -> tuple[Any, list[Subject]]:
    """Loads a suite and returns it with the methods and scenarios that `--only` selects."""
    from fcilbench.tuning.study import subjects_of

    loaded, chosen = load_suite(suite, overrides or ()), parse_selectors(only or ())
    firsts = [(each, each.cells[0]) for each in subjects_of(loaded, chosen)]
    subjects = [each for each, cell in firsts if chosen.matches(cell_id(cell), cell.coords)]
    if not subjects:
        message = chosen.why_nothing("the grid", [cell.coords for _, cell in firsts]) if firsts and only else None
        raise NothingSelectedError(message or "no method is selected", hint="look at the suite's exclude rules")
    return loaded, subjects


def _say_budget(subjects: Sequence[Subject]) -> None:
    for each in subjects:
        cell, name = each.cells[0], " ".join(each.where.values())
        if each.space:
            counts = {"trial": each.trials, "seed": len(each.cells), "task": each.tasks, "round": cell.protocol.rounds}
            product = " x ".join(f"{number} {word}{'s' * (number > 1)}" for word, number in counts.items())
            console.say(f"{name}: {product} = at most {each.budget} rounds; draws {', '.join(each.space)}")
        else:
            console.say(f"{name}: no hyperparameters to tune, spends nothing")


def _show(found: Sequence[Found], form: options.Form) -> None:
    rows, records = [], []
    for each in found:
        record, importances = each.record, each.importances
        values = each.best.params if each.best else {}
        state = f"{record.trials}/{each.subject.trials}" if each.subject.space else "none to tune"
        shown = ", ".join(
            f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}" for key, value in values.items()
        )
        shown = f"does not run: {each.skipped}" if each.skipped else shown
        ranking = ", ".join(f"{key.partition('.')[2]} {value:.2f}" for key, value in importances.items())
        score = "" if record.score is None else f"{record.score:.4f}"
        spend = (f"{record.rounds}/{record.budget}", console.duration(record.seconds))
        rows.append((*each.subject.where.values(), state, record.pruned, record.failed, *spend, score, shown, ranking))
        records.append({**each.rule, "importances": importances, "skipped": each.skipped})
    axes = ("dataset", "backbone", "partition", "aggregator")
    headers = (*axes, "trials", "pruned", "failed", "rounds", "time", "score", "best", "importances")
    console.show_list(form, headers, rows, key="studies", records=records, right=range(5, 10))
    for each in found:
        name = " ".join(each.subject.where.values())
        if more := sum(record.trials for record in each.earlier):
            console.say(
                f"{name}: {more} draws of other studies of it are here; the lock file counts them, and boards do"
            )
        if each.at_bounds:
            keys = ", ".join(each.at_bounds)
            console.warn(f"{name}: the best {keys} lies at the end of its range; better values may lie outside")
