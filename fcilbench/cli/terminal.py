"""The terminal as the screen of a workflow, and how a run that has ended is shown on it. Without Typer."""

from __future__ import annotations

from fcilbench.boards.render import brief, render
from fcilbench.cli import console
from fcilbench.cli.progress import RunProgress, ending
from fcilbench.workflow.screen import Screen
from fcilbench.workflow.train import Run

SCREEN = Screen(console.say, console.warn, RunProgress)


def show_run(run: Run) -> None:
    """Prints what of each board of a run fits one screen, then says what became of its cells."""
    prepared, summary = run.prepared, run.summary
    for board in run.boards:
        console.show(render(brief(board), width=console.width()))
    counts = ", ".join(f"{number} {status}" for status, number in sorted(summary.counts.items()))
    good = sum(summary.rows[cell_id].status == "ok" for cell_id in summary.ran)
    trained = f"{len(summary.ran)} trained in this run" + (f", {good} of them ok" if good < len(summary.ran) else "")
    console.say(f"{prepared.plan.expansion.name}: {counts or 'no rows'}; {trained}")
    for row in summary.rows.values():
        if row.status != "ok":
            console.say(f"  {ending(row)}")
        if row.failure and row.failure.traceback_path:
            console.say(f"    traceback: {prepared.store.root / row.failure.traceback_path}")
    for cell_id, owner in summary.elsewhere.items():
        console.say(f"  elsewhere {cell_id[:12]}  {owner}")
    console.say(f"rows in {prepared.store.rows_path}; `fcilbench show ID` prints one")
    if summary.counts["ok"]:
        console.say(
            f"Next: open {prepared.store.root / 'report.html'}; its notes say what a claim must beat (controls, ‡) and "
            "what is not ranked (centralised training, §), "
            "its learning curves where a method forgets"
        )
