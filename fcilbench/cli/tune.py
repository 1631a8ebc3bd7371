"""`fcilbench tune`: searches hyperparameters at equal budgets, and shows the results."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer
from typer.core import TyperGroup

from fcilbench.cli import console, options
from fcilbench.cli.terminal import SCREEN
from fcilbench.errors import CELLS_FAILED, INTERRUPTED, PrerequisiteError
from fcilbench.execution.base import RunOptions
from fcilbench.suite.lock import AXES
from fcilbench.tables import duration

if TYPE_CHECKING:
    from fcilbench.tuning.lock import StudyResult


class _SuiteFirst(TyperGroup):
    """A group in which `tune SUITE` means `tune start SUITE`."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        if args and args[0] not in (*self.commands, "--help"):
            args = ["start", *args]
        return super().parse_args(ctx, args)


app = options.group(
    "Tune the methods of a suite at equal budgets. `tune SUITE` is short for `tune start SUITE`.", cls=_SuiteFirst
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
    from fcilbench.workflow.studies import tune

    tuned = tune(
        suite,
        out,
        overrides=set_ or (),
        only=only or (),
        storage=storage,
        gpus=gpus,
        jobs=jobs,
        options=RunOptions(executor, offline=offline),
        tracking=tracking,
        screen=SCREEN,
    )
    _show(tuned.studies, options.Form.TABLE)
    unfinished = "" if all(study.complete for study in tuned.studies) else ", of unfinished studies"
    console.say(f"wrote {tuned.lock}{unfinished}")
    if tuned.interrupted:
        raise typer.Exit(INTERRUPTED)
    if tuned.trouble:
        raise PrerequisiteError(f"tuning stopped: {tuned.trouble}", hint="the same command continues up to the budget")
    same = [word for change in set_ or () for word in ("-s", change)]
    command = ["fcilbench", "run", str(suite), "--params", str(tuned.lock), "--out", str(out), *same]
    console.say(f"Next: {shlex.join(command)}")
    if any(study.subject.space and study.best is None and not study.skipped for study in tuned.studies):
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
    """Show the best values, their importances and the cost of each method and scenario; trains nothing.

    `own` is the score of the suite's own values, the first draw, and `score` that of the best one.
    """
    from fcilbench.tuning.lock import plot
    from fcilbench.workflow.studies import studies

    results, others = studies(suite, out, overrides=set_ or (), only=only or (), storage=storage)
    _show(results, form)
    if others:
        console.warn(
            "no trial has these settings and this code; studies with other settings are here: pass the same -s"
        )
    if plots is not None:
        for result in results:
            for file in plot(result, plots):
                console.say(f"wrote {file}")


def _show(results: Sequence[StudyResult], form: options.Form) -> None:
    rows, records = [], []
    for result in results:
        record, importances = result.record, result.importances
        values = result.rule["set"]
        state = f"{record.trials}/{result.subject.trials}" if result.subject.space else "none to tune"
        shown = ", ".join(
            f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}" for key, value in values.items()
        )
        shown = f"does not run: {result.skipped}" if result.skipped else shown
        ranking = ", ".join(f"{key.partition('.')[2]} {value:.2f}" for key, value in importances.items())
        own, score = record.draws[0].score if record.draws else None, record.score
        scores = ("" if each is None else f"{each:.4f}" for each in (own, score))
        spend = (f"{record.rounds}/{record.budget}", duration(record.seconds))
        counts = (state, record.pruned, record.failed)
        rows.append((*result.subject.where.values(), *counts, *spend, *scores, shown, ranking))
        records.append({**result.rule, "importances": importances, "skipped": result.skipped})
    headers = (*AXES, "trials", "pruned", "failed", "rounds", "time", "own", "score", "best", "importances")
    console.show_list(form, headers, rows, key="studies", records=records, right=range(5, 11))
    for result in results:
        name = " ".join(result.subject.where.values())
        if more := sum(record.trials for record in result.earlier):
            console.say(
                f"{name}: {more} draws of other studies of it are here; the lock file counts them, and boards do"
            )
        if result.at_bounds:
            keys = ", ".join(result.at_bounds)
            console.warn(f"{name}: the best {keys} lies at the end of its range; better values may lie outside")
